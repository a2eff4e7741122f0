"""Two processes of two devices: where one ends, both do within a minute; and it resumes."""

import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from etils import epath
from PIL import Image

from cluster_jax.cli import exit_codes, train
from cluster_jax.core import interrupt, processes
from cluster_jax.training import loop
from tests import toy
from tests.faults.runs import assert_same

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


@pytest.mark.parametrize(
    ("line", "is_noise"),
    [
        ("E0000 00:00:1795344636.1   123 coordination_service_agent.cc:512] failed", True),
        ("W1122 11:17:23.784629 140267882011520 loop.py:192] step 3 skipped", False),
        ("W1122 11:17:23.784629 1402 checkpoint.py:9] checkpoint a/60 is damaged (x.cc:1)", False),
        ("[Gloo] Rank 0 is connected to 1 peer ranks.", True),
        ("Additional GRPC error information from remote target coordination_service", True),
        (':UNKNOWN:Error received from peer  {grpc_message:"Socket closed"}', True),
        ("training:  85%", False),
    ],
)
def test_what_is_left_out_of_the_messages(line, is_noise):
    assert bool(processes._NOISE.match(line.encode())) == is_noise


class _Ended:
    """A child that has ended."""

    def __init__(self, code):
        self._code = code

    def is_alive(self):
        return False

    def code(self):
        return self._code

    def finish(self, quiet):
        pass

    def reason(self):
        return "it broke here"


@pytest.mark.parametrize(
    ("own", "state", "code"),
    [
        (0, "done", 0),
        (0, "interrupted", 75),
        (0, "failed", 1),
        (0, "running", 0),
        (1, "interrupted", 75),
        (1, "failed", 1),
        (1, "running", 1),
    ],
)
def test_all_end_as_the_first_process_ends(tmp_path, monkeypatch, capsys, own, state, code):
    """Others have nothing left to do while it clusters, or lose it while they embed together."""
    monkeypatch.setattr(processes, "_Child", lambda arguments: _Ended(own))
    for name in ("_GRACE", "_EXPLAIN"):
        monkeypatch.setattr(processes, name, 0.5)
    handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    first = processes._Others

    def told(method):
        def tell(others, seconds):
            about = (epath.Path(tmp_path) / "processes", processes.Place(0, 2))
            first(*about).say(state, "it broke")
            return method(others, seconds)

        return tell

    for name in ("end_of_first", "wait_for_end"):
        monkeypatch.setattr(first, name, told(getattr(first, name)))
    try:
        got = processes.supervise(
            [], epath.Path(tmp_path), processes.Place(1, 2), preempted=75, failure=1
        )
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert got == code
    said = capsys.readouterr().err.strip()
    assert said.startswith({"interrupted": "Interrupted; ", "failed": "error: it"}.get(state, ""))
    assert bool(said) == (state in ("interrupted", "failed"))


@pytest.mark.parametrize(
    ("error", "waits"),
    [
        (interrupt.Terminated(), False),
        (KeyboardInterrupt(), False),
        (loop.Preempted("all of them"), True),
        (OSError("full"), False),
    ],
)
def test_who_waits_for_the_others_at_the_end(monkeypatch, error, waits):
    """An interruption after the training ends one process: the others wait for it in the next."""

    class _End(BaseException):
        pass

    def end(code):
        raise _End

    monkeypatch.setenv(processes.CHILD, "1")
    monkeypatch.setattr(processes.os, "_exit", end)
    with (
        pytest.raises(SystemExit if waits else _End),
        processes.not_waiting(train.TOGETHER),
        exit_codes.handle_errors(),
    ):
        raise error


def test_a_signal_that_was_forgotten(tmp_path, monkeypatch):
    """JAX takes a signal after the last step, and nothing asks it any longer."""
    for name, value in (
        ("COORDINATOR_ADDRESS", "a:1"),
        ("NUM_PROCESSES", "2"),
        ("PROCESS_ID", "1"),
    ):
        monkeypatch.setenv(f"JAX_{name}", value)
    workdir = epath.Path(tmp_path)
    (workdir / "processes").mkdir()
    monkeypatch.setenv(processes.CHILD, "1")
    assert not processes.was_told(workdir)
    (workdir / "processes" / "1.told").touch()
    assert processes.was_told(workdir)
    monkeypatch.delenv(processes.CHILD)
    assert not processes.was_told(workdir)


_STARTED = []


@pytest.fixture(scope="module", autouse=True)
def _no_process_is_left():
    """A process that is killed ends its child with it."""
    yield
    for host in _STARTED:
        host.kill()
        host.communicate()


class _Job:
    """Two processes of one command.

    Args:
        data: its images.
        workdir: of the run.
        flags: of both processes.
        own: flags of the second process alone.
    """

    def __init__(self, data, workdir, *flags, own=()):
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
                [*command, *(own if rank else ())],
                cwd=ROOT, env={**shared, "JAX_PROCESS_ID": str(rank)},
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for rank in range(2)
        ]  # fmt: skip
        _STARTED.extend(self.hosts)

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


def _assert_resumes(whole, workdir, data="toy.npz", flags=()):
    """The same command ends as the run that nothing happened to, bit for bit."""
    codes, errors, _ = _Job(whole / data, workdir, *flags).end(400)
    assert codes == [0, 0], errors
    assert_same(whole / "run", workdir)
    return errors


def _interrupted(job, number, told):
    """The job with one step saved everywhere, after a signal to some of its processes."""
    job.wait_for("checkpoints/10")
    for rank in told:
        job.hosts[rank].send_signal(number)
    codes, errors, seconds = job.end()
    assert codes == [75, 75], errors
    assert seconds < 60
    assert all("Interrupted" in "".join(_sentences(text)) for text in errors)
    assert _steps(job.workdir)[-1] not in (10, STEPS)
    return job


def test_a_signal_to_one_process_ends_both(tmp_path):
    """The one job of several processes of the default suite."""
    _interrupted(_Job(toy.file(tmp_path), tmp_path / "run"), signal.SIGTERM, (1,))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("told", [(0,), (1,), (0, 1)])
def test_a_signal_saves_one_step_everywhere(whole, tmp_path, number, told):
    job = _interrupted(_Job(whole / "toy.npz", tmp_path / "run"), number, told)
    _assert_resumes(whole, job.workdir)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("mark", [f"checkpoints/{STEPS}", "embedding.npz"])
def test_a_signal_after_the_training(whole, tmp_path, mark, rank):
    """While all embed, or the first process clusters and the other one waits for it."""
    job = _Job(whole / "toy.npz", tmp_path / "run")
    job.wait_for(mark)
    job.hosts[rank].send_signal(signal.SIGTERM)
    codes, errors, seconds = job.end()
    assert codes == [75, 75], errors
    assert seconds < 60
    assert all("Interrupted" in "".join(_sentences(text)) for text in errors)
    if rank == 0:  # The first process hears of the second one's signal when it may be done.
        assert not (job.workdir / "results.json").exists()
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
def test_a_slow_start_is_no_failure(whole, tmp_path):
    """And the command itself killed, not the process that watches it."""
    job = _Job(whole / "toy.npz", tmp_path / "run")
    job.wait_for("processes/1.json")
    job.hosts[1].send_signal(signal.SIGSTOP)
    time.sleep(1)
    job.hosts[1].send_signal(signal.SIGCONT)
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


PHOTOS = ("--config.data.name=folder", "--config.data.cache_mb=0")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """The same of a folder whose files are read in every step."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "photos").mkdir()
    for i, image in enumerate(toy.images()[0]):
        Image.fromarray(image[..., 0]).save(folder / "photos" / f"{i:02}.png")
    codes, errors, _ = _Job(folder / "photos", folder / "run", *PHOTOS).end(400)
    assert codes == [0, 0], errors
    return folder


@pytest.mark.slow
def test_an_error_of_its_own(photos, tmp_path):
    """One process needs an image that was deleted: both say which process, and why."""
    job = _Job(photos / "photos", tmp_path / "run", *PHOTOS)
    job.wait_for("checkpoints/10")
    photo = photos / "photos" / "07.png"
    content = photo.read_bytes()
    photo.unlink()
    codes, errors, seconds = job.end()
    photo.write_bytes(content)
    assert sorted(codes) == [1, 2], errors
    failed = codes.index(2)
    assert seconds < 60
    (own,), (other,) = _sentences(errors[failed]), _sentences(errors[1 - failed])
    assert "07.png" in own
    assert "got it deleted" in own
    assert f"process {failed} of 2 ended ({own.removeprefix('error: ')})" in other
    _assert_resumes(photos, job.workdir, "photos", PHOTOS)


@pytest.mark.slow
def test_an_error_of_its_own_at_the_start(whole, tmp_path):
    job = _Job(whole / "toy.npz", tmp_path / "run", own=("--config.network.width=0",))
    codes, errors, seconds = job.end()
    assert codes == [1, 2], errors
    assert seconds < 60
    (own,), (other,) = _sentences(errors[1]), _sentences(errors[0])
    assert "network.width must be" in own
    assert f"process 1 of 2 ended ({own.removeprefix('error: ')})" in other
    _assert_resumes(whole, job.workdir)


@pytest.mark.slow
def test_a_damaged_checkpoint_of_a_finished_job(whole, tmp_path):
    """It is found before the old figures are printed, and made again."""
    workdir = shutil.copytree(whole / "run", tmp_path / "run")
    (newest,) = (f for f in workdir.glob(f"checkpoints/{STEPS}") if f.is_dir())
    for file in newest.rglob("d/*"):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 4
        file.write_bytes(content)
    errors = _assert_resumes(whole, workdir)
    assert f"checkpoints/{STEPS} is damaged" in errors[0]
    assert (workdir / "damaged" / str(STEPS)).is_dir()
    assert newest.is_dir()
