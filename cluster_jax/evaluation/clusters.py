"""Clusters of features by SmoothTree, GridShift, k-means or a module, and their metrics."""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering import custom, knn, placing, tree_fit
from cluster_jax.clustering.base import NO_CLUSTER
from cluster_jax.clustering.gridshift import GridShift
from cluster_jax.clustering.membership import Membership
from cluster_jax.clustering.placing import ByCenters, ByTree, ByVotes, Placing, Voters
from cluster_jax.clustering.reduce import reduce
from cluster_jax.clustering.tree import linkage_of_means
from cluster_jax.clustering.tree_fit import TreeFit
from cluster_jax.core import arrays, hosts, io
from cluster_jax.core.arrays import Rows
from cluster_jax.core.names import counted
from cluster_jax.data.arrays import Shards
from cluster_jax.evaluation.options import CLUSTERINGS, ClusterOptions
from cluster_jax.metrics import partition
from cluster_jax.metrics.silhouette import silhouette

# Size of the random sample of rows on which the silhouette is computed.
SILHOUETTE_ROWS = 4_000
# Smallest cluster of SmoothTree that counts; the rows of smaller clusters are outliers.
MIN_CLUSTER_ROWS = 5


class Clustering(NamedTuple):
    """Clusters and metrics of `n` rows.

    Attributes:
        metrics: metrics of the algorithm, see `run_gridshift` and `run_tree`, and `scored`, which
            adds scores.
        points: float `[n, n_components]`, the map. GridShift and k-means cluster the points of the
            map; the others cluster the features and have none, see `maps`.
        centers: float `[k, c]`, in the map for GridShift and k-means, among the sharp rows for
            SmoothTree.
        cluster_labels: int32 `[n]`, -1 for none.
        distances: float32 `[n]`, Euclidean, to the mean of the cluster; for the tree between sharp
            rows; for k-means of features to its center, and 1 - cosine if that is the metric.
        outliers: bool `[n]`, rows of clusters that are too small to count; k-means has none.
        tree: the fit of SmoothTree, or None.
        membership: probabilities of the clusters of SmoothTree; None for GridShift and k-means.
        all_labels: int32 `[l]`, if only n of l rows are described; None: all are.
    """

    metrics: dict[str, Any]
    points: NDArray
    centers: NDArray
    cluster_labels: NDArray
    distances: NDArray
    outliers: NDArray
    tree: TreeFit | None = None
    membership: Membership | None = None
    all_labels: NDArray | None = None

    def linkage(self, features: NDArray) -> NDArray:
        """Returns the tree of the clusters of features `[n, d]`, see `tree_fit` and `tree`."""
        if self.tree is None:
            is_in = self.cluster_labels != NO_CLUSTER
            return linkage_of_means(features[is_in], self.cluster_labels[is_in])
        return self.tree.cluster_linkage()


def find(
    x: Rows,
    options: ClusterOptions,
    *,
    seed: int,
    originals: NDArray | None = None,
    shown: NDArray | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Clustering:
    """Returns the clusters of rows, found as `options` say, without scores.

    Args:
        x: the rows `[n, d]`; those that are read in blocks only for k-means without a reduction and
            for the tree.
        options: with a metric and a reduction.
        seed: random seed of the clustering and of the map that GridShift clusters.
        originals: int `[n]`, the row that each row is a copy of, see `tree_fit.fit`.
        shown: int `[m]`, the rows that the result describes; None: all rows.
        progress: called with one line of text at each step.
    """
    method = options.method
    k = options.n_clusters
    if method == "tree":
        return run_tree(x, options, seed=seed, shown=shown, originals=originals, progress=progress)
    if method == "kmeans" and options.reduce == "none":
        progress(f"running k-means on {counted(x.shape[0], 'row')}, k = {k} ...")
        return run_kmeans(x, options, seed=seed, shown=shown)
    features = np.asarray(x)
    rows = arrays.normalize_rows(features) if options.metric == "cosine" else features
    if method not in CLUSTERINGS:
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
        return run_gridshift(points, rows, bandwidth=options.bandwidth, random_state=seed)
    progress(f"running k-means {text}, k = {k} ...")
    result = run_kmeans(points, options, seed=seed)
    return result._replace(distances=distances_to_means(rows, result.cluster_labels))


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
    from cluster_jax.metrics.knn import nearest_voters

    sample = np.sort(np.random.default_rng(seed).choice(len(x), most, replace=False))
    found = find(x[sample], options, seed=seed)
    k = min(options.n_neighbors, most)
    indices, cosines = hosts.on_all(nearest_voters, mesh, x, x[sample], k=k)
    near = knn.Neighbors(indices, np.maximum(1 - cosines.astype(np.float64), 0))
    ids, codes = placing.coded(found.cluster_labels)
    labels = np.empty(len(x), np.int32)
    for part in arrays.blocks(len(x), len(ids)):
        votes = knn.vote(knn.Neighbors(near.indices[part], near.distances[part]), codes)
        labels[part] = ids[votes.argmax(axis=1)]
    labels[sample] = found.cluster_labels
    points = found.points[indices[:, :3]].mean(axis=1)
    points[sample] = found.points
    small = np.unique(found.cluster_labels[found.outliers])
    outliers = np.isin(labels, small)
    is_in = labels != NO_CLUSTER
    distances = np.zeros(len(x), np.float32)
    distances[is_in] = distances_to_means(x[is_in], labels[is_in])
    metrics = {**found.metrics, "rows_clustered": most, "outliers": int(outliers.sum())}
    return Clustering(metrics, points, found.centers, labels, distances, outliers)


def to_arrays(result: Clustering) -> dict[str, NDArray]:
    """Returns the clusters of a method without a tree as arrays by name, for `from_arrays`."""
    stored = {**result._asdict(), "metrics": json.dumps(io.plain(result.metrics))}
    return {name: np.asarray(value) for name, value in stored.items() if value is not None}


def from_arrays(stored: Mapping[str, NDArray]) -> Clustering:
    """Returns the clusters from the arrays of `to_arrays`."""
    return Clustering(**{**stored, "metrics": json.loads(stored["metrics"].item())})


def scored(
    features: NDArray,
    result: Clustering,
    true_labels: NDArray | None,
    metric: str,
    seed: int,
) -> Clustering:
    """Returns a result with the scores of its clusters in its metrics.

    Args:
        features: the rows `[m, d]` that the result describes.
        result: the clusters.
        true_labels: int `[n]`, of all rows, or None: the scores that need them are None.
        metric: of the silhouette, which is computed on a random sample.
        seed: of the sample.
    """
    described = result.cluster_labels
    every = described if result.all_labels is None else result.all_labels
    is_in = described != NO_CLUSTER
    sample = {"sample_size": SILHOUETTE_ROWS, "seed": seed}
    own = silhouette(features[is_in], described[is_in], metric=metric, **sample)
    ids, sizes = np.unique(every[every != NO_CLUSTER], return_counts=True)
    sizes_of = dict(zip(ids.tolist(), sizes.tolist(), strict=True))
    metrics = {**result.metrics, **scores(true_labels, every)}
    metrics |= {"silhouette": own, "cluster_sizes": sizes_of}
    return result._replace(metrics=metrics)


def distances_to_means(x: NDArray, labels: NDArray) -> NDArray:
    """Returns the distances of rows `[n, d]` to the means of their clusters, float32 `[n]`."""
    means = arrays.cluster_means(x, labels)
    return arrays.distances_to_centers(x, means, labels).astype(np.float32)


def run_gridshift(points: NDArray, x: NDArray, **grid_options: Any) -> Clustering:
    """Returns the clusters of points by GridShift.

    Args:
        points: `[n, n_components]`.
        x: the rows `[n, d]` of which these are the map, in which distances are measured.
        grid_options: arguments of `GridShift`.

    Returns:
        The result. Its metrics are `n_large`, the number of clusters without those of outliers, see
        `gridshift.min_cluster_size`; `bandwidth`; `verdict`, of the scan over bandwidths; and
        `outliers`, their number.
    """
    grid = GridShift(**grid_options).fit(points)
    curve = grid.bandwidth_curve_
    outliers = grid.outliers_
    metrics = {
        "n_large": len(np.unique(grid.labels_[~outliers])),
        "bandwidth": float(grid.bandwidth_),
        "verdict": None if curve is None else curve.verdict,
        "outliers": int(outliers.sum()),
    }
    labels = grid.labels_.astype(np.int32)
    distances = distances_to_means(x, labels)
    return Clustering(metrics, points, grid.cluster_centers_, labels, distances, outliers)


def run_custom(x: NDArray, method: str, *, k: int | None, seed: int) -> Clustering:
    """Returns the clusters of rows by a module of one's own, see `clustering.custom`.

    Args:
        x: `[n, d]`.
        method: the module.
        k: number of clusters; None: it is found.
        seed: random seed.
    """
    labels, n_clusters = custom.fit(method, x, k, seed)
    is_small = _are_small(np.bincount(labels), k)
    is_small[n_clusters:] = True  # rows in no cluster
    centers = arrays.cluster_means(x, labels)
    distances = distances_to_means(x, labels)
    outliers = is_small[labels]
    points = np.empty((len(x), 0), np.float32)
    metrics = {"n_large": int((~is_small).sum()), "outliers": int(outliers.sum())}
    return Clustering(metrics, points, centers, labels.astype(np.int32), distances, outliers)


def _are_small(sizes: NDArray, k: int | None) -> NDArray:
    """Returns which clusters are too small to count; none if their number `k` is given."""
    return sizes < (0 if k is not None else min(MIN_CLUSTER_ROWS, sizes.max()))


def run_tree(
    features: Rows,
    options: ClusterOptions,
    *,
    seed: int,
    shown: NDArray | None,
    originals: NDArray | None,
    progress: Callable[[str], None],
) -> Clustering:
    """Returns the clusters of features by `SmoothTree`.

    Args:
        features: `[n, d]`, in memory or not.
        options: of the tree, with a metric.
        seed: random seed of the clustering.
        shown: int `[m]`, the rows that the result describes; None: all rows.
        originals: int `[n]`, the row that each row is a copy of, see `tree_fit.fit`.
        progress: called with one line of text at each step.

    Returns:
        The result, without points. Its metrics are `n_large`, the number of clusters without those
        of outliers; `verdict` and `gap`, see `SmoothTree`, or None; `rows_clustered`, the number of
        distinct rows or micro-clusters; and `outliers`, their number.
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
    sizes = np.bincount(fitted.labels[fitted.labels >= 0])
    is_small = _are_small(sizes, k)
    metrics = {
        "n_large": int((~is_small).sum()),
        "verdict": fitted.verdict if k is None else None,
        "gap": fitted.gap if np.isfinite(fitted.gap) else None,
        "rows_clustered": m,
        "outliers": int(sizes[is_small].sum()),
    }
    rows = np.arange(n) if shown is None else shown
    sharp = fitted.smoother.project(np.asarray(features[rows]))
    labels = fitted.labels[rows]
    leaves = fitted.leaves[fitted.labels >= 0]
    centers = placing.centers_of_leaves(fitted.smoother.sharp, fitted.labels[fitted.sample], leaves)
    distances = arrays.distances_to_centers(sharp, centers, labels).astype(np.float32)
    member = Membership(*(column[rows] for column in fitted.membership))
    points = np.empty((len(rows), 0), np.float32)
    outliers = is_small[labels] & (labels >= 0)
    every = None if shown is None else fitted.labels.astype(np.int32)
    described = (labels.astype(np.int32), distances, outliers)
    return Clustering(metrics, points, centers, *described, fitted, member, every)


def clusterer(
    clustering: Clustering, training_rows: Voters, options: ClusterOptions
) -> Placing | None:
    """Returns what places new rows in clusters; None for a map of t-SNE, which cannot.

    Args:
        clustering: the clusters.
        training_rows: the rows that were clustered, or a sample of them.
        options: how they were clustered.
    """
    labels = clustering.cluster_labels
    tree = clustering.tree
    if tree is not None:
        return ByTree(tree.smoother, tree.labels, tree.sample, tree.leaves, training_rows)
    if options.method in CLUSTERINGS and options.reduce == "tsne":
        return None
    if options.method == "kmeans" and options.reduce == "none":
        return ByCenters(clustering.centers, labels, training_rows)
    return ByVotes(labels, options.n_neighbors, training_rows)


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


def run_kmeans(
    x: Rows, options: ClusterOptions, *, seed: int, shown: NDArray | None = None
) -> Clustering:
    """Returns the clusters of rows by k-means on all devices; shards are read in blocks.

    If there are several processes, all must call this with the same arguments.

    Args:
        x: `[n, d]`.
        options: of k-means.
        seed: random seed.
        shown: int `[m]`, the rows that the result describes; None: all rows.

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
    else:
        fitted = kmeans(np.asarray(x), k, **how)
    rows = slice(None) if shown is None else shown
    points = np.asarray(x[rows])
    labels = fitted.labels[rows]
    if is_spherical:  # Half the squared distance of unit rows is 1 - cosine.
        unit = arrays.normalize_rows(points)
        directions = arrays.normalize_rows(fitted.centers)
        distances = arrays.distances_to_centers(unit, directions, labels) ** 2 / 2
    else:
        distances = arrays.distances_to_centers(points, fitted.centers, labels)
    return Clustering(
        metrics={"k_given": k, "inertia": float(fitted.inertia)},
        points=points,
        centers=fitted.centers,
        cluster_labels=labels,
        distances=distances.astype(np.float32),
        outliers=np.zeros(len(points), bool),
        all_labels=None if shown is None else fitted.labels,
    )
