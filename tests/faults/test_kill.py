"""Killed at any moment: the same command ends bit for bit as the run that was left alone."""

import os
import pathlib
import random
import subprocess
import sys
import time

import numpy as np
import pytest

from cluster_jax.core import io
from tests import toy

ROOT = pathlib.Path(__file__).resolve().parents[2]
KILLS = 8  # of each config
CONFIGS = ("nrcc_digits", "moco_digits", "ncc_digits", "ncl_digits", "cueco_digits")
FLAGS = (
    "--config.network.width=4", "--config.network.projector.hidden=16",
    "--config.network.projector.out=8", "--config.train.log_every=2",
    "--config.train.checkpoint_every=3", "--config.eval.reduce.method=pca",
    "--config.eval.linear_probe.epochs=1", "--config.data.limit=200",
)  # fmt: skip
STEPS = "--config.train.duration=12 steps"
SHORT = {
    "moco_digits": ("--config.method.queue=64",),
    "ncc_digits": ("--config.method.warmup=2 steps", "--config.method.update_every=4 steps"),
    "cueco_digits": (
        "--config.method.warmup=2 steps", "--config.method.update_every=4 steps",
        "--config.method.queue=64",
    ),
}  # fmt: skip


def _start(config, workdir):
    command = [sys.executable, "-m", "cluster_jax.cli.app", "train", f"--config={config}"]
    command += [*FLAGS, STEPS, *SHORT.get(config, ()), "--config.train.batch_size=32"]
    if config == "ncl_digits":
        command += ["--config.train.labeled_batch_size=16", "--config.method.queue=64"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [*command, f"--workdir={workdir}"], cwd=ROOT, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def _same(first, second):
    assert (
        io.read_json(first / "results.json")["metrics"]
        == (io.read_json(second / "results.json")["metrics"])
    )
    table = (first / "assignments.csv").read_bytes()
    assert table == (second / "assignments.csv").read_bytes()
    for name in ("embedding.npz", "clusters.npz"):
        left, right = (io.read_arrays(path / name) for path in (first, second))
        for key, array in left.items():
            np.testing.assert_array_equal(array, right[key])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Config -> the workdir of a run that was left alone, and how long it took."""
    made = {}

    def get(config):
        if config not in made:
            workdir = tmp_path_factory.mktemp(config) / "run"
            start = time.monotonic()
            process = _start(config, workdir)
            _, errors = process.communicate()
            assert process.returncode == 0, errors
            made[config] = workdir, time.monotonic() - start
        return made[config]

    return get


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(KILLS))
@pytest.mark.parametrize("config", CONFIGS)
def test_killed_at_a_random_moment(whole, tmp_path, config, seed):
    """From the start of the interpreter on; the fourth run is let through."""
    alone, seconds = whole(config)
    rng = random.Random(f"{config} {seed}")
    for _ in range(3):
        process = _start(config, tmp_path / "run")
        try:
            process.communicate(timeout=rng.uniform(0, seconds))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
    process = _start(config, tmp_path / "run")
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "damaged" not in errors
    _same(alone, tmp_path / "run")


def test_killed_once(tmp_path):
    """The reduced form: after the first checkpoint, with the lock of the dead process in place."""
    data = toy.file(tmp_path)
    flags = ("--config.data.name=arrays", f"--config.data.dir={data}", "--config.data.limit=64")
    flags += ("--config.train.batch_size=16", "--config.train.duration=12 steps")
    command = [sys.executable, "-m", "cluster_jax.cli.app", "train", "--config=nrcc_digits"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}

    def start(workdir):
        return subprocess.Popen(
            [*command, *FLAGS, *flags, f"--workdir={workdir}"], cwd=ROOT, env=environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    process = start(tmp_path / "run")
    while not (tmp_path / "run" / "checkpoints" / "3").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    process.kill()
    process.communicate()
    for workdir in ("run", "alone"):
        process = start(tmp_path / workdir)
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    _same(tmp_path / "alone", tmp_path / "run")
    assert not (tmp_path / "run" / "lock.json").exists()
