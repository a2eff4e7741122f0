"""Micro-clusters: against k-means of one level, and by sizes."""

import jax
import numpy as np
import pytest

from cluster_jax.clustering.condense import condense, divided
from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.core import knn


def centers_of(x, n_groups, seed=0):
    return condense(x, n_groups, max_iter=20, seed=seed, mesh=jax.make_mesh((1,), ("rows",)))


def nearest(x, centers):
    return knn.nearest(x, centers, 1)


def test_nearly_as_good_as_one_level():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 30, 3_000)
    x = (10 * rng.normal(size=(30, 8))[truth] + rng.normal(size=(3_000, 8))).astype(np.float32)
    centers = centers_of(x, 120)
    assert centers.shape == (120, 8)
    inertia = np.square(nearest(x, centers).distances).sum()
    assert inertia < 1.25 * kmeans(x, 120, n_init=1).inertia
    np.testing.assert_array_equal(centers, centers_of(x, 120))
    centers_of(x[:60], 9, seed=2**40)  # scikit-learn takes 32 bits


def test_micro_clusters_hold_about_as_many_rows():
    """Nine groups of 20 to 2,000 rows; each is divided in proportion to its rows."""
    sizes = np.geomspace(20, 2_000, 9).astype(int)
    x = (100 * np.eye(9)[np.repeat(np.arange(9), sizes)]).astype(np.float32)
    x += np.random.default_rng(0).normal(size=x.shape).astype(np.float32)
    counts = np.bincount(nearest(x, centers_of(x, 81)).indices[:, 0], minlength=81)
    assert counts.max() < 4 * sizes.sum() / 81


@pytest.mark.parametrize(
    ("sizes", "total", "expected"),
    [
        ([90, 8, 2, 0], 10, [8, 1, 1, 0]),
        ([1, 1, 1, 97], 4, [1, 1, 1, 1]),
        ([5, 5], 10, [5, 5]),
        ([3, 0, 4], 7, [3, 0, 4]),
        ([50, 30, 20], 7, [4, 2, 1]),
    ],
)
def test_division(sizes, total, expected):
    assert divided(np.array(sizes), total).tolist() == expected


def test_as_many_micro_clusters_as_rows():
    x = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    np.testing.assert_allclose(np.sort(centers_of(x, 50), axis=0), np.sort(x, axis=0), atol=1e-6)
