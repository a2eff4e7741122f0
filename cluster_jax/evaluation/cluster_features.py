"""From features that are already there to clusters and figures."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering.bandwidth import BandwidthCurve
from cluster_jax.clustering.gridshift import GridShift
from cluster_jax.clustering.reduce import METHODS, reduce
from cluster_jax.core import checks
from cluster_jax.core.checks import InputError
from cluster_jax.metrics import partition
from cluster_jax.metrics.silhouette import silhouette

CLUSTERINGS = ("gridshift", "kmeans")
METRICS = ("cosine", "euclidean")
# Up to this many columns are taken as a map already: not reduced, and measured by Euclid.
FEW_COLUMNS = 3
# Rows of the sample on which the silhouette is computed.
SILHOUETTE_ROWS = 4_000
# The largest number that counters and seeds can be, that of int32.
_MOST = 2**31 - 1
# Numbers in one block of a pass over all rows.
_BLOCK = 2**22


class Options(NamedTuple):
    """How features are clustered.

    Attributes:
        method: `"gridshift"`, or `"kmeans"` for a number of clusters that is given.
        k: number of clusters of k-means; None for GridShift.
        reduce: a method of `clustering.reduce`; None: UMAP for GridShift on more than three
            columns, else none. What is clustered are the reduced features.
        n_components: of the reduced features.
        n_neighbors: UMAP's neighbors, t-SNE's perplexity.
        min_dist: UMAP's closest distance.
        metric: `"cosine"` or `"euclidean"`, of the features as UMAP, t-SNE and k-means on the
            features themselves see them; None: cosine where one of these sees more than three
            columns, else Euclidean.
        bandwidth: GridShift's, a number or `"auto"`.
        n_init: of k-means.
        max_iter: of a run of k-means at most.
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


class ClusteringResult(NamedTuple):
    """Clusters and figures of `n` rows.

    Attributes:
        metrics: `{method: {...}}`; figures that need labels are None without them. GridShift's
            `n_clusters` are all its clusters, `n_large` those that count; the others are small
            and hold outliers.
        points: float `[n, dimensions]`, the space in which the clusters were found.
        cluster_labels: int32 `[n]`.
        distances: float32 `[n]`, to the center of the own cluster: in bandwidths for GridShift;
            for k-means the distance, for cosine 1 - cos.
        outliers: bool `[n]`, GridShift's; None for k-means, which has none.
        curve: the scan over bandwidths, or None.
    """

    metrics: dict[str, dict[str, Any]]
    points: NDArray
    cluster_labels: NDArray
    distances: NDArray
    outliers: NDArray | None
    curve: BandwidthCurve | None


def resolve(features: NDArray, labels: NDArray | None, options: Options) -> Options:
    """The options with what was left open filled in, after checks of everything.

    Args:
        features: numbers `[n, d]`.
        labels: int `[n]`, or None.
        options: as given.

    Raises:
        InputError: features, labels or an option are not usable; says which and why.
    """
    _check_features(features)
    n, d = features.shape
    if labels is not None and len(labels) != n:
        raise InputError(
            f"features and labels must have the same length; got {n:,} and {len(labels):,}"
        )
    checks.one_of("method", options.method, CLUSTERINGS)
    few = d <= FEW_COLUMNS
    how = options.reduce
    if how is None:
        how = "umap" if options.method == "gridshift" and not few else "none"
    checks.one_of("reduce", how, METHODS)
    sees = how in ("umap", "tsne") or (options.method == "kmeans" and how == "none")
    metric = options.metric or ("cosine" if sees and not few else "euclidean")
    checks.one_of("metric", metric, METRICS)
    if metric == "cosine" and not sees:
        raise InputError(
            f"metric 'cosine' has no effect on {options.method} with reduction {how!r}: scale the "
            "rows of the features to length one instead"
        )
    if how != "none":
        checks.at_least("n_components", options.n_components, 1)
        checks.at_least("n_neighbors", options.n_neighbors, 2)
        checks.at_least("min_dist", options.min_dist, 0)
    _whole("seed", options.seed, 0)
    if options.method == "kmeans":
        _check_kmeans(options, n)
    elif options.k is not None:
        raise InputError(
            f"GridShift finds the number of clusters: leave out k = {options.k}, or choose kmeans"
        )
    elif options.bandwidth != "auto" and not 0 < options.bandwidth < np.inf:
        raise InputError(
            f"bandwidth must be 'auto' or a number greater than 0; got {options.bandwidth}"
        )
    return options._replace(reduce=how, metric=metric)


def cluster(
    features: NDArray, labels: NDArray | None, options: Options, tell: Callable[[str], None]
) -> ClusteringResult:
    """Clusters rows and scores the clusters; labels are used for scores only.

    Args:
        features: numbers `[n, d]`.
        labels: int `[n]`, or None.
        options: see `Options`.
        tell: receives what is done now, in words.

    Raises:
        InputError: features, labels or an option are not usable; says which and why.
    """
    options = resolve(features, labels, options)
    size = " x ".join(f"{side:,}" for side in features.shape)
    points = features
    if options.reduce != "none":
        how = options.reduce.upper()
        tell(f"reducing {size} by {how} to {options.n_components} dimensions ...")
        points = reduce(
            features,
            method=options.reduce,
            n_components=options.n_components,
            n_neighbors=options.n_neighbors,
            min_dist=options.min_dist,
            metric=options.metric,
            seed=options.seed,
        )
    work = _gridshift if options.method == "gridshift" else _kmeans
    clusters, distances, outliers, curve, figures = work(points, options, tell)
    tell("scoring ...")
    ids, sizes = np.unique(clusters, return_counts=True)
    scores = {"n_clusters": len(ids), **dict.fromkeys(("acc", "nmi", "ari", "ami"))}
    if labels is not None:
        scores = partition.scores(labels, clusters)
    sample = {"sample_size": SILHOUETTE_ROWS, "seed": options.seed}
    figures["silhouette"] = silhouette(features, clusters, metric=options.metric, **sample)
    if options.reduce != "none":
        reduced = silhouette(points, clusters, metric="euclidean", **sample)
        figures["silhouette_reduced"] = reduced
    figures["silhouette_rows"] = min(SILHOUETTE_ROWS, len(features))
    figures["cluster_sizes"] = dict(zip(ids.tolist(), sizes.tolist(), strict=True))
    return ClusteringResult(
        {options.method: {**scores, **figures}},
        points,
        clusters.astype(np.int32),
        distances.astype(np.float32),
        outliers,
        curve,
    )


def _gridshift(points: NDArray, options: Options, tell: Callable[[str], None]) -> tuple:
    tell(f"seeking modes of {len(points):,} points, bandwidth {options.bandwidth} ...")
    grid = GridShift(options.bandwidth).fit(points)
    where = grid.locate(points)
    curve = grid.bandwidth_curve_
    figures = {
        "bandwidth": float(grid.bandwidth_),
        "verdict": None if curve is None else curve.verdict,
        "stability": grid.stability_,
        "outliers": int(where.outliers.sum()),
        "n_large": len(np.unique(grid.labels_[~where.outliers])),
    }
    return grid.labels_, where.distances, where.outliers, curve, figures


def _kmeans(points: NDArray, options: Options, tell: Callable[[str], None]) -> tuple:
    # Starts JAX, which nothing else here needs.
    from cluster_jax.clustering.kmeans import kmeans

    tell(f"k-means of {len(points):,} points, k = {options.k}, {options.n_init} starts ...")
    # Rows are compared by angle only as features: in a map the origin has no meaning.
    spherical = options.metric == "cosine" and options.reduce == "none"
    found = kmeans(
        points,
        options.k,
        metric="spherical" if spherical else "euclidean",
        n_init=options.n_init,
        max_iter=options.max_iter,
        seed=options.seed,
    )
    centers, labels = np.asarray(found.centers), np.asarray(found.labels)
    distances = _to_centers(points, centers, labels, spherical)
    figures = {"k_given": options.k, "inertia": float(found.inertia), "updates": int(found.n_iter)}
    return labels, distances, None, None, figures


def _to_centers(points: NDArray, centers: NDArray, labels: NDArray, spherical: bool) -> NDArray:
    """Distance of each row to its center (`spherical`: 1 - cos), block by block."""
    distances = np.empty(len(points), np.float64)
    rows = max(1, _BLOCK // points.shape[1])
    for start in range(0, len(points), rows):
        block = points[start : start + rows].astype(np.float64)
        own = centers[labels[start : start + rows]].astype(np.float64)
        if spherical:
            norms = np.linalg.norm(block, axis=1) * np.linalg.norm(own, axis=1)
            gaps = 1 - (block * own).sum(axis=1) / np.where(norms > 0, norms, 1)
        else:
            gaps = np.linalg.norm(block - own, axis=1)
        distances[start : start + rows] = gaps
    return distances


def _check_features(features: NDArray) -> None:
    if features.ndim != 2 or not features.size:
        raise InputError(
            f"features must be a non-empty 2-D array, rows by columns; got shape {features.shape}"
        )
    if features.dtype.kind != "f":
        raise InputError(f"features must be floating numbers; got {features.dtype}")
    rows, first, bad = max(1, _BLOCK // features.shape[1]), None, 0
    for start in range(0, len(features), rows):
        wrong = np.flatnonzero(~np.isfinite(features[start : start + rows]).all(axis=1))
        if len(wrong) and first is None:
            first = start + int(wrong[0])
        bad += len(wrong)
    if bad:
        raise InputError(
            f"features contain NaN or infinity in {bad:,} of {len(features):,} rows, first in row "
            f"{first} (counted from 0): drop or fill those rows"
        )


def _check_kmeans(options: Options, n: int) -> None:
    if options.k is None:
        raise InputError("k-means needs the number of clusters: give k")
    if not 1 <= options.k <= n:
        raise InputError(f"the number of clusters k must be 1 to {n:,}, the rows; got {options.k}")
    if options.bandwidth != "auto":
        raise InputError(
            f"k-means has no bandwidth: leave out {options.bandwidth}, or choose gridshift"
        )
    _whole("n_init", options.n_init, 1)
    _whole("max_iter", options.max_iter, 1)


def _whole(name: str, value: int, least: int) -> None:
    checks.at_least(name, value, least)
    if value > _MOST:
        raise InputError(f"{name} must be at most {_MOST:,}; got {value}")
