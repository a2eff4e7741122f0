"""The host waits for the devices: few steps are in flight."""

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from cluster_jax.training import watch
from cluster_jax.training.progress import Collapsed, Progress


class Loss:
    """Stands for an array that is not computed until somebody waits for it."""

    def __init__(self):
        self.computed = False

    def block_until_ready(self):
        self.computed = True
        return self


def test_at_most_two_steps_are_in_flight():
    progress = Progress(SimpleNamespace(total_steps=10), None, 0)
    losses = [Loss() for _ in range(10)]
    for i, loss in enumerate(losses):
        progress.add({"loss": loss})
        assert sum(not loss.computed for loss in losses[: i + 1]) == min(i + 1, 2)
    progress.close()


def test_a_resumed_training_stops_at_the_look_at_which_it_stops_in_one_piece(monkeypatch):
    """Two looks in a row must see a collapse, whether or not the training was killed between."""
    monkeypatch.setattr(watch, "look", lambda *_: {watch.SPREAD: 0.0})
    train = SimpleNamespace(batch_size=4, on_collapse="stop")
    run = SimpleNamespace(
        total_steps=100, train=train, learning_rate=lambda _: 0.1,
        method=SimpleNamespace(watched=None),
    )  # fmt: skip
    state = SimpleNamespace(model_state=None)
    line = {"step": 5, "loss": 1.0, watch.SPREAD: 0.0}

    def step_after(start, earlier):
        progress = Progress(run, None, start, earlier)
        progress.add({"loss": np.float32(1), "gradient_norm": np.float32(1)})
        progress.report(start + 1, state, lambda _: {})

    step_after(5, ())
    step_after(5, [{"step": 5, "loss": 1.0}])
    with pytest.raises(Collapsed):
        step_after(5, [line])


@pytest.mark.slow
def test_two_cpu_devices_do_not_deadlock(tmp_path):
    """With 32 steps in flight XLA ended three of four such trainings on two cores."""
    x = np.random.default_rng(0).normal(size=(3_000, 1_280)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    # XLA has a thread per core or per device, whichever are more.
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "2", "PJRT_NPROC": "2"}
    command = [
        sys.executable, "-m", "cluster_jax.main", "--config=simclr_features",
        f"--config.data.dir={tmp_path / 'x.npy'}", f"--workdir={tmp_path / 'run'}",
        "--config.train.duration=1000 steps", "--config.train.log_every=500",
        "--config.eval.n_init=1",
    ]  # fmt: skip
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
