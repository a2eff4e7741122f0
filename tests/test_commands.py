"""Every command and snippet on the pages is run in miniature, or it says here why it is not.

Commands of photos and embeddings run as they are, on forty pictures of 8 pixels and 60 rows.
Trainings and experiments are started, to their first line of work: test_configs_run.py trains by
every config, test_tutorials.py runs the tutorials, and slow tests run the experiments.
"""

import ast
import functools
import importlib
import inspect
import io
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import webbrowser

import numpy as np
import pytest

import cluster_jax
from cluster_jax import Encoder, ImageClusterer, SmoothTree, losses, samplers
from cluster_jax.cli import app, cluster, embed, images, update
from cluster_jax.core import checks, collectives, schedules
from cluster_jax.core import io as files
from cluster_jax.core.config import load_config
from cluster_jax.encoding import encoder
from cluster_jax.methods import base, encoders
from cluster_jax.runs import begin
from cluster_jax.runs import run as records
from cluster_jax.training.config import config_json, parse_config
from experiments import living, peers, registry, run, tables
from experiments.benchmark import __main__ as benchmark
from experiments.benchmark import decode, evaluation, gridshift, memory, step, topology
from experiments.benchmark import embed as bench_embed
from experiments.number_of_clusters import __main__ as numbers
from experiments.number_of_clusters import generate, many, probabilities
from experiments.real import __main__ as real
from experiments.tutorials import __main__ as tutorials
from tests import toy
from tests.cli.test_images import QUICK
from tests.test_own_parts import EXAMPLES

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "experiments").rglob("*.md")),
)
DOCUMENTED = (*sorted(ROOT.glob("configs/*.py")), *sorted(ROOT.glob("experiments/**/*.py")))
OTHER_PROGRAMS = ("curl", "embedding-atlas", "fastapi", "srun", "uv")
PROGRAMS = "cluster-jax|python3? -m|pip|tfds|gcloud|pytest|pdoc|bash|git|source|mypy|ruff"
PROGRAMS += f"|{'|'.join(OTHER_PROGRAMS)}|experiments\\.[a-z._]+"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def text_of(page):
    """The text of a page; of the changelog what is not released: a release has its own commands."""
    return page.read_text().partition("\n## [")[0] if page.stem == "CHANGELOG" else page.read_text()


def fences(text, *languages):
    """The fenced blocks of a page, those in some languages."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.M | re.S)
    return [block for language, block in found if language in languages]


def scripts(file):
    """The lines of shell on a page, or in a docstring; commands that are code in a sentence."""
    text = text_of(file)
    if file.suffix == ".py":
        if "tutorials" in file.parts and file.stem != "__main__":
            return []  # whose page is read
        text = ast.get_docstring(ast.parse(text)) or ""
        blocks = re.findall(rf"^    (?:{PROGRAMS}) (?:[^\\\n]|\\\n)*", text, flags=re.M)
    else:
        blocks = fences(text, "bash", "sh", "console")
        text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    spans = re.findall(rf"`((?:\.venv/bin/)?(?:{PROGRAMS})\s[^`]*)`", text)
    return [*blocks, *(" ".join(span.split()) for span in spans)]


def commands(script):
    """The words of each command of a shell script, and of a script that one hands on."""
    script = re.sub(r"(^|\s)#.*$", "", script.replace("\\\n", " "), flags=re.M)
    lexer = shlex.shlex(io.StringIO(script), posix=True, punctuation_chars=";&\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    found = [[]]
    for word in lexer:
        if set(word) <= set(";&\n"):
            found.append([])
        else:
            found[-1].append(word)
    for words in filter(None, map(plain, found)):
        yield words
        for word in words:
            if word.startswith("--command=") and "..." not in word:
                yield from commands(word.partition("=")[2])


def plain(words):
    """The same command, in one way of the several to type it."""
    while words and (words[0] == "export" or re.match(r"[A-Z_]+=", words[0])):
        words = words[1:]
    if not words:
        return ()
    program = words[0].removeprefix(".venv/bin/")
    if program in ("python", "python3") and words[1:2] == ["-m"]:
        module, rest = words[2], words[3:]
        known = {"cluster_jax": ["cluster-jax"], "cluster_jax.main": ["cluster-jax", "train"]}
        return tuple(known.get(module, [module]) + rest)
    return (program, *words[1:])


@functools.cache
def documented():
    """Command -> the first page or module that has it."""
    found = {}
    for file in (*PAGES, *DOCUMENTED):
        for words in (words for script in scripts(file) for words in commands(script)):
            found.setdefault(words, file.relative_to(ROOT))
    return found


class Started(Exception):
    """Raised where the work of a command begins."""


# What stands for a name that the reader chooses.
CHOSEN = {
    "DIR": "photos", "PHOTOS": "photos", "year": "photos", "shell-run": "run", "run": "run",
    "gs://BUCKET/tfds": "sets", "gs://BUCKET/run": "trained", "K": "3", "FILE": "corrections.json",
    "out": "rows", "NAME": "gridshift", "FILES": "blobs.npz",
    "FILE.npz": "blobs.npz", "FEATURES.npz": "blobs.npz", "FEATURES.npz...": "blobs.npz",
    "DIR/usps.npz": "blobs.npz", "DIR/mnist_test.npz": "blobs.npz",
    "FILE.yaml": "mine.yaml", "TABLE.yaml": "mine.yaml", "METHOD": "SmoothTree", "PAPER": "ncc",
    "TABLE": "4", "config|digits|full": "digits", "N": "3",
}  # fmt: skip


def chosen(words):
    """The words with names of what is in the folder of the test."""
    names = {**CHOSEN, "RUN": "rows" if any("features" in word for word in words) else "run"}
    text = [re.sub(r"^\[|\]$", "", word) for word in words if word not in ("...", "...]")]
    for word in text:
        flag, is_flag, value = word.rpartition("=") if word.startswith("--") else ("", "", word)
        if flag == "--export":
            yield "--export=sorted"
        elif word.startswith("--name="):
            yield "--name=0=Snakes"
        else:
            yield f"{flag}{is_flag}{names.get(value, value)}"


MINE = """
tables:
  rate: {title: Rates, metrics: ACC, rows: [[low, {config: nrcc_digits}, kmeans]]}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory, one_device, shallow_lite, found_once):
    """A folder with photos, embeddings, and a run of each, of which each has an update."""
    folder = tmp_path_factory.mktemp("pages")
    pictures = toy.images(48, channels=3)[0]
    toy.save(folder / "photos", pictures[:40])
    for name, start in (("new", 40), ("new-photos", 42), ("more", 44)):
        toy.save(folder / name, pictures[start : start + 2], prefix=name)
    toy.save(folder / "SHARED/photos", pictures[:40])
    x = np.random.default_rng(0).normal(size=(66, 3)) + 20 * np.eye(3)[np.arange(66) % 3]
    wide = np.random.default_rng(1).normal(size=(60, 12))
    for name, rows in {"x": x[:60], "features": wide, "now": x, "new": x[60:]}.items():
        np.save(folder / f"{name}.npy", rows.astype(np.float32))
    for name in ("x.npz", "blobs.npz"):
        np.savez(folder / name, features=x[:60], labels=np.arange(60) % 3)
    page = (ROOT / "experiments/tutorials/method.md").read_text()
    blocks = fences(page, "python")
    end = next(i for i, block in enumerate(blocks) if "def get_config" in block)
    (folder / "uniformity.py").write_text("\n".join(blocks[: end + 1]))
    (own,) = (block for block in blocks if "def fit" in block)
    (folder / "mixture.py").write_text(own.partition("\n\n\nlabels = ")[0])
    for name, source in EXAMPLES.items():
        (folder / f"{name}.py").write_text(source)
    (folder / "mine.yaml").write_text(MINE)
    (folder / "trained").mkdir()
    files.write_json(folder / "trained/images.json", {"config": "nrcc_digits"})
    files.write_json(folder / "trained/config.json", config_json(load_config("nrcc_digits")))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        images.main(["photos", "--workdir=run", *QUICK])
        update.main(["--workdir=run", "more"])
        said = {"state": records.read(folder / "run").state, "names": {"0": "striped"}}
        files.write_json(folder / "corrections.json", said)
        cluster.main(["--features=x.npy", "--workdir=rows"])
        update.main(["--workdir=rows", "--features=new.npy", "--add"])
        embed.main(["--config=images", "--config.data.dir=photos", "--out=SHARED/features", *QUICK])
    return folder


def _start_training(config, workdir, name, report):
    """Stands for `begin.run_pipeline`, whose first line it is."""
    parse_config(config, name)
    raise Started


def _start_reading(workdir):
    """Stands for `Encoder.load` of a training."""
    raise Started


def package_command(words, patch):
    """Runs `cluster-jax`; a training is started, and new runs take the place of those there.

    No training is finished here, so that a command which embeds by one stops where it reads it.
    """
    command, rest = words[1], list(chosen(words[2:]))
    if command not in ("train", "images", "cluster", "embed"):
        app.main([command, *rest])
        return
    if command == "embed" and any(word.startswith("--workdir=") for word in rest):
        patch.setattr(encoder.Encoder, "load", _start_reading)
        with pytest.raises(Started):
            app.main([command, *rest])
        return
    for word in rest:
        if word.startswith(("--workdir=", "--out=")) and command != "train":
            there = pathlib.Path(word.partition("=")[2])
            there.unlink() if there.is_file() else shutil.rmtree(there, ignore_errors=True)
    if command == "train":
        patch.setattr(begin, "run_pipeline", _start_training)
        with pytest.raises(Started):
            app.main([command, *rest])
    else:
        # Small photos, and maps that need no UMAP, which takes seconds to compile.
        more = {"cluster": ("--reduce=pca",) if "mixture" in str(rest) else ()}
        app.main([command, *rest, *more.get(command, QUICK)])


@functools.cache
def build_once(planned):
    """The config of a run, as JSON and of one seed; many commands plan the same ones."""
    return registry.build(registry.Run(*json.loads(planned)))


def start_run(rest, patch):
    """Plans the runs of a table, of which it builds every config."""

    def planned(flags, found):
        assert [build_once(json.dumps(one._replace(seed=0))) for one in run.planned(flags)]
        raise Started

    patch.setattr(run, "run_all", planned)
    with pytest.raises(Started):
        run.main([*rest, "--results=r.jsonl"])


def start_numbers(rest, patch):
    """A list of one set, by our method; its last row is of a rare kind."""
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    case = generate.Case("rare-few", x, (np.arange(40) % 2,), "euclidean")
    patch.setattr(numbers, "lists", lambda *_: {"photos": (lambda: [case],)})
    patch.setattr(numbers.peers, "PEERS", {})
    numbers.main([*rest, "--out=n.jsonl"])
    assert "| SmoothTree | 1 |" in pathlib.Path("n.md").read_text()


def start_many(rest, patch):
    """A small set, which is written."""
    patch.setattr(many, "SETS", {"few": (300, 4, 3)})
    found = {"k": 3, "ari": 1.0, "seconds": 1.0, "gigabytes": 0.1}
    patch.setattr(many, "measure", lambda *_: found)  # in a process of its own
    words = ["few" if word == CHOSEN["NAME"] else word for word in rest]
    many.main([*words, "--out=m.jsonl"])
    assert "| 300 | 4 | 3 | SmoothTree | 3 |" in pathlib.Path("m.md").read_text()


def start_peers(rest, patch):
    """Two methods, on sixty rows."""
    titles = ("SmoothTree", "k-means, k given")
    patch.setattr(peers, "METHODS", {title: peers.METHODS[title] for title in titles})
    peers.main([*rest, "--seeds=1", "--out=p.jsonl"])
    assert "| SmoothTree | 1.000; 3 | 1.000 |" in pathlib.Path("p.md").read_text()


def start_living(rest, patch):
    """One stream of each kind, of which the first is measured."""
    labels = np.arange(640) % 8
    x = 9 * np.eye(20)[labels] + np.random.default_rng(0).normal(size=(640, 20))
    np.savez("blobs.npz", features=x, labels=labels)
    patch.setattr(living, "STREAMS", len(living.KINDS))
    patch.setattr(living, "UPDATES", 5)
    first = living.measure([{"features": x, "labels": labels}], 0)
    patch.setattr(living, "measure", lambda files_there, i: first)
    living.main([*rest, "--out=l.jsonl"])


def start_benchmark(rest, patch):
    """GridShift and decoding of little; of others what is before the first measurement."""
    name, *flags = rest
    patch.setattr(gridshift, "REPEATS", {50: 1, 100: 1})
    patch.setattr(gridshift, "PEER_SIZE", 50)
    for constant, value in {"COUNT": 4, "BATCH": 2, "THREADS": (1, 2), "SMALL_COUNT": 4}.items():
        patch.setattr(decode, constant, value)
    peer = gridshift.MeanShift
    patch.setattr(gridshift, "MeanShift", lambda **more: peer(**{**more, "n_jobs": 1}))
    patch.setattr(step, "attempt", lambda function, *more: [configured(*more)])
    patch.setattr(memory, "PHOTOS", 2)
    patch.setattr(memory, "peak", lambda folder, program, *words: float(len(words)))
    patch.setattr(evaluation, "in_a_process", lambda stage, rows: dict.fromkeys(OF_STAGE, 1.0))
    patch.setattr(topology, "find_spec", lambda name: True)
    patch.setattr(topology, "plan", lambda config, slice: [config.train.batch_size, slice])

    def configured(name, *more):
        return name if not more else step.configure(name, *more).train.batch_size

    if name == "embed":
        patch.setattr(bench_embed, "measure", lambda: {})  # it needs the extra benchmark
    benchmark.main([name, *flags])


def start_tutorial(rest, patch):
    """Reads the cells, and writes the page elsewhere."""
    name = "digits" if rest == ["gridshift"] else rest[0]
    patch.setattr(tutorials, "run", lambda cells: cells)
    patch.setattr(tables, "write", lambda file, text: pathlib.Path(file.name).write_text(text))
    tutorials.main([name, *rest[1:]])
    assert pathlib.Path(f"{name}.md").stat().st_size


def start_tables(rest, patch):
    """Marks pages, of which there are none here."""
    patch.setattr(tables, "FOLDER", pathlib.Path.cwd())
    tables.main(rest)


def start_probabilities(rest, patch):
    """One draw of three clusters that are far apart, in which every row is right."""
    patch.setattr(probabilities, "DRAWS", 1)
    probabilities.main([*rest, "--out=q.jsonl"])
    lines = pathlib.Path("q.md").read_text().splitlines()
    shown = [line.split(" | ")[1:] for line in lines if re.search(", (new|fitted) rows", line)]
    # Half of the sixty rows each, of which all are right.
    assert sum(int(number) for _, number, *_ in shown) == 60
    assert {share for *_, share in shown if share.strip(" |")} == {"1.00 |"}


def start_real(rest, patch):
    """Writes the page of no runs: what others print."""
    pathlib.Path("r.jsonl").touch()
    real.main([*rest, "--results=r.jsonl", "--runs=none", "--out=."])
    assert "| ConvDEC-DA | usps | 98.7 |" in pathlib.Path("tables.md").read_text()


EXPERIMENTS = {
    "experiments.benchmark": start_benchmark, "experiments.living": start_living,
    "experiments.number_of_clusters": start_numbers,
    "experiments.number_of_clusters.many": start_many, "experiments.peers": start_peers,
    "experiments.number_of_clusters.probabilities": start_probabilities,
    "experiments.real": start_real, "experiments.run": start_run,
    "experiments.tables": start_tables,
    "experiments.tutorials": start_tutorial,
}  # fmt: skip


def needs_network(words):
    """Installs from the network; the extras are those of the project."""
    extras = re.findall(r"\[([\w,]+)\]", " ".join(words))
    known = PROJECT["project"]["optional-dependencies"]
    assert {extra for found in extras for extra in found.split(",")} <= set(known)


def needs_a_cloud(words):
    """Needs an account at Google; its flags are held against a list that was written by hand."""
    flags = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert words[1:4] == ("compute", "tpus", "tpu-vm")
    known = {
        "create": {"--zone", "--accelerator-type", "--version", "--spot"},
        "ssh": {"--zone", "--worker", "--command"},
    }
    assert flags <= known[words[4]]


def needs_tensorflow(words):
    """Downloads a data set by TensorFlow; its flags are held against a list, too."""
    flags = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert words[1] == "build"
    assert flags <= {"--file_format", "--data_dir", "--manual_dir"}


def is_the_suite(words):
    """Is this suite; its folders and marks are there."""
    for word in words[1:]:
        if word.startswith("tests"):
            assert list(ROOT.glob(word)), word
    marks = [mark.partition(":")[0] for mark in PROJECT["tool"]["pytest"]["ini_options"]["markers"]]
    if "-m" in words:
        assert words[words.index("-m") + 1] in marks


def is_of_the_shell(words):
    """Makes or enters a folder or an environment."""
    assert words[0] != "bash" or (ROOT / words[1]).exists()


def is_of_others(words):
    """Is another project's, which need not be installed; `service.py` runs in test_service.py."""


# Why a program is not run here, and what is checked in its place.
NOT_RUN = {
    "pip": needs_network, "git": needs_network, "gcloud": needs_a_cloud, "tfds": needs_tensorflow,
    "pytest": is_the_suite, "pdoc": needs_network, "bash": is_of_the_shell, "cd": is_of_the_shell,
    "venv": is_of_the_shell, "source": is_of_the_shell,
    **dict.fromkeys(OTHER_PROGRAMS, is_of_others),
}  # fmt: skip


def is_name(words):
    """Whether a page names a command of the package, and does not say how it is typed."""
    return words[0] == "cluster-jax" and len(words) < 3


def execute(words, patch):
    """Runs a command in the current folder, starts it, or checks what its reason leaves."""
    program, *rest = words
    if is_name(words):
        assert set(rest) <= {*app.COMMANDS, "--help"}
    elif program == "cluster-jax":
        package_command(words, patch)
    elif program in EXPERIMENTS:
        if rest != ["--help"]:
            EXPERIMENTS[program](list(chosen(rest)), patch)
    else:
        NOT_RUN[program](words)


def test_every_command_is_known():
    """None is skipped in silence: a program that is not in the lists above fails here."""
    found = documented()
    assert len(found) > 100
    programs = {words[0] for words in found}
    assert programs <= {"cluster-jax", *EXPERIMENTS, *NOT_RUN}
    assert {"cluster-jax", *EXPERIMENTS} <= programs
    assert {words[1] for words in found if words[0] == "cluster-jax" and words[1:]} >= {
        *app.COMMANDS
    }


# What is no command in a span of code that looks like one: code, and words of the package.
NO_COMMAND = r".*->.*|maybe new|topology --only=.*"
# Flags that the changelog names as removed.
GONE = {"train --seeds", "embed --views"}


def test_no_command_is_passed_over():
    """A span with a flag, or of several words, is executed, or names a command and its flags."""
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.M | re.S)
        for span in (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)):
            if re.match(rf"(\.venv/bin/)?({PROGRAMS})\s", span) or re.fullmatch(NO_COMMAND, span):
                continue
            name, *rest = span.split()
            is_ours = name in app.COMMANDS and " --" in span
            if is_ours or re.match(r"[a-z-]+ -|[a-z_-]+ [^=,(]*$", span):
                assert name in app.COMMANDS, f"{page}: `{span}`"
                known = importlib.import_module(f"cluster_jax.cli.{name}")._parser()
                flags = {word.partition("=")[0] for word in rest if word.startswith("--")}
                flags = {flag for flag in flags if not flag.startswith("--config")}
                are_known = flags <= known._option_string_actions.keys()
                is_gone = page.stem == "CHANGELOG" and span in GONE
                assert are_known != is_gone, f"{page}: `{span}`"


# Languages of the fenced blocks: `bash` is executed above and `python` below or in the test of its
# page. `text` of a tutorial is what its script prints (test_tutorials.py), that of updates.md an
# update in test_readme.py; the picture of `mermaid` is that of test_architecture.py.
def test_every_block_is_of_a_known_language():
    for page in PAGES:
        found = re.findall(r"^ *(?:```|~~~)(.*)$", page.read_text(), flags=re.M)
        assert set(found[1::2]) <= {""}, page
        languages = set(found[::2])
        allowed = {"bash", "python"}
        if page.parent.name == "tutorials" or page.stem == "updates":
            allowed.add("text")
        if page.stem == "CONTRIBUTING":
            allowed.add("mermaid")
        assert languages <= allowed, page


# What a benchmark of the evaluation measures of a stage.
OF_STAGE = ("seconds", "cpu_seconds", "peak_gb", "base_gb", "x_gb")
NEW = ("images",), ("cluster",), ("embed",)
KINDS = {
    "trainings": lambda words: words[:2] == ("cluster-jax", "train"),
    "runs": lambda words: words[0] == "cluster-jax" and words[1:2] in NEW,
    "of runs": lambda words: words[0] == "cluster-jax" and words[1:2] not in ((*NEW, ("train",))),
    "experiments": lambda words: words[0] in EXPERIMENTS,
    "others": lambda words: words[0] in NOT_RUN,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("one_device", "shallow_lite", "found_once")
@pytest.mark.filterwarnings("ignore:n_jobs value:UserWarning")
def test_every_command_runs(kind, made, tmp_path, capsys):
    done = set()
    for i, (words, file) in enumerate(documented().items()):
        same = (words[0], *(word for word in chosen(words[1:]) if word != "--open"))
        if KINDS[kind](words) and same not in done:
            done.add(same)
            with pytest.MonkeyPatch.context() as patch:
                if not is_name(words) and words[0] not in NOT_RUN:
                    here = shutil.copytree(made, tmp_path / str(i))
                    patch.chdir(here)
                    patch.syspath_prepend(str(here))
                    patch.setattr(webbrowser, "open", lambda page: True)
                try:
                    execute(words, patch)
                except BaseException as error:
                    error.add_note(f"{file}: {' '.join(words)}\n{capsys.readouterr().err}")
                    raise
                finally:
                    for name in (*EXAMPLES, "uniformity", "mixture"):
                        sys.modules.pop(name, None)


# Snippets of Python that another test runs, by words in them, and where. Those of tutorials are
# their scripts.
ELSEWHERE = {
    "app = FastAPI()": "tests/test_service.py",
    **dict.fromkeys(EXAMPLES.values(), "tests/test_own_parts.py"),
    "load_dataset": "tests/test_estimator_pretrained.py",
    "torchvision.datasets": "tests/test_estimator_pretrained.py",
    "webdataset.WebDataset": "tests/test_estimator_pretrained.py",
    'fit("photos", y)': "tests/test_estimator_classes.py",
}
# A map that needs no UMAP, which takes seconds to compile.
QUICK_CLUSTERER = """ImageClusterer(
    verbose=False, overrides={"eval.reduce": "pca", "data.image_size": 48}
)"""


def snippets():
    """The snippets of the guide, page by page; those of the README are in test_readme.py."""
    for page in PAGES:
        if page.parent.name != "tutorials" and page.name != "README.md":
            for code in fences(page.read_text(), "python"):
                yield page.name, code


@pytest.mark.usefixtures("one_device", "shallow_lite", "found_once")
@pytest.mark.filterwarnings("ignore:n_jobs value:UserWarning")
def test_every_snippet_runs(made, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(shutil.copytree(made, tmp_path / "here"))
    count = 0
    for page, code in snippets():
        known = [file for words, file in ELSEWHERE.items() if words in code]
        if known:
            assert (ROOT / known[0]).exists()
            continue
        code = code.replace("ImageClusterer()", QUICK_CLUSTERER).replace('"RUN"', '"run"')
        exec(compile(code, page, "exec"), {})
        count += 1
    assert count >= 2


# What a name stands for in code inside of a sentence; a class stands for its instances.
NAMES = {
    "cluster_jax": cluster_jax, "load": cluster_jax.load, "ImageClusterer": ImageClusterer,
    "SmoothTree": SmoothTree, "model": SmoothTree, "clusterer": ImageClusterer,
    "encoder": Encoder, "cut": ImageClusterer.cut, "predict": ImageClusterer.predict,
    "warm_up": ImageClusterer.warm_up, "losses": losses, "samplers": samplers, "base": base,
    "encoders": encoders, "checks": checks, "collectives": collectives, "schedules": schedules,
}  # fmt: skip


def stands_for(node):
    """The value of a name, an attribute or a call of the package; None for any other code."""
    if isinstance(node, ast.Name):
        return NAMES.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = stands_for(node.value)
        return None if owner is None else getattr(owner, node.attr)
    if isinstance(node, ast.Call):
        called = stands_for(node.func)
        if called is cluster_jax.load:
            return ImageClusterer
        is_fit = isinstance(node.func, ast.Attribute) and node.func.attr == "fit"
        return (
            stands_for(node.func.value) if is_fit else called if isinstance(called, type) else None
        )
    return None


def test_every_call_in_a_sentence_has_the_arguments_of_its_function():
    """Spans of code that call the package; `...` stands for arguments that are left out."""
    count = 0
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.M | re.S)
        for span in (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)):
            try:
                nodes = [*ast.walk(ast.parse(span, mode="eval"))]
            except SyntaxError:
                continue
            for node in (node for node in nodes if isinstance(node, ast.Call)):
                called = stands_for(node.func)
                if called is None or isinstance(node.func, ast.Call):
                    continue
                is_method = "." in called.__qualname__ and not inspect.ismethod(called)
                given = [None] * (len(node.args) + is_method)
                named = {word.arg: None for word in node.keywords}
                form = inspect.signature(called)
                is_part = any(getattr(word, "value", None) is ... for word in node.args)
                try:
                    (form.bind_partial if is_part else form.bind)(*given, **named)
                except TypeError as error:
                    error.add_note(f"{page}: `{span}`")
                    raise
                count += 1
    assert count >= 25


@pytest.mark.slow
def test_the_extra_tfds_has_what_tfds_build_imports():
    """TFDS 4.9 imports several packages that it does not require."""
    pytest.importorskip("tensorflow", reason="pip install '.[tfds]'")
    code = "import sys; from tensorflow_datasets.scripts.cli.main import launch_cli; "
    code += "sys.argv = ['tfds', 'build', '--help']; launch_cli()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_page_has_a_dead_link():
    """Of all pages, also of those that nobody lists."""
    dead = []
    for page in sorted(ROOT.rglob("*.md")):
        if not any(part.startswith(".") for part in page.relative_to(ROOT).parts):
            for link in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
                if not re.match(r"\w+:", link) and not (page.parent / link).exists():
                    dead.append(f"{page.relative_to(ROOT)}: {link}")
    assert dead == []
