"""Rows so far from the others of their group that they take no part in its estimates.

One row at a thousand times the spread of the others moves any mean out of the group.
"""

import numpy as np
from numpy.typing import NDArray

from cluster_jax.core.arrays import blocks

# Rows farther from the median of a group than this many times the median distance are outliers.
_FAR = 4.0


def median_distance(rows: NDArray) -> tuple[NDArray, float]:
    """The median of each column, float64 `[d]`, and the median distance of rows `[n, d]` from it.

    Example:
        >>> median_distance(np.array([[0.0], [1.0], [2.0], [3.0], [900.0]]))
        (array([2.]), 1.0)
    """
    center = np.median(rows, axis=0)
    with np.errstate(over="ignore"):
        squares = np.square(rows - center).sum(axis=1)
    return center, float(np.sqrt(np.median(squares)))


def is_core(x: NDArray, center: NDArray, typical: float) -> NDArray:
    """Rows that are not outliers, bool `[n]`.

    Args:
        x: `[n, d]`.
        center: float64 `[d]`.
        typical: median distance from it; where it is 0, most rows are equal, and none is far.

    Example:
        >>> x = np.array([[0.0], [1.0], [2.0], [3.0], [900.0]])
        >>> is_core(x, *median_distance(x)).tolist()
        [True, True, True, True, False]
    """
    if typical == 0:
        return np.ones(len(x), bool)
    core = np.empty(len(x), bool)
    for rows in blocks(*x.shape):
        with np.errstate(over="ignore"):  # Infinity is far.
            squares = np.square(x[rows].astype(np.float64) - center).sum(axis=1)
        core[rows] = squares <= (_FAR * typical) ** 2
    return core


def core_mean(x: NDArray, core: NDArray) -> NDArray:
    """Mean of the rows of `x` `[n, d]` that are `core`, bool `[n]`: float64 `[d]`.

    Example:
        >>> core_mean(np.array([[0.0], [2.0], [900.0]]), np.array([True, True, False])).tolist()
        [1.0]
    """
    return (x if core.all() else x[core]).mean(axis=0, dtype=np.float64)


def members(groups: NDArray) -> list[NDArray]:
    """Rows of each of the groups int `[n]`, 0 to k - 1: k arrays int64.

    Example:
        >>> [rows.tolist() for rows in members(np.array([1, 0, 1]))]
        [[1], [0, 2]]
    """
    order = np.argsort(groups, kind="stable")
    return np.split(order, np.cumsum(np.bincount(groups))[:-1])


def core_groups(rows: NDArray, groups: NDArray) -> NDArray:
    """The groups int `[n]`, 0 to k - 1, without their outliers, which have -1.

    Args:
        rows: float64 `[n, d]`.
        groups: int `[n]`.

    Example:
        >>> core_groups(np.array([[0.0], [1.0], [2.0], [90.0], [91.0]]), np.array([0, 0, 0, 0, 1]))
        array([ 0,  0,  0, -1,  1])
    """
    core = groups.copy()
    for own in members(groups):
        core[own[~is_core(rows[own], *median_distance(rows[own]))]] = -1
    return core
