"""The options of clustering features, and their checks."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering.reduce import MAP_COLUMNS, METHODS
from cluster_jax.clustering.smooth import METRICS
from cluster_jax.core import checks
from cluster_jax.core.arrays import blocks
from cluster_jax.core.checks import InputError

# What finds the number of clusters, and what is told it.
FINDERS = ("tree", "gridshift")
CLUSTERINGS = (*FINDERS, "kmeans")
# The largest value of counters and seeds, that of int32.
_INT32_MAX = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class ClusterOptions:
    """How features are clustered.

    Attributes:
        method: `"tree"` for `clustering.smooth_tree.SmoothTree`, `"gridshift"`, or `"kmeans"` for a
            given number of clusters.
        k: number of clusters of k-means or of the tree; None there for the number that is found,
            and for GridShift.
        reduce: a method of `clustering.reduce`; None: none for k-means and up to three columns,
            else UMAP. GridShift and k-means cluster the reduced features; the tree clusters the
            features, and the reduced ones are the map in the report.
        n_components: columns of the reduced features.
        n_neighbors: UMAP's neighbors, t-SNE's perplexity.
        min_dist: UMAP's closest distance.
        metric: `"cosine"` or `"euclidean"`, of the features as UMAP, t-SNE and k-means on the
            features themselves compare them; None: cosine where one of these compares more than
            three columns, else Euclidean.
        bandwidth: GridShift's, a number or `"auto"`.
        n_init: runs of k-means.
        max_iter: iterations of a run of k-means, at most.
        seed: of everything random.
    """

    method: str
    k: int | None
    reduce: str | None
    n_components: int
    n_neighbors: int
    min_dist: float
    metric: str | None
    bandwidth: float | str
    n_init: int
    max_iter: int
    seed: int

    def __post_init__(self) -> None:
        checks.one_of("method", self.method, CLUSTERINGS)
        if self.reduce is not None:
            checks.one_of("reduce", self.reduce, METHODS)
        if self.metric is not None:
            checks.one_of("metric", self.metric, METRICS)
        checks.whole("seed", self.seed, 0, _INT32_MAX)
        if self.method == "kmeans":
            self._check_kmeans()
        elif self.method == "gridshift":
            self._check_gridshift()
        else:
            self._check_no_bandwidth("the tree")

    def _check_kmeans(self) -> None:
        if self.k is None:
            raise InputError("k must be given for k-means; got none")
        self._check_no_bandwidth("k-means")
        checks.whole("n_init", self.n_init, 1, _INT32_MAX)
        checks.whole("max_iter", self.max_iter, 1, _INT32_MAX)

    def _check_no_bandwidth(self, name: str) -> None:
        if self.bandwidth != "auto":
            raise InputError(
                f"bandwidth must be left out for {name}; got {self.bandwidth} (or set the method "
                "to gridshift)"
            )

    def _check_gridshift(self) -> None:
        if self.k is not None:
            raise InputError(
                f"k must be left out for GridShift, which finds the number of clusters; got "
                f"{self.k} (or set the method to tree or kmeans)"
            )
        if self.bandwidth != "auto" and not (
            isinstance(self.bandwidth, int | float) and 0 < self.bandwidth < np.inf
        ):
            raise InputError(
                f"bandwidth must be 'auto' or a number greater than 0; got {self.bandwidth}"
            )


@dataclasses.dataclass(frozen=True)
class ResolvedOptions(ClusterOptions):
    """Options with all defaults filled in, see `resolve`."""

    reduce: str
    metric: str


def resolve(
    features: NDArray, true_labels: NDArray | None, options: ClusterOptions
) -> ResolvedOptions:
    """Checks everything and fills in unset options.

    Args:
        features: numbers `[n, d]`.
        true_labels: int `[n]`, or None.
        options: with `reduce` and `metric` or without.

    Raises:
        InputError: features, labels or an option cannot be used.
    """
    _check_features(features)
    n, d = features.shape
    if true_labels is not None and len(true_labels) != n:
        raise InputError(
            f"features and labels must have the same length; got {n:,} and {len(true_labels):,}"
        )
    is_low_dimensional = d <= MAP_COLUMNS
    method = options.reduce
    if method is None:
        method = "none" if options.method == "kmeans" or is_low_dimensional else "umap"
    # Whether any step computes distances between the features themselves.
    compared = (
        method in ("umap", "tsne")
        or options.method == "tree"
        or (options.method == "kmeans" and method == "none")
    )
    metric = options.metric or ("cosine" if compared and not is_low_dimensional else "euclidean")
    if metric == "cosine" and not compared:
        raise InputError(
            f"metric must be 'euclidean' for {options.method} with reduction {method!r}; got "
            "'cosine': scale the rows of the features to length one instead"
        )
    if method != "none":
        checks.whole("n_components", options.n_components, 1)
        checks.whole("n_neighbors", options.n_neighbors, 2)
        checks.at_least("min_dist", options.min_dist, 0)
    if options.k is not None and not 1 <= options.k <= n:
        raise InputError(f"k must be between 1 and {n:,}, the number of rows; got {options.k}")
    return ResolvedOptions(**{**vars(options), "reduce": method, "metric": metric})


def _check_features(features: NDArray) -> None:
    if features.ndim != 2 or not features.size:
        raise InputError(
            f"features must be a non-empty 2-D array, rows by columns; got shape {features.shape}"
        )
    if features.dtype.kind != "f":
        raise InputError(f"features must be floating-point numbers; got {features.dtype}")
    bad_rows = []
    for rows in blocks(*features.shape):
        finite = np.isfinite(features[rows]).all(axis=1)
        bad_rows.append(rows.start + np.flatnonzero(~finite))
    bad = np.concatenate(bad_rows)
    if len(bad):
        raise InputError(
            f"features must not contain NaN or infinity; got some in {len(bad):,} of "
            f"{len(features):,} rows, first in row {bad[0]} (counted from 0): drop or fill them"
        )
