"""One step gives the same state on any number of devices, for every method, bare and with NRCC."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax.methods import base
from cluster_jax.training import state as states
from cluster_jax.training.step import make_step
from tests import toy
from tests.methods import cases

DEVICES = [
    pytest.param(2, marks=pytest.mark.slow),
    4,
    pytest.param(8, marks=pytest.mark.slow),
]


def _initial(run, devices, seed):
    mesh = states.make_mesh(devices)
    state = states.create(run.method, run.optimizer, seed=seed, shape=run.shape, mesh=mesh)
    return cases.with_keys(state)


def _run(run, devices, steps, seed, double=False):
    state = _initial(run, devices, seed)
    return _advanced(run, toy.wide(state) if double else state, devices, range(steps))


def _advanced(run, state, devices, steps):
    mesh = states.make_mesh(devices)
    # A copy: a step takes the memory of the state it is given.
    state = jax.device_put(jax.tree.map(lambda x: x.copy(), state), states.replicated(mesh))
    step = make_step(run.method, run.optimizer, mesh)
    state, metrics = cases.advance(run, state, step, mesh, steps)
    return jax.device_get((state._replace(key=jax.random.key_data(state.key)), metrics))


def _compare(one, many, tolerance):
    leaves = jax.tree.leaves_with_path(one)
    assert len(leaves) > 20
    for (path, x), y in zip(leaves, jax.tree.leaves(many), strict=True):
        error = np.max(np.abs(np.asarray(x, np.float64) - np.asarray(y, np.float64)))
        bound = tolerance * (1 + np.max(np.abs(x)))
        assert error <= bound, f"{jax.tree_util.keystr(path)}: {error} > {bound}"


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize(("method", "nrcc"), cases.CONTRACT)
def test_one_step_in_float32(tmp_path, method, nrcc, devices):
    """From step 1, with clusters where the method has some: at step 0 they have no weight."""
    run = cases.build(tmp_path, method, nrcc)
    mesh = states.make_mesh(1)
    state = _initial(run, 1, seed=3)
    state = state._replace(step=jnp.ones_like(state.step))
    state = cases.refreshed(run, state, mesh, 1)
    # The clusters are given: that k-means finds the same is a test of its own.
    run = run._replace(method=run.method._replace(refresh_at=base.never))
    one, many = (_advanced(run, state, n, range(1, 2)) for n in (1, devices))
    _compare(one, many, 1e-5)


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize(("method", "nrcc"), cases.CONTRACT)
def test_four_steps_in_float64(tmp_path, x64, method, nrcc, devices):
    run = cases.build(tmp_path, method, nrcc)
    one = _run(run, 1, 4, seed=4, double=True)
    assert all(x.dtype == np.float64 for x in jax.tree.leaves(one[0].params))
    _compare(one, _run(run, devices, 4, seed=4, double=True), 1e-10)


@pytest.mark.parametrize("norm", ["local", "shuffle"])
def test_grouped_batchnorm(tmp_path, x64, norm):
    run = cases.build(tmp_path, "byol", True, norm=norm, group=4)
    one = _run(run, 1, 2, seed=5, double=True)
    _compare(one, _run(run, 4, 2, seed=5, double=True), 1e-10)


def test_shuffling_changes_the_result(tmp_path):
    local = cases.build(tmp_path, "byol", False, norm="local", group=4)
    shuffled = cases.build(tmp_path, "byol", False, norm="shuffle", group=4)
    a, b = (_run(run, 1, 1, seed=5)[1]["loss"] for run in (local, shuffled))
    assert abs(a - b) > 1e-4


def test_devices_see_different_images(tmp_path):
    """The equality above would be idle if every shard held the same rows."""
    run = cases.build(tmp_path, "simclr", False)
    index = np.random.default_rng(0).permutation(64)[: cases.BATCH]
    shards = run.dataset.images[index].reshape(8, 2, -1)
    assert len(np.unique(shards, axis=0)) == 8
    assert jnp.unique(index).size == cases.BATCH
