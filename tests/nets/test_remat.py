"""Blocks that are computed again for the gradient: `train.remat`."""

import jax
import numpy as np
import pytest

from cluster_jax.data import batches
from cluster_jax.runs import build
from cluster_jax.training import state as states
from cluster_jax.training.step import make_step
from tests import toy
from tests.methods import cases


def _built(path, remat, **sections):
    config = toy.byol(toy.config(path, optimizer={"name": "sgd"}, **sections))
    config.train.remat = remat
    config.nrcc.weight, config.nrcc.sghmc.iterations = 0.5, 1
    config.nrcc.sghmc.normalize_gradient = True
    return toy.built(config)


def test_the_numbers_are_the_same(x64, tmp_path):
    """BYOL + NRCC, whose sampler takes gradients of its own; two steps."""
    ends, mesh = [], states.make_mesh(1)
    for remat in (False, True):
        run = _built(toy.file(tmp_path), remat)
        state = states.create(run.method, run.optimizer, seed=0, shape=run.shape, mesh=mesh)
        step = make_step(run.method, run.optimizer, mesh)
        state, metrics = cases.advance(run, toy.wide(state), step, mesh, range(2))
        ends.append(jax.device_get((state.params, state.model_state, metrics)))
    for (path, x), y in zip(
        jax.tree.leaves_with_path(ends[0]), jax.tree.leaves(ends[1]), strict=True
    ):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9, err_msg=jax.tree_util.keystr(path))


@pytest.mark.usefixtures("one_device")
def test_less_is_kept_for_the_gradient(tmp_path):
    """The inputs of blocks alone, of every view: what JAX keeps, before the compiler sees it."""
    kept = []
    for remat in (False, True):
        run = _built(toy.file(tmp_path), remat)
        state = build.initial_state(run)
        batch = batches.with_images(cases.draw(run.dataset, None, 0), run.dataset.images)

        def loss(params, run=run, state=state, batch=batch):
            method = run.method
            return method.loss(params, state.model_state, batch, state.step, state.key, None)[0]

        pullback = jax.eval_shape(lambda params, loss=loss: jax.vjp(loss, params)[1], state.params)
        kept.append(sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(pullback)))
    assert kept[1] < 0.6 * kept[0]
