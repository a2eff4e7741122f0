"""The scan over bandwidths: scores against scikit-learn, choice on curves made by hand."""

import numpy as np
import pytest
from sklearn.metrics import silhouette_score

from cluster_jax.clustering import gridshift as bandwidth
from cluster_jax.clustering.gridshift import GridShift
from tests.rows import every_row


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
        sizes = np.bincount(labels)
        assert sum(sizes >= bandwidth.min_cluster_size(sizes)) == k
        if not np.isnan(score):
            assert score == pytest.approx(_score(points, labels), abs=1e-9)
            assert score != pytest.approx(silhouette_score(points, labels), abs=1e-3)
            checked += 1
    assert checked > 5


def test_large_sets_are_sampled(monkeypatch):
    points, seek, sizes = _blobs(2, n=5000), bandwidth.seek, set()
    monkeypatch.setattr(bandwidth, "_CLUSTERED", 1000)
    monkeypatch.setattr(bandwidth, "_SCORED", 300)
    monkeypatch.setattr(bandwidth, "seek", lambda x, *a, **b: sizes.add(len(x)) or seek(x, *a, **b))
    curve = bandwidth.scan(points)
    assert sizes == {1000}
    assert len(GridShift(curve.bandwidths[curve.best_index]).fit(points).cluster_centers_) == 3
    again = bandwidth.scan(points)
    assert again.best_index == curve.best_index
    np.testing.assert_array_equal(again.scores, curve.scores)


nan = np.nan


@every_row(
    ("n_clusters", "scores", "chosen", "verdict"),
    [
        ([5, 4, 3, 1], [0.1, 0.7, 0.5, nan], 1, "clear"),
        ([9, 4, 4, 4, 4, 4, 1], [0.1, 0.7, 0.7, 0.69, 0.7, 0.7, nan], 3, "clear"),  # the middle
        ([7, 6, 5, 4, 3], [0.5, 0.7, 0.69, 0.685, 0.67], 3, "clear"),  # fewest within 0.02
        ([7, 4, 5, 4, 4, 2], [0.5, 0.69, 0.7, 0.69, 0.6, nan], 3, "clear"),
        ([9, 3, 2, 3, 2], [nan] * 5, 4, "unclear"),
    ],
)
def test_choice(n_clusters, scores, chosen, verdict):
    relative = np.array([0.04, 0.07, 0.11, 0.16, 0.25, 0.35, 0.5])[: len(scores)]
    largest = np.full(len(scores), 0.5)
    found = bandwidth._choose(relative, np.array(n_clusters), largest, np.array(scores))
    assert found == (chosen, verdict)


@every_row(
    ("largest", "chosen", "verdict"),
    [
        ([1, 1, 1, 1, 1], 2, "one_cluster"),
        ([0.2, 0.7, 0.8, 0.9, 1], 3, "one_cluster"),  # most rows from 0.11 on
        ([0.2, 0.7, 0.7, 1, 1], 1, "unclear"),  # from 0.16 on
        ([0.2, 1, 0.7, 1, 1], 1, "unclear"),
        ([0.2, 1, 1, 1, 0.7], 1, "unclear"),
    ],
)
def test_one_cluster_holds_most_rows_early(largest, chosen, verdict):
    relative, counts = np.array([0.04, 0.07, 0.11, 0.16, 0.25]), np.array([9, 4, 2, 2, 1])
    scores = np.array([0.2, 0.59, 0.4, 0.3, nan])
    found = bandwidth._choose(relative, counts, np.array(largest, float), scores)
    assert found == (chosen, verdict)
    found = bandwidth._choose(relative, counts, np.array(largest, float), scores + 0.01)
    assert found == (1, "clear")


def test_bandwidths_that_do_not_come_to_rest_are_not_taken():
    # Near bandwidth 3.9 one far point links two modes that crawl toward each other.
    rng = np.random.default_rng(2)
    truth = rng.integers(0, 4, 3000)
    points = np.array([[0.0, 0], [12, 1], [-3, 11], [5, -14]])[truth] + rng.normal(size=(3000, 2))
    model = GridShift().fit(points)
    curve = model.bandwidth_curve_
    crawling = np.isnan(curve.scores) & (curve.n_clusters > 1)
    assert crawling.any()
    assert curve.n_clusters[curve.best_index] == len(model.cluster_centers_) == 4
    assert model.bandwidth_ == curve.bandwidths[curve.best_index]
    assert GridShift(1.0).fit(points).bandwidth_curve_ is None


def test_verdicts():
    rng = np.random.default_rng(0)
    cases = {
        "clear": [_blobs(4)],
        "one_cluster": [rng.normal(size=(1500, 2)), np.zeros((9, 2)), 5 + np.eye(3)[:1]],
        "unclear": [rng.uniform(size=(1500, 3)), rng.uniform(size=(1500, 2))],
    }
    for verdict, sets in cases.items():
        for points in sets:
            fitted = GridShift().fit(points)
            curve = fitted.bandwidth_curve_
            assert curve.verdict == verdict
            if verdict == "one_cluster":
                assert fitted.cluster_sizes_.max() > 0.9 * len(points)


@pytest.mark.parametrize("sampled", [10_000, 700])
def test_the_order_of_the_rows_does_not_matter(sampled, monkeypatch):
    monkeypatch.setattr(bandwidth, "_CLUSTERED", sampled)
    n = 900
    points = np.random.default_rng(7).normal(size=(n, 3)) + np.repeat(np.eye(3) * 9, n // 3, axis=0)
    fitted = GridShift().fit(points)
    order = np.random.default_rng(8).permutation(n)
    again = GridShift().fit(points[order])
    assert again.bandwidth_ == fitted.bandwidth_
    np.testing.assert_array_equal(again.bandwidth_curve_.scores, fitted.bandwidth_curve_.scores)
    np.testing.assert_array_equal(again.labels_, fitted.labels_[order])


def test_far_from_the_origin():
    near, far = (GridShift().fit(_blobs(3) + offset).bandwidth_curve_ for offset in (0, 2.0**31))
    assert far.verdict == near.verdict == "clear"
    # The grid lies differently, so only the best is the same.
    assert np.nanmax(far.scores) == pytest.approx(np.nanmax(near.scores), abs=1e-6)


def test_small_clusters_do_not_count_but_the_largest_does():
    def counts(sizes):
        sizes = np.array(sizes)
        return (sizes >= bandwidth.min_cluster_size(sizes)).tolist()

    assert counts([100, 6, 5, 2, 1]) == [True, True, True, False, False]
    assert counts([1000, 51, 49]) == [True, True, False]
    assert counts([2, 2, 1]) == [True, True, False]
    assert counts([1, 1]) == [True, True]


@every_row(
    "points", [np.zeros((1, 2)), np.full((20, 3), 0.1), np.array([[0.0], [1.0]]), np.eye(30)]
)
def test_degenerate_sets(points):
    curve = GridShift().fit(points).bandwidth_curve_
    assert 0 <= curve.best_index < len(curve.bandwidths)
    assert (curve.bandwidths > 0).all()
    assert (curve.n_clusters >= 1).all()


def test_outliers_do_not_set_the_scale():
    points = np.concatenate([_blobs(3), [[1e4, 0, 0], [0, -1e4, 0]]])
    assert len(GridShift().fit(points).cluster_centers_) == 5
