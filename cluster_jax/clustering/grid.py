"""Mode seeking on a grid: occupied cells, their shift to the modes, and new points that follow it.

Cells are kept sorted and moved by array operations, so that the cost grows with the number of
occupied cells, not of points. Plain NumPy on the host, float64 throughout.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cluster_jax.clustering import knn
from cluster_jax.core.arrays import blocks

STOPS = ("fixed_point", "no_merge")
# Cell numbers up to here are exact in float64, and their neighbors too.
_FARTHEST_CELL = 2**53 - 4
# Packed cell numbers stay below, so that int64 never wraps.
_LARGEST_KEY = 2**62
# The shift has converged when no centroid moves by more than this fraction of a cell.
_MIN_MOVE = 1e-9
# New points that are assigned at a time, at least.
_QUERIES = 1_000


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
    cells = _close_gaps(grid.cells)
    moments = grid.weights[:, None] * (grid.offsets + cells)
    total, moment = np.empty(len(cells)), np.empty(cells.shape)
    # In the smallest integers that hold their differences: comparing is memory-bound. The widest
    # column first, which leaves the fewest pairs; in one that spans two cells, all are neighbors.
    spans = np.ptp(cells, axis=0)
    order = np.argsort(-spans, kind="stable")[: max(1, int((spans > 1).sum()))]
    columns = cells.T[order].astype(np.min_scalar_type(-int(spans.max()) - 1))
    for rows in blocks(len(cells), len(cells)):
        i, j = np.nonzero(np.abs(columns[0][rows, None] - columns[0][None, :]) <= 1)
        for column in columns[1:]:
            is_near = np.abs(column[rows][i] - column[j]) <= 1
            i, j = i[is_near], j[is_near]
        near = sparse.csr_array((np.ones(len(i)), (i, j)), shape=(len(cells[rows]), len(cells)))
        total[rows] = near @ grid.weights
        moment[rows] = near @ moments - total[rows, None] * cells[rows]
    return total, moment


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
    unique, ranks = np.unique(values, return_inverse=True)
    return ranks, len(unique)


class Modes(NamedTuple):
    """Result of a shift.

    Attributes:
        grid: the k modes as cells.
        mode_of_cell: int64 `[m]`, mode of each cell before the shift.
        n_iter: number of iterations.
        converged: whether the stop rule was met.
    """

    grid: Grid
    mode_of_cell: NDArray
    n_iter: int
    converged: bool


def seek(
    points: NDArray, bandwidth: float, *, stop: str = "fixed_point", max_iter: int = 500
) -> tuple[Grid, Modes, NDArray]:
    """The grid of points float64 `[n, d]`, its modes, and the mode of each point, int64 `[n]`.

    For the other arguments see `shift`.

    Example:
        >>> grid, modes, labels = seek(np.array([[0.5], [0.7], [6.2]]), 1.0)
        >>> len(grid.cells), modes.n_iter, labels.tolist()
        (2, 1, [0, 0, 1])
    """
    grid, cell_of_row = collect(*bin_points(points, bandwidth))
    modes = shift(grid, stop=stop, max_iter=max_iter)
    return grid, modes, modes.mode_of_cell[cell_of_row]


def shift(grid: Grid, *, stop: str = "fixed_point", max_iter: int = 500) -> Modes:
    """Moves all cells at once until convergence.

    Every cell moves to the weighted mean of the current centroids of the occupied cells in its
    3^d neighborhood, its own included; cells that land in the same cell
    merge. Deviations from the authors' C++: it relabels one cell after another,
    truncates toward zero and stops on a signed sum; this function does not.

    Args:
        grid: m occupied cells.
        stop: `"fixed_point"`: nothing changes its cell, nothing merges and no centroid moves by
            more than 1e-9 bandwidths; `"no_merge"`: after the first iteration without a merge,
            with its shift applied (the authors' rule).
        max_iter: maximum number of iterations.

    Example:
        >>> cells, offsets = np.array([[0], [1], [5]]), np.array([[0.5], [0.5], [0.5]])
        >>> modes = shift(Grid(cells, offsets, np.ones(3)))
        >>> modes.grid.centers(1.0).tolist(), modes.mode_of_cell.tolist(), modes.converged
        ([[1.0], [5.5]], [0, 0, 1], True)
    """
    mode_of_cell = np.arange(len(grid.cells))
    for iteration in range(1, max_iter + 1):
        total, moment = neighborhood(grid)
        target = moment / total[:, None]
        step = np.floor(target)
        offsets = target - step
        # A position just below a border can round to the border: it belongs to the next cell.
        on_border = offsets >= 1
        step[on_border] += 1
        offsets[on_border] = 0
        is_converged = not step.any() and np.abs(target - grid.offsets).max() <= _MIN_MOVE
        before = len(grid.cells)
        moved = grid.cells + step.astype(np.int64)
        unique, index = group(moved)
        if len(unique) < before:
            grid, index = collect(moved, offsets, grid.weights)
        else:
            order = np.argsort(index)
            grid = Grid(unique, offsets[order], grid.weights[order])
        mode_of_cell = index[mode_of_cell]
        if is_converged or (stop == "no_merge" and len(unique) == before):
            return Modes(grid, mode_of_cell, iteration, True)
    return Modes(grid, mode_of_cell, max_iter, False)


def follow(
    points: NDArray, grid: Grid, modes: Modes, bandwidth: float, max_iter: int = 500
) -> tuple[NDArray, NDArray]:
    """Modes of new points, which follow the shift of the grid without moving it.

    A point in an occupied cell gets the mode of that cell. From an empty cell it moves to the mean
    of the grid in its 3^d neighborhood until it meets an occupied cell; where there is no neighbor,
    or `max_iter` is reached, it goes to the nearest mode.

    Args:
        points: float64 `[n, d]`.
        grid: m occupied cells before the shift.
        modes: their k modes.
        bandwidth: side of a cell.
        max_iter: maximum number of moves.

    Returns:
        Numbers of modes, int64 `[n]`; and which points have an empty neighborhood, bool `[n]`.

    Example:
        >>> grid, modes, _ = seek(np.array([[0.5], [7.5]]), 1.0)
        >>> labels, is_isolated = follow(np.array([[0.1], [6.9], [50.0]]), grid, modes, 1.0)
        >>> labels.tolist(), is_isolated.tolist()
        ([0, 1, 1], [False, False, True])
    """
    n, m = len(points), len(grid.cells)
    labels, is_isolated = np.full(n, -1, np.int64), np.zeros(n, bool)
    cells, _ = bin_points(points, bandwidth)
    # In many dimensions all cells are compared with each other: points are taken in blocks.
    step = max(_QUERIES, m)
    for active in np.split(np.arange(n), range(step, n, step)):
        for iteration in range(max_iter):
            # New points join the grid without weight: they follow without attracting others.
            union, index = group(np.concatenate([grid.cells, cells[active]]))
            old, new = index[:m], index[m:]
            mode_of_union = np.full(len(union), -1, np.int64)
            mode_of_union[old] = modes.mode_of_cell
            labels[active] = mode_of_union[new]
            is_open = labels[active] < 0
            active, new = active[is_open], new[is_open]
            if not len(active):
                break
            joined = Grid(union, np.zeros(union.shape), np.zeros(len(union)))
            joined.offsets[old], joined.weights[old] = grid.offsets, grid.weights
            total, moment = neighborhood(joined)
            has_neighbors = total[new] > 0
            if iteration == 0:
                is_isolated[active] = ~has_neighbors
            near = new[has_neighbors]
            moves = np.floor(moment[near] / total[near, None]).astype(np.int64)
            active = active[has_neighbors][moves.any(axis=1)]
            cells[active] += moves[moves.any(axis=1)]
    stranded = np.flatnonzero(labels < 0)
    if len(stranded):
        # Far from the origin, squared distances are differences of large numbers.
        centers = modes.grid.centers(bandwidth)
        origin = centers.mean(axis=0)
        labels[stranded] = knn.nearest(points[stranded] - origin, centers - origin, 1).indices[:, 0]
    return labels, is_isolated
