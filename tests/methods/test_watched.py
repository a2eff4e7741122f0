"""What methods declare of themselves, which the detection of failed trainings relies on."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cluster_jax.core.queue import Queue
from cluster_jax.methods import ncl
from cluster_jax.training import state as states
from tests.methods import cases, tiny
from tests.methods.test_reference_step import NRCC, build, draw
from tests.rows import every_row

SHAPE = tiny.SIDE, tiny.SIDE, 1


@every_row("case", ["simclr", "moco", "cc", "swav", "kernel_infonce on moco", "rotation"])
def test_the_loss_of_chance_is_that_of_equal_embeddings(case):
    """A network of zeros gives every image the same embedding, and every class the same logit."""
    method, _ = build(case, None, {})
    state = states.initial(method, optax.sgd(0.1), seed=3, shape=SHAPE)
    params, model_state = jax.tree.map(jnp.zeros_like, (state.params, state.model_state))
    if "queue" in model_state._fields:
        queue = state.model_state.queue
        full = Queue(queue.rows, queue.place, jnp.int32(len(queue.rows)))
        model_state = model_state._replace(queue=full)
    loss = jax.jit(method.loss, static_argnums=5)
    _, aux = loss(params, model_state, draw(case, 0), jnp.int32(0), jax.random.key(0), None)
    name, chance = method.watched.chance
    assert float(aux.metrics[name]) == pytest.approx(chance, rel=1e-5)


def test_with_nrcc_it_is_that_of_the_loss_without():
    (name, bare), (other, same) = (build("simclr", x, {})[0].watched.chance for x in (None, NRCC))
    assert (name, other, bare) == ("loss", "base_loss", same)


def test_methods_without_a_loss_of_chance_declare_none():
    for case in ("byol", "simsiam", "barlow", "ncc"):
        assert build(case, None, {})[0].watched.chance is None


@pytest.mark.parametrize(
    ("method", "field"), [("ncc", "labels"), ("pcl", "clusterings"), ("ncl", "pseudo_labels")]
)
def test_pseudo_labels_are_declared(method, field):
    run = cases.build(method, False)
    watched = run.method.watched
    if method == "ncl":  # with the head on pairs there are none
        assert watched.pseudo_labels is None
        return
    state = cases.initial(method, False, 3).model_state
    labels = np.arange(run.dataset.size, dtype=np.int32)
    if method == "pcl":  # those of the first clustering
        value = (state.clusterings[0]._replace(labels=labels), *state.clusterings[1:])
    else:
        value = labels
    found = watched.pseudo_labels(state._replace(**{field: value}))
    np.testing.assert_array_equal(found, labels)


def test_ncl_watches_the_pseudo_labels_of_unlabeled_images():
    """Labeled images have none: their zeros would look like one large cluster."""
    context = SimpleNamespace(unlabeled_rows=np.array([1, 4, 5]))
    labels = jnp.array([0, 2, 0, 0, 1, 3])
    found = ncl._novel_labels(context, SimpleNamespace(pseudo_labels=labels))
    assert found.tolist() == [2, 1, 3]
