"""Clusters and metrics of features: what is clustered, by which distance, what is refused."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from etils import epath
from sklearn.decomposition import PCA
from sklearn.metrics import silhouette_score

from cluster_jax.clustering import choose_k, placing, tree_fit
from cluster_jax.clustering.gridshift import GridShift
from cluster_jax.clustering.smooth_tree import SmoothTree
from cluster_jax.core import arrays
from cluster_jax.core.checks import InputError
from cluster_jax.evaluation import clusters, maps
from cluster_jax.evaluation.options import ClusterOptions, EvalConfig, resolve
from cluster_jax.metrics import partition
from cluster_jax.runs import measured
from cluster_jax.runs import rows as embeddings
from cluster_jax.runs.next_state import Now, next_state, with_rows
from cluster_jax.runs.run import Run
from tests.rows import every_row

OPTIONS = ClusterOptions(
    method="gridshift", n_clusters=None, reduce=None, n_components=2, n_neighbors=5, metric=None,
    bandwidth="auto", n_init=3,
)  # fmt: skip


def replace(**changes):
    return ClusterOptions.of({**vars(OPTIONS), **changes})


def blobs(d=3, n=300, seed=1):
    rng = np.random.default_rng(seed)
    labels = rng.choice([0, 0, 1, 2], n)
    return rng.normal(size=(3, d))[labels] * 9 + rng.normal(size=(n, d)), labels


def ignore(text):
    pass


def cluster(x, labels, options, progress):
    """The clusters of rows, and what a first state in memory shows of them."""
    options = resolve(x, options)
    result = clusters.find(x, options, seed=0, progress=progress)
    config = {**dataclasses.asdict(options), "seed": 0}
    before = Run("rows", epath.Path("nowhere"), config, {})
    stored = embeddings.rows_of(x, options)
    after = dataclasses.replace(with_rows(before, len(x)), store=stored, truth=labels)
    run = next_state(before, Now(after, np.arange(0)), x, "refit", result)
    shown = {
        "distances": run.distances,
        "outliers": run.outliers,
        "membership": run.membership,
    }
    return SimpleNamespace(**{**result._asdict(), "metrics": measured.scores(run, x), **shown})


def test_few_columns_go_to_gridshift_as_they_are():
    x, labels = blobs()
    progress = []
    result = cluster(x, labels, OPTIONS, progress.append)
    grid = GridShift().fit(x)
    np.testing.assert_array_equal(result.points, x)
    np.testing.assert_array_equal(result.cluster_labels, grid.labels_)
    gaps = np.linalg.norm(x - arrays.cluster_means(x, grid.labels_)[grid.labels_], axis=1)
    np.testing.assert_allclose(result.distances, gaps, rtol=1e-6)
    np.testing.assert_array_equal(result.outliers, grid.outliers_)
    metrics = result.metrics
    scores = partition.scores(labels, grid.labels_)
    assert {name: metrics[name] for name in scores} == scores
    assert metrics["acc"] > 0.98
    assert metrics["bandwidth"] == grid.bandwidth_
    assert metrics["verdict"] == grid.bandwidth_curve_.verdict == "clear"
    assert metrics["silhouette"] == pytest.approx(silhouette_score(x, grid.labels_))
    assert metrics["outliers"] == grid.outliers_.sum()
    assert metrics["n_large"] == len(set(grid.labels_[~grid.outliers_])) == 3
    assert sum(metrics["cluster_sizes"].values()) == 300
    assert metrics["cluster_sizes"][int(grid.labels_[0])] == (grid.labels_ == grid.labels_[0]).sum()
    assert progress == ["running GridShift on 300 points, bandwidth auto ..."]


def test_float64_is_not_rounded():
    """Features far from 0 keep their differences, which float32 would drop."""
    x, labels = blobs()
    options = replace(bandwidth=4.0)
    near, far = (cluster(x + offset, labels, options, ignore) for offset in (0, 2.0**28))
    assert far.points.dtype == np.float64
    assert partition.scores(near.cluster_labels, far.cluster_labels)["ari"] > 0.9
    assert near.metrics["n_clusters"] > 2


def test_gridshift_sees_the_reduced_features():
    x, labels = blobs(d=20)
    progress = []
    result = cluster(x, labels, replace(reduce="pca", bandwidth=6.0), progress.append)
    expected = PCA(2, svd_solver="full").fit_transform(x)
    np.testing.assert_allclose(np.abs(result.points), np.abs(expected), atol=1e-3)
    np.testing.assert_array_equal(result.cluster_labels, GridShift(6.0).fit(result.points).labels_)
    assert progress[0] == "reducing 300 x 20 features to 2 dimensions with PCA ..."
    metrics = result.metrics
    assert metrics["silhouette"] == pytest.approx(silhouette_score(x, result.cluster_labels))


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_kmeans_on_features(metric):
    x, labels = blobs(d=6)
    x = x * np.random.default_rng(0).uniform(0.2, 2, (300, 1)) if metric == "cosine" else x
    options = replace(method="kmeans", n_clusters=3, metric=metric)
    result = cluster(x, labels, options, ignore)
    metrics = result.metrics
    assert metrics["acc"] > 0.98
    assert metrics["k_given"] == 3
    assert not result.outliers.any()
    np.testing.assert_array_equal(result.points, x)
    # The distance by hand, to the mean of the members (of length one for the cosine).
    unit = x / np.linalg.norm(x, axis=1, keepdims=True) if metric == "cosine" else x
    means = np.stack([unit[result.cluster_labels == c].mean(axis=0) for c in range(3)])
    if metric == "cosine":
        means /= np.linalg.norm(means, axis=1, keepdims=True)
        gaps = 1 - (unit * means[result.cluster_labels]).sum(axis=1)
    else:
        gaps = np.linalg.norm(unit - means[result.cluster_labels], axis=1)
    np.testing.assert_allclose(result.distances, gaps, atol=2e-4)
    expected = silhouette_score(x, result.cluster_labels, metric=metric)
    assert metrics["silhouette"] == pytest.approx(expected, rel=1e-5)


def test_kmeans_in_a_map_is_euclidean(monkeypatch):
    """Two heaps in one direction from the origin of the map: no cosine tells them apart."""
    x = np.concatenate([np.full((20, 5), 1.0), np.full((30, 5), 9.0)])
    x += np.random.default_rng(0).normal(size=x.shape) * 0.1
    given = {}

    def reduce(features, **options):
        given.update(options)
        return features[:, :2]

    monkeypatch.setattr(clusters, "reduce", reduce)
    options = replace(method="kmeans", n_clusters=2, reduce="umap", n_neighbors=7)
    result = cluster(x, np.repeat([0, 1], [20, 30]), options, ignore)
    assert given == {
        "method": "umap", "n_components": 2, "n_neighbors": 7, "metric": "cosine",
        "seed": 0,
    }  # fmt: skip
    assert result.metrics["acc"] == 1
    assert result.points.shape == (50, 2)


TREE = replace(method="tree", reduce="pca", metric="euclidean")


def map_of(result, options=TREE):
    tree = result.tree
    return maps.of_tree(tree.smoother.smooth, tree.leaves, seed=0, **options.reduce_options)


def test_the_tree_clusters_the_features_and_not_the_map():
    x, labels = blobs(d=20)
    progress = []
    result = cluster(x, labels, TREE, progress.append)
    model = SmoothTree("euclidean").fit(x)
    np.testing.assert_array_equal(result.cluster_labels, model.labels_)
    sharp = model._fit_.smoother.project(x)
    means = np.stack([sharp[model.labels_ == c].mean(axis=0) for c in range(3)])
    gaps = np.linalg.norm(sharp - means[model.labels_], axis=1)
    np.testing.assert_allclose(result.distances, gaps, atol=1e-5)
    metrics = result.metrics
    assert metrics["acc"] > 0.98
    assert metrics["n_clusters"] == metrics["n_large"] == 3
    assert metrics["verdict"] == model.verdict_ == "clear"
    assert metrics["gap"] is None, "HDBSCAN's clusters have none"
    assert (metrics["rows_clustered"], metrics["outliers"]) == (300, 0)
    np.testing.assert_array_equal(result.membership.probabilities, model.probabilities_)
    np.testing.assert_array_equal(result.membership.second_labels, model.second_labels_)
    assert progress == ["smoothing 300 x 20 features and clustering them ..."]
    without = replace(**{**vars(TREE), "reduce": "none"})
    np.testing.assert_array_equal(map_of(result, without), model._fit_.smooth_rows(x))
    assert cluster(x, None, without, ignore).metrics["acc"] is None


def test_a_number_that_the_tree_is_told_has_no_verdict():
    x, _ = blobs(d=20)
    metrics = cluster(x, None, replace(**{**vars(TREE), "n_clusters": 5}), ignore).metrics
    assert metrics["n_clusters"] == 5
    assert metrics["verdict"] is metrics["gap"] is None


def test_a_best_guess_has_a_gap():
    rng = np.random.default_rng(0)
    x = 2.8 * np.eye(6, 12)[rng.integers(0, 6, 400)] + rng.normal(size=(400, 12))
    metrics = cluster(x, None, TREE, ignore).metrics
    assert metrics["verdict"] == "unclear"
    assert metrics["gap"] == SmoothTree("euclidean").fit(x).gap_
    assert metrics["gap"] >= choose_k.MIN_GAP


def test_rows_of_small_clusters_are_outliers(monkeypatch):
    monkeypatch.setattr(measured, "MIN_CLUSTER_ROWS", 50)
    x, labels = blobs(d=20)
    kept = np.concatenate([np.flatnonzero(labels < 2), np.flatnonzero(labels == 2)[:40]])
    result = cluster(x[kept], None, TREE, ignore)
    np.testing.assert_array_equal(result.outliers, labels[kept] == 2)
    assert (result.metrics["n_large"], result.metrics["outliers"]) == (2, 40)
    # Of a given number of clusters, all count.
    result = cluster(x[kept], None, replace(**{**vars(TREE), "n_clusters": 3}), ignore)
    assert (result.metrics["n_large"], result.metrics["outliers"]) == (3, 0)


@pytest.mark.parametrize("reduce", ["pca", "tsne"])
def test_rows_of_micro_clusters_lie_on_them_on_the_map(monkeypatch, reduce):
    monkeypatch.setattr(tree_fit, "MAX_ROWS", 200)
    monkeypatch.setattr(maps, "MAP_COLUMNS", 1)  # Else its smooth rows are their own map.
    x, labels = blobs(d=20)
    progress = []
    result = cluster(x, labels, TREE, progress.append)
    m = len(result.tree.sample)
    assert result.metrics["rows_clustered"] == m <= 150
    assert result.metrics["acc"] > 0.98
    assert progress[1] == f"clustered {m} micro-clusters of all 300 rows"
    points = map_of(result, replace(**{**vars(TREE), "reduce": reduce}))
    assert points.shape[0] == 300
    at = np.full((m, 2), np.nan, np.float32)
    at[result.tree.leaves] = points
    np.testing.assert_array_equal(points, at[result.tree.leaves])
    kinds = np.full(m, -1)
    kinds[result.tree.leaves] = result.cluster_labels
    apart = np.linalg.norm(at[:, None] - at[None], axis=-1)
    np.fill_diagonal(apart, np.inf)
    assert (kinds[apart.argmin(axis=1)] == kinds).mean() >= 0.98


def test_copies_lie_on_their_original():
    """UMAP draws another map each time of equal rows, and t-SNE parts them."""
    x, labels = blobs(d=20)
    twice = np.concatenate([x, x])
    progress = []
    result = cluster(twice, np.tile(labels, 2), TREE, progress.append)
    assert "300 copies of other rows took their clusters" in progress
    points = map_of(result)
    np.testing.assert_array_equal(points[:300], points[300:])
    np.testing.assert_array_equal(points, map_of(cluster(twice, None, TREE, ignore)))


def test_blocks_do_not_show(monkeypatch):
    x, labels = blobs(d=6)
    options = replace(method="kmeans", n_clusters=3)
    whole = cluster(x, labels, options, ignore)
    monkeypatch.setattr(arrays, "_BLOCK", 100)
    np.testing.assert_array_equal(cluster(x, labels, options, ignore).distances, whole.distances)


@every_row(
    ("columns", "given", "expected"),
    [
        (3, {}, ("none", "euclidean")),
        (4, {}, ("umap", "cosine")),
        (4, {"reduce": "tsne"}, ("tsne", "cosine")),
        (4, {"reduce": "pca"}, ("pca", "euclidean")),
        (4, {"method": "kmeans", "n_clusters": 2}, ("none", "cosine")),
        (3, {"method": "kmeans", "n_clusters": 2}, ("none", "euclidean")),
        (4, {"method": "tree"}, ("tsne", "cosine")),
        (4, {"method": "tree", "reduce": "none"}, ("none", "cosine")),
    ],
)
def test_what_is_left_open(columns, given, expected):
    options = resolve(np.ones((5, columns), np.float32), replace(**given))
    assert (options.reduce, options.metric) == expected
    assert resolve(np.ones((5, columns)), options) == options
    unchanged = {**given, "reduce": options.reduce, "metric": options.metric}
    assert vars(options) == vars(replace(**unchanged)), "nothing else changes"


X = np.ones((5, 4))


@every_row(
    ("features", "given", "message"),
    [
        (np.ones(5), {}, "rows by columns; got an error"),
        (np.array([[1.0, np.inf]]), {}, "features must be finite; got NaN"),
        (X, {"metric": "cosine", "reduce": "pca"}, "metric must be 'euclidean' for gridshift"),
        (X, {"n_components": 0}, "n_components must be at least 1; got 0"),
        (X, {"bandwidth": 0.0}, "bandwidth must be .*; got 0.0"),
        (X, {"bandwidth": "nan"}, "bandwidth must be 'auto' or a number.*nan"),
        (X, {"n_clusters": 3}, "n_clusters must be left out for GridShift"),
        (X, {"method": "kmeans"}, "n_clusters must be given for k-means; got none"),
        (X, {"method": "kmeans", "n_clusters": 6}, "n_clusters must be between 1 and 5"),
        (
            X,
            {"method": "kmeans", "n_clusters": 2, "bandwidth": 0.5},
            "bandwidth must be 'auto' for the method kmeans",
        ),
        (X, {"method": "tree", "n_clusters": 6}, "n_clusters must be between 1 and 5"),
        (
            X,
            {"method": "kmeans", "n_clusters": 2, "n_init": 2**70},
            "n_init must be at most",
        ),
    ],
)
def test_refused(features, given, message):
    with pytest.raises(InputError, match=message):
        resolve(features, replace(**given))
    with pytest.raises(InputError, match=message):
        cluster(features, None, replace(**given), ignore)


def test_rows_outside_the_sample_follow_the_nearest_ones_in_it():
    x, _ = blobs(d=4, n=200)
    x = arrays.normalize_rows(x + 5)
    options = resolve(x, replace(reduce="pca"))
    found = clusters.find_by_sample(x, options, seed=2, most=90)
    chosen = clusters.sampled(200, 90, 2)
    alone = clusters.find(x[chosen], options, seed=2)
    np.testing.assert_array_equal(found.cluster_labels[chosen], alone.cluster_labels)
    np.testing.assert_array_equal(found.points[chosen], alone.points)
    others = np.setdiff1d(np.arange(200), chosen)
    known = placing.ByVotes(alone.cluster_labels, 5, placing.voters(x[chosen], "cosine"))
    np.testing.assert_array_equal(found.cluster_labels[others], known.place(x[others]).labels)
    assert found.metrics["rows_clustered"] == 90
    kept = clusters.from_arrays(clusters.to_arrays(found))
    assert kept.metrics == found.metrics
    for one, two in zip(kept[1:], found[1:], strict=True):
        np.testing.assert_array_equal(one, two)


@every_row(
    ("method", "sample", "n", "processes", "expected"),
    [
        ("gridshift", None, 60_000, 1, None),
        ("gridshift", None, 60_000, 2, 50_000),
        ("gridshift", None, 50_000, 2, None),
        ("gridshift", 70_000, 60_000, 2, None),
        ("gridshift", 40, 60, 1, 40),
        ("tree", 40, 60, 2, None),
    ],
)
def test_several_processes_cluster_a_sample(method, sample, n, processes, expected):
    config = SimpleNamespace(method=method, sample=sample)
    assert EvalConfig.sample_of(config, n, processes) == expected
