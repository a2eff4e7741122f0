"""Clusters and metrics of the embedding of a data set."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering import out_of_sample, smooth
from cluster_jax.clustering.bandwidth import BandwidthCurve
from cluster_jax.clustering.kmeans import METRICS, kmeans
from cluster_jax.clustering.reduce import METHODS, reduce
from cluster_jax.clustering.shift import STOPS
from cluster_jax.clustering.smooth_tree import Membership, SmoothTree
from cluster_jax.core import arrays, checks
from cluster_jax.core.checks import InputError
from cluster_jax.evaluation import cluster_features
from cluster_jax.evaluation.cluster_options import FINDERS
from cluster_jax.metrics import knn
from cluster_jax.metrics.collapse import collapse
from cluster_jax.metrics.linear_probe import linear_probe

FEATURES = ("backbone", "projection")


@dataclasses.dataclass(frozen=True)
class ReduceConfig:
    """The section `eval.reduce`: arguments of `clustering.reduce.reduce`."""

    method: str
    n_components: int
    n_neighbors: int
    min_dist: float
    metric: str

    def __post_init__(self) -> None:
        checks.one_of("eval.reduce.method", self.method, METHODS)
        checks.whole("eval.reduce.n_components", self.n_components, 2)
        checks.whole("eval.reduce.n_neighbors", self.n_neighbors, 2)
        checks.at_least("eval.reduce.min_dist", self.min_dist, 0)


@dataclasses.dataclass(frozen=True)
class GridShiftConfig:
    """The section `eval.gridshift`: arguments of `clustering.gridshift.GridShift`."""

    bandwidth: float | str
    stop: str
    max_iter: int

    def __post_init__(self) -> None:
        checks.one_of("eval.gridshift.stop", self.stop, STOPS)
        checks.whole("eval.gridshift.max_iter", self.max_iter, 1)
        # A flag over the default "auto" is a string: "0.5" is accepted as a number.
        object.__setattr__(self, "bandwidth", _bandwidth(self.bandwidth))


@dataclasses.dataclass(frozen=True)
class KMeansConfig:
    """The section `eval.kmeans`.

    Attributes:
        k: number of clusters, see `check_k`; None: the number of classes, or without labels the
            number of clusters that is found.
        n_init: runs, of which the best is kept.
        metric: "euclidean" or "spherical", on rows of length one.
    """

    k: int | None
    n_init: int
    metric: str

    def __post_init__(self) -> None:
        checks.whole("eval.kmeans.n_init", self.n_init, 1)
        checks.one_of("eval.kmeans.metric", self.metric, METRICS)


@dataclasses.dataclass(frozen=True)
class LinearProbeConfig:
    """The section `eval.linear_probe`: arguments of `metrics.linear_probe.linear_probe`."""

    epochs: int
    learning_rate: float
    weight_decay: float
    batch_size: int
    holdout: float

    def __post_init__(self) -> None:
        checks.whole("eval.linear_probe.epochs", self.epochs, 1)
        checks.whole("eval.linear_probe.batch_size", self.batch_size, 1)
        checks.positive("eval.linear_probe.learning_rate", self.learning_rate)
        checks.at_least("eval.linear_probe.weight_decay", self.weight_decay, 0)
        if not 0 < self.holdout < 1:
            raise InputError(
                f"eval.linear_probe.holdout must be between 0 and 1; got {self.holdout}"
            )


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """The section `eval`.

    Attributes:
        features: which features are clustered, `"backbone"` or `"projection"`; rows are scaled to
            length one.
        method: what finds the clusters and their number: `"gridshift"`, as the papers do, or
            `"tree"`, `clustering.smooth_tree.SmoothTree`, which the command `cluster` uses; k-means
            then runs on its smooth rows.
        batch_size: images in a forward pass of the embedding.
        reduce: the map: GridShift finds clusters in it, of the tree it is only a picture.
        gridshift: GridShift's settings; the bandwidth must be "auto" for the tree, which has none.
        kmeans: clustering with a given number of clusters.
        knn: numbers of neighbors for k-NN accuracy.
        linear_probe: None: skipped.
    """

    features: str
    method: str
    batch_size: int
    reduce: ReduceConfig
    gridshift: GridShiftConfig
    kmeans: KMeansConfig
    knn: tuple[int, ...]
    linear_probe: LinearProbeConfig | None

    def __post_init__(self) -> None:
        checks.whole("eval.batch_size", self.batch_size, 1)
        checks.one_of("eval.features", self.features, FEATURES)
        checks.one_of("eval.method", self.method, FINDERS)
        if self.method == "tree":
            self._check_tree()
        if not self.knn:
            raise InputError("eval.knn must hold at least one number of neighbors; got none")
        for k in self.knn:
            checks.whole("eval.knn", k, 1)

    def _check_tree(self) -> None:
        if self.gridshift.bandwidth != "auto":
            raise InputError(
                "eval.gridshift.bandwidth must be 'auto' for eval.method 'tree', which has none; "
                f"got {self.gridshift.bandwidth} (or set eval.method to gridshift)"
            )
        if self.reduce.metric not in smooth.METRICS:
            raise InputError(
                f"eval.reduce.metric must be one of {', '.join(map(repr, smooth.METRICS))} for "
                f"eval.method 'tree'; got {self.reduce.metric!r}"
            )


class Evaluation(NamedTuple):
    """Clusters and metrics of an embedding of `n` images.

    Attributes:
        metrics: `{"gridshift": {...}, "kmeans": {...}, "knn": {...}, ...}`, or "tree" in place of
            "gridshift"; those that need labels are None without them. For the first see
            `cluster_features.run_gridshift` and `run_tree`.
        points: float32 `[n, n_components]`, the map.
        centers: float64 `[k, c]`, of the clusters in the space in which they were found: the map,
            and for the tree its sharp rows.
        bandwidth: the side of GridShift's cells in that space, or None.
        cluster_labels: int32 `[n]`, the clusters that were found.
        distances: float32 `[n]`, to the center of the cluster: in bandwidths for GridShift.
        outliers: bool `[n]`, rows of clusters too small to count.
        kmeans_labels: int32 `[n]`.
        novelty_threshold: how far, by 1 - cosine, a new row may be from all these
            (see `out_of_sample.novelty_threshold`).
        curve: the scan over bandwidths, or None for a fixed bandwidth and for the tree.
        tree: the fitted tree, or None for GridShift.
    """

    metrics: dict[str, Any]
    points: NDArray
    centers: NDArray
    bandwidth: float | None
    cluster_labels: NDArray
    distances: NDArray
    outliers: NDArray
    kmeans_labels: NDArray
    novelty_threshold: float
    curve: BandwidthCurve | None
    tree: SmoothTree | None

    @property
    def membership(self) -> Membership | None:
        """Probabilities of the tree's clusters, or None."""
        return None if self.tree is None else self.tree.membership_


def evaluate(
    embedding: Mapping[str, NDArray],
    true_labels: NDArray | None,
    config: EvalConfig,
    *,
    seed: int,
) -> Evaluation:
    """Clusters an embedding without and with a given number of clusters, and scores both.

    Labels are used to score, and to set the number of clusters of k-means where
    `config.kmeans.k` is None; what finds the clusters never sees them.

    Args:
        embedding: `{"backbone": [n, d], "projection": [n, e]}`.
        true_labels: int32 `[n]`, or None.
        config: the section `eval`.
        seed: of UMAP, k-means and the probe.

    Raises:
        InputError: the embedding does not have `config.features`.
    """
    checks.one_of("eval.features", config.features, tuple(embedding))
    features = embedding[config.features]
    x = arrays.normalize_rows(features)
    rows = x
    if config.method == "tree":
        found = cluster_features.run_tree(x, true_labels, seed=seed, **vars(config.reduce))
        assert found.tree is not None
        rows = found.tree.smooth_rows(x)
    else:
        points = reduce(x, seed=seed, **vars(config.reduce))
        found = cluster_features.run_gridshift(points, true_labels, **vars(config.gridshift))
    k = config.kmeans.k
    if k is None:
        k = found.metrics["n_large"] if true_labels is None else len(np.unique(true_labels))
    kmeans_labels = kmeans(
        rows, k, metric=config.kmeans.metric, n_init=config.kmeans.n_init, seed=seed
    ).labels
    metrics = {
        config.method: found.metrics,
        "kmeans": {**cluster_features.scores(true_labels, kmeans_labels), "k_given": k},
        "knn": _knn(x, true_labels, config.knn),
        "linear_probe": _probe(features, true_labels, config.linear_probe, seed),
        "collapse": {name: collapse(f) for name, f in embedding.items()},
    }
    return Evaluation(
        metrics,
        found.points.astype(np.float32),
        found.centers,
        found.metrics.get("bandwidth"),
        found.cluster_labels,
        found.distances,
        found.outliers,
        kmeans_labels.astype(np.int32),
        out_of_sample.novelty_threshold(x),
        found.curve,
        found.tree,
    )


def check_k(config: EvalConfig, images: int) -> None:
    """Raises an `InputError` unless k-means can find `eval.kmeans.k` clusters of the images."""
    k = config.kmeans.k
    if k is None:
        return
    if not 1 <= k <= images:
        raise InputError(
            f"eval.kmeans.k must be between 1 and {images}, the number of images to cluster; "
            f"got {k}"
        )
    checks.whole("eval.kmeans.k", k, 1)


def _bandwidth(bandwidth: float | str) -> float | str:
    if bandwidth == "auto":
        return bandwidth
    try:
        value = float(bandwidth)
    except ValueError:
        value = float("nan")
    if not 0 < value < float("inf"):
        raise InputError(
            f"eval.gridshift.bandwidth must be 'auto' or a number greater than 0; got {bandwidth!r}"
        )
    return value


def _knn(
    x: NDArray, true_labels: NDArray | None, n_neighbors: tuple[int, ...]
) -> dict[str, float | None]:
    if true_labels is None:
        return dict.fromkeys(map(str, n_neighbors))
    accuracies = knn.knn_accuracy(x, true_labels, n_neighbors=n_neighbors)
    return {str(k): accuracy for k, accuracy in accuracies.items()}


def _probe(
    x: NDArray, true_labels: NDArray | None, config: LinearProbeConfig | None, seed: int
) -> float | None:
    # A class with one image cannot be split.
    if true_labels is None or config is None or np.bincount(true_labels).max() < 2:
        return None
    return linear_probe(x, true_labels, seed=seed, **vars(config))
