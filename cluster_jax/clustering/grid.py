"""The table of occupied cells of a grid, its neighborhoods and their shift: GridShift's engine.

Cells are kept in a sorted table and moved by array operations, so the cost follows the number of
occupied cells, not of points. Plain NumPy on the host, float64 throughout.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

# A centroid that moves less than this part of a cell rests.
_AT_REST = 1e-9
# Cell numbers up to here are exact in float64, and their neighbors too.
_FARTHEST_CELL = 2**53 - 4
# Packed cell numbers stay below, so that int64 never wraps.
_LARGEST_KEY = 2**62
# Elements of one block of the pairwise comparison (float64: 32 MB).
_BLOCK = 2**22
# Below one pair in so many, pairs are kept as a list.
_SPARSE = 16


class Table(NamedTuple):
    """Occupied cells in lexicographic order.

    `cells` int64 `[m, d]` are cell numbers, `offsets` float64 `[m, d]` the centroids' positions
    inside their cells in bandwidths (0 to 1), `weights` float64 `[m]` the points' total weights.
    Positions relative to the cell keep full precision anywhere and do not change at all when the
    data are moved by whole cells.
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
    """
    with np.errstate(over="ignore", invalid="ignore"):
        floors = np.floor(points / bandwidth)
    # The comparison is written so that an overflow to infinity fails it too.
    if not (floors.max() <= _FARTHEST_CELL and floors.min() >= -_FARTHEST_CELL):
        raise ValueError(
            f"coordinates reach {np.abs(points).max():g}, more than {_FARTHEST_CELL:.1e} times the "
            f"bandwidth {bandwidth:g}, where cells can no longer be told apart: subtract the mean "
            "from the data or raise the bandwidth"
        )
    offsets = floors * bandwidth
    np.subtract(points, offsets, out=offsets)
    offsets /= bandwidth
    return floors.astype(np.int64), np.clip(offsets, 0, 1, out=offsets)


class Sums(NamedTuple):
    """What a table of cells is made of; unlike means, sums can be added without rounding anew.

    `cells` int64 `[m, d]` in lexicographic order, `moments` float64 `[m, d]` sums of weight x
    position inside the cell, `weights` float64 `[m]`.
    """

    cells: NDArray
    moments: NDArray
    weights: NDArray

    def table(self) -> Table:
        """The cells with their centroids."""
        return Table(self.cells, self.moments / self.weights[:, None], self.weights)


def accumulate(cells: NDArray, moments: NDArray, weights: NDArray | None) -> tuple[Sums, NDArray]:
    """Adds up what lies in the same cell.

    Args:
        cells: int64 `[n, d]`.
        moments: float64 `[n, d]`, weight x position inside the cell.
        weights: float64 `[n]`, positive; None for ones.

    Returns:
        The sums of the m different cells, and the row of each given one, int64 `[n]`.
    """
    if not len(cells):
        return Sums(cells, moments, np.empty(0)), np.empty(0, np.int64)
    unique, row = group(cells)
    m = len(unique)
    total = np.bincount(row, weights, minlength=m).astype(np.float64)
    sums = [np.bincount(row, column, minlength=m) for column in moments.T]
    return Sums(unique, np.stack(sums, 1), total), row


def collect(cells: NDArray, offsets: NDArray, weights: NDArray | None) -> tuple[Sums, NDArray]:
    """`accumulate` for positions inside cells, float64 `[n, d]`, in place of moments."""
    return accumulate(cells, offsets if weights is None else offsets * weights[:, None], weights)


def shift(table: Table, *, stop: str, max_iter: int) -> tuple[Table, NDArray, int, bool]:
    """Moves all cells at once until they rest.

    Every cell moves to the weighted mean of the current centroids of the occupied cells in its
    3^d neighborhood, its own included; it then belongs to the cell where it landed, and those
    that land together merge. The authors' C++ relabels one cell after another, truncates toward
    zero and stops on a signed sum; this function does none of it.

    Args:
        table: m occupied cells.
        stop: `"fixed_point"`: nothing changes its cell, nothing merges and no centroid moves more
            than 1e-9 bandwidths; `"no_merge"`: after the first iteration without a merge, its
            move applied (the authors' rule).
        max_iter: largest number of iterations.

    Returns:
        Table of the modes, the mode of each given cell int64 `[m]`, iterations made, and whether
        the stop rule was met.
    """
    mode = np.arange(len(table.cells))
    for iteration in range(1, max_iter + 1):
        total, moment = neighborhood(table)
        target = moment / total[:, None]
        step = np.floor(target)
        offsets = target - step
        # A position just below a border can round to the border: it belongs to the next cell.
        border = offsets >= 1
        step[border] += 1
        offsets[border] = 0
        resting = not step.any() and np.abs(target - table.offsets).max() <= _AT_REST
        before = len(table.cells)
        moved = table.cells + step.astype(np.int64)
        unique, row = group(moved)
        if len(unique) < before:
            sums, row = collect(moved, offsets, table.weights)
            table = sums.table()
        else:
            order = np.argsort(row)
            table = Table(unique, offsets[order], table.weights[order])
        mode = row[mode]
        if resting or (stop == "no_merge" and len(unique) == before):
            return table, mode, iteration, True
    return table, mode, max_iter, False


def neighborhood(table: Table) -> tuple[NDArray, NDArray]:
    """Weight and first moment of every cell's 3^d neighborhood.

    Returns:
        Sums of the weights, float64 `[m]`, and of weight x position relative to the cell's own
        corner in bandwidths, float64 `[m, d]`.
    """
    m, d = table.cells.shape
    spans = [int(s) + 3 for s in np.ptp(table.cells, axis=0)]
    # One search costs about as much as 20 comparisons of coordinates (5 to 60 were measured in 4
    # to 10 dimensions, for 200 to 10,000 cells).
    if math.prod(spans) < _LARGEST_KEY and 3 ** (d - 1) * 20 <= m * d:
        return _enumerated(table, spans)
    return _pairwise(table)


def _enumerated(table: Table, spans: list[int]) -> tuple[NDArray, NDArray]:
    """`neighborhood` by looking up each of the 3^d - 1 neighbors' numbers."""
    cells, offsets, weights = table
    d = cells.shape[1]
    strides = [math.prod(spans[k + 1 :]) for k in range(d)]
    key = (cells - (cells.min(axis=0) - 1)) @ np.array(strides, np.int64)
    padded = np.append(key, _LARGEST_KEY)
    own = weights[:, None] * offsets
    total, moment = weights.copy(), own.copy()
    # Each pair of cells is found once, from the smaller number, and serves both. Neighbors that
    # differ in the last coordinate only are consecutive in the table: one search finds all three.
    for first in itertools.product((-1, 0, 1), repeat=d - 1):
        shift_ = sum(f * s for f, s in zip(first, strides[:-1], strict=True))
        if shift_ < 0:
            continue
        lasts = (1,) if shift_ == 0 else (-1, 0, 1)
        wanted = key + (shift_ + lasts[0])
        at = np.searchsorted(key, wanted)
        for last in lasts:
            hit = padded[at] == wanted
            i = np.flatnonzero(hit)
            j = at[i]
            direction = np.array([*first, last], np.float64)
            total[i] += weights[j]
            total[j] += weights[i]
            moment[i] += own[j] + weights[j, None] * direction
            moment[j] += own[i] - weights[i, None] * direction
            at += hit
            wanted += 1
    return total, moment


def _pairwise(table: Table) -> tuple[NDArray, NDArray]:
    """`neighborhood` by comparing occupied cells with each other, for many dimensions."""
    m, d = table.cells.shape
    cells = _close_gaps(table.cells)
    spans = np.ptp(cells, axis=0)
    # The widest column first, which leaves the fewest pairs for the others; of a column that
    # spans two cells only, all are neighbors.
    columns = np.argsort(-spans, kind="stable")[: max(1, int((spans > 1).sum()))]
    order = np.argsort(cells[:, columns[0]], kind="stable")
    cells, weights = cells[order], table.weights[order]
    column = cells[:, columns[0]]
    moments = weights[:, None] * (table.offsets[order] + cells)
    # Numbers in as few bytes as hold their differences: comparing is bound by memory.
    narrow = (cells - cells.min(axis=0)).astype(np.min_scalar_type(-int(spans.max()) - 1))
    total, moment = np.empty(m), np.empty((m, d))
    start = 0
    while start < m:
        # Sorted by the widest coordinate, the neighbors of a block are one stretch of rows.
        low = np.searchsorted(column, column[start] - 1)
        stop = min(m, start + max(1, _BLOCK // max(m - int(low), 1)))
        high = np.searchsorted(column, column[stop - 1] + 1, side="right")
        near = _near(narrow[start:stop], narrow[low:high], columns)
        total[start:stop] = near @ weights[low:high]
        sums = near @ moments[low:high]
        moment[start:stop] = sums - total[start:stop, None] * cells[start:stop]
        start = stop
    back = np.argsort(order)
    return total[back], moment[back]


def _near(rows: NDArray, others: NDArray, columns: NDArray) -> NDArray | sparse.csr_array:
    """Which of `others` are neighbors of `rows` in all columns, 0 or 1, float64 `[a, b]`."""
    near = np.ones((len(rows), len(others)), bool)
    left = list(columns)
    while left and np.count_nonzero(near) * _SPARSE >= near.size:
        k = left.pop(0)
        near &= np.abs(rows[:, k, None] - others[None, :, k]) <= 1
    if not left:
        return near.astype(np.float64)
    # Few pairs are left: from here on column by column for them alone.
    i, j = near.nonzero()
    for k in left:
        keep = np.abs(rows[i, k] - others[j, k]) <= 1
        i, j = i[keep], j[keep]
    return sparse.csr_array((np.ones(len(i)), (i, j)), shape=near.shape)


def _close_gaps(cells: NDArray) -> NDArray:
    """Small coordinates with the same neighbors: differences above 2 in a column become 2."""
    closed = np.empty_like(cells)
    for k, column in enumerate(cells.T):
        values, inverse = np.unique(column, return_inverse=True)
        closed[:, k] = np.concatenate([[0], np.cumsum(np.minimum(np.diff(values), 2))])[inverse]
    return closed


def group(cells: NDArray) -> tuple[NDArray, NDArray]:
    """Distinct rows of `cells` int64 `[n, d]` in lexicographic order, and each row's place there.

    Returns:
        int64 `[m, d]` and int64 `[n]`.
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
