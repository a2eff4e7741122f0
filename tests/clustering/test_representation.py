"""Sharp and smooth rows: axes above noise, whitening, averaging, new rows, bad input."""

import numpy as np
import pytest

from cluster_jax.clustering import representation
from cluster_jax.core import knn
from tests.rows import every_row


def clusters(n=300, d=40, k=5, gap=1.5, seed=0):
    rng = np.random.default_rng(seed)
    truth = np.arange(n) % k
    return rng.normal(size=(n, d)) + gap * rng.normal(size=(k, d))[truth], truth


def purity(rows, truth):
    near = knn.nearest(rows.astype(np.float32), rows.astype(np.float32), 10, exclude_self=True)
    return (truth[near.indices] == truth[:, None]).mean()


@pytest.mark.parametrize("metric", representation.METRICS)
def test_neighbors_share_clusters_more_often_after_each_step(metric):
    x, truth = clusters(gap=0.6)
    rows = representation.fit(x, metric)
    given = x / np.linalg.norm(x, axis=1, keepdims=True) if metric == "cosine" else x
    raw, sharp, smoothed = (purity(r, truth) for r in (given, rows.sharp, rows.smooth))
    assert raw + 0.05 < sharp < smoothed - 0.01


@every_row(("k", "axes"), [(3, 2), (4, 3), (6, 5)])
def test_axes_that_exceed_the_edge_of_noise(k, axes):
    """k clusters span k - 1 axes."""
    assert representation.fit(clusters(k=k, gap=3)[0], "euclidean").sharp.shape[1] == axes


def test_noise_keeps_all_axes_up_to_the_most():
    noise = np.random.default_rng(0).normal(size=(400, 90))
    assert representation.fit(noise, "euclidean").sharp.shape[1] == representation.MAX_AXES
    assert representation.fit(noise[:, :9], "euclidean").sharp.shape[1] == 9


def test_differences_of_neighbors_are_white_up_to_the_shrinkage():
    rng = np.random.default_rng(0)
    truth = np.arange(600) % 3
    x = np.stack([9.0 * truth, 9.0 * (truth == 1)], axis=1)
    x = x + rng.normal(size=(600, 2)) * [1.0, 0.1]
    sharp = representation.fit(x, "euclidean").sharp
    near = knn.nearest(sharp, sharp, 10, exclude_self=True).indices
    gaps = (sharp[:, None] - sharp[near]).reshape(-1, 2)
    variances = np.linalg.eigvalsh(gaps.T @ gaps)
    assert variances[1] / variances[0] < 6  # of the rows: 100 within clusters


def test_smooth_rows_are_means_over_neighbors_twice():
    rows = representation.fit(clusters()[0], "euclidean")
    count = representation.n_neighbors(len(rows.sharp))
    near = knn.nearest(rows.sharp, rows.sharp, count, exclude_self=True).indices
    expected = rows.sharp.astype(np.float64)
    for _ in range(2):
        expected = (expected + expected[near].sum(axis=1)) / (count + 1)
    np.testing.assert_allclose(rows.smooth, expected, atol=1e-5)


@pytest.mark.parametrize("metric", representation.METRICS)
def test_new_rows(metric):
    x, truth = clusters(400)
    rows = representation.fit(x[:300], metric)
    np.testing.assert_allclose(rows.project(x[:300]), rows.sharp, atol=1e-4)
    new = rows.transform(x[300:])
    nearest = knn.nearest(new, rows.smooth, 1).indices[:, 0]
    assert (truth[:300][nearest] == truth[300:]).mean() > 0.98
    np.testing.assert_array_equal(rows.transform(x[300:301]), new[:1])


@every_row("metric", representation.METRICS)
@every_row("scale", [1e-140, 1e-20, 1e20, 1e140])
def test_units_change_nothing(metric, scale):
    x, _ = clusters(200, 12)
    expected, scaled = representation.fit(x, metric), representation.fit(x * scale, metric)
    np.testing.assert_allclose(
        np.abs(scaled.smooth), np.abs(expected.smooth), atol=2e-3
    )  # up to the signs of axes


def test_more_columns_than_rows():
    x, truth = clusters(60, 500, k=2, gap=1.0)
    rows = representation.fit(x)
    assert purity(rows.smooth, truth) > 0.95
    np.testing.assert_allclose(rows.project(x), rows.sharp, atol=1e-4)


@every_row("x", [np.zeros((20, 3)), np.ones((20, 3)), np.array([[1.0, 2.0]]), np.ones((2, 1))])
@every_row("metric", representation.METRICS)
def test_rows_without_differences(x, metric):
    rows = representation.fit(x, metric)
    assert np.isfinite(rows.smooth).all()
    assert np.abs(rows.sharp).max() < 1e-6
    assert np.isfinite(rows.transform(x + 1.0)).all()


def test_zero_rows_and_copies_are_finite():
    x, _ = clusters(100)
    x[:30] = 0
    x[30:60] = x[60]
    for metric in representation.METRICS:
        assert np.isfinite(representation.fit(x, metric).smooth).all()


def test_columns_of_few_values_are_spread_within_their_steps():
    rng = np.random.default_rng(0)
    x = np.stack([rng.integers(0, 5, 400) * 2.0, rng.normal(size=400), np.arange(400) % 3], axis=1)
    spread = representation.dequantize(x)
    np.testing.assert_array_equal(spread, representation.dequantize(x, 0))
    assert (spread != representation.dequantize(x, 1)).any()
    assert np.abs(spread - x).max(axis=0).tolist() == [pytest.approx(1, abs=0.02), 0, 0]
    assert representation.dequantize(x[:, 1:]) is x[:, 1:] or np.array_equal(
        representation.dequantize(x[:, 1:]), x[:, 1:]
    )
    assert len(np.unique(spread[:, 0])) == 400
    small = np.repeat(np.array([-128, -127, 100, 110, 120], np.int8), 60)[:, None]
    np.testing.assert_array_equal(
        representation.dequantize(small), representation.dequantize(small.astype(int))
    )


def test_rounding_of_the_arithmetic_is_no_step():
    """Means of three marks: 1/3 + 4/3 is not 5/3, so that some grid points are two numbers."""
    marks = np.random.default_rng(0).integers(1, 6, (2000, 3))
    exact, rounded = marks.sum(axis=1) / 3, (marks / 3).sum(axis=1)
    assert len(np.unique(rounded)) > len(np.unique(exact))
    noise = representation.dequantize(rounded[:, None]) - representation.dequantize(exact[:, None])
    assert np.abs(noise).max() < 1e-9
