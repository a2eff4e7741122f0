"""Trees of rows and of clusters, in the form of SciPy's `linkage`, and their cuts."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from cluster_jax.clustering.base import NO_CLUSTER
from cluster_jax.core import arrays, checks


def linkage_of_means(features: NDArray, labels: ArrayLike) -> NDArray:
    """Returns the average linkage of the clusters' mean unit rows by cosine distance.

    Args:
        features: finite float `[n, d]`; rows are scaled to length one.
        labels: cluster of each row `[n]`, integers or names; -1 is a cluster like any other. Leaf i
            of the tree is cluster `np.unique(labels)[i]`.

    Returns:
        float64 `[k - 1, 4]` for k clusters, as in SciPy: the two nodes that merge, their distance,
        and the number of clusters below. A mean of zero is at distance 1 from all others.

    Example:
        >>> linkage_of_means(np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]]), [0, 1, 1])
        array([[0., 1., 1., 2.]])
    """
    ids, codes = np.unique(np.asarray(labels), return_inverse=True)
    if len(ids) < 2:  # SciPy refuses a tree of one leaf.
        return np.empty((0, 4))
    means = arrays.normalize_rows(arrays.cluster_means(arrays.normalize_rows(features), codes))
    # A mean of zero is at distance 1 from all others; `pdist` has no cosine for it.
    distances = np.clip(1 - means @ means.T, 0, 2)
    return hierarchy.linkage(squareform(distances, checks=False), "average")


def ward(rows: NDArray, sizes: NDArray | None = None) -> NDArray:
    """Returns Ward's tree of rows `[n, r]` in the form of SciPy's `linkage`, float64 `[n - 1, 4]`.

    SciPy keeps all n (n - 1) / 2 distances in memory, twice. Here distances are computed in blocks,
    and all pairs of groups that are each other's nearest merge at once, which gives the same tree
    unless distances are equal. `sizes` `[n]` is the number of original rows that each row is the
    mean of; None: one each. The last column of the tree counts these original rows, not the leaves.

    Source: Murtagh 1983, A survey of recent advances in hierarchical clustering algorithms.

    Example:
        >>> ward(np.array([[0.0], [1.0], [9.0]])).round(2).tolist()
        [[0.0, 1.0, 1.0, 2.0], [2.0, 3.0, 9.81, 3.0]]
    """
    n = len(rows)
    means = rows.astype(np.float64) - rows.mean(axis=0, dtype=np.float64)
    node = np.arange(n)
    heights = np.zeros(n)
    near = np.full(n, -1)
    sizes = np.ones(n) if sizes is None else sizes
    merges = [np.empty((0, 4))]
    while (m := len(means)) > 1:
        squares = np.square(means).sum(axis=1)
        stale = np.flatnonzero(near < 0)
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
        sizes = np.concatenate([sizes[stays], total])
        heights = np.concatenate([heights[stays], height])
        node = np.concatenate([node[stays], n + sum(map(len, merges)) - len(i) + np.arange(len(i))])
    linkage = np.concatenate(merges)
    order = np.argsort(linkage[:, 2], kind="stable")
    renamed = np.concatenate([np.arange(n), n + np.argsort(order)])
    linkage[:, :2] = np.sort(renamed[linkage[:, :2].astype(np.int64)], axis=1)
    return linkage[order]


def cut_tree(linkage: ArrayLike, n_clusters: int) -> NDArray:
    """Returns the group of each leaf where the tree is cut into `n_clusters`.

    Args:
        linkage: tree of k leaves, `[k - 1, 4]`, as in SciPy, lowest merge first.
        n_clusters: 1 to k.

    Returns:
        int64 `[k]`, groups 0 to `n_clusters` - 1, numbered by their first leaf.

    Raises:
        InputError: `n_clusters` is not a whole number from 1 to k.

    Example:
        >>> features = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
        >>> cut_tree(linkage_of_means(features, [0, 1, 2]), 2)
        array([0, 0, 1])
    """
    linkage = np.asarray(linkage, np.float64)
    k = len(linkage) + 1
    checks.whole("n_clusters", n_clusters, 1, k)
    # From the last merge down: SciPy's `cut_tree` changes the order of merges at one height.
    pairs = linkage[:, :2].astype(np.int64).tolist()
    group = list(range(2 * k - 1))
    for i in range(k - n_clusters - 1, -1, -1):
        first, second = pairs[i]
        group[first] = group[second] = group[k + i]
    return by_first(np.array(group[:k]))[1]


def by_first(labels: NDArray) -> tuple[NDArray, NDArray]:
    """Returns the first row of each label, ascending, and the labels numbered in this order.

    Of k distinct labels these are the indices int64 `[k]` of rows, and int64 `[n]`, 0 to k - 1.

    Example:
        >>> [part.tolist() for part in by_first(np.array([7, 2, 7, 5]))]
        [[0, 1, 3], [0, 1, 0, 2]]
    """
    _, first, codes = np.unique(labels, return_index=True, return_inverse=True)
    return np.sort(first), np.argsort(np.argsort(first))[codes]


def cut(linkage: NDArray, labels: NDArray, leaves: NDArray, n_clusters: int) -> NDArray:
    """Returns the group of each row where the tree is cut into `n_clusters`, int64 `[n]`.

    Groups are numbered by their number of rows: the largest one is 0. Of equally large groups, that
    with the first leaf comes first. Rows in no cluster are in no group, and do not count.

    Args:
        linkage: float `[m - 1, 4]`, the tree of m leaves, as in SciPy.
        labels: int `[n]`, -1 for rows in no cluster, which stay -1; other values have no effect.
        leaves: int `[n]`, the leaf of each row; each leaf must have a row that is in a cluster.
        n_clusters: number of groups, 1 to m.

    Raises:
        InputError: `n_clusters` is not a whole number from 1 to m.

    Example:
        >>> linkage = np.array([[0, 1, 1.0, 2], [2, 3, 4.0, 3]])
        >>> rows = np.arange(3)
        >>> cut(linkage, rows, rows, n_clusters=2).tolist()
        [0, 0, 1]
    """
    groups = cut_tree(linkage, n_clusters)
    rank = by_size(groups[leaves[labels >= 0]])
    return np.where(labels >= 0, rank[groups][leaves], NO_CLUSTER)


def by_size(labels: NDArray) -> NDArray:
    """Returns the rank of each label by size, int64 `[k]`: that of the largest is 0.

    The labels are int `[n]`, 0 to k - 1. Of equally frequent labels the lowest comes first.

    Example:
        >>> by_size(np.array([0, 1, 1, 2])).tolist()
        [1, 0, 2]
    """
    return np.argsort(np.argsort(-np.bincount(labels), kind="stable"))


def members(labels: NDArray) -> list[NDArray]:
    """Returns the rows of each cluster, k arrays int64, from the clusters int `[n]`, 0 to k - 1.

    The indices in each array ascend; that of an empty cluster has none.

    Example:
        >>> [rows.tolist() for rows in members(np.array([1, 0, 1]))]
        [[1], [0, 2]]
    """
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.cumsum(np.bincount(labels))[:-1])


def linkage_of_clusters(rows: NDArray, leaves: NDArray, labels: NDArray) -> NDArray:
    """Returns Ward's tree of clusters by their means, float64 `[k - 1, 4]`, as in SciPy.

    Args:
        rows: float `[m, r]`, the rows of m leaves.
        leaves: int `[n]`, the leaf of each of n rows.
        labels: int `[n]`, their clusters. Leaf i of the tree is cluster `np.unique(labels)[i]`.

    Example:
        >>> rows = np.array([[0.0], [1.0], [9.0]])
        >>> linkage_of_clusters(rows, np.array([0, 0, 1, 2]), np.array([5, 5, 7, 9]))[:, [0, 1, 3]]
        array([[0., 1., 2.],
               [2., 3., 3.]])
    """
    ids, codes = np.unique(labels, return_inverse=True)
    k = len(ids)
    # Rows of one leaf are equal: each leaf counts once for each of its clusters.
    pairs, counts = np.unique(leaves * k + codes, return_counts=True)
    means = arrays.cluster_means(rows[pairs // k], pairs % k, counts)
    linkage = ward(means, np.bincount(pairs % k, counts))
    below = np.ones(2 * k - 1)
    for i, pair in enumerate(linkage[:, :2].astype(int)):
        below[k + i] = linkage[i, 3] = below[pair].sum()
    return linkage


def are_same_clusters(labels: NDArray, stayed: NDArray, every: NDArray) -> bool:
    """Returns whether all rows have kept their clusters, and the clusters are the same.

    Then the tree of the clusters stays, whatever rows have been added or have left.

    Args:
        labels: int `[n]`, the clusters before, -1 for none.
        stayed: int `[2, l]`, the clusters before and now of the rows that are there both times.
        every: int `[m]`, the clusters of all rows now.

    Example:
        >>> before = np.array([0, 1, 1])
        >>> are_same_clusters(before, np.array([before, before]), np.array([0, 1, 1, 0]))
        True
        >>> are_same_clusters(before, np.array([before, before]), np.array([0, 1, 1, 2]))
        False
    """
    return np.array_equal(stayed[0], stayed[1]) and np.array_equal(
        np.unique(labels[labels != NO_CLUSTER]), np.unique(every[every != NO_CLUSTER])
    )


def unions(linkage: NDArray, labels: NDArray, count: int) -> NDArray:
    """Returns clusters joined to `count` unions, int64 `[n]`, each with its lowest number.

    Of the clusters of a new fit the lowest number is that of the largest one, of others that of the
    oldest: it stays, whatever rows are added. Rows in no cluster stay so.

    Args:
        linkage: float `[k - 1, 4]`, the tree of the clusters, see `linkage_of_clusters`.
        labels: int `[n]`, the clusters, -1 for none.
        count: 1 to k, else it is an `InputError`.

    Example:
        >>> linkage = np.array([[0, 1, 1.0, 2], [2, 3, 4.0, 3]])
        >>> unions(linkage, np.array([4, 7, 7, 9, -1]), 2).tolist()
        [4, 4, 4, 9, -1]
    """
    is_in = labels != NO_CLUSTER
    ids, codes = np.unique(labels[is_in], return_inverse=True)
    groups = cut_tree(linkage, count)  # Numbered by the first leaf, which is the lowest cluster.
    first, _ = by_first(groups)
    result = labels.astype(np.int64)
    result[is_in] = ids[first][groups[codes]]
    return result


def nested(rows: NDArray, sizes: NDArray, labels: NDArray) -> NDArray:
    """Returns Ward's tree of n leaves that has the clusters as a cut, float64 `[n - 1, 4]`.

    The leaves of each cluster merge first, then the clusters.

    Args:
        rows: `[n, r]`, smooth rows of the leaves.
        sizes: int `[n]`, number of rows of each leaf.
        labels: int `[n]`, the clusters, 0 to k - 1, none of them empty.

    Returns:
        The tree as in SciPy; the last column has the number of leaves below. A merge that Ward's
        criterion would have at a lower height than an earlier one has the height of that one.

    Example:
        >>> rows, one = np.array([[0.0], [5.0], [9.0]]), np.ones(3, int)
        >>> nested(rows, one, np.array([0, 0, 1]))[:, :2].tolist()
        [[0.0, 1.0], [3.0, 2.0]]
    """
    n = len(sizes)
    merges: list[tuple[float, float, float, float]] = []
    leaves = [1.0] * n
    highest = 0.0
    # The groups so far: their node in the tree, size, and mean.
    node = np.arange(n)
    means = rows.astype(np.float64)
    sizes = sizes.astype(np.float64)
    for level in (labels, np.zeros(int(labels.max()) + 1, np.int64)):
        parts = members(level)
        trees = [ward(means[part], sizes[part]) for part in parts]
        nodes = [node[part].tolist() for part in parts]
        steps = ((step[2], g, i) for g, merged in enumerate(trees) for i, step in enumerate(merged))
        for height, g, i in sorted(steps):
            first, second = (nodes[g][int(below)] for below in trees[g][i, :2])
            highest = max(highest, height)
            leaves.append(leaves[first] + leaves[second])
            merges.append((first, second, highest, leaves[-1]))
            nodes[g].append(n + len(merges) - 1)
        node = np.array([part[-1] for part in nodes])
        means, sizes = weighted_means(means, sizes, level)
    return np.array(merges, np.float64).reshape(-1, 4)


def weighted_means(rows: NDArray, sizes: NDArray, labels: NDArray) -> tuple[NDArray, NDArray]:
    """Returns the mean of each cluster, float64 `[k, r]`, and its size, float64 `[k]`.

    Args:
        rows: `[n, r]`.
        sizes: `[n]`, the number of original rows that each row is the mean of.
        labels: int `[n]`, the clusters, 0 to k - 1, none of them empty.

    Example:
        >>> rows, one = np.array([[0.0], [3.0]]), np.zeros(2, int)
        >>> means, sizes = weighted_means(rows, np.array([1, 2]), one)
        >>> means.tolist(), sizes.tolist()
        ([[2.0]], [3.0])
    """
    parts = members(labels)
    means = np.stack([np.average(rows[part], axis=0, weights=sizes[part]) for part in parts])
    return means, np.array([sizes[part].sum(dtype=np.float64) for part in parts])
