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
    """Returns the index of one row of each group of copies, and the group of every row.

    Equal rows are copies, unless the columns have so few values that rows are equal by chance. Near
    copies are searched for in more than three columns and up to 32,000 distinct rows. Two rows are
    near copies if their distance is below 0.3 q, where q is the 90 % quantile of the distances to
    the k-th neighbor, see `smooth.n_neighbors`; chains of near copies are one group. Each row of a
    group of 25 rows or more, equal or near, is a group of its own, since so many rows are a dense
    cluster. If fewer than a fifth of the distinct rows would be left, the groups are taken for
    small clusters, and no near copy is removed.

    Args:
        x: finite `[n, d]`, read in blocks.
        metric: `"cosine"` or `"euclidean"`, for the distances of near copies. Rows of one direction
            and different lengths are never equal, but near copies with the cosine.
        least: number of rows that must be left; near copies are not removed if fewer would be,
            equal rows are.

    Returns:
        The indices of the rows that are left, int64 `[m]`: of an array, in an order that depends on
        the values of the rows and not on their positions; otherwise ascending. And the group of
        every row, int64 `[n]`, 0 to m - 1: that of index i is group i.

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
    first, group = _first(order, group)
    if d <= smooth.FEW_AXES or not 3 <= len(first) <= _MOST_NEAR:
        return first, group
    rows = np.asarray(x[first])
    # A power of two rounds nothing, and keeps squares of large numbers in the range of float32.
    rows = rows / 2.0 ** np.frexp(np.abs(rows).max())[1]
    rows = (smooth.unit_rows(rows) if metric == "cosine" else rows).astype(np.float32)
    count = smooth.n_neighbors(len(rows))
    indices, distances = knn.nearest(rows, rows, count, exclude_self=True)
    i, j = np.nonzero(distances < NEARNESS * np.quantile(distances[:, -1], _QUANTILE))
    links = coo_array((np.ones(len(i)), (i, indices[i, j])), shape=(len(rows),) * 2)
    linked = connected_components(links, directed=False)[1].astype(np.int64)
    kept, linked = _first(np.arange(len(rows)), linked)
    if len(kept) < max(least, _LEAST_LEFT * len(rows)):  # Many small clusters, each far away.
        return first, group
    return first[kept], linked[group]


def _first(order: NDArray, group: NDArray) -> tuple[NDArray, NDArray]:
    """Returns the first row of each group in an order, and the groups, numbered by that order.

    Each row of a group of 25 rows or more gets a group of its own.

    Args:
        order: int `[n]`, each of the n rows once.
        group: int `[n]`, the group of each row, 0 or more.

    Returns:
        int `[m]`, the rows, and int64 `[n]`, the group of each row, 0 to m - 1.
    """
    is_dense = np.bincount(group)[group] >= smooth.DENSE_SIZE
    group = np.where(is_dense, group.max() + 1 + np.arange(len(group)), group)
    first, codes = by_first(group[order])
    numbers = np.empty(len(group), np.int64)
    numbers[order] = codes
    return order[first], numbers


def _equal_by_chance(x: Rows, order: NDArray) -> float:
    """Returns the expected number of rows equal to a row, if its columns are independent.

    The number is estimated from at most 10,000 rows, evenly spaced in `order` int `[n]`, which has
    each row once. A result below 0.1 is only an upper bound.
    """
    n = len(order)
    expected = float(n)
    look = np.sort(order[:: -(-n // _LOOK)])
    for column in np.asarray(x[look]).T:
        if expected < _BY_CHANCE:
            break
        counts = np.unique(column, return_counts=True)[1]
        expected *= float(np.square(counts / counts.sum()).sum())
    return expected


def digests(x: Rows) -> NDArray:
    """Returns a hash of each row `[n, d]`, uint64 `[n]`, the same for equal rows of any dtype.

    Sorted by the hash, rows are in an order that looks random and depends on their values alone. 0
    and -0 are equal. A row is hashed as float32 if that is exact, else as float64.

    Example:
        >>> first, second, third = digests(np.array([[2.0], [1.0], [2.0]]))
        >>> bool(first == third), bool(first == second)
        (True, False)
    """
    result = np.empty(x.shape[0], np.uint64)
    for part in blocks(*x.shape):
        rows = np.ascontiguousarray(x[part], np.float64) + 0.0  # one zero
        with np.errstate(over="ignore"):
            single = rows.astype(np.float32)
        is_exact = (single == rows).all(axis=1).tolist()
        pairs = zip(is_exact, single, rows, strict=True)
        values = (short if exact else long for exact, short, long in pairs)
        keys = [hashlib.blake2b(row, digest_size=8).digest() for row in values]
        result[part] = np.frombuffer(b"".join(keys), np.uint64)
    return result
