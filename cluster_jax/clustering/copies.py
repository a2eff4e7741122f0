"""Copies of rows: one of each is clustered, so that copying rows changes no cluster."""

import hashlib

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from cluster_jax.clustering import knn, smooth
from cluster_jax.clustering.tree import by_first
from cluster_jax.core.arrays import Rows, blocks

# Near copies are nearer than this share of the distance to the k-th neighbor, at a quantile: it is
# the distance to a copy only if more than nine tenths of the rows have k copies.
NEARNESS, _QUANTILE = 0.3, 0.9
# Share of the distinct rows that must be left without near copies.
_LEAST_LEFT = 0.2
# Expected number of rows equal to a row by chance above which equal rows are no copies; number of
# rows from which it is estimated.
_BY_CHANCE, _LOOK = 0.1, 10_000
# Number of distinct rows above which near copies are not searched for: all pairs are compared.
_MOST_NEAR = 32_000


def originals(x: Rows, metric: str, least: int = 1) -> tuple[NDArray, NDArray]:
    """Returns one row of each group of copies, and the group of every row.

    Equal rows are copies, unless the columns have so few values that rows are equal by chance. Near
    copies are searched for in more than three columns and up to 32,000 distinct rows. They are
    linked by distances below 0.3 d, where d is the last decile of the distances to the k-th
    neighbor, see `smooth.n_neighbors`. A group of 25 rows or more is a dense cluster, whose rows
    are no copies. If fewer than a fifth of the distinct rows would be left, the groups are taken
    for small clusters, and no near copy is removed.

    Args:
        x: `[n, d]`, read in blocks.
        metric: `"cosine"` or `"euclidean"`.
        least: number of rows that must be left; near copies are not removed if fewer would be.

    Returns:
        The rows that are left, int64 `[m]`: of an array, in an order that depends on their values
        and not on their positions; otherwise ascending. The group of every row, int64 `[n]`, 0 to
        m - 1.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(40, 3))
        >>> first, group = originals(np.concatenate([x, x[:5]]), "euclidean")
        >>> len(first), bool((group[:5] == group[40:]).all())
        (40, True)
    """
    n, d = x.shape
    keys = digests(x)
    order = np.argsort(keys, kind="stable") if isinstance(x, np.ndarray) else np.arange(n)
    group = np.unique(keys, return_inverse=True)[1].astype(np.int64)
    if group.max(initial=0) < n - 1 and _equal_by_chance(x, order) > _BY_CHANCE:
        group = np.arange(n)
    first, group = _first(order, _apart_if_dense(group))
    if d <= smooth.FEW_AXES or not 3 <= len(first) <= _MOST_NEAR:
        return first, group
    rows = np.asarray(x[first])
    rows = (smooth.unit_rows(rows) if metric == "cosine" else rows).astype(np.float32)
    count = smooth.n_neighbors(len(rows))
    indices, distances = knn.nearest(rows, rows, count, exclude_self=True)
    i, j = np.nonzero(distances < NEARNESS * np.quantile(distances[:, -1], _QUANTILE))
    links = coo_array((np.ones(len(i)), (i, indices[i, j])), shape=(len(rows),) * 2)
    linked = connected_components(links, directed=False)[1].astype(np.int64)
    kept, linked = _first(np.arange(len(rows)), _apart_if_dense(linked))
    if len(kept) < max(least, _LEAST_LEFT * len(rows)):  # Many small clusters, each far away.
        return first, group
    return first[kept], linked[group]


def _apart_if_dense(group: NDArray) -> NDArray:
    """Returns groups `[n]` in which each row of a group of 25 rows or more is alone."""
    is_dense = np.bincount(group)[group] >= smooth.DENSE_SIZE
    return np.where(is_dense, group.max() + 1 + np.arange(len(group)), group)


def _first(order: NDArray, group: NDArray) -> tuple[NDArray, NDArray]:
    """Returns the first row of each group in an order, and the groups, numbered by that order."""
    first, codes = by_first(group[order])
    numbers = np.empty(len(group), np.int64)
    numbers[order] = codes
    return order[first], numbers


def _equal_by_chance(x: Rows, order: NDArray) -> float:
    """Returns the expected number of rows equal to a row, if its columns are independent."""
    n = len(order)
    expected, look = float(n), np.sort(order[:: -(-n // _LOOK)])
    for column in np.asarray(x[look]).T:
        if expected < _BY_CHANCE:
            break
        counts = np.unique(column, return_counts=True)[1]
        expected *= float(np.square(counts / counts.sum()).sum())
    return expected


def digests(x: Rows) -> NDArray:
    """Returns a hash of each row `[n, d]`, uint64 `[n]`, the same for equal rows.

    Sorted by it, rows are in an order that looks random and depends on their values alone.

    Example:
        >>> first, second, third = digests(np.array([[2.0], [1.0], [2.0]]))
        >>> bool(first == third), bool(first == second)
        (True, False)
    """
    result = np.empty(x.shape[0], np.uint64)
    for part in blocks(*x.shape):
        rows = np.asarray(x[part])
        rows = np.ascontiguousarray(rows + 0.0 if rows.dtype.kind == "f" else rows)  # one zero
        keys = [hashlib.blake2b(row, digest_size=8).digest() for row in rows]
        result[part] = np.frombuffer(b"".join(keys), np.uint64)
    return result
