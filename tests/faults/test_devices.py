"""A checkpoint of two devices goes on on one, two, and four, with BatchNorm over all of them."""

import contextlib
import pathlib
from typing import Any, NamedTuple

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
    return contextlib.closing(checkpoint.Checkpoints(folder, keep=2))


class Saved(NamedTuple):
    """A run, the folder of its checkpoint of step four, and its state then and at the end."""

    run: Any
    folder: pathlib.Path
    dtype: Any
    before: Any
    went_on: Any


def _on_host(state):
    return jax.device_get(state._replace(key=None))


@pytest.fixture(scope="module", params=[np.float64, np.float32], ids=["float64", "float32"])
def dtype(request):
    """The type of all floats."""
    with jax.enable_x64(request.param == np.float64):
        yield request.param


@pytest.fixture(scope="module", params=["simclr", "cueco"])
def saved(request, dtype, tmp_path_factory):
    """A run of two devices that went on."""
    run = cases.build(request.param, False, steps=SAVED + STEPS)
    folder = tmp_path_factory.mktemp("saved")
    state = cases.with_keys(cases.initial(request.param, False, 3))
    state = toy.wide(state) if dtype == np.float64 else state
    mesh = states.make_mesh(2)
    step = make_step(run.method, run.optimizer, mesh)
    state, _ = cases.advance(run, cases.on_mesh(state, mesh), step, mesh, range(SAVED))
    with _checkpoints(folder, run) as checkpoints:
        checkpoints.save(state, SAVED)
    before = _on_host(state)
    went_on, _ = cases.advance(run, state, step, mesh, range(SAVED, SAVED + STEPS))
    return Saved(run, folder, dtype, before, _on_host(went_on))


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_restored_onto_other_devices(saved, devices):
    """Within 1e-5 after twenty steps: all of the state in float64, the parameters in float32.

    In float32 a ReLU whose input is rounded to the other side of zero is seen in the momentum.
    """
    mesh = states.make_mesh(devices)
    run = saved.run
    target = states.create(run.method, run.optimizer, seed=0, shape=run.shape, mesh=mesh)
    target = jax.tree.map(
        lambda x: x.astype(saved.dtype) if jax.dtypes.issubdtype(x.dtype, np.floating) else x,
        target,
    )
    target = jax.device_put(target, states.replicated(mesh))
    with _checkpoints(saved.folder, run) as checkpoints:
        state = checkpoints.restore(target)
    first = jax.tree.leaves(state.params)[0]
    assert first.dtype == saved.dtype
    assert len(first.devices()) == devices
    step = make_step(run.method, run.optimizer, mesh)
    state, _ = cases.advance(run, state, step, mesh, range(SAVED, SAVED + STEPS))
    state = _on_host(state)
    moved = jax.tree.map(lambda x, y: np.abs(x - y).max(), saved.before.params, state.params)
    assert max(jax.tree.leaves(moved)) > 0.1
    for (path, x), y in zip(
        jax.tree.leaves_with_path(saved.went_on), jax.tree.leaves(state), strict=True
    ):
        name = jax.tree_util.keystr(path)
        if devices == 2:
            np.testing.assert_array_equal(x, y, err_msg=name)
        if saved.dtype == np.float64 or name.startswith(".params"):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5, err_msg=name)
