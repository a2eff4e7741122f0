"""The silhouette of a sample: the definition by loops, scikit-learn, what has none."""

import sys

import numpy as np
import pytest
from sklearn.metrics import silhouette_score

from cluster_jax.metrics.silhouette import silhouette
from tests.rows import every_row


def _blobs(n=300, d=5, k=4, seed=0):
    rng = np.random.default_rng(seed)
    clusters = rng.integers(0, k, n)
    return rng.normal(size=(k, d))[clusters] * 3 + rng.normal(size=(n, d)), clusters


def _by_loops(x, clusters):
    each = []
    for i, c in enumerate(clusters):
        gap = np.linalg.norm(x - x[i], axis=1)
        own = clusters == c
        if own.sum() == 1:
            each.append(0.0)
            continue
        a = gap[own].sum() / (own.sum() - 1)
        b = min(gap[clusters == other].mean() for other in set(clusters) - {c})
        each.append((b - a) / max(a, b))
    return np.mean(each)


def test_equals_the_definition():
    x, clusters = _blobs(60)
    clusters[7] = 9  # alone: counts as 0
    ours = silhouette(x, clusters, metric="euclidean", sample_size=60, seed=0)
    assert ours == pytest.approx(_by_loops(x, clusters))


def test_metric_and_sample():
    x, clusters = _blobs()
    whole = silhouette(x, clusters, metric="cosine", sample_size=300, seed=0)
    assert whole == pytest.approx(silhouette_score(x, clusters, metric="cosine"))
    assert whole != pytest.approx(
        silhouette(x, clusters, metric="euclidean", sample_size=300, seed=0)
    )
    one, two, other = (
        silhouette(x, clusters, metric="cosine", sample_size=80, seed=seed) for seed in (1, 1, 2)
    )
    assert one == two != other
    assert one == pytest.approx(whole, abs=0.1)


def test_a_sample_has_no_row_twice_and_keeps_their_order(monkeypatch):
    def scored(rows, labels, metric):
        assert (np.diff(rows[:, 0]) > 0).all()
        assert len(rows) == 50
        return 0.5

    monkeypatch.setattr(sys.modules["cluster_jax.metrics.silhouette"], "silhouette_score", scored)
    assert silhouette(np.arange(60.0)[:, None], np.arange(60) % 2, sample_size=50) == 0.5


@pytest.mark.parametrize("clusters", [[0] * 5, range(5)])
def test_none_without_two_clusters_or_two_rows_of_one(clusters):
    x = np.arange(10.0).reshape(5, 2)
    assert silhouette(x, list(clusters), metric="euclidean", sample_size=10, seed=0) is None


def test_none_when_the_sample_misses_the_second_cluster():
    x, clusters = _blobs(2000)[0], np.arange(2000) == 0
    assert silhouette(x, clusters, metric="euclidean", sample_size=3, seed=0) is None


def test_bad_input():
    with pytest.raises(
        ValueError, match=r"clusters must have one entry for each .*; got shape \(3,\)"
    ):
        silhouette(np.ones((4, 2)), [0, 1, 1], metric="euclidean", sample_size=9, seed=0)
    with pytest.raises(ValueError, match="sample_size must be at least 3; got 2"):
        silhouette(np.ones((4, 2)), [0, 1, 1, 1], metric="euclidean", sample_size=2, seed=0)


def test_far_from_the_origin():
    rng = np.random.default_rng(4)
    clusters = np.repeat([0, 1], 50)
    features = rng.normal(size=(100, 2)) + 9 * clusters[:, None]
    common = {"metric": "euclidean", "sample_size": 200, "seed": 0}
    near, far = (silhouette(features + o, clusters, **common) for o in (0.0, 2.0**32))
    assert far == pytest.approx(near, abs=1e-5)


@every_row("scale", [1e300, 1e200, 1e-160, 1e-300, 1e-310])
def test_numbers_of_any_size(scale):
    x, clusters = _blobs()
    common = {"metric": "euclidean", "sample_size": 300, "seed": 0}
    found = silhouette(x * scale, clusters, **common)
    assert found == pytest.approx(silhouette(x, clusters, **common), rel=1e-10)
    assert silhouette(0 * x, clusters, **common) == 0
