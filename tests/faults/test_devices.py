"""A checkpoint of two devices goes on on one, two, and four, with BatchNorm over all of them."""

import contextlib

import jax
import numpy as np
import pytest

from cluster_jax.training import checkpoint
from cluster_jax.training import state as states
from cluster_jax.training.step import make_step
from tests import toy
from tests.methods import cases

SAVED, STEPS = 4, 20


def _checkpoints(folder, run):
    return contextlib.closing(checkpoint.Checkpoints(folder, keep=2, method=run.name))


@pytest.fixture(scope="module", params=["simclr", "cueco"])
def saved(request, tmp_path_factory):
    """The run, its state before the first step, and the folder of a checkpoint of step four."""
    with jax.enable_x64(True):
        run, folder = cases.build(request.param, False), tmp_path_factory.mktemp("saved")
        state = toy.wide(cases.with_keys(cases.initial(request.param, False, 3)))
        mesh = states.make_mesh(2)
        step = make_step(run.method, run.optimizer, mesh)
        state, _ = cases.advance(run, cases.on_mesh(state, mesh), step, mesh, range(SAVED))
        with _checkpoints(folder, run) as checkpoints:
            checkpoints.save(state, SAVED)
        went_on, _ = cases.advance(run, state, step, mesh, range(SAVED, SAVED + STEPS))
        return run, folder, jax.device_get(went_on._replace(key=None))


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_restored_onto_other_devices(x64, saved, devices):
    """In float64: in float32 a rounded ReLU that flips is no smaller a difference."""
    run, folder, went_on = saved
    mesh = states.make_mesh(devices)
    target = states.create(run.method, run.optimizer, seed=0, shape=run.shape, mesh=mesh)
    target = jax.tree.map(
        lambda x: x.astype(np.float64) if jax.dtypes.issubdtype(x.dtype, np.floating) else x, target
    )
    target = jax.device_put(target, states.replicated(mesh))
    with _checkpoints(folder, run) as checkpoints:
        state = checkpoints.restore(target)
    first = jax.tree.leaves(state.params)[0]
    assert first.dtype == np.float64
    assert len(first.devices()) == devices
    step = make_step(run.method, run.optimizer, mesh)
    state, _ = cases.advance(run, state, step, mesh, range(SAVED, SAVED + STEPS))
    state = jax.device_get(state._replace(key=None))
    for (path, x), y in zip(
        jax.tree.leaves_with_path(went_on), jax.tree.leaves(state), strict=True
    ):
        if devices == 2:
            np.testing.assert_array_equal(x, y, err_msg=jax.tree_util.keystr(path))
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5, err_msg=jax.tree_util.keystr(path))
