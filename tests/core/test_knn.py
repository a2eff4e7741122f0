"""Nearest neighbors and their votes."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from cluster_jax.core import knn
from tests.rows import every_row


@every_row("k", [1, 10, 39, 60])
@every_row("exclude_self", [True, False])
@every_row("metric", ["euclidean", "cosine"])
def test_against_all_distances(k, exclude_self, metric, monkeypatch):
    monkeypatch.setattr(knn, "_BLOCK", 40 * 7)  # several blocks, the last smaller
    x = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    distances = cdist(x.astype(np.float64), x.astype(np.float64), metric)
    if exclude_self:
        np.fill_diagonal(distances, np.inf)
    k_most = min(k, 39 if exclude_self else 40)
    expected = np.argsort(distances, axis=1, kind="stable")[:, :k_most]
    found = knn.nearest(x, x, k, metric=metric, exclude_self=exclude_self)
    np.testing.assert_array_equal(found.indices, expected)
    np.testing.assert_allclose(
        found.distances, np.take_along_axis(distances, expected, axis=1), atol=1e-7
    )


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_a_query_does_not_depend_on_the_others(metric):
    """In tight groups many distances differ by less than float32 products can tell."""
    rng = np.random.default_rng(1)
    rows = np.repeat(rng.normal(size=(50, 16)), 10, axis=0) + 2e-5 * rng.normal(size=(500, 16))
    rows, queries = rows.astype(np.float32), rows[:300].astype(np.float32) * np.float32(1 + 1e-7)
    together = knn.nearest(queries, rows, 7, metric=metric)
    for i in range(0, 300, 13):
        alone = knn.nearest(queries[i : i + 1], rows, 7, metric=metric)
        np.testing.assert_array_equal(alone.indices[0], together.indices[i])
        np.testing.assert_array_equal(alone.distances[0], together.distances[i])


@every_row("scale", [1e200, 2.0, 1.004, 0.5, 1e-200])
def test_cosine_takes_rows_of_any_length(scale):
    x = np.random.default_rng(3).normal(size=(20, 4))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    x[5] = 0
    expected = knn.nearest(x, x, 2, metric="cosine")
    for both in ((scale * x, x), (x, scale * x)):
        found = knn.nearest(*both, 2, metric="cosine")
        told_apart = np.arange(20) != 5  # To zeros all are at the same distance.
        np.testing.assert_array_equal(found.indices[told_apart], expected.indices[told_apart])
        np.testing.assert_allclose(found.distances, expected.distances, atol=1e-12)


@every_row("scale", [1e300, 1e200, 1e-200, 1e-300])
def test_numbers_of_any_size(scale):
    rng = np.random.default_rng(2)
    rows, queries = rng.normal(size=(60, 4)), rng.normal(size=(20, 4))
    expected = knn.nearest(queries, rows, 5)
    found = knn.nearest(scale * queries, scale * rows, 5)
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_allclose(found.distances, scale * expected.distances, rtol=1e-9)
    one = knn.nearest(queries[:1], 0 * rows, 1)
    np.testing.assert_allclose(one.distances, np.linalg.norm(queries[:1], axis=1)[:, None])


@every_row(("offset", "size"), [(1e4, 1), (-3e5, 10), (0, 1e30), (0, 1e-30)])
def test_a_shift_or_a_scale_changes_no_neighbors(offset, size):
    """The rounding of squares would decide: of float32 rows 1e4 away all neighbors were wrong."""
    rng = np.random.default_rng(0)
    rows = (offset + size * rng.normal(size=(400, 3))).astype(np.float32)
    queries = (offset + size * rng.normal(size=(50, 3))).astype(np.float32)
    found = knn.nearest(queries, rows, 5)
    exact = cdist(queries.astype(np.float64), rows.astype(np.float64))
    np.testing.assert_array_equal(found.indices, np.argsort(exact, axis=1)[:, :5])
    np.testing.assert_allclose(found.distances, np.sort(exact, axis=1)[:, :5], rtol=1e-6)


def test_a_far_row_does_not_blur_the_others():
    rows = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)
    rows[7] = 1e8
    found = knn.nearest(rows, rows, 5, exclude_self=True)
    exact = cdist(rows.astype(np.float64), rows.astype(np.float64))
    np.fill_diagonal(exact, np.inf)
    others = np.delete(np.arange(400), 7)
    want = np.argsort(exact, axis=1)[:, :5]
    np.testing.assert_array_equal(found.indices[others], want[others])


def test_an_equal_row_outvotes_all_others():
    neighbors = knn.Neighbors(np.array([[0, 1, 2]]), np.array([[0.0, 0.1, 0.1]]))
    shares = knn.vote(neighbors, np.array([2, 1, 1]))
    np.testing.assert_allclose(shares, [[0, 0, 1]], atol=1e-7)
    copies = knn.Neighbors(np.array([[0, 1, 2]]), np.zeros((1, 3)))
    np.testing.assert_allclose(knn.vote(copies, np.array([0, 1, 1])), [[1 / 3, 2 / 3]])


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_the_lowest_scores_are_found_in_groups(metric):
    """700 rows: 44 groups, of which the last is padded; clusters lie in few of them."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(700, 3)) + 9 * (np.arange(700) // 100)[:, None]
    x = (x / np.linalg.norm(x, axis=1, keepdims=True) if metric == "cosine" else x).astype("f4")
    distances = cdist(x.astype(np.float64), x.astype(np.float64))
    found = knn.nearest(x[600:], x, 10, metric=metric)
    expected = np.argsort(distances[600:], axis=1, kind="stable")[:, :10]
    np.testing.assert_array_equal(found.indices, expected)
    scores = rng.normal(size=(5, 160)).astype(np.float32)
    lowest = np.sort(knn._lowest(scores, 4), axis=1)
    np.testing.assert_array_equal(lowest, np.sort(np.argsort(scores, axis=1)[:, :4], axis=1))
