"""SIGTERM and Ctrl-C: the documented exit code, and the same command goes on, bit for bit."""

import os
import signal

import pytest

from cluster_jax.cli import exit_codes, train
from cluster_jax.runs import page, trainings
from tests.faults.runs import assert_same, before_step

pytestmark = [
    pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning"),
    pytest.mark.usefixtures("one_device", "traced_once", "compiled_once"),
]


@pytest.fixture
def command(toy_config, tmp_path):
    """The command of the run that was left alone; its exit code."""

    def run():
        try:
            train.main([f"--config={toy_config}", f"--workdir={tmp_path}/run"])
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


def _goes_on(command, finished, workdir, monkeypatch):
    assert not (workdir / "results.json").exists()
    monkeypatch.undo()
    assert command() == 0
    assert_same(workdir, finished.workdir)


@pytest.mark.parametrize(("number", "step"), [(signal.SIGTERM, 1), (signal.SIGINT, 3)])
def test_during_the_training(command, finished, tmp_path, monkeypatch, capsys, number, step):
    """The step is saved, also the first, which compiles; both signals have the code of that.

    From outside the signal comes in `test_detached.py`.
    """
    before_step(monkeypatch, step, lambda: os.kill(os.getpid(), number))
    assert command() == exit_codes.PREEMPTED
    assert (tmp_path / "run" / "checkpoints" / f"{step}").is_dir()
    said = capsys.readouterr().err
    assert f"Interrupted after step {step}, which is saved" in said
    assert said.endswith("Run the same command again to resume.\n")
    _goes_on(command, finished, tmp_path / "run", monkeypatch)


@pytest.mark.parametrize(
    "moment",
    [
        (trainings, "build_stages", signal.SIGTERM, 75),  # before anything is saved
        (page.report, "render", signal.SIGINT, 130),
    ],
    ids=["sigterm", "sigint"],
)
def test_outside_of_the_training(command, finished, tmp_path, monkeypatch, capsys, moment):
    module, name, number, code = moment
    _before(monkeypatch, module, name, lambda: os.kill(os.getpid(), number))
    assert command() == code
    said = capsys.readouterr().err
    assert "Interrupted; the same command goes on from what is saved" in said
    assert "Traceback" not in said
    _goes_on(command, finished, tmp_path / "run", monkeypatch)
