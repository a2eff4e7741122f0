"""SIGTERM and Ctrl-C at any time: the documented exit code, and the same command goes on."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from cluster_jax.cli import train
from cluster_jax.core import io
from cluster_jax.data import batches
from cluster_jax.encoding import embed
from cluster_jax.pipeline import run as pipeline
from cluster_jax.pipeline import trainings
from cluster_jax.training import checkpoint
from tests.faults.runs import assert_same, before_step

pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")
ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def start():
    """Starts Python with arguments; ends it after the test."""
    started = []

    def start(*arguments):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def _read_until(process, text, stream=None):
    said = ""
    while text not in said:
        character = (stream or process.stderr).read(1)
        assert character, said
        said += character
    return said


# In compiled code for half a minute, as while a step compiles: Python itself cannot answer.
BUSY = """
import hashlib, sys
from cluster_jax.cli import exit_codes
with exit_codes.handle_errors():
    print("compiling", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**8)
"""
TRAIN = ("-m", "cluster_jax.cli.app", "train", "--config=nrcc_digits")


@pytest.mark.parametrize("is_run", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_an_answer_at_once_and_an_end_at_once(start, tmp_path, is_run, number, code):
    """While the step compiles."""
    process = start(*TRAIN, f"--workdir={tmp_path}/run") if is_run else start("-c", BUSY)
    _read_until(process, "compiling", process.stdout)
    time.sleep(0.5)
    since = time.monotonic()
    process.send_signal(number)
    _read_until(process, "once more ends at once")
    assert time.monotonic() - since < 2
    process.send_signal(number)
    assert process.wait(timeout=10) == code
    errors = process.stderr.read()
    assert "Ended at once" in errors
    assert "Traceback" not in errors


# As LLVM does, compiled code calls Python, which ignores what is raised there.
CALLBACK = """
import ctypes, time
from cluster_jax.cli import exit_codes

def called(*values):
    print("called", flush=True)
    for _ in range(100):
        time.sleep(0.1)
    return 0

sort = ctypes.CDLL(None).qsort
kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
with exit_codes.handle_errors():
    sort((ctypes.c_int * 2)(2, 1), 2, 4, kind(called))
    time.sleep(100)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_an_interrupt_that_compiled_code_ignores(start, number, code):
    process = start("-c", CALLBACK)
    _read_until(process, "called", process.stdout)
    process.send_signal(number)
    assert process.wait(timeout=10) == code
    assert process.stderr.read().splitlines() == [
        "Interrupted; the same command goes on from what is saved, if anything is."
    ]


IMPORTS = """
import os, signal, time
from cluster_jax.cli import app

def imported(command):
    os.kill(os.getpid(), signal.{name})
    time.sleep(10)

app._module = imported
app.main(["cluster"])
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 75)])
def test_an_interrupt_of_the_imports(start, name, code):
    process = start("-c", IMPORTS.format(name=name))
    assert process.wait(timeout=20) == code
    assert process.stderr.read() == "Interrupted.\n"


CONFIG = """
from tests import toy

def get_config():
    return toy.config({path!r})
"""


@pytest.fixture
def command(finished, tmp_path):
    """The command of the run that was left alone; its exit code."""
    (tmp_path / "toy.py").write_text(CONFIG.format(path=str(finished.config.data.dir)))

    def run(*flags, name="run"):
        try:
            train.main([f"--config={tmp_path}/toy.py", f"--workdir={tmp_path}/{name}", *flags])
        except SystemExit as stop:
            return stop.code
        return 0

    return run


def _before(monkeypatch, module, name, act):
    function = getattr(module, name)

    def acted(*values, **named):
        act()
        return function(*values, **named)

    monkeypatch.setattr(module, name, acted)


def _send(number):
    os.kill(os.getpid(), number)


SIGNALS = {signal.SIGTERM: 75, signal.SIGINT: 130}
# Part of a run -> what starts it.
PARTS = {
    "embedding": (trainings, "embed"),
    "embedded": (embed.Parts, "finish"),
    "clustering": (pipeline.outputs.evaluate, "evaluate"),
    "report": (pipeline.outputs.report, "write_report"),
}
REDUCED = {("embedded", signal.SIGTERM), ("clustering", signal.SIGINT), ("report", signal.SIGTERM)}


def _goes_on(command, finished, workdir, monkeypatch, capsys):
    assert "Traceback" not in capsys.readouterr().err
    assert not (workdir / "results.json").exists()
    monkeypatch.undo()
    assert command() == 0
    assert_same(workdir, finished.workdir)


@pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")
@pytest.mark.parametrize(
    ("part", "number"),
    [
        pytest.param(part, number, marks=() if (part, number) in REDUCED else pytest.mark.slow)
        for part in PARTS
        for number in SIGNALS
    ],
)
def test_after_the_training(command, finished, tmp_path, monkeypatch, capsys, part, number):
    workdir = tmp_path / "run"

    def act():
        if (workdir / "checkpoints" / "4").exists():  # the training embeds a few images too
            _send(number)

    _before(monkeypatch, *PARTS[part], act)
    assert command() == SIGNALS[number]
    _goes_on(command, finished, workdir, monkeypatch, capsys)


@pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")
@pytest.mark.parametrize("number", SIGNALS)
def test_in_the_midst_of_the_embedding(command, tmp_path, monkeypatch, capsys, number):
    """What is embedded is kept, and the same command embeds the rest, bit for bit the same."""
    monkeypatch.setattr(pipeline, "_cluster_and_write", lambda *arguments: {})
    flags, workdir = ("--config.eval.batch_size=16",), tmp_path / "run"
    assert command(*flags, name="whole") == 0
    evaluation, counts = batches.evaluation, []

    def interrupted(dataset, **arguments):
        for images, index, count in evaluation(dataset, **arguments):
            if len(counts) == 2:
                _send(number)
            if dataset.size == 64:  # the training embeds a few images too
                counts.append(count)
            yield images, index, count

    with monkeypatch.context() as patch:
        patch.setattr(batches, "evaluation", interrupted)
        assert command(*flags) == SIGNALS[number]
    said = capsys.readouterr().err
    assert "Interrupted; the same command goes on from what is saved" in said
    assert "Traceback" not in said
    assert list((workdir / "embedding.npz.parts").glob("part_*"))
    starts = []

    def started(dataset, **arguments):
        starts.append(arguments["start"])
        return evaluation(dataset, **arguments)

    monkeypatch.setattr(batches, "evaluation", started)
    assert command(*flags) == 0
    assert starts == [32]
    assert not (workdir / "embedding.npz.parts").exists()
    first, second = (io.read_arrays(tmp_path / n / "embedding.npz") for n in ("run", "whole"))
    for name, rows in second.items():
        np.testing.assert_array_equal(first[name], rows)


@pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")
@pytest.mark.parametrize("number", SIGNALS)
def test_before_anything_is_saved(command, tmp_path, monkeypatch, capsys, number):
    _before(monkeypatch, trainings, "build_stages", lambda: _send(number))
    assert command() == SIGNALS[number]
    assert "Interrupted; the same command goes on from what is saved" in capsys.readouterr().err


@pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")
@pytest.mark.parametrize("number", SIGNALS)
def test_during_the_training(command, finished, tmp_path, monkeypatch, capsys, number):
    """The step is saved, and both signals have the code of that."""
    before_step(monkeypatch, 3, lambda: _send(number))
    assert command() == 75
    assert (tmp_path / "run" / "checkpoints" / "3").is_dir()
    assert "Interrupted after step 3, which is saved" in capsys.readouterr().err
    _goes_on(command, finished, tmp_path / "run", monkeypatch, capsys)


@pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")
def test_while_the_last_checkpoint_is_saved(command, finished, tmp_path, monkeypatch, capsys):
    save = checkpoint.Checkpoints.save

    def saved(checkpoints, state, step, unreported):
        if step == 4:
            _send(signal.SIGTERM)
        save(checkpoints, state, step, unreported)

    monkeypatch.setattr(checkpoint.Checkpoints, "save", saved)
    assert command() == 75
    assert "Interrupted after step 4, which is saved" in capsys.readouterr().err
    _goes_on(command, finished, tmp_path / "run", monkeypatch, capsys)


# A signal between the opening of a file and its `with` leaves closing it to Python.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
@pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")
@pytest.mark.parametrize("seed", range(40))
def test_at_a_random_moment(command, finished, tmp_path, monkeypatch, capsys, seed):
    """From the last step on, before the results are written."""
    rng = random.Random(seed)
    number = rng.choice([*SIGNALS])
    timer = threading.Timer(rng.uniform(0, 0.4), _send, [number])
    before_step(monkeypatch, 4, timer.start)
    write = io.write_json

    def write_json(path, *values, **named):
        if path.name == "results.json":
            timer.join()
        write(path, *values, **named)

    monkeypatch.setattr(io, "write_json", write_json)
    assert command() in (75, SIGNALS[number])
    _goes_on(command, finished, tmp_path / "run", monkeypatch, capsys)
