"""Steps of the real network give the same state on any number of devices.

By default BatchNorm of shuffled groups: the reference steps run every method on two devices, in
float64, and with a sampler.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax.training import state as states
from cluster_jax.training.step import make_step
from tests import toy
from tests.methods import cases

SLOW = pytest.mark.slow
DEVICES = [pytest.param(2, marks=SLOW), 4, pytest.param(8, marks=SLOW)]


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


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize(
    ("method", "nrcc"),
    [
        pytest.param("simclr", True, marks=SLOW),
        pytest.param("cueco", False, marks=SLOW),
        pytest.param("ncl", False, marks=SLOW),
    ],
)
def test_one_step_in_float32(method, nrcc, devices):
    """As it runs: a sampler, clusters and two queues.

    From step 1, with clusters where the method has some: at step 0 they have no weight.
    """
    run, mesh = cases.build(method, nrcc), states.make_mesh(1)
    state = cases.with_keys(cases.initial(method, nrcc, 3))
    state = cases.on_mesh(state._replace(step=np.ones_like(state.step)), mesh)
    state = cases.refreshed(run, state, mesh, 1)
    state = jax.device_get(state._replace(key=jax.random.key_data(state.key)))
    # The clusters are given: that k-means finds the same is a test of its own.
    run = run._replace(method=run.method._replace(refresh=None))
    one, many = (_advanced(run, state, n, range(1, 2)) for n in (1, devices))
    _compare(one, many, 1e-5)


@SLOW
@pytest.mark.parametrize("devices", [2, 4, 8])
@cases.parametrize([("ncc", False)])
def test_four_steps_in_float64(x64, method, nrcc, devices):
    state = toy.wide(cases.with_keys(cases.initial(method, nrcc, 3)))
    one, many = (_advanced(cases.build(method, nrcc), state, n, range(4)) for n in (1, devices))
    assert all(x.dtype == np.float64 for x in jax.tree.leaves(one[0].params))
    _compare(one, many, 1e-10)


@functools.cache
def _grouped(norm, devices):
    """Two steps with BatchNorm over groups, made once for both tests below; in float64."""
    state = toy.wide(cases.initial("byol", False, 3))  # the same for each norm
    return _advanced(cases.build("byol", False, norm=norm, group=4), state, devices, range(2))


@pytest.mark.parametrize("norm", [pytest.param("local", marks=SLOW), "shuffle"])
def test_grouped_batchnorm(x64, norm):
    _compare(_grouped(norm, 1), _grouped(norm, 4), 1e-10)


def test_shuffling_changes_the_result(x64):
    local, shuffled = (_grouped(norm, 1)[1]["loss"] for norm in ("local", "shuffle"))
    assert abs(local - shuffled) > 1e-4


def test_devices_see_different_images():
    """The equality above would be idle if every shard held the same rows."""
    run = cases.build("simclr", False)
    index = np.random.default_rng(0).permutation(64)[: cases.BATCH]
    shards = run.dataset.images[index].reshape(8, 2, -1)
    assert len(np.unique(shards, axis=0)) == 8
    assert jnp.unique(index).size == cases.BATCH
