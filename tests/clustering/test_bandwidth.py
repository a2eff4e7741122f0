"""The scan over bandwidths: scores against scikit-learn, choice on curves made by hand."""

import numpy as np
import pytest
from sklearn.metrics import silhouette_score

from cluster_jax.clustering import bandwidth
from cluster_jax.clustering.gridshift import GridShift


def _blobs(seed, n=900, spread=0.6):
    rng = np.random.default_rng(seed)
    centers = np.array([[0.0, 0, 0], [8, 1, 2], [-3, 7, 5]])
    return centers[rng.integers(0, 3, n)] + spread * rng.normal(size=(n, 3))


def _score(points, labels):
    """Silhouette row by row, among clusters that are not tiny beside the median row's."""
    sizes = np.bincount(labels)
    smallest = max(3, 0.05 * np.median(sizes[labels]))
    large = [c for c, size in enumerate(sizes) if size >= smallest]
    total = 0.0
    for x, own in zip(points, labels, strict=True):
        if own in large:
            apart = np.linalg.norm(points - x, axis=1)
            inside = apart[labels == own].sum() / (sizes[own] - 1)
            nearest = min(apart[labels == c].mean() for c in large if c != own)
            total += (nearest - inside) / max(nearest, inside)
    return total / len(points)


def test_scores_are_silhouettes_of_the_partitions():
    points = np.concatenate([_blobs(0, n=300), np.random.default_rng(9).uniform(-9, 9, (10, 3))])
    curve = GridShift().fit(points).bandwidth_curve_
    assert (np.diff(curve.bandwidths) > 0).all()
    checked = 0
    for h, k, score in zip(*(column[::3] for column in curve[:3]), strict=True):
        labels = GridShift(float(h)).fit_predict(points)
        assert labels.max() + 1 == k
        if not np.isnan(score):
            assert score == pytest.approx(_score(points, labels), abs=1e-9)
            assert score != pytest.approx(silhouette_score(points, labels), abs=1e-3)
            checked += 1
    assert checked > 5


def test_scale_of_the_data_scales_the_answer():
    points = np.round(_blobs(1) * 1024) / 1024
    a, b = (GridShift().fit(points * s) for s in (1.0, 2.0**-20))
    assert b.bandwidth_ == pytest.approx(a.bandwidth_ * 2.0**-20, rel=1e-12)
    np.testing.assert_array_equal(a.labels_, b.labels_)


def test_large_sets_are_sampled(monkeypatch):
    points = _blobs(2, n=5000)
    monkeypatch.setattr(bandwidth, "_CLUSTERED", 1000)
    monkeypatch.setattr(bandwidth, "_SCORED", 300)
    sizes = set()

    def partition(x, h):
        sizes.add(len(x))
        return GridShift(h).fit_predict(x), True

    curve = bandwidth.scan(points, partition)
    assert sizes == {1000}
    assert len(GridShift(curve.bandwidths[curve.chosen]).fit(points).cluster_centers_) == 3
    again = bandwidth.scan(points, partition)
    assert again.chosen == curve.chosen
    np.testing.assert_array_equal(again.scores, curve.scores)


nan = np.nan


@pytest.mark.parametrize(
    ("n_clusters", "scores", "chosen"),
    [
        ([5, 4, 3, 1], [0.1, 0.7, 0.5, nan], 1),
        ([9, 4, 4, 4, 4, 4, 1], [0.1, 0.7, 0.7, 0.69, 0.7, 0.7, nan], 3),  # the middle
        ([7, 6, 5, 4, 3], [0.5, 0.7, 0.69, 0.685, 0.67], 3),  # fewest of those within 0.02
        ([7, 4, 5, 4, 4, 2], [0.5, 0.69, 0.7, 0.69, 0.6, nan], 3),
        ([1, 1, 1], [nan, nan, nan], 2),
    ],
)
def test_choice(n_clusters, scores, chosen):
    assert bandwidth._choose(np.array(n_clusters), np.array(scores)) == chosen


def test_bandwidths_that_do_not_come_to_rest_are_not_taken():
    # Near bandwidth 3.9 one far point links two modes that crawl towards each other.
    rng = np.random.default_rng(2)
    truth = rng.integers(0, 4, 3000)
    points = np.array([[0.0, 0], [12, 1], [-3, 11], [5, -14]])[truth] + rng.normal(size=(3000, 2))
    curve = GridShift().fit(points).bandwidth_curve_
    crawling = np.isnan(curve.scores) & (curve.n_clusters > 1)
    assert crawling.any()
    assert curve.n_clusters[curve.chosen] == 4


def test_says_when_there_is_no_clear_answer():
    assert GridShift().fit(_blobs(4)).bandwidth_curve_.clear
    rng = np.random.default_rng(0)
    for points in (rng.uniform(size=(1500, 3)), rng.normal(size=(1500, 2)), np.zeros((9, 2))):
        assert not GridShift().fit(points).bandwidth_curve_.clear


@pytest.mark.parametrize(
    "points", [np.zeros((1, 2)), np.full((20, 3), 0.1), np.array([[0.0], [1.0]]), np.eye(30)]
)
def test_degenerate_sets(points):
    curve = GridShift().fit(points).bandwidth_curve_
    assert 0 <= curve.chosen < len(curve.bandwidths)
    assert (curve.bandwidths > 0).all()
    assert (curve.n_clusters >= 1).all()


def test_outliers_do_not_set_the_scale():
    points = np.concatenate([_blobs(3), [[1e4, 0, 0], [0, -1e4, 0]]])
    assert len(GridShift().fit(points).cluster_centers_) == 5
