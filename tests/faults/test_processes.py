"""Two processes of two devices: where one ends, both do within a minute; and it resumes."""

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from cluster_jax.core import io, processes
from tests import toy

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 60
FLAGS = (
    "--config.network.width=4", "--config.network.projector.hidden=16",
    "--config.network.projector.out=8", "--config.train.batch_size=16",
    f"--config.train.duration={STEPS} steps", "--config.train.log_every=10",
    "--config.train.checkpoint_every=10", "--config.optimizer.warmup=1 step",
    "--config.eval.reduce.method=pca", "--config.eval.linear_probe.epochs=1",
    "--config.data.name=arrays",
)  # fmt: skip


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, None),
        ({"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"}, None),
        (
            {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"},
            (3, 4),
        ),
        ({"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "4"}, None),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}, (1, 2)),
        ({"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "0"}, (0, 8)),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "1"}, (1, 2)),
        ({"TPU_WORKER_HOSTNAMES": "a", "TPU_WORKER_ID": "0"}, None),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "MEGASCALE_COORDINATOR_ADDRESS": "x"}, None),
    ],
)
def test_the_place_of_a_process(env, expected):
    assert processes.place(env) == expected


class _Job:
    """Two processes of one command."""

    def __init__(self, data, workdir, *flags, **env):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        shared = {
            **os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": "2", "JAX_COORDINATOR_ADDRESS": f"localhost:{port}",
            "JAX_NUM_PROCESSES": "2",
        }  # fmt: skip
        command = [sys.executable, "-m", "cluster_jax.cli.app", "train", "--config=nrcc_digits"]
        command += [*FLAGS, f"--config.data.dir={data}", f"--workdir={workdir}", *flags]
        self.workdir = workdir
        self.hosts = [
            subprocess.Popen(
                command, cwd=ROOT, env={**shared, "JAX_PROCESS_ID": str(rank), **env},
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for rank in range(2)
        ]  # fmt: skip

    def wait_for(self, pattern, seconds=240):
        """Until a file is there; ends the test if the job ends before."""
        end = time.monotonic() + seconds
        while not list(self.workdir.glob(pattern)):
            assert time.monotonic() < end, pattern
            assert all(host.poll() is None for host in self.hosts), self.end()
            time.sleep(0.1)

    def end(self, seconds=200):
        """Exit codes, standard errors, and how long the last one took."""
        start = time.monotonic()
        errors = [host.communicate(timeout=seconds)[1] for host in self.hosts]
        return [host.returncode for host in self.hosts], errors, time.monotonic() - start


def _sentences(text):
    """What is said beside the bar, and nothing of the libraries' insides."""
    for inside in ("Traceback", "Fatal Python", "stack trace", "coordination_service"):
        assert inside not in text, text
    return [s for s in re.split(r"[\r\n]+", text) if s.startswith(("error: ", "Interrupted"))]


def _steps(workdir):
    return sorted(int(p.name) for p in (workdir / "checkpoints").glob("[0-9]*") if p.name.isdigit())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What the job gives when nothing happens."""
    folder = tmp_path_factory.mktemp("whole")
    job = _Job(toy.file(folder), folder / "run")
    codes, errors, _ = job.end(400)
    assert codes == [0, 0], errors
    return folder


def _assert_resumes(whole, workdir):
    """The same command ends as the run that nothing happened to, bit for bit."""
    codes, errors, _ = _Job(whole / "toy.npz", workdir).end(400)
    assert codes == [0, 0], errors
    first, second = (io.read_arrays(path / "embedding.npz") for path in (whole / "run", workdir))
    for name, rows in first.items():
        np.testing.assert_array_equal(rows, second[name])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("told", [(0,), (1,), (0, 1)])
def test_a_signal_saves_one_step_everywhere(whole, tmp_path, number, told):
    job = _Job(whole / "toy.npz", tmp_path / "run")
    job.wait_for("checkpoints/10")
    for rank in told:
        job.hosts[rank].send_signal(number)
    codes, errors, seconds = job.end()
    assert codes == [75, 75], errors
    assert seconds < 60
    assert all("Interrupted" in "".join(_sentences(text)) for text in errors)
    assert _steps(job.workdir)[-1] not in (10, STEPS)
    _assert_resumes(whole, job.workdir)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_is_killed(whole, tmp_path, rank):
    job = _Job(whole / "toy.npz", tmp_path / "run")
    job.wait_for("checkpoints/10")
    job.hosts[rank].kill()
    codes, errors, seconds = job.end()
    assert codes[1 - rank] == 1
    assert seconds < 60
    (sentence,) = _sentences(errors[1 - rank])
    assert f"error: process {rank} of 2 on" in sentence
    _assert_resumes(whole, job.workdir)


@pytest.mark.slow
def test_a_process_that_fails(whole, tmp_path):
    """One reads other images than the other: its own error, and the other says whose."""
    toy.file(tmp_path, count=48)
    job = _Job(whole / "toy.npz", tmp_path / "run")
    job.wait_for("processes/1.json")
    job.hosts[1].send_signal(signal.SIGSTOP)
    time.sleep(1)
    job.hosts[1].send_signal(signal.SIGCONT)  # a slow start is no failure
    job.wait_for("checkpoints/10")
    child = subprocess.run(
        ["pgrep", "-P", str(job.hosts[1].pid)], capture_output=True, text=True, check=True
    )
    os.kill(int(child.stdout.split()[0]), signal.SIGKILL)
    codes, errors, seconds = job.end()
    assert codes == [1, 1], errors
    assert seconds < 60
    assert "process 1 of 2 ended (killed by SIGKILL)" in "".join(_sentences(errors[0]))
    _assert_resumes(whole, job.workdir)
