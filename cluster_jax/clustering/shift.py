"""Mode seeking on a grid: the shift of occupied cells, and new points that follow it."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering import grid as grids
from cluster_jax.clustering.grid import Grid
from cluster_jax.clustering.validation import nearest

STOPS = ("fixed_point", "no_merge")
# The shift has converged when no centroid moves by more than this fraction of a cell.
_MIN_MOVE = 1e-9


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
        total, moment = grids.neighborhood(grid)
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
        unique, index = grids.group(moved)
        if len(unique) < before:
            grid, index = grids.collect(moved, offsets, grid.weights)
        else:
            order = np.argsort(index)
            grid = Grid(unique, offsets[order], grid.weights[order])
        mode_of_cell = index[mode_of_cell]
        if is_converged or (stop == "no_merge" and len(unique) == before):
            return Modes(grid, mode_of_cell, iteration, True)
    return Modes(grid, mode_of_cell, max_iter, False)


def follow(
    points: NDArray,
    grid: Grid,
    mode_of_cell: NDArray,
    centers: NDArray,
    *,
    bandwidth: float,
    max_iter: int = 500,
) -> tuple[NDArray, NDArray]:
    """Modes of new points, which follow the shift of the grid without moving it.

    A point in an occupied cell gets the mode of that cell. From an empty cell it moves to the mean
    of the grid in its 3^d neighborhood until it meets an occupied cell; where there is no neighbor,
    or `max_iter` is reached, it goes to the nearest mode.

    Args:
        points: float64 `[n, d]`.
        grid: m occupied cells before the shift.
        mode_of_cell: int64 `[m]`, see `Modes`.
        centers: float64 `[k, d]`, positions of the modes.
        bandwidth: side of a cell.
        max_iter: maximum number of moves.

    Returns:
        Labels int64 `[n]`, rows of `centers`; and which points have an empty neighborhood, bool
        `[n]`.

    Example:
        >>> grid = Grid(np.array([[0], [7]]), np.array([[0.5], [0.5]]), np.ones(2))
        >>> new, centers = np.array([[0.1], [6.9], [50.0]]), np.array([[0.5], [7.5]])
        >>> labels, is_isolated = follow(new, grid, np.array([0, 1]), centers, bandwidth=1.0)
        >>> labels.tolist(), is_isolated.tolist()
        ([0, 1, 1], [False, False, True])
    """
    m = len(grid.cells)
    labels = np.full(len(points), -1, np.int64)
    is_isolated = np.zeros(len(points), bool)
    cells, _ = grids.bin_points(points, bandwidth)
    active = np.arange(len(points))
    for iteration in range(max_iter):
        # New points join the grid without weight: they follow the others without attracting them.
        union, index = grids.group(np.concatenate([grid.cells, cells[active]]))
        mode_of_union = np.full(len(union), -1, np.int64)
        mode_of_union[index[:m]] = mode_of_cell
        modes = mode_of_union[index[m:]]
        labels[active] = modes
        unlabeled = modes < 0
        active, place = active[unlabeled], index[m:][unlabeled]
        if not len(active):
            break
        joined = Grid(union, np.zeros(union.shape), np.zeros(len(union)))
        joined.offsets[index[:m]] = grid.offsets
        joined.weights[index[:m]] = grid.weights
        total, moment = grids.neighborhood(joined)
        has_neighbors = total[place] > 0
        if iteration == 0:
            is_isolated[active] = ~has_neighbors
        near = place[has_neighbors]
        step = np.floor(moment[near] / total[near, None]).astype(np.int64)
        moves = step.any(axis=1)
        active = active[has_neighbors][moves]
        cells[active] += step[moves]
        if not len(active):
            break
    stranded = np.flatnonzero(labels < 0)
    if len(stranded):
        labels[stranded] = nearest(points[stranded], centers)
    return labels, is_isolated
