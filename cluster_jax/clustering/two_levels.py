"""Hierarchical k-means in two levels, for numbers of clusters that one level takes too long for."""

import math
from typing import Any

import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from cluster_jax.clustering import knn
from cluster_jax.clustering.kmeans import _BLOCK_ROWS, KMeansResult, kmeans_blocks
from cluster_jax.core import arrays, checks
from cluster_jax.core.arrays import Rows


def kmeans_two_levels(
    x: Rows,
    n_clusters: int,
    *,
    metric: str = "euclidean",
    n_init: int = 1,
    max_iter: int = 20,
    seed: int = 0,
    mesh: Mesh | None = None,
) -> KMeansResult:
    """Clusters rows, in memory or not, by k-means within each of sqrt(k) clusters of k-means.

    A row is compared with about 2 sqrt(k) centers instead of k: of 100,000 clusters with 632. The
    first level is `kmeans_blocks`; each of its clusters is divided by scikit-learn's `KMeans`, into
    a number that is proportional to its rows, so that all clusters hold about n / k. Of a cluster
    of more than 2^16 rows a random sample of as many is divided, and the others join the
    nearest center in this cluster. A row near the edge of a cluster of the first level may be
    nearer to a center beyond it: the inertia is higher than that of one level.

    Args:
        x: finite `[n, d]`, see `kmeans_blocks`.
        n_clusters: number of clusters k, 1 to n. Where a cluster has fewer distinct rows than it
            is to be divided into, some stay empty.
        metric: "euclidean" or "spherical".
        n_init: number of runs at each level.
        max_iter: maximum number of center updates at each level.
        seed: of samples and starts.
        mesh: devices of the first level. Each of several processes computes the whole second one.

    Returns:
        As of `kmeans_blocks`; `n_iter` is that of the first level.

    Raises:
        ValueError: an argument is out of range, or the rows cannot be clustered.

    References:
        Vo et al. 2024, Automatic data curation for self-supervised learning, section 3.2, where
        the upper levels cluster the centers of the lower one.

    Example:
        >>> rows = np.array([[0.0], [1.0], [10.0], [11.0]], np.float32)
        >>> sorted(kmeans_two_levels(rows, 4).labels.tolist())
        [0, 1, 2, 3]
    """
    from sklearn.cluster import KMeans  # Not before: a service needs none.

    n, d = x.shape
    checks.whole("n_clusters", n_clusters, 1, n)
    settings: dict[str, Any] = {"n_init": n_init, "max_iter": max_iter}
    first = kmeans_blocks(
        x,
        math.isqrt(n_clusters),
        metric=metric,
        seed=seed,
        mesh=mesh,
        **settings,
    )
    sizes = np.bincount(first.labels, minlength=len(first.centers))
    counts = _divided(sizes, n_clusters)
    groups = np.split(np.argsort(first.labels, kind="stable"), np.cumsum(sizes)[:-1])
    rng, is_spherical = np.random.default_rng(seed), metric == "spherical"

    def read(rows: NDArray) -> NDArray:
        part = np.asarray(x[rows]).astype(first.centers.dtype, copy=False)
        return arrays.normalize_rows(part) if is_spherical else part

    labels, centers = np.empty(n, np.int32), np.zeros((n_clusters, d), first.centers.dtype)
    inertia, start = 0.0, 0
    for members, count in zip(groups, counts.tolist(), strict=True):
        if not count:
            continue
        most = max(_BLOCK_ROWS, count)
        is_large = len(members) > most
        values = read(np.sort(rng.choice(members, most, replace=False)) if is_large else members)
        fitted = KMeans(count, random_state=seed % 2**32, **settings).fit(values).cluster_centers_
        scaled = arrays.normalize_rows(fitted) if is_spherical else fitted
        for low in range(0, len(members), _BLOCK_ROWS):
            rows = members[low : low + _BLOCK_ROWS]
            near = knn.nearest(
                read(rows) if is_large else values[low : low + _BLOCK_ROWS], scaled, 1
            )
            labels[rows] = start + near.indices[:, 0]
            inertia += float(np.square(near.distances).sum())
        centers[start : start + count] = scaled
        start += count
    return KMeansResult(labels, centers, inertia, first.n_iter)


def _divided(sizes: NDArray, total: int) -> NDArray:
    """Divides `total` clusters by group sizes, int64 `[groups]`: at least one per non-empty group.

    Example:
        >>> _divided(np.array([90, 8, 2, 0]), 10).tolist()
        [8, 1, 1, 0]
    """
    exact = sizes * (total / sizes.sum())
    counts = np.minimum(np.maximum(np.floor(exact), sizes > 0), sizes).astype(np.int64)
    # The group with the fewest for its rows gets one more, the one with the most gives one.
    while counts.sum() < total:
        counts[np.where(counts < sizes, exact - counts, -np.inf).argmax()] += 1
    while counts.sum() > total:
        counts[np.where(counts > 1, counts - exact, -np.inf).argmax()] -= 1
    return counts
