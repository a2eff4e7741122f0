"""Two steps of the real network give the same state on one device and on four.

Of BYOL with each kind of BatchNorm, whose parts `tests/nets/test_norm.py` runs on devices: the
reference steps run every method on two devices.
"""

import jax
import numpy as np
import pytest

from cluster_jax.core import mesh as meshes
from cluster_jax.training.step import make_step
from tests import toy
from tests.methods import cases


def _advanced(run, state, devices, steps):
    """State and metrics after some steps, on the host."""
    mesh = meshes.make(devices)
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


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["shuffle", "sync", "local"])
def test_one_device_and_four(x64, norm):
    state = toy.wide(cases.initial("byol", False, 3))  # the same for each norm
    network = {} if norm == "sync" else {"norm": norm, "group": 4}
    run = cases.build("byol", False, **network)
    _compare(*(_advanced(run, state, devices, range(2)) for devices in (1, 4)), 1e-10)
