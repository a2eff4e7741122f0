"""Copies of rows: one of each is clustered, so that copying rows changes no cluster."""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from cluster_jax.clustering import knn, smooth

# Near copies are nearer than this share of the distance to the k-th neighbor, at a quantile that is
# right as long as no more than nine tenths of the rows have k near copies.
NEARNESS, _QUANTILE = 0.3, 0.9
# Equal rows that chance may bring about in a set without copies.
_BY_CHANCE = 0.1


def originals(x: NDArray, metric: str, *, near: bool = True) -> tuple[NDArray, NDArray]:
    """Returns one row of each group of copies, and the group of every row.

    Equal rows are copies, unless the columns have so few values that chance makes rows equal. Near
    copies, in more than three columns, are rows that are linked by distances below 0.3 of the last
    decile of the distances to the k-th neighbor, see `smooth.n_neighbors`; 25 such rows, or
    equal ones, are a dense cluster, not copies. The order of the rows does not matter.

    Args:
        x: `[n, d]`.
        metric: `"cosine"` or `"euclidean"`.
        near: whether near copies are copies.

    Returns:
        int64 `[m]`, rows, in an order that depends on their values alone; int64 `[n]`, 0 to m - 1.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(40, 3))
        >>> first, group = originals(np.concatenate([x, x[:5]]), "euclidean")
        >>> len(first), bool((group[:5] == group[40:]).all())
        (40, True)
    """
    n, d = x.shape
    order = order_of(x)
    is_new = np.concatenate([[True], (np.diff(x[order], axis=0) != 0).any(axis=1)])
    if not is_new.all() and _equal_by_chance(x) > _BY_CHANCE:
        is_new[:] = True
    group = np.empty(n, np.int64)
    group[order] = _apart_if_dense(np.cumsum(is_new))
    first, group = _first(order, group)
    if not near or d <= smooth.FEW_AXES or len(first) < 3:
        return first, group
    rows = (smooth.unit_rows(x[first]) if metric == "cosine" else x[first]).astype(np.float32)
    count = smooth.n_neighbors(len(rows))
    indices, distances = knn.nearest(rows, rows, count, exclude_self=True)
    i, j = np.nonzero(distances < NEARNESS * np.quantile(distances[:, -1], _QUANTILE))
    links = coo_array((np.ones(len(i)), (i, indices[i, j])), shape=(len(rows),) * 2)
    linked = connected_components(links, directed=False)[1].astype(np.int64)
    kept, linked = _first(np.arange(len(rows)), _apart_if_dense(linked))
    return first[kept], linked[group]


def _apart_if_dense(group: NDArray) -> NDArray:
    """Splits each group that is too large to be copies into single rows."""
    is_dense = np.bincount(group)[group] >= smooth.DENSE_SIZE
    return np.where(is_dense, group.max() + 1 + np.arange(len(group)), group)


def _first(order: NDArray, group: NDArray) -> tuple[NDArray, NDArray]:
    """Returns the first row of each group in an order, and groups that are numbered by it."""
    _, first, codes = np.unique(group[order], return_index=True, return_inverse=True)
    numbers = np.empty(len(group), np.int64)
    numbers[order] = np.argsort(np.argsort(first))[codes]
    return order[np.sort(first)], numbers


def _equal_by_chance(x: NDArray) -> float:
    """Returns how many others are expected to equal a row whose columns are independent."""
    expected = float(len(x))
    for column in x.T:
        if expected < _BY_CHANCE:
            break
        counts = np.unique(column, return_counts=True)[1]
        expected *= float(np.square(counts / len(x)).sum())
    return expected


def order_of(x: NDArray) -> NDArray:
    """Orders rows `[n, d]` by their bytes, int64 `[n]`, so that their own order does not matter.

    Example:
        >>> order_of(np.array([[2], [1], [2]], np.uint8))
        array([1, 0, 2])
    """
    rows = np.ascontiguousarray(x + 0.0 if x.dtype.kind == "f" else x)  # one zero, not two
    return np.argsort(rows.view(f"V{rows.strides[0]}")[:, 0], kind="stable")
