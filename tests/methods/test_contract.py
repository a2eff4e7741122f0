"""What holds for every file of `methods/`: bare, and with NRCC where that applies."""

import jax
import numpy as np
import pytest

from cluster_jax.data import batches
from cluster_jax.methods import base
from cluster_jax.training import state as states
from cluster_jax.training.checkpoint import Checkpoints
from cluster_jax.training.step import make_step
from tests.methods import cases

EACH = pytest.mark.parametrize(("method", "nrcc"), cases.CONTRACT)


def test_every_method_has_a_case():
    made = {**cases.METHODS, **cases.STAGES}
    assert {case["name"] for case in made.values()} == set(base.names())


@EACH
def test_a_state_stays_what_it_is(tmp_path, method, nrcc):
    """Structure, shapes, dtypes, sharding; one trace, also after a refresh; resume; extremes."""
    run = cases.build(tmp_path, method, nrcc)
    mesh = states.make_mesh(4)
    traces = []

    def counted(*arguments):
        traces.append(1)
        return run.method.loss(*arguments)

    step = make_step(run.method._replace(loss=counted), run.optimiser, mesh)
    first = jax.device_put(
        states.create(run.method, run.optimiser, seed=3, shape=run.shape, mesh=mesh),
        states.replicated(mesh),
    )
    before = jax.tree.map(lambda x: (x.shape, x.dtype), first)
    middle, _ = cases.advance(run, first, step, mesh, range(2))
    saved = Checkpoints(tmp_path / "checkpoints", keep=1)
    saved.save(middle, 2)
    end, metrics = cases.advance(run, middle, step, mesh, range(2, 4))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), end) == before
    assert all(x.sharding.is_equivalent_to(states.replicated(mesh), x.ndim) for x in _leaves(end))
    assert all(np.isfinite(v) for v in jax.device_get(metrics).values())
    blank = states.create(run.method, run.optimiser, seed=9, shape=run.shape, mesh=mesh)
    again, _ = cases.advance(run, saved.restore(blank), step, mesh, range(2, 4))
    saved.close()
    for (path, a), b in zip(jax.tree.leaves_with_path(end), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(_plain(a), _plain(b), err_msg=jax.tree_util.keystr(path))
    # All images the same, so that all rows of a batch are, up to their augmentation.
    alike = np.repeat(run.dataset.images[:1], len(run.dataset.images), axis=0)
    run = run._replace(dataset=run.dataset._replace(images=alike))
    last, metrics = cases.advance(run, again, step, mesh, range(4, 7))
    assert all(np.isfinite(v) for v in jax.device_get(metrics).values())
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(jax.device_get(last.params)))
    assert len(traces) == 1


def test_a_batch_holds_no_labels(tmp_path):
    """What reaches a step is what the stream gives: numbers of images, and images."""
    run = cases.build(tmp_path, "simclr", False)
    assert run.dataset.labels is not None
    stream = batches.stream(
        run.dataset,
        seed=0,
        batch_size=16,
        labelled=None,
        start=0,
        stop=1,
        process=0,
        processes=1,
        prefetch=1,
    )
    assert set(next(iter(stream))) <= {"index", "image"}
    stream.close()


def _leaves(state):
    return [x for x in jax.tree.leaves(state) if isinstance(x, jax.Array)]


def _plain(x):
    return jax.random.key_data(x) if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key) else x
