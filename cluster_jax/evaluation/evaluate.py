"""From the embedding of a data set to clusters and figures."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from cluster_jax.clustering import out_of_sample
from cluster_jax.clustering.bandwidth import BandwidthCurve
from cluster_jax.clustering.gridshift import GridShift
from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.clustering.reduce import reduce
from cluster_jax.core import checks
from cluster_jax.core.checks import InputError
from cluster_jax.metrics import collapse, knn, linear_probe, partition


class Evaluation(NamedTuple):
    """Clusters and figures of an embedding of `n` images.

    Attributes:
        metrics: `{"gridshift": {...}, "kmeans": {...}, "knn": {...}, ...}`; figures that need
            labels are None without them. GridShift's `n_clusters` are all its clusters, `n_large`
            those that count (`bandwidth.min_cluster_size`); the others are small and hold outliers.
        points: float32 `[n, dimensions]`, the reduced space in which GridShift ran.
        centers: float64 `[k, dimensions]`, its modes in that space.
        bandwidth: the side of its cells in that space.
        cluster_labels: int32 `[n]`, GridShift's.
        distances: float32 `[n]`, to the center of the own cluster, in bandwidths.
        outliers: bool `[n]`, GridShift's.
        kmeans_labels: int32 `[n]`.
        novelty_threshold: how far, by 1 - cosine, a new row may be from all these
            (see `out_of_sample.novelty_threshold`).
        curve: the scan over bandwidths, or None for a fixed bandwidth.
    """

    metrics: dict[str, Any]
    points: np.ndarray
    centers: np.ndarray
    bandwidth: float
    cluster_labels: np.ndarray
    distances: np.ndarray
    outliers: np.ndarray
    kmeans_labels: np.ndarray
    novelty_threshold: float
    curve: BandwidthCurve | None


def evaluate(
    embedding: Mapping[str, np.ndarray],
    labels: np.ndarray | None,
    *,
    seed: int,
    features: str,
    reduce: Mapping[str, Any],
    gridshift: Mapping[str, Any],
    kmeans: Mapping[str, Any],
    knn: tuple[int, ...],
    linear_probe: Mapping[str, Any] | None,
    batch_size: int,
) -> Evaluation:
    """Clusters an embedding without and with a given number of clusters, and scores both.

    Labels are used to score, and to set the number of clusters of k-means where
    `kmeans["k"]` is None; GridShift and its bandwidth never see them.

    Args:
        embedding: `{"backbone": [n, d], "projection": [n, e]}`.
        labels: int32 `[n]`, or None.
        seed: of UMAP, k-means and the probe.
        features: which of the embedding to cluster, `"backbone"` or `"projection"`; rows are
            scaled to length one.
        reduce: keyword arguments of `clustering.reduce.reduce`.
        gridshift: keyword arguments of `GridShift`.
        kmeans: `{"k": int | None, "n_init": int}`; k None: the number of classes, or what
            GridShift found where there are no labels.
        knn: numbers of neighbors for k-NN accuracy.
        linear_probe: keyword arguments of `metrics.linear_probe`, or None to leave it out.
        batch_size: of the forward passes that made the embedding; not used here.

    Raises:
        InputError: a setting is out of range.
    """
    checks.one_of("eval.features", features, tuple(embedding))
    x = unit(embedding[features])
    points = _reduce(x, reduce, seed)
    grid = GridShift(**_bandwidth(gridshift)).fit(points)
    where = grid.locate(points)
    k = kmeans["k"]
    if k is None:
        k = len(np.unique(grid.labels_[~grid.outliers_] if labels is None else labels))
    groups = _kmeans(x, k, kmeans["n_init"], seed)
    curve = grid.bandwidth_curve_
    metrics = {
        "gridshift": {
            **_scores(labels, grid.labels_),
            "n_large": len(np.unique(grid.labels_[~grid.outliers_])),
            "bandwidth": float(grid.bandwidth_),
            "clear": None if curve is None else bool(curve.clear),
            "verdict": None if curve is None else curve.verdict,
            "stability": grid.stability_,
            "outliers": int(where.outliers.sum()),
        },
        "kmeans": {**_scores(labels, groups), "k_given": k},
        "knn": _knn(x, labels, knn),
        "linear_probe": _probe(embedding[features], labels, linear_probe, seed),
        "collapse": {name: collapse.collapse(f) for name, f in embedding.items()},
    }
    return Evaluation(
        metrics,
        points.astype(np.float32),
        grid.cluster_centers_,
        float(grid.bandwidth_),
        grid.labels_.astype(np.int32),
        where.distances.astype(np.float32),
        where.outliers,
        groups.astype(np.int32),
        out_of_sample.novelty_threshold(x),
        curve,
    )


def check(section: Mapping[str, Any], images: int) -> None:
    """Raises an `InputError` for settings that can be judged before the embedding is there."""
    checks.at_least("eval.batch_size", section["batch_size"], 1)
    checks.one_of("eval.features", section["features"], ("backbone", "projection"))
    checks.one_of(
        "eval.reduce.method", section["reduce"]["method"], ("umap", "tsne", "pca", "none")
    )
    checks.at_least("eval.kmeans.n_init", section["kmeans"]["n_init"], 1)
    checks.at_least("eval.reduce.n_components", section["reduce"]["n_components"], 2)
    checks.at_least("eval.reduce.n_neighbors", section["reduce"]["n_neighbors"], 2)
    checks.at_least("eval.reduce.min_dist", section["reduce"]["min_dist"], 0)
    checks.one_of("eval.gridshift.stop", section["gridshift"]["stop"], ("fixed_point", "no_merge"))
    checks.at_least("eval.gridshift.max_iter", section["gridshift"]["max_iter"], 1)
    k = section["kmeans"]["k"]
    if k is not None and not 1 <= k <= images:
        raise InputError(f"eval.kmeans.k must be 1 to {images}, the images to cluster; got {k}")
    if section["linear_probe"] is not None:
        _check_probe(section["linear_probe"])
    if not section["knn"]:
        raise InputError("eval.knn must name at least one number of neighbors; got none")
    _bandwidth(section["gridshift"])
    for k in section["knn"]:
        checks.at_least("eval.knn", k, 1)


def _check_probe(section: Mapping[str, Any]) -> None:
    for key in ("epochs", "batch_size"):
        checks.at_least(f"eval.linear_probe.{key}", section[key], 1)
    checks.positive("eval.linear_probe.learning_rate", section["learning_rate"])
    checks.at_least("eval.linear_probe.weight_decay", section["weight_decay"], 0)
    if not 0 < section["holdout"] < 1:
        raise InputError(
            f"eval.linear_probe.holdout must be between 0 and 1; got {section['holdout']}"
        )


def unit(features: np.ndarray) -> np.ndarray:
    """Rows scaled to length one, as they are clustered; rows of zeros stay zero."""
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.where(norms > 0, norms, 1)


def _bandwidth(section: Mapping[str, Any]) -> dict[str, Any]:
    """The section with its bandwidth as a number; a flag over the default "auto" is a string."""
    bandwidth = section["bandwidth"]
    if bandwidth != "auto":
        try:
            bandwidth = float(bandwidth)
        except ValueError:
            bandwidth = float("nan")
        if not 0 < bandwidth < float("inf"):
            raise InputError(
                f"eval.gridshift.bandwidth must be 'auto' or a number greater than 0; "
                f"got {section['bandwidth']!r}"
            )
    return {**section, "bandwidth": bandwidth}


def _scores(labels: np.ndarray | None, clusters: np.ndarray) -> dict[str, Any]:
    if labels is None:
        return {**dict.fromkeys(partition.SCORES), "n_clusters": len(np.unique(clusters))}
    return partition.scores(labels, clusters)


def _reduce(x: np.ndarray, section: Mapping[str, Any], seed: int) -> np.ndarray:
    return reduce(x, seed=seed, **section)


def _kmeans(x: np.ndarray, k: int, n_init: int, seed: int) -> np.ndarray:
    return kmeans(x, k, n_init=n_init, seed=seed).labels


def _knn(x: np.ndarray, labels: np.ndarray | None, n_neighbors: tuple[int, ...]) -> dict:
    if labels is None:
        return dict.fromkeys(map(str, n_neighbors))
    found = knn.knn_accuracy(x, labels, n_neighbors=tuple(n_neighbors))
    return {str(k): accuracy for k, accuracy in found.items()}


def _probe(
    x: np.ndarray, labels: np.ndarray | None, section: Mapping[str, Any] | None, seed: int
) -> float | None:
    # A class of one image cannot be in both parts of the split.
    if labels is None or section is None or np.bincount(labels).max() < 2:
        return None
    return linear_probe.linear_probe(x, labels, seed=seed, **section)
