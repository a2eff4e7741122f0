"""Killed at any moment: the same command ends bit for bit as the run that was left alone."""

import os
import pathlib
import random
import subprocess
import sys
import time

import pytest

from cluster_jax.encoding import embed
from cluster_jax.pipeline import run as pipeline
from tests.faults.runs import assert_same, before_step, left_by_a_kill

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Moments of one run, of which each test goes on from what a kill would have left.
MOMENTS = ("compiling", "saving", "training", "embedding", "clustering", "report")


@pytest.fixture(scope="module")
def killed(finished, tmp_path_factory, one_device, traced_once, compiled_once):
    """Moment -> what was on the disk at it."""
    folder, left = tmp_path_factory.mktemp("killed"), {}

    def kill(moment):
        left[moment] = left_by_a_kill(folder / "run", folder / moment)

    def kill_after_saving():
        while not (folder / "run" / "checkpoints" / "2").exists():
            time.sleep(0.01)
        kill("training")

    def before(module, name, moment):
        function = getattr(module, name)

        def act(*values, **named):
            kill(moment)
            return function(*values, **named)

        patch.setattr(module, name, act)

    with pytest.MonkeyPatch.context() as patch:
        before_step(patch, 1, lambda: kill("compiling"))
        before_step(patch, 3, lambda: kill("saving"))
        before_step(patch, 4, kill_after_saving)
        before(embed.Parts, "finish", "embedding")
        before(pipeline.outputs.evaluate, "evaluate", "clustering")
        before(pipeline.outputs.report, "write_report", "report")
        pipeline.run_pipeline(finished.config, folder / "run", "toy")
    return left


@pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_once(finished, killed, moment):
    """The reduced form, without a second process: the disk is all that a kill leaves."""
    workdir = killed[moment]
    assert not (workdir / "results.json").exists()
    assert (workdir / "embedding.npz").exists() == (moment in ("clustering", "report"))
    assert (workdir / "checkpoints" / "4").exists() == (moment in MOMENTS[3:])
    pipeline.run_pipeline(finished.config, workdir, "toy")
    assert_same(workdir, finished.workdir)


FLAGS = (
    "--config.network.width=4", "--config.train.log_every=2", "--config.train.batch_size=32",
    "--config.train.duration=12 steps", "--config.train.checkpoint_every=3",
    "--config.eval.reduce.method=pca", "--config.eval.linear_probe.epochs=1",
    "--config.data.limit=200",
)  # fmt: skip
REFRESHED = ("--config.method.warmup=2 steps", "--config.method.update_every=4 steps")
PROJECTOR = ("--config.network.projector.hidden=16", "--config.network.projector.out=8")
CONFIGS = {
    "nrcc_digits": PROJECTOR,
    "moco_digits": (*PROJECTOR, "--config.method.queue=64"),
    "ncc_digits": (*PROJECTOR, *REFRESHED),
    "ncl_digits": (
        "--config.train.labeled_batch_size=16", "--config.method.queue=64",
        "--config.stages.supervised.train.labeled_batch_size=32",
        "--config.stages.supervised.train.duration=6 steps",
        "--config.stages.rotation.train.duration=6 steps", "--config.optimizer.warmup=2 steps",
    ),
    "kernel_infonce_digits": PROJECTOR,
}  # fmt: skip
# What can be seen of a run from outside, in this order.
MARKS = {
    "start": lambda workdir, said: True,
    "built": lambda workdir, said: "\nworkdir " in said,
    "compiling": lambda workdir, said: "compiling\n" in said,
    "saving": lambda workdir, said: bool(list(workdir.glob("checkpoints/[0-9]*"))),
    "trained": lambda workdir, said: (workdir / "checkpoints" / "12").exists(),
    "embedded": lambda workdir, said: (workdir / "embedding.npz").exists(),
    "clustered": lambda workdir, said: (workdir / "assignments.csv").exists(),
    "done": lambda workdir, said: (workdir / "results.json").exists(),
}
# Each kill is at a random moment between a mark and the next, twice in steps with saves in flight.
KILLS = ("start", "built", "compiling", "saving", "saving", "trained", "embedded", "clustered")


class _Process:
    """The command; what it says is in a file."""

    def __init__(self, config, workdir):
        command = [sys.executable, "-m", "cluster_jax.cli.app", "train", f"--config={config}"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        self.workdir, self._said = workdir, workdir.parent / "said"
        with self._said.open("w") as said:
            self._process = subprocess.Popen(
                [*command, *FLAGS, *CONFIGS[config], f"--workdir={workdir}"],
                cwd=ROOT, env=environment, stdout=said, stderr=said,
            )  # fmt: skip

    def said(self):
        return self._said.read_text()

    def wait_for(self, mark):
        """Until it is there; False if the process has ended before."""
        while not MARKS[mark](self.workdir, self.said()):
            if self._process.poll() is not None:
                return False
            time.sleep(0.01)
        return True

    def kill(self):
        """The exit code."""
        self._process.kill()
        return self._process.wait()

    def end(self):
        assert self._process.wait() == 0, self.said()
        return self.said()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Config -> the workdir of a run that was left alone, and the times of its marks in s."""
    made = {}

    def get(config):
        if config not in made:
            # The second finds the code that the first one has compiled, as those after a kill do.
            for _ in range(2):
                workdir, times = tmp_path_factory.mktemp(config) / "run", {}
                process, start = _Process(config, workdir), time.monotonic()
                for mark in MARKS:
                    process.wait_for(mark)
                    times[mark] = time.monotonic() - start
                process.end()
            made[config] = workdir, times
        return made[config]

    return get


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(KILLS)))
@pytest.mark.parametrize("config", CONFIGS)
def test_killed_at_a_random_moment(alone, tmp_path, config, number):
    """From the start of the interpreter on, and the next run goes on from there."""
    left_alone, times = alone(config)
    mark, rng = KILLS[number], random.Random(f"{config} {number}")
    following = [*MARKS][[*MARKS].index(mark) + 1]
    wait = rng.uniform(0, times[following] - times[mark])
    for attempt in range(5):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        process = _Process(config, folder / "run")
        if process.wait_for(mark):
            time.sleep(wait / 2**attempt)
            if process.kill() == -9:
                break
    else:
        pytest.fail("the run ended before it was killed")
    said = _Process(config, folder / "run").end()
    assert "damaged" not in said
    assert_same(left_alone, folder / "run")
