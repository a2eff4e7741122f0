"""Occupied cells of a grid, and sums over their neighborhoods: the data structure of GridShift.

Cells are kept sorted and moved by array operations, so that the cost grows with the number of
occupied cells, not of points. Plain NumPy on the host, float64 throughout.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

# Cell numbers up to here are exact in float64, and their neighbors too.
_FARTHEST_CELL = 2**53 - 4
# Packed cell numbers stay below, so that int64 never wraps.
_LARGEST_KEY = 2**62
# Elements of one block of the pairwise comparison (float64: 32 MB).
_BLOCK = 2**22
# Neighbor pairs are stored as a list if fewer than one pair in this many are neighbors.
_SPARSE = 16


class Grid(NamedTuple):
    """Occupied cells in lexicographic order.

    Positions relative to the cell keep full precision anywhere and are unchanged if the data
    are shifted by whole cells.

    Attributes:
        cells: int64 `[m, d]`, cell numbers.
        offsets: float64 `[m, d]`, positions of the centroids inside their cells in bandwidths,
            0 to 1.
        weights: float64 `[m]`, total weight of each cell's points.
    """

    cells: NDArray
    offsets: NDArray
    weights: NDArray

    def centers(self, bandwidth: float) -> NDArray:
        """Centroids in the unit of the data, float64 `[m, d]`."""
        return self.cells * bandwidth + self.offsets * bandwidth


def bin_points(points: NDArray, bandwidth: float) -> tuple[NDArray, NDArray]:
    """Cell numbers floor(x / h) int64 `[n, d]` and positions inside the cells float64 `[n, d]`.

    Raises:
        ValueError: a coordinate is so many bandwidths from 0 that its cell has no exact number.

    Example:
        >>> cells, offsets = bin_points(np.array([[3.0], [-0.5]]), 2.0)
        >>> cells.tolist(), offsets.tolist()
        ([[1], [-1]], [[0.5], [0.75]])
    """
    with np.errstate(over="ignore", invalid="ignore"):
        floors = np.floor(points / bandwidth)
    # Infinity after an overflow fails the check too.
    if not (floors.max() <= _FARTHEST_CELL and floors.min() >= -_FARTHEST_CELL):
        raise ValueError(
            f"X must be within {_FARTHEST_CELL:.1e} times the bandwidth {bandwidth:g} of 0, where "
            f"cells have exact numbers; got coordinates up to {np.abs(points).max():g}: subtract "
            "the mean from the data or raise the bandwidth"
        )
    offsets = floors * bandwidth
    np.subtract(points, offsets, out=offsets)
    offsets /= bandwidth
    return floors.astype(np.int64), np.clip(offsets, 0, 1, out=offsets)


def collect(
    cells: NDArray, offsets: NDArray, weights: NDArray | None = None
) -> tuple[Grid, NDArray]:
    """The grid of points.

    Args:
        cells: int64 `[n, d]`, the cell of each point.
        offsets: float64 `[n, d]`, positions inside the cells.
        weights: float64 `[n]`, positive; None for ones.

    Returns:
        The m distinct cells with their centroids, and the index there of each point's cell, int64
        `[n]`.

    Example:
        >>> cells, offsets = np.array([[7], [2], [7]]), np.array([[0.5], [0.1], [0.25]])
        >>> grid, index = collect(cells, offsets)
        >>> grid.cells.tolist(), grid.offsets.tolist(), grid.weights.tolist(), index.tolist()
        ([[2], [7]], [[0.1], [0.375]], [1.0, 2.0], [1, 0, 1])
    """
    unique, index = group(cells)
    m = len(unique)
    total = np.bincount(index, weights, minlength=m).astype(np.float64)
    moments = offsets if weights is None else offsets * weights[:, None]
    sums = np.stack([np.bincount(index, column, minlength=m) for column in moments.T], axis=1)
    return Grid(unique, sums / total[:, None], total), index


def neighborhood(grid: Grid) -> tuple[NDArray, NDArray]:
    """Weight and first moment of every cell's 3^d neighborhood.

    Returns:
        Sums of the weights, float64 `[m]`, and of weight x position relative to the cell's own
        corner in bandwidths, float64 `[m, d]`.

    Example:
        >>> grid = Grid(np.array([[0], [1], [5]]), np.array([[0.5], [0.5], [0.5]]), np.ones(3))
        >>> total, moment = neighborhood(grid)
        >>> total.tolist(), moment.tolist()
        ([2.0, 2.0, 1.0], [[2.0], [0.0], [0.5]])
    """
    m, d = grid.cells.shape
    spans = [int(s) + 3 for s in np.ptp(grid.cells, axis=0)]
    # One search costs about as much as 20 comparisons of coordinates (5 to 60 were measured in 4
    # to 10 dimensions, for 200 to 10,000 cells).
    if math.prod(spans) < _LARGEST_KEY and 3 ** (d - 1) * 20 <= m * d:
        return _enumerated(grid, spans)
    return _pairwise(grid)


def _enumerated(grid: Grid, spans: list[int]) -> tuple[NDArray, NDArray]:
    """`neighborhood` by looking up each of the 3^d - 1 neighbors' numbers."""
    cells, offsets, weights = grid
    d = cells.shape[1]
    strides = [math.prod(spans[k + 1 :]) for k in range(d)]
    key = (cells - (cells.min(axis=0) - 1)) @ np.array(strides, np.int64)
    padded = np.append(key, _LARGEST_KEY)
    moments = weights[:, None] * offsets
    total, moment = weights.copy(), moments.copy()
    # Each pair of cells is found once, from the smaller number, and serves both. Neighbors that
    # differ in the last coordinate only are consecutive in the order: one search finds all three.
    for first in itertools.product((-1, 0, 1), repeat=d - 1):
        jump = sum(f * s for f, s in zip(first, strides[:-1], strict=True))
        if jump < 0:
            continue
        lasts = (1,) if jump == 0 else (-1, 0, 1)
        neighbor_key = key + (jump + lasts[0])
        position = np.searchsorted(key, neighbor_key)
        for last in lasts:
            occupied = padded[position] == neighbor_key
            i = np.flatnonzero(occupied)
            j = position[i]
            direction = np.array([*first, last], np.float64)
            total[i] += weights[j]
            total[j] += weights[i]
            moment[i] += moments[j] + weights[j, None] * direction
            moment[j] += moments[i] - weights[i, None] * direction
            position += occupied
            neighbor_key += 1
    return total, moment


def _pairwise(grid: Grid) -> tuple[NDArray, NDArray]:
    """`neighborhood` by comparing all occupied cells, for many dimensions."""
    m, d = grid.cells.shape
    cells = _close_gaps(grid.cells)
    spans = np.ptp(cells, axis=0)
    # The widest column first, which leaves the fewest pairs for the others; in a column that
    # spans two cells, all rows are neighbors.
    columns = np.argsort(-spans, kind="stable")[: max(1, int((spans > 1).sum()))]
    order = np.argsort(cells[:, columns[0]], kind="stable")
    cells, weights = cells[order], grid.weights[order]
    column = cells[:, columns[0]]
    moments = weights[:, None] * (grid.offsets[order] + cells)
    # In the smallest integer type that holds their differences: comparing is memory-bound.
    narrow = (cells - cells.min(axis=0)).astype(np.min_scalar_type(-int(spans.max()) - 1))
    total, moment = np.empty(m), np.empty((m, d))
    start = 0
    while start < m:
        # Sorted by the widest coordinate, the neighbors of a block are contiguous rows.
        low = np.searchsorted(column, column[start] - 1)
        stop = min(m, start + max(1, _BLOCK // max(m - int(low), 1)))
        high = np.searchsorted(column, column[stop - 1] + 1, side="right")
        is_neighbor = _neighbor_matrix(narrow[start:stop], narrow[low:high], columns)
        total[start:stop] = is_neighbor @ weights[low:high]
        sums = is_neighbor @ moments[low:high]
        moment[start:stop] = sums - total[start:stop, None] * cells[start:stop]
        start = stop
    back = np.argsort(order)
    return total[back], moment[back]


def _neighbor_matrix(
    rows: NDArray, candidates: NDArray, columns: NDArray
) -> NDArray | sparse.csr_array:
    """Which of `candidates` are neighbors of `rows` in all columns, 0 or 1, float64 `[a, b]`."""
    is_neighbor = np.ones((len(rows), len(candidates)), bool)
    remaining = list(columns)
    while remaining and np.count_nonzero(is_neighbor) * _SPARSE >= is_neighbor.size:
        k = remaining.pop(0)
        is_neighbor &= np.abs(rows[:, k, None] - candidates[None, :, k]) <= 1
    if not remaining:
        return is_neighbor.astype(np.float64)
    # Few pairs are left: from here on the other columns are compared for them alone.
    i, j = is_neighbor.nonzero()
    for k in remaining:
        keep = np.abs(rows[i, k] - candidates[j, k]) <= 1
        i, j = i[keep], j[keep]
    return sparse.csr_array((np.ones(len(i)), (i, j)), shape=is_neighbor.shape)


def _close_gaps(cells: NDArray) -> NDArray:
    """Compressed coordinates with the same neighbors: differences above 2 in a column become 2."""
    closed = np.empty_like(cells)
    for k, column in enumerate(cells.T):
        values, inverse = np.unique(column, return_inverse=True)
        closed[:, k] = np.concatenate([[0], np.cumsum(np.minimum(np.diff(values), 2))])[inverse]
    return closed


def group(cells: NDArray) -> tuple[NDArray, NDArray]:
    """Distinct rows of `cells` int64 `[n, d]` in lexicographic order, and each row's index there.

    NumPy's `unique(axis=0)` sorts whole rows; packing them into one number each is several times
    faster.

    Returns:
        int64 `[m, d]` and int64 `[n]`.

    Example:
        >>> unique, index = group(np.array([[4, 1], [-2, 9], [4, 1]]))
        >>> unique.tolist(), index.tolist()
        ([[-2, 9], [4, 1]], [1, 0, 1])
    """
    n = len(cells)
    key, size = np.zeros(n, np.int64), 1
    for column in cells.T:
        low = int(column.min())
        span = int(column.max()) - low + 1
        if size * span >= _LARGEST_KEY:
            key, size = _rank(key, size)
            column, span = _rank(column - low, span)
            low = 0
        key = key * span + (column - low)
        size *= span
    key, m = _rank(key, size)
    member = np.empty(m, np.int64)
    member[key] = np.arange(n)
    return cells[member], key


def _rank(values: NDArray, size: int) -> tuple[NDArray, int]:
    """Replaces integers 0 to `size - 1`, `[n]`, by their ranks; returns the number of ranks too."""
    n = len(values)
    if size <= max(4 * n, 2**16):  # counting is then faster than sorting
        used = np.zeros(size, bool)
        used[values] = True
        ranks = np.cumsum(used) - 1
        return ranks[values], int(ranks[-1]) + 1
    order = np.argsort(values)
    ordered = values[order]
    ranks = np.empty(n, np.int64)
    ranks[order] = np.concatenate([[0], np.cumsum(ordered[1:] != ordered[:-1])])
    return ranks, int(ranks[order[-1]]) + 1
