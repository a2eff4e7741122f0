"""What holds for every file of `methods/`: bare, and with NRCC where that applies.

Of a perceptron, whose BatchNorm has statistics as that of convolutions has.
"""

import jax
import numpy as np
import pytest

from cluster_jax.core import mesh as meshes
from cluster_jax.methods import base
from cluster_jax.training import build as builder
from cluster_jax.training.checkpoint import Checkpoints
from cluster_jax.training.step import make_step
from tests import toy
from tests.methods import cases

# What is compiled by default: clusters between steps, and two queues. The reference steps run every
# method.
DEFAULT = [("ncc", False), ("ncl", False)]


def test_every_method_has_a_case():
    made = {**cases.METHODS, **cases.STAGES}
    assert {case["name"] for case in made.values()} == set(base.names())


@pytest.mark.parametrize(
    ("method", "nrcc"),
    [*((method, False) for method in (*cases.METHODS, *cases.STAGES)), ("byol", True)],
)
def test_a_step_returns_a_state_of_the_same_shapes_and_types(method, nrcc):
    run = cases.build(method, nrcc, **toy.PERCEPTRON)
    state = builder.abstract_state(run)
    batch = cases.draw(run.dataset, cases.LABELED.get(method), 0)
    step = make_step(run.method, run.optimizer, run.mesh)
    after, metrics = jax.eval_shape(step, state, batch, run.dataset.images)
    assert _shapes(after) == _shapes(state)
    assert all(value.shape == () for value in metrics.values())


@cases.parametrize(DEFAULT)
def test_a_state_stays_what_it_is(tmp_path, method, nrcc):
    """Structure, shapes, dtypes, sharding; one trace, also after a refresh; resume; extremes.

    And no label but those of known classes has any effect.
    """
    run = cases.build(method, nrcc, **toy.PERCEPTRON)
    mesh = meshes.make(4)
    traces = []

    def counted(*arguments):
        traces.append(1)
        return run.method.loss(*arguments)

    step = make_step(run.method._replace(loss=counted), run.optimizer, mesh)

    def start():
        return cases.on_mesh(cases.initial(method, nrcc, 3, **toy.PERCEPTRON), mesh)

    before = _shapes(start())
    middle, _ = cases.advance(run, start(), step, mesh, range(2))
    blind, _ = cases.advance(_relabelled(run), start(), step, mesh, range(2))
    _equal(middle, blind)
    saved = Checkpoints(tmp_path / "checkpoints", keep=1)
    saved.save(middle, 2)
    end, metrics = cases.advance(run, middle, step, mesh, range(2, 4))
    assert _shapes(end) == before
    assert all(x.sharding.is_equivalent_to(meshes.replicated(mesh), x.ndim) for x in _leaves(end))
    assert all(np.isfinite(v) for v in jax.device_get(metrics).values())
    saved.close()
    resumed = Checkpoints(tmp_path / "checkpoints", keep=1)
    again, _ = cases.advance(run, resumed.restore(start()), step, mesh, range(2, 4))
    resumed.close()
    _equal(end, again)
    # All images the same, so that all rows of a batch are, up to their augmentation.
    alike = np.repeat(run.dataset.images[:1], len(run.dataset.images), axis=0)
    run = run._replace(dataset=run.dataset._replace(images=alike))
    last, metrics = cases.advance(run, again, step, mesh, range(4, 7))
    assert all(np.isfinite(v) for v in jax.device_get(metrics).values())
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(jax.device_get(last.params)))
    assert len(traces) == 1


def _shapes(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype), tree)


def _relabelled(run):
    """Other labels for all images but those of known classes."""
    dataset = run.dataset
    known = np.full(dataset.size, -1) if dataset.partial_labels is None else dataset.partial_labels
    labels = np.where(known >= 0, dataset.labels, 3 - dataset.labels)
    assert (labels != dataset.labels).any()
    return run._replace(dataset=dataset._replace(labels=labels.astype(np.int32)))


def _equal(one, other):
    for (path, a), b in zip(jax.tree.leaves_with_path(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(_plain(a), _plain(b), err_msg=jax.tree_util.keystr(path))


def _leaves(state):
    return [x for x in jax.tree.leaves(state) if isinstance(x, jax.Array)]


def _plain(x):
    return jax.random.key_data(x) if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key) else x
