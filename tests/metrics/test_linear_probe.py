"""Linear probe: separable and random labels, the held-out rows, scale and determinism."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from cluster_jax.core import hosts
from cluster_jax.metrics.linear_probe import _held_out
from tests.rows import every_row

module = sys.modules["cluster_jax.metrics.linear_probe"]  # the package has its function instead
SETTINGS = {
    "epochs": 30, "learning_rate": 3.0, "weight_decay": 1e-6, "batch_size": 64, "holdout": 0.25,
}  # fmt: skip


def linear_probe(features, labels, test=None, top=(1,), seed=0, **changes):
    """Top-1 accuracy."""
    settings = module.ProbeSettings(**{**SETTINGS, **changes})
    how = {"settings": settings, "test": test, "seed": seed}
    return module.linear_probe(features, labels, **how, top=top)[1]


def _data(n=600, d=10, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    centers = 3 * np.eye(d)[:classes]
    return (centers[labels] + 0.5 * rng.normal(size=(n, d))).astype(np.float32), labels


@every_row("scale", [1e-300, 1e-3, 1.0, 1e4, 1e200])
def test_separable_classes_at_any_scale_and_offset(scale):
    features, labels = _data()
    features = scale * (features.astype(np.float64) + 500)
    assert linear_probe(features, labels * 7 - 3) > 0.99


def test_test_rows_are_not_trained_on():
    # 150 rows in 400 dimensions: any labels can be learned by heart, on rows that were seen.
    rng = np.random.default_rng(3)
    features, labels = rng.normal(size=(150, 400)), rng.integers(0, 2, 150)
    assert linear_probe(features, labels) < 0.75


def test_the_scored_rows_change_nothing_in_the_training(monkeypatch):
    """Neither the center nor the scale; and not which rows are drawn, or their order."""
    trained, train = [], module._train_and_predict

    def spy(features, target, order, *arguments, **more):
        rows = np.unique(order)
        trained.append((np.asarray(features)[rows], np.asarray(target)[rows], np.asarray(order)))
        return train(features, target, order, *arguments, **more)

    monkeypatch.setattr(module, "_train_and_predict", spy)
    features, labels = _data(200)
    test = _held_out(labels, SETTINGS["holdout"], np.random.default_rng(0))
    for shift in (0.0, 1e4):
        linear_probe(features + np.float32(shift) * test[:, None], labels)
        linear_probe(features, labels, test=(features[:9] + np.float32(shift), labels[:9]))
    held_out, given = trained[::2], trained[1::2]
    for first, second in (held_out, given):
        for a, b in zip(first, second, strict=True):
            np.testing.assert_array_equal(a, b)
    assert len(held_out[0][0]) == len(features) - test.sum()
    assert len(given[0][0]) == len(features), "all rows, where others are scored"


def test_training_equals_plain_loops(x64):
    """Momentum 0.9, half a cosine to 0, weight decay in the gradient of the weights alone."""
    features, labels = _data(24, d=5, classes=3)
    features = features.astype(np.float64)
    order = np.random.default_rng(0).integers(0, 24, (7, 4))
    settings = {"learning_rate": 0.3, "weight_decay": 0.1}
    weights, bias, speed = np.zeros((5, 3)), np.zeros(3), [0.0, 0.0]
    for step, rows in enumerate(order):
        logits = features[rows] @ weights + bias
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        wrong = odds / odds.sum(axis=1, keepdims=True) - np.eye(3)[labels[rows]]
        rate = settings["learning_rate"] * (1 + np.cos(np.pi * step / len(order))) / 2
        speed[0] = 0.9 * speed[0] + features[rows].T @ wrong / 4 + 0.1 * weights
        speed[1] = 0.9 * speed[1] + wrong.mean(axis=0)
        weights, bias = weights - rate * speed[0], bias - rate * speed[1]
    found = module._train_and_predict(
        *map(jnp.asarray, (features, labels, order)), *settings.values(), n_classes=3
    )
    np.testing.assert_allclose(found, features @ weights + bias, rtol=1e-10)


def test_given_test_rows_are_scored():
    features, labels = _data()
    assert linear_probe(features[100:], labels[100:], test=(features[:100], labels[:100])) > 0.99
    unknown = features[:100], np.full(100, 9)
    assert linear_probe(features[100:], labels[100:], test=unknown) == 0
    # A class that is not among those of the training, between two that are.
    gap = features[:100], 2 * labels[:100] + 1
    assert linear_probe(features[100:], 2 * labels[100:], test=gap) == 0


def test_top_k_counts_the_most_likely_classes(monkeypatch):
    logits = np.array([[3.0, 2, 1], [1, 3, 2], [0, 0, 0], [1, 2, 3]])

    def fixed(features, *arguments, **more):
        return np.concatenate([np.zeros((len(features) - 4, 3)), logits])

    monkeypatch.setattr(module, "_train_and_predict", fixed)
    tested = np.ones((4, 2)), [7, 9, 8, 5]
    found = module.linear_probe(np.eye(6, 2), [5, 7, 9] * 2, test=tested, top=(1, 2, 3, 4))
    # In the order of likelihood: 5 7 9, 7 9 5, 5 7 9 (equal), 9 7 5.
    assert found == {1: 0.0, 2: 0.5, 3: 0.75, 4: None}


def test_split_is_stratified():
    target = np.repeat([0, 1, 2, 3], [100, 40, 2, 1])
    test = _held_out(target, 0.25, np.random.default_rng(0))
    np.testing.assert_array_equal(np.bincount(target[test], minlength=4), [25, 10, 1, 0])
    test = _held_out(target, 0.99, np.random.default_rng(0))
    np.testing.assert_array_equal(np.bincount(target[test], minlength=4), [99, 39, 1, 0])


def test_seed_decides():
    features, _ = _data(300)
    labels = np.random.default_rng(4).integers(0, 4, 300)
    a, b, *others = (linear_probe(features, labels, seed=s) for s in (0, 0, 1, 2))
    assert a == b
    assert set(others) != {a}


@every_row(
    ("features", "labels", "change", "message"),
    [
        (np.zeros(4), [0, 0, 1, 1], {}, "2D array"),
        (np.zeros((4, 1)), [0, 0, 1], {}, "labels must have one entry for each"),
        (np.full((4, 1), np.inf), [0, 0, 1, 1], {}, "infinity"),
        (np.zeros((4, 1)), [0, 0, 1, 1], {"epochs": 0}, "epochs must be at least 1"),
        (np.zeros((3, 1)), [0, 1, 2], {}, "hold one out; got none"),
        (np.zeros((4, 1)), [0, 0, 1, 1], {"top": (0,)}, "top must be at least 1; got 0"),
        (
            np.zeros((4, 1)),
            [0, 0, 1, 1],
            {"test": (np.zeros((1, 2)), [0])},
            "test features must have as many columns as features, 1; got 2",
        ),
    ],
)
def test_bad_input(features, labels, change, message):
    with pytest.raises(ValueError, match=message):
        linear_probe(features, labels, **change)


def test_accelerators_share_the_rows(monkeypatch):
    """And none has them all: a step adds up the rows of its batch over them, and nothing else."""
    features, labels = _data(203)
    one = linear_probe(features, labels)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    devices = jax.devices()[:4]
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    assert linear_probe(features, labels) == one
    placed = hosts.placed(features, Mesh(devices, ("rows",)))
    assert {shard.data.shape[0] for shard in placed.addressable_shards} == {51}
    order, target = jnp.zeros((2, 8), jnp.int32), jnp.zeros(204, jnp.int32)
    lowered = module._train_and_predict.lower(placed, target, order, 0.1, 0.1, n_classes=3)
    text = lowered.compile().as_text()
    assert "all-reduce" in text
    assert "all-gather" not in text


def test_blocks_change_no_bit(monkeypatch):
    features, _ = _data(203)
    whole = module._scaled(features, np.arange(3, 190))
    monkeypatch.setattr(module, "_BLOCK", 50)
    np.testing.assert_array_equal(module._scaled(features, np.arange(3, 190)), whole)
