"""The console script, exit codes, and help that loads no JAX."""

import contextlib
import io
import re
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import pytest

import cluster_jax
from cluster_jax.cli import app, cluster, embed, exit_codes, flags, images, predict, train
from cluster_jax.core.checks import InputError
from cluster_jax.core.config import find_config
from cluster_jax.training import loop, progress
from cluster_jax.training.config import parse_config
from tests.rows import every_row

ROOT = Path(__file__).resolve().parents[2]


def _exit_of(main, *arguments):
    """The code with which a command ends; None for none."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return stop.value.code


def test_the_console_script_is_installed_as_app():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"cluster-jax": f"{app.__name__}:{app.main.__name__}"}


def test_help_of_the_script(capsys):
    assert _exit_of(app.main, "--help") == 0
    text = capsys.readouterr().out
    for name in ("images", "train", "embed", "cluster", "predict"):
        assert f"\n  {name} " in text
    assert exit_codes.HELP in text
    assert _exit_of(app.main, "--version") == 0
    assert capsys.readouterr().out == f"cluster-jax {cluster_jax.__version__}\n"


@pytest.mark.parametrize(
    ("module", "flags"),
    [
        (images, ("PHOTOS", "--workdir", "--n-clusters", "--open", "--config.KEY")),
        (train, ("--config", "--config.KEY", "--workdir")),
        (
            cluster,
            ("--features", "--labels", "--method", "--n-clusters", "--bandwidth", "--workdir"),
        ),
        (predict, ("--workdir", "--images", "--out")),
        (embed, ("--config", "--config.KEY", "--out")),
    ],
)
def test_help_of_the_commands_has_one_shape(module, flags, capsys):
    name = module.__name__.rpartition(".")[2]
    for arguments in ((name, "--help"), (name, "-h")):
        assert _exit_of(app.main, *arguments) == 0
    assert _exit_of(module.main, "--help") == 0
    one, two, three = capsys.readouterr().out.split(f"usage: cluster-jax {name} ")[1:]
    assert one == two == three
    assert one.endswith(f"{exit_codes.SHORT}\n")
    for flag in flags:
        assert f"\n  {flag} " in one
    assert len(one.splitlines()) < 60


@every_row(
    ("line", "message"),
    [
        ("", "COMMAND"),
        ("fit", "there is no command fit; choose from"),
        ("image photos", "no command image; did you mean images?"),
        ("train --config=imagess", "got 'imagess'; did you mean images"),
        ("--versoin", "there is no flag --versoin; did you mean --version?"),
        ("predict", "arguments are required: --workdir"),
        ("predict --workdir=w --images=i", "got w, which does not exist"),
        ("predict --workdir=w --imagse=i", "no flag --imagse; did you mean --images?"),
        ("predict --workdir=w --images=i --zzz", "error: there is no flag --zzz (see"),
        ("predict --workdir=w --images=My Photos", "unrecognized arguments: Photos"),
        ("cluster --features=x --method=tre", "method must be one of 'tree', 'gridshift'"),
        ("train --workdir=w", "for a new run; got none, and there is no run in w"),
        ("train", "--config must be given, or --workdir of a run that began; got neither"),
    ],
)
def test_mistyped_commands(line, message, refused):
    assert message in refused(app.main, *line.split())


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (InputError("k must be given; got none"), 2, "error: k must be given; got none"),
        (OSError("no space left on device"), 1, "error: no space left on device"),
        (MemoryError(), 1, "error: out of memory"),
        (progress.NotFinite("the loss is NaN"), 1, "error: the loss is NaN"),
        (
            loop.Preempted("stopped after step 3. Run the same command again to resume."),
            75,
            "stopped after step 3. Run the same command again to resume.",
        ),
        (
            KeyboardInterrupt(),
            130,
            "Interrupted; the same command goes on from what is saved, if anything is.",
        ),
    ],
)
def test_errors_have_a_sentence_and_a_code(error, code, sentence, capsys):
    with pytest.raises(SystemExit) as stop, exit_codes.handle_errors():
        raise error
    assert stop.value.code == code
    assert f"  {code:<5} " in exit_codes.HELP
    assert capsys.readouterr().err == f"{sentence}\n"


def test_a_bucket_that_tensorflow_cannot_reach_is_one_sentence(capsys):
    """With TensorFlow installed, gs:// goes through it, whose errors are no `OSError`."""
    module = {"__module__": "tensorflow.python.framework.errors_impl"}
    of_tensorflow = type("UnavailableError", (Exception,), module)
    said = "libcurl code 6 meaning 'Couldn't resolve host name'\n\t when reading gs://bucket/tfds"
    with pytest.raises(SystemExit) as end, exit_codes.handle_errors():
        raise of_tensorflow(said)
    assert end.value.code == exit_codes.FAILURE
    assert capsys.readouterr().err == f"error: {' '.join(said.split())}\n"


def test_names_that_are_not_utf_8_are_printed(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict")
    monkeypatch.setattr(sys, "stdout", out)
    with exit_codes.handle_errors():
        sys.stdout.write("caf\udce9.png\n")
    out.flush()
    assert out.buffer.getvalue() == b"caf\\udce9.png\n"


def test_a_bug_keeps_its_traceback(capsys):
    with pytest.raises(ZeroDivisionError), exit_codes.handle_errors():
        1 / 0  # noqa: B018
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [(InputError("k must be 2; got 1"), 2), (ZeroDivisionError("a bug"), 1), (SystemExit(0), 0)],
)
def test_a_process_of_a_job_that_fails_ends_at_once(monkeypatch, error, code):
    """At its exit Python would wait for the other processes, which wait for this one."""
    ended = []
    monkeypatch.setattr("jax.distributed.is_initialized", lambda: True)
    monkeypatch.setattr(exit_codes.os, "_exit", ended.append)
    with contextlib.suppress(type(error), SystemExit), exit_codes.handle_errors():
        raise error
    assert ended == [code]
    with pytest.raises(SystemExit), exit_codes.handle_errors():  # All of them end together.
        raise loop.Preempted("saved")
    assert ended == [code]


def test_warnings_are_a_line(capsys):
    show = warnings.showwarning
    with exit_codes.handle_errors():
        warnings.simplefilter("always")
        warnings.warn("it did not converge", UserWarning, stacklevel=1)
    assert capsys.readouterr().err == "warning: it did not converge\n"
    assert warnings.showwarning is show


def test_what_libraries_log_is_left_out():
    code = (
        "import logging; from cluster_jax.cli import exit_codes\n"
        "with exit_codes.handle_errors(): logging.getLogger('gcsfs').error('Request failed')\n"
        "assert logging.getLogger().handlers == []"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


CLOSED = """
import sys, time
from cluster_jax.cli import exit_codes, output
from cluster_jax.core import logs
with exit_codes.handle_errors():
    for _ in range(3):
        logs.logger.info("progress")
        time.sleep(0.2)
    logs.logger.warning("a warning")
    for bar in logs.progress_bar(range(2)):
        pass
    open(sys.argv[1], "w").write("done")
"""


@every_row("streams", ["<&- >&- 2>&-", "| head -1"], slow=[">&-", "2>&-"])
def test_streams_that_are_closed_end_no_run(tmp_path, streams):
    command = f"'{sys.executable}' -c '{CLOSED}' '{tmp_path}/file' {streams}"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "file").read_text() == "done"
    assert done.stderr == ("" if "2>&-" in streams else "warning: a warning\n")


def test_help_and_bad_input_load_no_jax():
    code = """
import sys
from cluster_jax.cli import app
codes = []
for arguments in (
    ["--help"], ["cluster", "--help"], ["predict", "--help"], ["train", "--help"],
    ["cluster", "--features=none.npy"], ["train", "--config=nrcc_digits", "--configg=1"],
):
    try:
        app.main(arguments)
    except SystemExit as stop:
        codes.append(stop.code)
assert codes == [0, 0, 0, 0, 2, 2], codes
sys.exit(" ".join({"jax", "umap"} & set(sys.modules)) or 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("error: ") == 2


def test_none_for_a_key_of_a_config():
    key = "--config.nrcc.sghmc.clip"
    assert flags.read_config("nrcc_digits", [f"{key}=None"])[0].nrcc.sghmc.clip is None
    assert flags.read_config("nrcc_digits", [f"{key}=None", f"{key}=2"])[0].nrcc.sghmc.clip == 2
    assert flags.read_config("nrcc_digits", ["--config.data.limit=None"])[0].data.limit is None
    config, name = flags.read_config("nrcc_digits", ["--config.seed=None"])
    with pytest.raises(InputError, match="seed must be"):
        parse_config(config, name)


def test_a_key_that_is_none_without_a_type():
    """As in SwAV's config: `{"size": None}` in place of a placeholder."""

    def small(*values):
        config, name = flags.read_config(
            "swav_digits", [f"--config.method.small{v}" for v in values]
        )
        return parse_config(config, name).method.config.small

    assert small(".size=4").size == 4
    assert small("=None") is None
    with pytest.raises(InputError, match=r"method\.small\.size must be .*; got 'x'"):
        small(".size=x")
    with pytest.raises(
        InputError, match=r"key network\.predictor\.out; network\.predictor is None"
    ):
        flags.read_config("swav_digits", ["--config.network.predictor.out=4"])


def _keys_that_may_be_none():
    """The keys of the base config whose comment, beside or above them, says what None means."""
    comment, names = "", r"(?!config)[a-z_]+\.[\w.]+|encoder|init_from|term|nrcc"
    for line in find_config("base").read_text().splitlines():
        code, _, beside = line.partition("#")
        if not code.strip():
            comment += beside
        elif match := re.match(rf'\s+"({names})": ', code):
            if re.search("(?<!=)None", comment + beside):
                yield match[1]
            comment = ""


def test_every_key_whose_comment_says_so_takes_none():
    keys = [*_keys_that_may_be_none()]
    assert len(keys) > 20
    for key in keys:
        refusals = []
        configs = ("nrcc_digits", "byol_digits", "simclr_images", "images")
        for config in configs:
            try:
                parse_config(*flags.read_config(config, [f"--config.{key}=None"]))
            except InputError as error:
                refusals.append(str(error))
        assert len(refusals) < len(configs), (key, refusals)


@pytest.mark.parametrize(
    "flag", [f"--config.{key}=None" for key in ("data.label", "train.duration")]
)
def test_none_where_it_is_not_allowed(flag):
    with pytest.raises(ValueError, match="must be"):
        parse_config(*flags.read_config("nrcc_digits", [flag]))


def test_a_folder_that_cannot_be_written_is_told_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)  # Root may write anywhere.
    with pytest.raises(InputError, match="must be a folder that can be written; got one that is"):
        flags.output_file(tmp_path / "x.csv")


def test_what_pillow_says_without_a_name_is_not_printed(capsys):
    with exit_codes.handle_errors():
        warnings.simplefilter("always")
        warnings.warn_explicit("Corrupt EXIF data", UserWarning, "/lib/PIL/Image.py", 1)
        warnings.warn_explicit("told", UserWarning, "/lib/other/Image.py", 1)
    assert capsys.readouterr().err == "warning: told\n"
