"""One run in a workdir at a time; a crashed one leaves nothing that stops the next."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest
from etils import epath

from cluster_jax.core.checks import InputError
from cluster_jax.runs import begin as pipeline
from cluster_jax.runs import trainings
from cluster_jax.runs import workdir as workdirs
from tests.faults.runs import assert_same, before_step

pytestmark = pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")
ROOT = pathlib.Path(__file__).resolve().parents[2]


def _take(folder):
    with workdirs.locked(epath.Path(folder)):
        pass


HOLD = """
import sys, time
from etils import epath
from cluster_jax.runs import workdir
with workdir.locked(epath.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_another_process_until_it_is_killed(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    owner = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert owner.stdout.readline() == "held\n"
    said = rf"{tmp_path} is used by another run, process {owner.pid} on .*; wait for it, or choose"
    with pytest.raises(InputError, match=said):
        _take(tmp_path)
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    assert (tmp_path / workdirs.LOCK).exists()
    _take(tmp_path)


def test_two_runs_at_once(finished, tmp_path, monkeypatch):
    """The second is refused before any work, and the first ends as if it had been alone."""
    config, said = finished.config, []

    def second():
        with pytest.raises(InputError) as error:
            pipeline.run_pipeline(config, tmp_path / "run")
        said.append(str(error.value))

    before_step(monkeypatch, 2, second)
    built, build_stages = [], trainings.build_stages
    monkeypatch.setattr(trainings, "build_stages", lambda *a: built.append(1) or build_stages(*a))
    pipeline.run_pipeline(config, tmp_path / "run")
    assert f"{tmp_path}/run is used by another run, process {os.getpid()}" in said[0]
    assert built == [1]
    assert_same(tmp_path / "run", finished.workdir)
    _take(tmp_path / "run")
