"""Two steps of the real network give the same state on one device and on four.

Of BYOL with each kind of BatchNorm: the reference steps run every method on two devices.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax.training import state as states
from cluster_jax.training.step import make_step
from tests import toy
from tests.methods import cases


def _advanced(run, state, devices, steps):
    """State and metrics after some steps, on the host."""
    mesh = states.make_mesh(devices)
    step = make_step(run.method, run.optimizer, mesh)
    state, metrics = cases.advance(run, cases.on_mesh(state, mesh), step, mesh, steps)
    return jax.device_get((state._replace(key=jax.random.key_data(state.key)), metrics))


def _compare(one, many, tolerance):
    leaves = jax.tree.leaves_with_path(one)
    assert len(leaves) > 20
    for (path, x), y in zip(leaves, jax.tree.leaves(many), strict=True):
        error = np.max(np.abs(np.asarray(x, np.float64) - np.asarray(y, np.float64)))
        bound = tolerance * (1 + np.max(np.abs(x)))
        assert error <= bound, f"{jax.tree_util.keystr(path)}: {error} > {bound}"


def _grouped(norm, devices):
    """Two steps in float64."""
    state = toy.wide(cases.initial("byol", False, 3))  # the same for each norm
    network = {} if norm == "sync" else {"norm": norm, "group": 4}
    return _advanced(cases.build("byol", False, **network), state, devices, range(2))


@pytest.mark.parametrize(
    "norm", ["shuffle", *(pytest.param(norm, marks=pytest.mark.slow) for norm in ("sync", "local"))]
)
def test_one_device_and_four(x64, norm):
    _compare(_grouped(norm, 1), _grouped(norm, 4), 1e-10)


def test_devices_see_different_images():
    """The equality above would be idle if every shard held the same rows."""
    run = cases.build("simclr", False)
    index = np.random.default_rng(0).permutation(64)[: cases.BATCH]
    shards = run.dataset.images[index].reshape(8, 2, -1)
    assert len(np.unique(shards, axis=0)) == 8
    assert jnp.unique(index).size == cases.BATCH
