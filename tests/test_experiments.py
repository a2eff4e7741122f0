"""The experiments: modules import, tables fit the package and the papers, runner and tables."""

import importlib.util
import json
import os
import pathlib
import re
import types

import numpy as np
import pytest

from cluster_jax import metrics
from cluster_jax.core.checks import InputError
from cluster_jax.pipeline.config import parse_config
from experiments import peers, registry, results, run, table, tables, trained_heads
from experiments.kernel_infonce import spectral
from experiments.nrcc import views
from tests.rows import every_row

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODULES = sorted(
    ".".join(file.relative_to(ROOT).with_suffix("").parts)
    for file in (ROOT / "experiments").rglob("*.py")
    if "tutorials" not in file.parts  # importing one runs it: test_tutorials.py
)
PAPERS = pathlib.Path(os.environ.get("CLUSTER_JAX_TEST_DATA", "nowhere")).parent / "papers"
TABLES = [(paper, number) for paper in registry.PAPERS for number in registry.tables(paper)]


@every_row("name", MODULES)
def test_import(name):
    if name.endswith("_torch_byol") and importlib.util.find_spec("torch") is None:
        return
    assert importlib.import_module(name).__doc__


def test_every_table_of_the_specification_has_an_entry():
    wanted = {
        "nrcc": "1 2 3 4 5 6 7 8 9 10 10-backbones 13 figure1 figure4 figure4-curves",
        "ncc": "2 3 4 A1 A1-sizes A2 A3 A4 A5 A5-subsets figureA7-curves "
        + " ".join(f"figureA{i}" for i in (2, 3, 4, 6, 7, 8, 9)),
        "cueco": "1 2 3",
        "kernel_infonce": "1 1-200 4 4-200 4-400 C",
        "ncl": "2 3 4 figure4 figureA figureB",
    }
    for paper, numbers in wanted.items():
        assert set(numbers.split()) <= registry.tables(paper).keys()


@pytest.mark.parametrize("scale", registry.SCALES)
def test_every_run_is_a_valid_config(scale):
    """A misspelled key or a value out of range would only fail when the run is built."""
    runs = {}
    for paper, number in TABLES:
        for cell in registry.cells(registry.find(paper, number), scale):
            assert (cell.run is None) == bool(cell.missing)
            if cell.run is not None and cell.run.config:
                runs[results.key(cell.run, 0)] = cell.run
    assert len(runs) > 90
    for chosen in runs.values():
        parse_config(registry.build(chosen, 0, "DIR").to_dict())


@pytest.mark.parametrize("paper", registry.PAPERS)
def test_every_row_of_the_digits_has_been_run(paper):
    """As `experiments/README.md` says; a new row is run before it is committed."""
    finished, _ = results.read(results.FILE)
    for chosen in registry.tables(paper).values():
        for cell in registry.cells(chosen, "digits"):
            if cell.run is not None:
                assert "metrics" in finished[results.key(cell.run, 0)], cell.row.name


# Tables of the scale `cpu` at the end of each paper's page, and their rows without a run.
CPU = {
    "nrcc": ("2", set()),
    "ncc": ("4", {"BYOL + CC", "BYOL + PCL", "CC + ProtoCL"}),
    "cueco": ("3", set()),
}


@pytest.mark.parametrize("paper", registry.PAPERS)
def test_pages_of_the_tables_are_those_of_the_results(paper):
    rows, _ = results.read(results.FILE)
    plans = [("digits", "all"), *(("cpu", CPU[name][0]) for name in CPU if name == paper)]
    found = []
    for scale, chosen in plans:
        flags = types.SimpleNamespace(
            paper=paper, table=chosen, scale=scale, seeds=1, across=None
        )  # fmt: skip
        pages = [table.page(paper, n, flags, rows) for n in run.numbers_of(paper, chosen)]
        found += [page for page in pages if page]
    assert "\n".join(found) == (ROOT / "experiments" / paper / "tables.md").read_text()


def test_the_page_of_the_experiments_says_what_has_been_run():
    page = " ".join((ROOT / "experiments" / "README.md").read_text().split())
    finished, _ = results.read(results.FILE)
    assert {row["seed"] for row in finished.values() if row["config"]} == {0}
    assert "one seed of every row with a command there has been run" in page  # tested above
    assert "Nothing has been run at `full`." in page
    assert (
        "At `cpu` one seed of NRCC's Table 2, NCC's Table 4 (without BYOL + CC, BYOL + PCL, CC + "
        "ProtoCL) and CueCo's Table 3 has been run" in page
    )
    for paper, number in TABLES:
        cells = {
            scale: [
                cell
                for cell in registry.cells(registry.find(paper, number), scale)
                if cell.run is not None and cell.run.config
            ]
            for scale in ("cpu", "full")
        }
        missing = {
            scale: {c.row.name for c in chosen if results.key(c.run, 0) not in finished}
            for scale, chosen in cells.items()
        }
        assert missing["full"] == {cell.row.name for cell in cells["full"]}, (paper, number)
        if number == CPU.get(paper, ("", ()))[0]:
            assert missing["cpu"] == CPU[paper][1]
    for paper, number, words in (
        ("nrcc", "2", "95 of the 153 pairs of NRCC's Table 2"),
        ("ncc", "4", "52 of the 77 of NCC's Table 4"),
        ("cueco", "2", "all three of CueCo's Table 2"),
    ):
        assert words in page
        tables_page = (ROOT / "experiments" / paper / "tables.md").read_text()
        own = tables_page.split(f"## {paper} Table {number}:")[1].split("\n## ")[0]
        count, reverse = re.search(r"of (\d+) pairs .*?, (\d+) are in", own).groups()
        assert words.startswith(f"{reverse} of the {count} ") or (reverse, count) == ("3", "3")


def test_scales_change_what_they_say():
    row = registry.find("ncc", "4").rows[-1]
    small, cpu, full = (
        registry.build(registry._run(row.variant, "CIFAR-20", scale)[0], 5, "DIR")
        for scale in registry.SCALES
    )
    assert (small.train.duration, small.method.warmup, small.optimizer.warmup) == (
        "500 steps", "100 steps", "33 steps",
    )  # fmt: skip
    assert (small.seed, small.data.name, small.method.update_every) == (5, "digits", "5 epochs")
    assert (cpu.data.name, cpu.data.limit, cpu.train.duration) == ("cifar10", 5000, "200 steps")
    assert (cpu.network.name, cpu.augment.size) == ("small", 32)
    assert (full.data.label, full.method.clusters, full.network.name) == (
        "coarse_label", 20, "resnet18",
    )  # fmt: skip
    assert full.train.duration == "1000 epochs"
    for name in ("BYOL + CC", "CC + ProtoCL"):  # the number of clusters is that of the set
        assert _full("ncc", "4", name, "CIFAR-20").term.clusters == 20
    cueco = registry.find("cueco", "3").rows[0].variant  # a set without a config of its own
    built = registry.build(registry._run(cueco, "CIFAR-100", "full")[0], 0)
    assert (built.data.name, built.method.clusters) == ("cifar100", 100)


def _full(paper, number, name, data):
    row = next(row for row in registry.find(paper, number).rows if row.name == name)
    return registry.build(registry._run(row.variant, data, "full")[0], 0)


def test_subsets_of_imagenet_at_full_scale():
    """Whatever a row takes of CIFAR; a test split only where the config has one."""
    for paper, number, name, data, classes, size, clusters in (
        ("nrcc", "3", "InfoNCE + NRCC", "ImageNet-Dogs", "imagenet_dogs", 224, None),
        ("nrcc", "3", "BYOL", "TinyImageNet", "tiny_imagenet", 224, None),
        ("ncc", "2", "NCC", "ImageNet-10 at 96", "imagenet_10", 96, 10),
        ("ncc", "A2", "NCC", "ImageNet-50", "imagenet_50", 224, 50),
        ("cueco", "1", "CueCo", "ImageNet-100", "imagenet_100", 224, 100),
    ):
        built = _full(paper, number, name, data)
        assert (built.data.name, built.data.split) == ("imagenet2012", "train"), data
        assert (built.network.stem, built.augment.size) == ("imagenet", size)
        assert built.data.classes == classes
        assert built.method.get("clusters") == clusters
        assert built.novel.test_split == ("validation" if paper == "cueco" else None)
    assert _full("cueco", "1", "BYOL", "ImageNet-100").train.duration == "400 epochs"
    assert _full("cueco", "1", "CueCo", "ImageNet-100").augment.blur.kernel == 23  # of 224 pixels
    assert _full("ncc", "A2", "NCC", "ImageNet-100").train.duration == "300 epochs"


def test_a_longer_queue_keeps_the_neighbors_of_its_set():
    """NCL's k_1 depends on the number of novel classes, a quarter on CIFAR-100 of CIFAR-10's."""
    for data, neighbors in (("CIFAR-10", 204), ("CIFAR-100", 51)):
        for name in ("M 2048", "M 19968", "tau 0.1"):
            assert _full("ncl", "figureA", name, data).method.neighbors == neighbors, (name, data)


@pytest.mark.parametrize(("paper", "number"), [("nrcc", "6"), ("ncc", "A4")])
def test_long_tails_at_full_scale_are_of_the_training_images(paper, number):
    """Of every row; NCC's other tables train on all images."""
    chosen = registry.find(paper, number)
    for row in chosen.rows:
        for data in chosen.sets:
            built = _full(paper, number, row.name, data)
            assert (built.data.tail, built.data.split) == (10.0, "train"), row.name
            assert built.data.name == {"CIFAR-10-LT": "cifar10", "CIFAR-20-LT": "cifar100"}[data]
            assert built.data.label == ("label" if data == "CIFAR-10-LT" else "coarse_label")
            if row.name.startswith("NCC"):
                assert built.method.clusters == (10 if data == "CIFAR-10-LT" else 20)


def test_what_has_no_command_at_full_scale():
    """As `experiments/README.md` says: only methods that are not implemented."""
    for paper, number in TABLES:
        for cell in registry.cells(registry.find(paper, number), "full"):
            assert cell.run is not None or cell.row.variant.missing or not cell.row.variant.full, (
                paper, number, cell.row.name, cell.data, cell.missing,
            )  # fmt: skip


def test_settings_that_the_papers_print():
    moco, pcl = (_full("ncc", "4", name, "CIFAR-10") for name in ("MoCo v2", "PCL"))
    for built in (moco, pcl):  # ncc.txt, lines 429 and 431
        method = built.method
        assert (method.queue, method.temperature, method.decay) == (4096, 1.0, 0.99)
        assert (built.optimizer.weight_decay, built.train.batch_size) == (1e-4, 512)
        assert built.eval.features == "projection"
    assert (pcl.method.weight, tuple(pcl.method.prototypes)) == (0.01, (250, 500, 1000))
    concatenation = _full("kernel_infonce", "1", "concatenation sum", "CIFAR-10")
    assert (concatenation.method.halves, concatenation.network.projector.out) == (True, 256)
    assert concatenation.eval.linear_probe.batch_size == 64  # kernel_infonce.txt, 531 and 539
    assert _full("cueco", "1", "CueCo", "CIFAR-10").eval.linear_probe.learning_rate == 3.0
    for paper, number, name in (("ncc", "2", "NCC"), ("nrcc", "3", "BYOL")):  # ncc.txt, 423
        assert _full(paper, number, name, "STL-10").network.stem == "imagenet"
        assert _full(paper, number, name, "CIFAR-20").network.stem == "cifar"


def test_a_table_may_have_a_protocol_of_its_own():
    own, common = (registry.find("nrcc", number).protocol for number in ("10", "2"))
    assert own.startswith("ResNet-50, 200 epochs")
    assert common.startswith("ResNet-34, 1,000 epochs")


def _plain(text):
    """A line of a paper without markup: "79.4±1.7 87.8±1.7"."""
    text = re.sub(r"\\(textbf|underline|overline|begin|end)|<[^>]*>|\{c\}|array|\*\*", "", text)
    return re.sub(r"[{}$\s\\]|\\pm", "", text.replace(r"\pm", "±").replace("±  ", "±"))


@pytest.mark.skipif(not PAPERS.exists(), reason="the texts of the papers are not at hand")
@every_row(("paper", "number"), TABLES)
def test_printed_numbers_are_those_of_the_paper(paper, number):
    lines = (PAPERS / f"{paper}.txt").read_text().splitlines()
    chosen = registry.find(paper, number)
    caption = lines[chosen.source - 1]
    assert re.search(r"Table|Fig|SYNTHETIC", caption)
    for row in chosen.rows:
        assert bool(row.line) == bool(row.printed), row
        printed = row.printed.split()
        assert not printed or len(printed) == len(chosen.metrics) * len(chosen.sets), row
        text = "\n".join(lines[row.line - 1 :]).split("</tr>")[0] if "<td>" in lines[
            row.line - 1
        ] else lines[row.line - 1]  # fmt: skip
        found = _plain(text)
        for value in printed:
            assert value == "-" or value in found, (row.name, value, found)
            if "array" not in text and value != "-":  # the numbers of several rows in one line
                found = found[found.index(value) + len(value) :]


def _flags(folder, **changed):
    defaults = {
        "paper": "ncc", "table": "4", "scale": "digits", "seeds": 2, "data": None, "across": None,
        "runs": folder / "runs", "results": folder / "results.jsonl", "out": None,
    }  # fmt: skip
    return types.SimpleNamespace(**(defaults | changed))


@pytest.fixture
def trained(monkeypatch):
    """The configs that are trained, in order; nothing is. A method in `failing` fails."""
    made, failing = [], {}

    def run_pipeline(config, workdir, name):
        if error := failing.get(config.method.name):
            raise error
        made.append((config.method.name, config.seed))
        acc = {"byol": 0.5, "ncc": 0.75}.get(config.method.name, 0.25) + config.seed / 100
        return {
            "metrics": {
                "kmeans": {"acc": acc, "nmi": acc, "ari": acc, "sizes": [1, 2]},
                "tree": {"nmi": acc},
                "knn": {"5": acc},
            },
            "provenance": {"seed": config.seed, "images_trained": 1797, "labels_used_for": []},
            "seconds": {"train_and_embed": 60.0},
        }

    monkeypatch.setattr(run.pipeline, "run_pipeline", run_pipeline)
    monkeypatch.setattr(run.devices, "use_cores", lambda batch: None)
    return types.SimpleNamespace(made=made, failing=failing)


def _page(flags):
    return table.page(flags.paper, flags.table, flags, results.read(flags.results)[0])


def test_a_table_is_run_once_and_tables_share_runs(tmp_path, trained, capsys):
    flags = _flags(tmp_path)
    assert run.run_all(flags, "python -m x") == 0
    first = len(trained.made)
    assert first == len(set(run_key for run_key in results.read(flags.results)[0]))
    assert [seed for _, seed in trained.made] == sorted(seed for _, seed in trained.made)
    text = capsys.readouterr().out
    assert f"{first} runs, 0 of them finished" in text
    assert re.search(rf"\[2/{first}\] \w+, seed 0, about \d+ min left", text)
    run.run_all(flags, "python -m x")
    assert len(trained.made) == first
    assert f"{first} runs, {first} of them finished" in capsys.readouterr().out
    # BYOL, SimSiam and MoCo stand in CueCo's Table 1 too.
    other = run.planned(_flags(tmp_path, paper="cueco", table="1", seeds=1))
    run.run_all(_flags(tmp_path, paper="cueco", table="1", seeds=1), "python -m x")
    assert len(trained.made) == first + len(other) - 3
    row = json.loads(flags.results.read_text().splitlines()[0])
    assert row["metrics"]["kmeans"] == {"acc": 0.25, "nmi": 0.25, "ari": 0.25}  # no lists
    needed = {"commit", "machine", "versions", "precision", "devices", "seconds", "config", "seed"}
    assert needed <= row["provenance"].keys()


def test_a_page_has_ours_beside_the_paper_and_the_orderings_that_differ(tmp_path, trained):
    flags = _flags(tmp_path)
    run.run_all(flags, "python -m x")
    text = _page(flags)
    assert "## ncc Table 4" in text
    assert "| NMI, ours | NMI, paper, CIFAR-10 | difference | ACC, ours |" in text
    ours = "50.5 ± 0.7"
    assert f"| BYOL | {ours} | 79.4±1.7 | -28.9 | {ours} | 87.8±1.7 | -37.3 |" in text
    assert "Gap" not in text
    # Of thirteen rows two are equal in the paper; NCC's five are equal here.
    assert "Orderings by ACC: of 77 pairs of rows that the paper orders, 3 are in the other" in text
    assert "BYOL + CC is above SimSiam (25.0)" in text
    assert "BYOL is above " not in text  # of rows with runs, the paper has MoCo and SimSiam below
    assert "NCC is above NCC, uniformity only" not in text  # equal here
    assert "Images trained: 1,797" in text
    assert "papers/ncc.txt, line 202" in text
    changed = flags.results.read_text().replace('"acc": 0.5', '"acc": 0.05')
    flags.results.write_text(changed)
    text = _page(flags)
    assert "12 are in the other order here, 12 of them by more than the two standard dev" in text
    assert "MoCo v2 is above BYOL (20.4)" in text
    flags.seeds = 1
    assert "one seed does not say which of them are chance: SimSiam is above BYOL" in _page(flags)


def test_a_run_that_fails_leaves_its_sentence_and_the_others_go_on(tmp_path, trained, capsys):
    trained.failing["ncc"] = FloatingPointError("the loss\nis not finite")
    flags = _flags(tmp_path, seeds=1)
    failures = run.run_all(flags, "python -m x")
    assert failures == len(run.planned(flags)) - len(trained.made) > 1
    assert "failed: FloatingPointError: the loss is not finite" in capsys.readouterr().out
    text = _page(flags)
    assert "NCC: seed 0: FloatingPointError: the loss is not finite." in text
    assert "| BYOL | 50.0 |" in text
    trained.failing.clear()
    assert run.run_all(flags, "python -m x") == 0  # only the failed ones are tried again
    assert len(trained.made) == len(run.planned(flags))
    assert "not finite" not in _page(flags)


def test_an_interrupted_table_goes_on(tmp_path, trained):
    trained.failing["simsiam"] = KeyboardInterrupt()
    flags = _flags(tmp_path, seeds=1)
    with pytest.raises(KeyboardInterrupt):
        run.run_all(flags, "python -m x")
    assert [name for name, _ in trained.made] == ["moco"]
    trained.failing.clear()
    run.run_all(flags, "python -m x")
    assert len(trained.made) == len(run.planned(flags))


def test_a_last_line_that_is_cut_is_dropped_and_run_again(tmp_path, trained, capsys):
    flags = _flags(tmp_path, seeds=1)
    run.run_all(flags, "python -m x")
    whole, count = flags.results.read_text(), len(trained.made)
    for cut in (1, 40):  # the newline alone is no loss
        flags.results.write_text(whole[:-cut])
        run.run_all(flags, "python -m x")
        assert flags.results.read_text().count("\n") == count
        assert results.read(flags.results)[1] == ""
        warned = "results.jsonl is cut in the middle; its run is done again" in (
            capsys.readouterr().out
        )
        assert warned == (cut > 1)
    assert len(trained.made) == count + 1
    flags.results.write_text(whole[:-40])
    assert len(results.read(flags.results)[0]) == count - 1  # a table only leaves it out


def test_a_broken_line_in_the_middle_is_named(tmp_path, trained):
    flags = _flags(tmp_path, seeds=1)
    run.run_all(flags, "python -m x")
    lines = flags.results.read_text().splitlines(keepends=True)
    flags.results.write_text("".join([lines[0], lines[1][:50] + "\n", *lines[2:]]))
    with pytest.raises(InputError, match=r"line 2 of \S+ must be a JSON object"):
        run.run_all(flags, "python -m x")


def test_a_second_runner_on_the_same_file_is_refused(tmp_path, trained):
    flags = _flags(tmp_path)
    with results.locked(flags.results):
        with pytest.raises(InputError, match=r"another runner writes to .*results\.jsonl; wait"):
            run.run_all(flags, "python -m x")
        run.run_all(_flags(tmp_path, results=tmp_path / "other.jsonl", seeds=1), "python -m x")
    run.run_all(flags, "python -m x")


def test_runs_of_different_provenance_are_not_averaged(tmp_path, trained):
    flags = _flags(tmp_path)
    run.run_all(flags, "python -m x")
    lines = flags.results.read_text().splitlines()
    last = json.loads(lines[-1])
    last["provenance"]["images_trained"] = 900
    flags.results.write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    wanted = "runs of different images_trained must not be averaged; got 1797 and 900"
    with pytest.raises(InputError, match=wanted):
        _page(flags)
    assert "| NCC |" in _page(_flags(tmp_path, across="images_trained,commit"))
    last["provenance"]["images_trained"], last["provenance"]["seconds"] = 1797, 1.0
    flags.results.write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    _page(flags)  # the seconds of a run may differ


@every_row("module", [run, table])
@every_row(
    ("arguments", "sentence"),
    [
        (["hrcc", "2"], "paper must be one of nrcc, .*; got 'hrcc'"),
        (["nrcc", "99"], "table of nrcc must be one of 1, 2, .*; got '99'"),
        (["nrcc", "2", "--scale=huge"], "scale must be one of digits, cpu, full; got 'huge'"),
        (["nrcc", "2", "--seeds=0"], "--seeds must be at least 1; got 0"),
    ],
)
def test_bad_arguments_are_one_sentence(module, arguments, sentence, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        module.main([*arguments, f"--results={tmp_path}/results.jsonl"])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert re.fullmatch(f"error: {sentence}\n", error)


def test_a_run_without_training_from_command_to_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(spectral, "STEPS", 20)
    monkeypatch.setattr(run.devices, "use_cores", lambda batch: None)
    shared = [f"--results={tmp_path}/r.jsonl", "--seeds=1"]
    assert run.main(["kernel_infonce", "C", *shared]) == 0
    table.main(["kernel_infonce", "C", *shared, f"--out={tmp_path}/page.md"])
    text = (tmp_path / "page.md").read_text()
    assert text in capsys.readouterr().out
    assert "| spectral clustering, p = 1, q = 0 | 100.0 | - |  |" in text
    assert "Data: a generated graph of 6 clusters of 100 vertices" in text
    assert "Generated data, the same at every scale." in text


@pytest.fixture(scope="module")
def measured(tmp_path_factory, one_device, traced_once, compiled_once):
    """What the runs of NRCC's Tables 1 and 13 and of curves add, for a small training."""
    folder, found = tmp_path_factory.mktemp("measured"), {}
    changes = {
        "nrcc.weight": 0.5,
        "data.limit": 60,
        "augment.affine.shift": 0.0,
        "network.width": 4,
        "optimizer.warmup": "0 steps",
        "train.batch_size": 32,
        "train.duration": "5 steps",
        "train.checkpoint_every": 1,
        "train.keep_checkpoints": 5,
        "eval.reduce.method": "pca",
    }
    assert views.ITERATIONS == (1, 3, 5, 7, 9, 11, 13)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(views, "ITERATIONS", (1, 13))
        patch.setattr(run.devices, "use_cores", lambda batch: None)
        for function in ("curves", "nrcc.views"):
            chosen = registry.Run("byol_digits", changes, function=function)
            run.run_all(_flags(folder), "python -m x", [(chosen, 0)])
            found |= results.read(folder / "results.jsonl")[0][results.key(chosen, 0)]["metrics"]
    return found


def test_curves_end_at_the_scores_of_the_run(measured):
    assert measured["after"].keys() == {"20", "40", "60", "80", "100"}
    last = measured["after"]["100"]
    assert last["acc"] == pytest.approx(measured["gridshift"]["acc"])
    assert last["nmi"] == pytest.approx(measured["kmeans"]["nmi"])
    assert last["5-nn"] == pytest.approx(measured["knn"]["5"])
    assert last["std"] == pytest.approx(measured["collapse"]["projection"]["std"])
    sizes = [curve["n_min/n_max"] for curve in measured["after"].values()]
    assert len(set(sizes)) > 1
    assert all(0 < size <= 1 for size in sizes)
    assert measured["after"]["20"]["std"] != pytest.approx(last["std"], rel=1e-4)


def test_a_curve_that_lacks_a_checkpoint_has_a_gap_there(measured):
    """The score of the end of the run must not stand there."""
    row = {"metrics": {**measured, "after": {"100": measured["after"]["100"]}}}
    for metric in ("5-NN", "std"):
        assert table.lookup(row, "after.20", metric) is None
        assert table.lookup(row, "after.100", metric) == table.lookup(row, "gridshift", metric)


def test_distances_of_views_are_those_of_one_transformation_each(measured):
    found = {name: value["distance"] for name, value in measured["views"].items()}
    assert found.keys() == {"jitter", "grayscale", "rotation", "crop", "sghmc_1", "sghmc_13"}
    # Without a shift the "crop" of the digits is the image itself.
    assert found.pop("crop") < 1e-5
    assert all(1e-3 < distance < 2 for distance in found.values())
    assert found["sghmc_13"] > 1.5 * found["sghmc_1"]  # noise adds up


def test_augmentations_of_photos_alone():
    config = parse_config(registry.build(registry.Run("nrcc_cifar10"), 0).to_dict()).augment
    found = views.augmentations(config)
    alone = {name: (c.crop is not None, c.flip, c.grayscale) for name, c in found.items()}
    assert alone == {
        "jitter": (False, 0, 0),
        "grayscale": (False, 0, 1),
        "rotation": (False, 1, 0),
        "crop": (True, 0, 0),
    }
    assert {name for name, c in found.items() if c.jitter is not None} == {"jitter"}
    assert found["jitter"].jitter.probability == 1


def test_several_tables_are_one_page_and_tables_without_a_run_are_left_out(
    tmp_path, trained, capsys
):
    run.run_all(_flags(tmp_path, seeds=1), "python -m x")
    shared = [f"--results={tmp_path}/results.jsonl", "--seeds=1"]
    table.main(["ncc", "4,A4", *shared])
    text = capsys.readouterr().out
    assert text.index("## ncc Table 4:") < text.index("## ncc Table A4:")
    assert "MoCo v2, BYOL, NCC, NCC without ProtoCL: seed 0 not run" in text
    table.main(["ncc", "all", *shared])
    text = capsys.readouterr().out
    assert "## ncc Table A5:" in text  # has runs of Table 4
    assert "## ncc Table A4:" not in text


@pytest.mark.slow
def test_peers_are_scored_on_the_same_rows(tmp_path, monkeypatch, capsys):
    """Ten separate classes with a long tail; a line that is there is not computed again."""
    rng = np.random.default_rng(0)
    labels = np.arange(600) % 10
    features = 20 * np.eye(10, 16)[labels] + rng.normal(size=(600, 16))
    np.savez(tmp_path / "blobs.npz", features=features, labels=labels)
    monkeypatch.setitem(peers.NEEDS, "Leiden", "no_such_package")
    methods = ["SmoothTree, k given", "k-means, balanced, k given", "SmoothTree", "Leiden"]
    arguments = [f"{tmp_path}/blobs.npz", "--tail=10", f"--out={tmp_path}/out", "--seeds=2"]
    peers.main([*arguments, "--only", *methods])
    assert "Leiden is left out: no_such_package is not installed" in capsys.readouterr().out
    stored = (tmp_path / "out.jsonl").read_text()
    lines = list(map(json.loads, stored.splitlines()))
    assert [(line["method"], line["seed"]) for line in lines] == [
        (method, seed) for seed in range(2) for method in methods[:3]
    ]
    assert lines[0]["acc"] == 1
    assert lines[0]["recalls"] == [1] * 10
    balanced = lines[1]["recalls"]  # equal sizes cut the largest classes
    assert lines[1]["acc"] < 0.8
    assert balanced[0] < 0.6
    peers.main([*arguments, "--only", *methods])
    assert (tmp_path / "out.jsonl").read_text() == stored
    page = (tmp_path / "out.md").read_text()
    assert "| blobs, tail 10 | ACC | NMI | ARI | balanced | 3 largest | 3 smallest |" in page
    assert "| SmoothTree, k given | 1.000 ± 0.000 |" in page


def test_recalls_are_of_classes_by_size_and_matched_clusters():
    labels, clusters = np.array([5] * 4 + [2] * 2 + [7]), np.array([0, 0, 0, 1, 1, 1, 0])
    found = peers.scores(labels, clusters)
    assert found["recalls"] == [0.75, 1.0, 0.0]
    assert found["k"] == 2
    assert found["acc"] == pytest.approx(5 / 7)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (trained_heads.turtle, {"steps": 2000}),
        (trained_heads.temi, {"steps": 100, "heads": 2, "rate": 1e-3}),
    ],
)
def test_trained_heads_find_separate_classes(method, options):
    rng = np.random.default_rng(0)
    labels = np.arange(240) % 2
    x = 5 * np.eye(2, 12)[labels] + rng.normal(size=(240, 12))
    assert metrics.accuracy(labels, method(x.astype(np.float32), 2, 0, **options)) > 0.95


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_methods_that_train_are_told_k_and_no_labels(monkeypatch, metric):
    """Their k-means clusters come back in the order of the rows."""

    def run_pipeline(config, workdir):
        made = parse_config(config.to_dict())
        assert (made.eval.kmeans.k, made.method.clusters) == (3, 3)
        assert made.train.duration == "500 steps"
        rows = np.load(config.data.dir)
        assert rows.shape == ((12, 64) if metric == "cosine" else (12, 8, 8))
        clusters = rows.reshape(12, -1)[:, 0].astype(int)
        pathlib.Path(workdir).mkdir()
        lines = [f"{i},{clusters[i]}" for i in range(12)][::-1]
        text = "\n".join(["image,kmeans_cluster", *lines])
        (pathlib.Path(workdir) / "assignments.csv").write_text(text)

    monkeypatch.setattr(peers.pipeline, "run_pipeline", run_pipeline)
    x = np.repeat(np.arange(12) // 4, 64).reshape(12, 64).astype(np.float32)
    assert peers.METHODS["NCC, k given"](x, 3, 0, metric).tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_lines_that_are_there_are_not_run_again(tmp_path):
    """Whatever else a line has; the page names the commits of all lines."""
    found = tables.Lines(tmp_path / "out", "set", "seed")
    found.add({"set": "a", "seed": 0}, lambda: {"acc": 0.5})
    found.add({"set": "a", "seed": 0}, lambda: pytest.fail("it was run again"))
    file = tmp_path / "out.jsonl"
    file.write_text(file.read_text().replace(f'"{found.lines[0]["commit"]}"', '"an older one"'))
    again = tables.Lines(tmp_path / "out", "set", "seed")
    again.add({"set": "a", "seed": 0}, lambda: pytest.fail("it was run again"))
    again.add({"set": "a", "seed": 1}, lambda: {"acc": 0.75})
    assert [line["acc"] for line in again.lines] == [0.5, 0.75]
    assert len(file.read_text().splitlines()) == 2
    again.write("python x", "a table")
    page = (tmp_path / "out.md").read_text()
    assert page.startswith("a table\n\nCommand: `python x`. Hardware: ")
    assert ", one core. Versions: " in page
    assert f"an older one, {again.lines[1]['commit']}." in page or (
        f"{again.lines[1]['commit']}, an older one." in page
    )
