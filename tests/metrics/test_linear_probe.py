"""Linear probe: separable and random labels, the held-out rows, scale and determinism."""

import numpy as np
import pytest

from cluster_jax.metrics.linear_probe import _held_out, linear_probe

SETTINGS = {
    "epochs": 30,
    "learning_rate": 3.0,
    "weight_decay": 1e-6,
    "batch_size": 64,
    "holdout": 0.25,
    "seed": 0,
}


def _data(n=600, d=10, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    centers = 3 * np.eye(d)[:classes]
    return (centers[labels] + 0.5 * rng.normal(size=(n, d))).astype(np.float32), labels


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_separable_classes_at_any_scale_and_offset(scale):
    features, labels = _data()
    assert linear_probe(scale * (features + 500), labels * 7 - 3, **SETTINGS) > 0.99


def test_random_labels_stay_near_chance():
    features, _ = _data(2000)
    labels = np.random.default_rng(1).integers(0, 4, 2000)
    # 500 test rows: chance is 0.25 with a standard error of 0.02.
    assert 0.17 < linear_probe(features, labels, **SETTINGS) < 0.33


def test_only_linear_boundaries_are_found():
    rng = np.random.default_rng(2)
    features = rng.normal(size=(2000, 2))
    labels = (features.prod(axis=1) > 0).astype(int)
    assert linear_probe(features, labels, **SETTINGS) < 0.65


def test_test_rows_are_not_trained_on():
    # 150 rows in 400 dimensions: any labels can be learned by heart, on rows that were seen.
    rng = np.random.default_rng(3)
    features, labels = rng.normal(size=(150, 400)), rng.integers(0, 2, 150)
    assert linear_probe(features, labels, **SETTINGS) < 0.75


def test_split_is_stratified():
    target = np.repeat([0, 1, 2, 3], [100, 40, 2, 1])
    test = _held_out(target, 0.25, np.random.default_rng(0))
    np.testing.assert_array_equal(np.bincount(target[test], minlength=4), [25, 10, 1, 0])
    test = _held_out(target, 0.99, np.random.default_rng(0))
    np.testing.assert_array_equal(np.bincount(target[test], minlength=4), [99, 39, 1, 0])


def test_seed_decides():
    features, _ = _data(300)
    labels = np.random.default_rng(4).integers(0, 4, 300)
    a, b, *others = (
        linear_probe(features, labels, **{**SETTINGS, "seed": s}) for s in (0, 0, 1, 2)
    )
    assert a == b
    assert set(others) != {a}


def test_weight_decay_pulls_to_the_majority():
    features, labels = _data(classes=3)
    labels = np.where(labels == 2, 1, labels)
    decayed = linear_probe(
        features, labels, **{**SETTINGS, "weight_decay": 10.0, "learning_rate": 0.05}
    )
    assert decayed == pytest.approx(np.mean(labels == 1), abs=0.01)


def test_float64_and_equal_rows(x64):
    features, labels = _data(100)
    assert linear_probe(features.astype(np.float64), labels, **SETTINGS) > 0.9
    equal = linear_probe(np.ones((100, 3)), np.arange(100) % 2, **SETTINGS)
    assert 0 <= equal <= 1


@pytest.mark.parametrize(
    ("features", "labels", "change", "message"),
    [
        (np.zeros(4), [0, 0, 1, 1], {}, "2-D"),
        (np.zeros((4, 1)), [0, 0, 1], {}, "labels must have one entry for each of the 4 rows"),
        (np.full((4, 1), np.inf), [0, 0, 1, 1], {}, "infinity"),
        (np.zeros((4, 1)), [0, 0, 1, 1], {"holdout": 1.0}, "holdout"),
        (np.zeros((4, 1)), [0, 0, 1, 1], {"epochs": 0}, "epochs must be at least 1"),
        (
            np.zeros((4, 1)),
            [0, 0, 1, 1],
            {"learning_rate": -1.0},
            "learning_rate must be greater than 0",
        ),
        (np.zeros((3, 1)), [0, 1, 2], {}, "hold one out; got none"),
    ],
)
def test_bad_input(features, labels, change, message):
    with pytest.raises(ValueError, match=message):
        linear_probe(features, labels, **{**SETTINGS, **change})
