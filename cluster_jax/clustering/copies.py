"""Equal rows: one of each is clustered, so that copying rows changes no cluster."""

import hashlib

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering.tree import by_first
from cluster_jax.core.arrays import Rows, blocks

# Expected number of rows equal to a row by chance above which equal rows are no copies; number of
# rows from which it is estimated.
_BY_CHANCE, _LOOK = 0.1, 10_000


def originals(x: Rows) -> tuple[NDArray, NDArray]:
    """Returns the index of one row of each group of equal rows, and the group of every row.

    If the columns have so few values that rows are equal by chance, each row is a group.

    Args:
        x: finite `[n, d]`, read in blocks.

    Returns:
        The indices of the rows that are left, int64 `[m]`: of an array, in an order that depends on
        the values of the rows and not on their positions; otherwise ascending. And the group of
        every row, int64 `[n]`, 0 to m - 1: that of index i is group i.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(40, 3))
        >>> first, group = originals(np.concatenate([x, x[:5]]))
        >>> len(first), bool((group[:5] == group[40:]).all())
        (40, True)
    """
    n = x.shape[0]
    keys = digests(x)
    order = np.argsort(keys, kind="stable") if isinstance(x, np.ndarray) else np.arange(n)
    first, group = _first(order, keys)
    if len(first) < n and _equal_by_chance(x, first) > _BY_CHANCE:
        return _first(order, np.arange(n))
    return first, group


def outwards(rows: NDArray) -> NDArray:
    """Returns the order of rows `[m, d]` by their distance from their mean, int64 `[m]`.

    What is drawn, and which of two equally good steps is taken, depends on the order of the rows,
    and this order hardly depends on rounding. Equally distant rows stay in the order that they
    have.

    Example:
        >>> outwards(np.array([[9.0], [0.0], [4.0]])).tolist()
        [2, 1, 0]
    """
    mean = rows.mean(axis=0, dtype=np.float64)
    distances = np.empty(len(rows))
    for part in blocks(*rows.shape):
        distances[part] = np.square(rows[part] - mean).sum(axis=1)
    return np.argsort(distances, kind="stable")


def _first(order: NDArray, group: NDArray) -> tuple[NDArray, NDArray]:
    """Returns the first row of each group in an order, and the groups, numbered by that order.

    Args:
        order: int `[n]`, each of the n rows once.
        group: int `[n]`, the group of each row.

    Returns:
        int `[m]`, the rows, and int64 `[n]`, the group of each row, 0 to m - 1.
    """
    first, codes = by_first(group[order])
    numbers = np.empty(len(group), np.int64)
    numbers[order] = codes
    return order[first], numbers


def _equal_by_chance(x: Rows, distinct: NDArray) -> float:
    """Returns the expected number of rows equal to a row, if its columns are independent.

    The number is estimated from at most 10,000 rows, evenly spaced in `distinct` int `[m]`, which
    has one of each group of equal rows: a row that is there many times says nothing about chance.
    A result below 0.1 is only an upper bound.
    """
    expected = float(x.shape[0])
    look = np.sort(distinct[:: -(-len(distinct) // _LOOK)])
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
