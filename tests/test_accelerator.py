"""What needs an accelerator: `pytest -m gpu`."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from cluster_jax.training import state as states
from cluster_jax.training.step import make_step
from tests import toy

pytestmark = pytest.mark.gpu


def _losses(built, device, steps):
    mesh = jax.make_mesh((1,), (states.AXIS,), axis_types=(AxisType.Auto,), devices=[device])
    state = states.create(built.method, built.optimizer, seed=0, shape=built.shape, mesh=mesh)
    step = make_step(built.method, built.optimizer, mesh)
    resident = jax.device_put(built.dataset.images, states.replicated(mesh))
    found = []
    for i in range(steps):
        index = np.random.default_rng(i).permutation(64)[:32].astype(np.int32)
        batch = {"index": jax.device_put(index, states.sharded(mesh))}
        state, metrics = step(state, batch, resident)
        found.append(float(metrics["loss"]))
    return found


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("bfloat16", 3e-2)])
def test_a_step_equals_the_cpu(tmp_path, dtype, tolerance):
    """The first loss, and that training goes on; later losses drift apart by rounding."""
    if jax.default_backend() == "cpu":
        pytest.skip("there is no accelerator")
    made = toy.byol(toy.config(toy.file(tmp_path, channels=3)))
    made.network.name, made.network.stem, made.network.width = "resnet18", "cifar", 16
    made.network.dtype = dtype
    built = toy.built(made)
    here, there = (_losses(built, jax.devices(kind)[0], 3) for kind in (None, "cpu"))
    assert np.isfinite(here).all()
    assert abs(here[0] - there[0]) <= tolerance * abs(there[0])
