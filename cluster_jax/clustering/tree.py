"""A tree of clusters: which of them are near each other, and the groups at any number of them."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from cluster_jax.core import arrays
from cluster_jax.core.checks import InputError


def linkage_of_means(features: NDArray, labels: ArrayLike) -> NDArray:
    """Computes the average linkage of the clusters' mean unit rows, by cosine distance.

    Args:
        features: float `[n, d]`; rows are scaled to length one.
        labels: cluster of each row `[n]`, integers or names. Leaf i of the tree is cluster
            `np.unique(labels)[i]`.

    Returns:
        The linkage matrix of SciPy for k clusters, float64 `[k - 1, 4]`: the two clusters that
        merge, the distance at which they do, and the clusters below.

    Example:
        >>> linkage_of_means(np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]]), [0, 1, 1])
        array([[0., 1., 1., 2.]])
    """
    ids, codes = np.unique(np.asarray(labels), return_inverse=True)
    if len(ids) == 1:  # SciPy refuses a tree of one leaf.
        return np.empty((0, 4))
    means = arrays.normalize_rows(arrays.cluster_means(arrays.normalize_rows(features), codes))
    # Not `pdist`, which has no cosine for a mean of zero: here it is at 1 from all others.
    distances = np.clip(1 - means @ means.T, 0, 2)
    return hierarchy.linkage(squareform(distances, checks=False), "average")


def ward(rows: NDArray) -> NDArray:
    """Builds Ward's tree of rows `[n, r]` in the form of SciPy's `linkage`, float64 `[n - 1, 4]`.

    SciPy needs all n (n - 1) / 2 distances, twice. Here all pairs of groups that are each other's
    nearest merge at once, which gives the same tree; distances are computed in blocks.

    Source: Murtagh 1983, A survey of recent advances in hierarchical clustering algorithms.

    Example:
        >>> ward(np.array([[0.0], [1.0], [9.0]])).round(2).tolist()
        [[0.0, 1.0, 1.0, 2.0], [2.0, 3.0, 9.81, 3.0]]
    """
    n = len(rows)
    means = rows.astype(np.float64) - rows.mean(axis=0, dtype=np.float64)
    node, sizes, heights, near = np.arange(n), np.ones(n), np.zeros(n), np.full(n, -1)
    merges = [np.empty((0, 4))]
    while (m := len(means)) > 1:
        squares, stale = np.square(means).sum(axis=1), np.flatnonzero(near < 0)
        for part in arrays.blocks(len(stale), m):
            block = stale[part]
            apart = squares + squares[block, None] - 2 * means[block] @ means.T
            apart *= sizes / (sizes + sizes[block, None]) * sizes[block, None]
            apart[np.arange(len(block)), block] = np.inf
            near[block] = apart.argmin(axis=1)
        gaps = np.square(means - means[near]).sum(axis=1)
        height = np.sqrt(2 * sizes * sizes[near] / (sizes + sizes[near]) * gaps)
        # The nearest two of all are each other's nearest, however equal distances are rounded.
        lowest = height.argmin()
        near[near[lowest]] = lowest
        is_first = (near[near] == np.arange(m)) & (np.arange(m) < near)
        i, j = np.flatnonzero(is_first), near[is_first]
        total = sizes[i] + sizes[j]
        height = np.maximum(height[i], np.maximum(heights[i], heights[j]))
        merges.append(np.stack([node[i], node[j], height, total], axis=1))
        mean = (means[i] * sizes[i, None] + means[j] * sizes[j, None]) / total[:, None]
        stays = np.ones(m, bool)
        stays[i] = stays[j] = False
        place = np.where(stays, np.cumsum(stays) - 1, -1)
        near = np.concatenate([place[near[stays]], np.full(len(i), -1)])
        means = np.concatenate([means[stays], mean])
        sizes, heights = (
            np.concatenate([old[stays], new]) for old, new in ((sizes, total), (heights, height))
        )
        node = np.concatenate([node[stays], n + sum(map(len, merges)) - len(i) + np.arange(len(i))])
    linkage = np.concatenate(merges)
    order = np.argsort(linkage[:, 2], kind="stable")
    renamed = np.concatenate([np.arange(n), n + np.argsort(order)])
    linkage[:, :2] = np.sort(renamed[linkage[:, :2].astype(np.int64)], axis=1)
    return linkage[order]


def cut_tree(linkage: ArrayLike, n_groups: int) -> NDArray:
    """Returns the group of each cluster when nearby clusters merge until `n_groups` are left.

    Args:
        linkage: from `linkage_of_means`, `[k - 1, 4]`.
        n_groups: 1 to k.

    Returns:
        int64 `[k]`, groups 0 to `n_groups` - 1, numbered by their first cluster.

    Raises:
        InputError: there are fewer clusters than groups.

    Example:
        >>> features = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
        >>> cut_tree(linkage_of_means(features, [0, 1, 2]), 2)
        array([0, 0, 1])
    """
    linkage = np.asarray(linkage, np.float64)
    k = len(linkage) + 1
    if not 1 <= n_groups <= k:
        raise InputError(
            f"n_groups must be between 1 and {k}, the number of clusters; got {n_groups}"
        )
    # From the last merge down: SciPy's `cut_tree` changes the order of merges at one height.
    group = np.arange(2 * k - 1)
    for i in range(k - n_groups - 1, -1, -1):
        group[linkage[i, :2].astype(np.int64)] = group[k + i]
    _, first, codes = np.unique(group[:k], return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[codes]
