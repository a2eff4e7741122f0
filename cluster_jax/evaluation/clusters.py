"""Clusters of features by SmoothTree, GridShift, k-means or a module, and scores by labels."""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering import custom, placing, tree_fit
from cluster_jax.clustering.base import NO_CLUSTER
from cluster_jax.clustering.gridshift import GridShift
from cluster_jax.clustering.reduce import reduce
from cluster_jax.clustering.tree_fit import TreeFit
from cluster_jax.core import arrays, hosts, io, knn
from cluster_jax.core.arrays import Rows
from cluster_jax.core.names import counted
from cluster_jax.data.arrays import Shards
from cluster_jax.evaluation.options import CLUSTERINGS, ClusterOptions
from cluster_jax.metrics import partition


class Clustering(NamedTuple):
    """Clusters of n rows, as an algorithm has found them.

    Outliers, distances and probabilities are those of the clusters that a run shows, see
    `runs.measured`.

    Attributes:
        metrics: what the algorithm tells of them, see `run_gridshift`, `run_tree` and `run_kmeans`.
        points: float `[n, n_components]`, the map. GridShift and k-means cluster the points of the
            map, which are the rows themselves without a reduction; the others cluster the features
            and have none, see `maps`, and neither have rows that are read in blocks.
        cluster_labels: int32 `[n]`, -1 for none.
        centers: float `[k, c]`, of k-means, in the map or among the features; None for the others.
        tree: the fit of SmoothTree, or None.
    """

    metrics: dict[str, Any]
    points: NDArray
    cluster_labels: NDArray
    centers: NDArray | None = None
    tree: TreeFit | None = None


def find(
    x: Rows,
    options: ClusterOptions,
    *,
    seed: int,
    originals: NDArray | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Clustering:
    """Returns the clusters of rows, found as `options` say.

    Args:
        x: the rows `[n, d]`; those that are read in blocks only for k-means without a reduction and
            for the tree.
        options: with a metric and a reduction.
        seed: random seed of the clustering and of the map that GridShift clusters.
        originals: int `[n]`, the row that each row is a copy of, see `tree_fit.fit`.
        progress: called with one line of text at each step.
    """
    method = options.method
    k = options.n_clusters
    if method == "tree":
        return run_tree(x, options, seed=seed, originals=originals, progress=progress)
    if method == "kmeans" and options.reduce == "none":
        progress(f"running k-means on {counted(x.shape[0], 'row')}, k = {k} ...")
        return run_kmeans(x, options, seed=seed)
    features = np.asarray(x)
    if method not in CLUSTERINGS:
        rows = arrays.normalize_rows(features) if options.metric == "cosine" else features
        progress(f"running {method} on {counted(len(rows), 'row')} ...")
        return run_custom(rows, method, k=k, seed=seed)
    points = features
    if options.reduce != "none":
        columns = counted(options.n_components, "dimension")
        means = str(options.reduce).upper()
        progress(f"reducing {_shape(features)} features to {columns} with {means} ...")
        points = reduce(features, seed=seed, **options.reduce_options)
    text = f"on {counted(len(points), 'point')}"
    if method == "gridshift":
        progress(f"running GridShift {text}, bandwidth {options.bandwidth} ...")
        return run_gridshift(points, bandwidth=options.bandwidth, random_state=seed)
    progress(f"running k-means {text}, k = {k} ...")
    return run_kmeans(points, options, seed=seed)


def sampled(n: int, most: int, seed: int) -> NDArray:
    """Returns the rows of `n` that `find_by_sample` clusters, int64 `[most]`, ascending."""
    return np.sort(np.random.default_rng(seed).choice(n, most, replace=False))


def find_by_sample(
    x: NDArray, options: ClusterOptions, *, seed: int, most: int, mesh: Any = None
) -> Clustering:
    """Returns the clusters of a random sample of rows, to which all other rows are assigned.

    A row outside the sample gets the cluster of most of its nearest sampled rows, weighted as in
    `knn.vote`, and the mean of the points of the three nearest ones.

    Args:
        x: unit rows `[n, d]`, more than `most`.
        options: of GridShift or a user-defined method, with the metric "cosine".
        seed: random seed of the sample, of the clustering and of the map.
        most: rows of the sample.
        mesh: devices of all processes, see `hosts.on_all`; None: those of this process.

    Returns:
        The result for all rows. Its metrics have `rows_clustered`, the size of the sample.
    """
    from cluster_jax.core import sharded_knn  # It imports JAX.

    sample = sampled(len(x), most, seed)
    found = find(x[sample], options, seed=seed)
    k = min(options.n_neighbors, most)
    indices, cosines = hosts.on_all(sharded_knn.nearest_for, mesh, x, x[sample], k=k)
    near = knn.Neighbors(indices, np.maximum(1 - cosines.astype(np.float64), 0))
    ids, codes = placing.coded(found.cluster_labels)
    labels = np.empty(len(x), np.int32)
    for part in arrays.blocks(len(x), len(ids)):
        votes = knn.vote(knn.Neighbors(near.indices[part], near.distances[part]), codes)
        labels[part] = ids[votes.argmax(axis=1)]
    labels[sample] = found.cluster_labels
    points = found.points[indices[:, :3]].mean(axis=1)
    points[sample] = found.points
    return Clustering({**found.metrics, "rows_clustered": most}, points, labels)


def to_arrays(result: Clustering) -> dict[str, NDArray]:
    """Returns the clusters of a method without a tree as arrays by name, for `from_arrays`."""
    stored = {**result._asdict(), "metrics": json.dumps(io.plain(result.metrics))}
    return {name: np.asarray(value) for name, value in stored.items() if value is not None}


def from_arrays(stored: Mapping[str, NDArray]) -> Clustering:
    """Returns the clusters from the arrays of `to_arrays`."""
    values = {name: stored[name] for name in Clustering._fields if name in stored}
    return Clustering(**{**values, "metrics": json.loads(stored["metrics"].item())})


def run_gridshift(points: NDArray, **grid_options: Any) -> Clustering:
    """Returns the clusters of points by GridShift.

    Args:
        points: `[n, n_components]`.
        grid_options: arguments of `GridShift`.

    Returns:
        The result. Its metrics are `bandwidth` and `verdict`, of the scan over bandwidths.
    """
    grid = GridShift(**grid_options).fit(points)
    curve = grid.bandwidth_curve_
    verdict = None if curve is None else curve.verdict
    metrics = {"bandwidth": float(grid.bandwidth_), "verdict": verdict}
    return Clustering(metrics, points, grid.labels_.astype(np.int32))


def run_custom(x: NDArray, method: str, *, k: int | None, seed: int) -> Clustering:
    """Returns the clusters of rows by a module of one's own, see `clustering.custom`.

    Args:
        x: `[n, d]`.
        method: the module.
        k: number of clusters; None: it is found.
        seed: random seed.
    """
    labels = custom.fit(method, x, k, seed)[0]
    return Clustering({}, np.empty((len(x), 0), np.float32), labels.astype(np.int32))


def run_tree(
    features: Rows,
    options: ClusterOptions,
    *,
    seed: int,
    originals: NDArray | None,
    progress: Callable[[str], None],
) -> Clustering:
    """Returns the clusters of features by `SmoothTree`.

    Args:
        features: `[n, d]`, in memory or not.
        options: of the tree, with a metric.
        seed: random seed of the clustering.
        originals: int `[n]`, the row that each row is a copy of, see `tree_fit.fit`.
        progress: called with one line of text at each step.

    Returns:
        The result, without points. Its metrics are `verdict` and `gap`, see `SmoothTree`, or None,
        and `rows_clustered`, the number of distinct rows or micro-clusters.
    """
    progress(f"smoothing {_shape(features)} features and clustering them ...")
    k = options.n_clusters
    fitted = tree_fit.fit(features, str(options.metric), k, seed, originals)
    n = len(fitted.labels)
    m = len(fitted.sample)
    n_in = int((fitted.labels >= 0).sum())
    if fitted.smoother.counts is not None:
        progress(f"clustered {m:,} micro-clusters of all {n:,} rows")
    elif m < n_in:
        progress(f"{counted(n_in - m, 'copy', 'copies')} of other rows took their clusters")
    if n_in < n:
        rows_out = counted(n - n_in, "row is", "rows are")
        progress(f"{rows_out} in no cluster: zeros alone, which have no direction")
    metrics = {
        "verdict": fitted.verdict if k is None else None,
        "gap": fitted.gap if np.isfinite(fitted.gap) else None,
        "rows_clustered": m,
    }
    points = np.empty((n, 0), np.float32)
    return Clustering(metrics, points, fitted.labels.astype(np.int32), tree=fitted)


def scores(true_labels: NDArray | None, cluster_labels: NDArray) -> dict[str, Any]:
    """Returns `metrics.partition.scores`; without labels, every score is None.

    Rows in no cluster, -1, count as wrong in the accuracy, and are left out of the other scores.
    """
    is_in = cluster_labels != NO_CLUSTER
    inside = cluster_labels[is_in]
    if true_labels is None or not is_in.any():
        return dict.fromkeys(partition.SCORES) | {"n_clusters": len(np.unique(inside))}
    scored = partition.scores(true_labels[is_in], inside)
    return {**scored, "acc": scored["acc"] * float(is_in.mean())}


def _shape(features: Rows) -> str:
    return " x ".join(f"{side:,}" for side in features.shape)


def run_kmeans(x: Rows, options: ClusterOptions, *, seed: int) -> Clustering:
    """Returns the clusters of rows by k-means on all devices; shards are read in blocks.

    If there are several processes, all must call this with the same arguments.

    Args:
        x: `[n, d]`.
        options: of k-means.
        seed: random seed.

    Returns:
        The result, whose metrics are `k_given` and `inertia`.
    """
    import jax
    from jax.sharding import Mesh

    from cluster_jax.clustering.kmeans import kmeans, kmeans_blocks

    # Rows are compared by angle only as features: in a map the origin has no meaning.
    is_spherical = options.metric == "cosine" and options.reduce == "none"
    metric = "spherical" if is_spherical else "euclidean"
    k = options.n_clusters
    mesh = Mesh(np.array(jax.devices()), ("rows",))
    assert k is not None  # Checked by ClusterOptions.
    how: dict[str, Any] = {"metric": metric, "n_init": options.n_init, "seed": seed, "mesh": mesh}
    if isinstance(x, Shards):
        fitted = kmeans_blocks(x, k, **how)
        points = np.empty((x.shape[0], 0), np.float32)
    else:
        points = np.asarray(x)
        fitted = kmeans(points, k, **how)
    metrics = {"k_given": k, "inertia": float(fitted.inertia)}
    return Clustering(metrics, points, fitted.labels, fitted.centers)
