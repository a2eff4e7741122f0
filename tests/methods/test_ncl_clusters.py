"""NCL's head on clusters: where the pseudo-labels come from, and what the head learns of them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax.clustering.label_spreading import label_spreading
from cluster_jax.clustering.transport import sinkhorn
from cluster_jax.data import batches
from cluster_jax.losses import ncl as losses
from cluster_jax.training import build
from cluster_jax.training.config import parse_config
from tests import toy
from tests.methods import cases

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def built(tmp_path_factory, one_device):
    """A run on features of four groups, two of them known; views are the features themselves."""
    folder = tmp_path_factory.mktemp("ncl")
    config = toy.shrunken("ncl_features", folder)
    config.method.update(head="clusters", update_every="2 steps")
    config.method.weights.update(ce=0.0, consistency=0.0, ncl=0.0, scl=0.0)
    config.feature_views.neighbors = 0
    return build.build_run(parse_config(config))


@pytest.fixture(scope="module")
def state(built):
    return build.initial_state(built.training)


def refreshed(built, state, features, model_state=None, **others):
    """The state after a clustering of these features of all 80 rows."""
    run = built.training
    model_state = state.model_state if model_state is None else model_state
    embedding = {"backbone": features, **others}
    return run.method.refresh.update(model_state, lambda: embedding, jax.random.key(0), run.mesh)


def groups(built, seed=0, sizes=None):
    """Features of all rows, unlabeled ones in two groups, and the group of each unlabeled row."""
    rng, known = np.random.default_rng(seed), built.training.dataset.partial_labels
    group = np.arange(80) % 2 if sizes is None else np.repeat([0, 1], sizes)
    means = np.eye(2, 4)[group]
    means[known >= 0] = [0, 0, 9, 9]
    return (means + rng.normal(size=(80, 4)) / 20).astype(np.float32), group[known < 0]


def test_unlabeled_rows_get_their_cluster_and_labeled_ones_none(built, state):
    features, group = groups(built)
    known = built.training.dataset.partial_labels
    result = refreshed(built, state, features)
    labels = np.asarray(result.pseudo_labels)
    assert labels.shape == (80,)
    assert (labels[known >= 0] == 0).all()
    own = labels[known < 0]
    assert (own == group).all() or (own == 1 - group).all()
    assert result.centers.shape == (2, 4)


def test_a_later_clustering_keeps_the_numbers(built, state):
    features, _ = groups(built)
    first = refreshed(built, state, features)
    for flipped in (False, True):
        model_state = first
        if flipped:
            centers = np.asarray(first.centers)[::-1]
            model_state = first._replace(centers=centers)
        again = refreshed(built, state, features, model_state)
        unlabeled = built.training.dataset.partial_labels < 0
        same = np.asarray(again.pseudo_labels == first.pseudo_labels)[unlabeled]
        assert same.all() if not flipped else not same.any()


def test_a_term_without_weight_is_left_out(built, state, monkeypatch):
    """Of the terms here only the head on clusters counts; another that is NaN changes nothing."""
    monkeypatch.setattr(losses, "consistency", lambda *pair: jnp.nan * jnp.sum(pair[0]))
    run = build.build_run(built.config, built.training.dataset).training
    batch = cases.draw(run.dataset, run.train.labeled_batch_size, 0, run.train.batch_size)
    batch = batches.with_images(batch, run.dataset.images)
    slope = jax.jit(jax.grad(run.method.loss, has_aux=True), static_argnums=5)
    gradient, aux = slope(
        state.params, state.model_state, batch, jnp.int32(0), jax.random.key(0), None
    )
    assert np.isnan(aux.metrics["consistency"])
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


def test_classes_are_of_equal_size(built, state):
    features, group = groups(built)
    unlabeled = np.flatnonzero(built.training.dataset.partial_labels < 0)
    moved = unlabeled[group == 1][:10]
    features[moved] = features[unlabeled[group == 0][:10]]  # now 30 and 10
    features[moved, 1] += 0.3  # of the larger group, the rows nearest to the smaller one
    labels = np.asarray(refreshed(built, state, features).pseudo_labels)[unlabeled]
    assert np.bincount(labels).tolist() == [20, 20]
    assert len(set(labels[np.isin(unlabeled, moved)])) == 1


@pytest.mark.parametrize("given", [False, True])
def test_the_nearest_rows_and_those_in_the_data_have_a_say(built, state, given):
    features, _ = groups(built)
    features += np.random.default_rng(2).normal(size=features.shape).astype(np.float32) / 2
    unlabeled = np.flatnonzero(built.training.dataset.partial_labels < 0)
    # Twelve of each row: the last two are too many. Labeled rows have no say.
    near = np.stack([np.random.default_rng(i).permutation(80)[:12] for i in range(80)])
    others = {"neighbors": near} if given else {}
    result = refreshed(built, state, features, **others)
    rows = features[unlabeled].astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    alone = rows @ np.asarray(result.centers, np.float64).T
    number = {row: i for i, row in enumerate(unlabeled.tolist())}
    ours = np.array([[number.get(j, -1) for j in near[row].tolist()] for row in unlabeled])
    expected = sinkhorn(label_spreading(alone, rows, ours if given else None)).argmax(axis=1)
    labels = np.asarray(result.pseudo_labels)[unlabeled]
    np.testing.assert_array_equal(labels, expected)
    without = refreshed(built, state, features).pseudo_labels if given else None
    without = sinkhorn(alone).argmax(axis=1) if without is None else np.asarray(without)[unlabeled]
    assert (labels != without).any()


def test_refreshes_come_at_the_start_and_every_period(built):
    method = built.training.method
    assert [step for step in range(7) if method.refresh.is_due(step)] == [0, 2, 4, 6]
    config = dataclasses.replace(built.config.method.config, head="pairs")
    section = dataclasses.replace(built.config.method, config=config)
    plain = build.rebuild_run(
        dataclasses.replace(built.config, method=section), build.describe_images(built.inputs)
    )
    assert plain.training.method.refresh is None


def test_the_head_learns_the_pseudo_labels_from_both_views(built, state):
    run = built.training
    rng = np.random.default_rng(1)
    pseudo_labels = rng.integers(0, 2, 80).astype(np.int32)
    model_state = state.model_state._replace(pseudo_labels=pseudo_labels)
    known = run.dataset.partial_labels
    rows = {"labeled": np.flatnonzero(known >= 0)[:8], "unlabeled": np.flatnonzero(known < 0)[:8]}
    batch = {
        name: {"index": index.astype(np.int32), "image": run.dataset.fetch(index)}
        for name, index in rows.items()
    }
    batch["labeled"]["label"] = known[rows["labeled"]]
    loss = jax.jit(run.method.loss, static_argnames="axis")
    value, aux = loss(state.params, model_state, batch, state.step, jax.random.key(0), axis=None)
    # By hand: the two views are equal, so that BatchNorm and logits are.
    both = np.concatenate([rows["labeled"], rows["unlabeled"]])
    x = run.dataset.fetch(both)[:, 0] * np.sqrt(12)
    params = jax.device_get(state.params)
    (kernel,) = (params["backbone"]["Dense_0"]["kernel"],)
    h = x @ kernel
    h = np.maximum((h - h.mean(axis=0)) / np.sqrt(h.var(axis=0) + 1e-5), 0)
    head = params["heads"]["novel"]
    logits = (h @ head["kernel"] + head["bias"])[8:]
    logits = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    wanted = -logits[np.arange(8), pseudo_labels[rows["unlabeled"]]].mean()
    np.testing.assert_allclose(value, wanted, rtol=1e-4)
    np.testing.assert_allclose(aux.metrics["bce"], wanted, rtol=1e-4)
