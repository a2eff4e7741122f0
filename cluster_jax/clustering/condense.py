"""Many rows as a few thousand micro-clusters, by k-means in two levels."""

import math
from typing import Any

import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from cluster_jax.clustering.kmeans import kmeans_blocks


def condense(rows: NDArray, n_groups: int, *, max_iter: int, seed: int, mesh: Mesh) -> NDArray:
    """Returns centers float `[n_groups, d]` of k-means in two levels.

    The first level has sqrt(n_groups) clusters, rounded down. Each of them is divided by
    scikit-learn's `KMeans` into a number of clusters proportional to its rows. So for 16,000 groups
    a row is compared with about 253 centers. If a cluster of the first level has too few distinct
    rows, some of its centers are equal, and scikit-learn warns. Rows are not assigned to centers.

    Args:
        rows: finite float `[n, d]`; the centers have the same dtype.
        n_groups: number of centers, 1 to n.
        max_iter: maximum number of updates at each level, at least 1.
        seed: random seed of both levels, 0 or more.
        mesh: devices of the first level. Every process computes the whole second level.

    Raises:
        ValueError: an argument is out of range, or the rows cannot be clustered, see
            `kmeans_blocks`.

    References:
        Vo et al. 2024, Automatic data curation for self-supervised learning, section 3.2, where
        the upper levels cluster the centers of the lower one.

    Example:
        >>> import jax
        >>> rows, mesh = np.float32([[0], [1], [10], [11]]), jax.make_mesh((1,), ("rows",))
        >>> sorted(condense(rows, 4, max_iter=10, seed=0, mesh=mesh).ravel().tolist())
        [0.0, 1.0, 10.0, 11.0]
    """
    from sklearn.cluster import KMeans  # Not before: a service needs none.

    how: dict[str, Any] = {"n_init": 1, "max_iter": max_iter}
    first = kmeans_blocks(rows, math.isqrt(n_groups), seed=seed, mesh=mesh, **how)
    clusters = [np.flatnonzero(first.labels == i) for i in range(len(first.centers))]
    counts = divided(np.array([len(own) for own in clusters]), n_groups)
    fitted = (
        KMeans(count, random_state=seed % 2**32, **how).fit(rows[own]).cluster_centers_
        for own, count in zip(clusters, counts.tolist(), strict=True)
        if count
    )
    return np.concatenate(list(fitted))


def divided(sizes: NDArray, total: int) -> NDArray:
    """Returns how many of `total` clusters each group gets by its size, int64 `[groups]`.

    Each group that is not empty gets at least one cluster, and no group more clusters than rows.

    Args:
        sizes: int `[groups]`, number of rows of each group.
        total: number of clusters, from the number of groups that are not empty to the number of
            rows.

    Example:
        >>> divided(np.array([90, 8, 2, 0]), 10).tolist()
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
