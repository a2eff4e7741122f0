"""What methods declare of themselves, which the detection of failed trainings relies on."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax.core.queue import Queue
from cluster_jax.data import batches
from cluster_jax.methods import ncl
from tests.methods import cases

WITH_CHANCE = (
    "simclr", "moco", "cc", "swav", "kernel_infonce on moco",
)  # fmt: skip
CASES = [
    *((method, False) for method in WITH_CHANCE),
    *(("rotation", False), ("simclr", True)),
]


@pytest.mark.parametrize(("method", "nrcc"), CASES)
def test_the_loss_of_chance_is_that_of_equal_embeddings(method, nrcc):
    """A network of zeros gives every image the same embedding, and every class the same logit."""
    run = cases.build(method, nrcc)
    state = jax.tree.map(jnp.array, cases.initial(method, nrcc, 3))
    params = jax.tree.map(jnp.zeros_like, state.params)
    model_state = state.model_state
    if "target" in model_state._fields:
        target = model_state.target
        zeros = jax.tree.map(jnp.zeros_like, target.params)
        model_state = model_state._replace(target=target._replace(params=zeros))
    if "queue" in model_state._fields:
        queue = model_state.queue
        full = Queue(queue.rows, queue.place, jnp.int32(len(queue.rows)))
        model_state = model_state._replace(queue=full)
    batch = cases.draw(run.dataset, cases.LABELED.get(method), 0, run.train.batch_size)
    batch = batches.with_images(batch, run.dataset.images)
    _, aux = run.method.loss(params, model_state, batch, jnp.int32(0), jax.random.key(0), None)
    name, chance = run.method.watched.chance
    assert float(aux.metrics[name]) == pytest.approx(chance, rel=1e-5)


def test_methods_without_a_loss_of_chance_declare_none():
    for method in ("byol", "simsiam", "barlow", "ncc"):
        assert cases.build(method, False).method.watched.chance is None


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
