"""GridShift: mode seeking on a grid, which determines the number of clusters.

A scikit-learn estimator without JAX. First come the occupied cells, then the choice of a bandwidth
without labels, which is our addition, then the estimator. Cells are sorted, and moved by array
operations in float64, so that the cost grows with the number of occupied cells. The thresholds of
the choice were set on one half of generated data sets; `experiments/log.md` compares the rule with
others on the other half.

References:
    Enhancing Contrastive Clustering with Negative Pair-guided Regularization (NRCC), section 3.6.
    Kumar et al., GridShift: A Faster Mode-seeking Algorithm for Image Segmentation and Object
    Tracking, CVPR 2022.
"""

import math
import sys
from typing import Any, NamedTuple, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import KDTree
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import silhouette_samples
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.utils.validation import check_is_fitted, validate_data

from cluster_jax.clustering.base import CLEAR, ONE, UNCLEAR
from cluster_jax.clustering.copies import digests
from cluster_jax.clustering.representation import LARGEST
from cluster_jax.core import checks
from cluster_jax.core.arrays import numeric
from cluster_jax.core.checks import InputError

STOPS = ("fixed_point", "no_merge")
# Cell numbers up to here are exact in float64, and their neighbors too.
_FARTHEST_CELL = 2**53 - 4
# The shift has converged when no centroid moves by more than this fraction of a cell.
_MIN_MOVE = 1e-9


class Grid(NamedTuple):
    """Occupied cells in lexicographic order.

    Positions inside the cells have full precision anywhere, and stay the same if the data are
    shifted by whole cells.

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
        """Returns the centroids of the cells in the unit of the data, float64 `[m, d]`.

        `bandwidth` is the side of a cell, with which the cells were made.
        """
        return self.cells * bandwidth + self.offsets * bandwidth


def bin_points(points: NDArray, bandwidth: float) -> tuple[NDArray, NDArray]:
    """Returns the cells floor(x / h) int64 `[n, d]`, and positions inside these, float64 `[n, d]`.

    Args:
        points: float64 `[n, d]`, with at least one row.
        bandwidth: side h of a cell, above 0; the positions have it as their unit, and are 0 to 1.

    Raises:
        InputError: a coordinate is not finite, or so many bandwidths from 0 that its cell has no
            exact number.

    Example:
        >>> cells, offsets = bin_points(np.array([[3.0], [-0.5]]), 2.0)
        >>> cells.tolist(), offsets.tolist()
        ([[1], [-1]], [[0.5], [0.75]])
    """
    with np.errstate(over="ignore", invalid="ignore"):
        floors = np.floor(points / bandwidth)
    # Infinity after an overflow fails the check too.
    if not (floors.max() <= _FARTHEST_CELL and floors.min() >= -_FARTHEST_CELL):
        raise InputError(
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
    """Returns the grid of the occupied cells, and each point's index in it, int64 `[n]`.

    Args:
        cells: int64 `[n, d]`, the cell of each point.
        offsets: float64 `[n, d]`, positions inside the cells, in bandwidths.
        weights: float64 `[n]`, positive; None: all are one.

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
    """Returns sums over the 3^d cells around each cell, itself included.

    Returns:
        The sum of the weights, float64 `[m]`, and the sum of weight times position, float64
        `[m, d]`. Positions are in bandwidths, from the lower corner of the cell in the center.

    Example:
        >>> grid = Grid(np.array([[0], [1], [5]]), np.array([[0.5], [0.5], [0.5]]), np.ones(3))
        >>> total, moment = neighborhood(grid)
        >>> total.tolist(), moment.tolist()
        ([2.0, 2.0, 1.0], [[2.0], [0.0], [0.5]])
    """
    cells, offsets, weights = grid
    i, j = KDTree(cells).query_pairs(1, p=np.inf, output_type="ndarray").T

    def to_both(of_i: NDArray, of_j: NDArray) -> NDArray:
        return np.bincount(i, of_i, len(cells)) + np.bincount(j, of_j, len(cells))

    moment = weights[:, None] * offsets
    for k, own in enumerate(moment.T.copy()):
        step = cells[j, k] - cells[i, k]
        moment[:, k] += to_both(own[j] + weights[j] * step, own[i] - weights[i] * step)
    return weights + to_both(weights[j], weights[i]), moment


def group(cells: NDArray) -> tuple[NDArray, NDArray]:
    """Returns the distinct rows of `cells` int64 `[n, d]`, sorted, and the index of each row there.

    The result is that of NumPy's `unique(axis=0, return_inverse=True)`. Where the cells in the box
    around all rows have numbers in int64, these are sorted, which takes a tenth of the time. There
    must be at least one row.

    Example:
        >>> unique, index = group(np.array([[4, 1], [-2, 9], [4, 1]]))
        >>> unique.tolist(), index.tolist()
        ([[-2, 9], [4, 1]], [1, 0, 1])
    """
    low = cells.min(axis=0)
    sides = [int(side) + 1 for side in cells.max(axis=0) - low]
    if math.prod(sides) > np.iinfo(np.int64).max:
        unique, index = np.unique(cells, axis=0, return_inverse=True)
        return unique, index.reshape(-1)
    numbers = np.ravel_multi_index(tuple((cells - low).T), sides)
    _, first, index = np.unique(numbers, return_index=True, return_inverse=True)
    return cells[first], index


class Modes(NamedTuple):
    """Result of a shift.

    Attributes:
        grid: the k modes as cells.
        mode_of_cell: int64 `[m]`, for each cell before the shift the index of its mode in `grid`.
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
    """Returns the cells of points, the modes, and the index of each point's mode, int64 `[n]`.

    Args:
        points: float64 `[n, d]`, finite, with at least one row.
        bandwidth: side of a cell, above 0.
        stop: stop rule of the shift, see `shift`.
        max_iter: maximum number of iterations, see `shift`.

    Raises:
        InputError: the points are too many bandwidths from 0, see `bin_points`.

    Example:
        >>> grid, modes, labels = seek(np.array([[0.5], [0.7], [6.2]]), 1.0)
        >>> len(grid.cells), modes.n_iter, labels.tolist()
        (2, 1, [0, 0, 1])
    """
    grid, cell_of_row = collect(*bin_points(points, bandwidth))
    modes = shift(grid, stop=stop, max_iter=max_iter)
    return grid, modes, modes.mode_of_cell[cell_of_row]


def shift(grid: Grid, *, stop: str = "fixed_point", max_iter: int = 500) -> Modes:
    """Returns the modes to which all cells move, all at once, until convergence.

    A cell moves to the weighted mean of the centroids in the 3^d cells around it, itself included;
    cells that move to the same place on the grid merge. The authors' C++ differs: it relabels one
    cell after another, truncates toward zero, and stops by a signed sum.

    Args:
        grid: m occupied cells.
        stop: `"fixed_point"`: until nothing changes its cell, nothing merges, and no centroid moves
            by more than 1e-9 bandwidths; `"no_merge"`: until the first iteration without a merge,
            whose shift is applied (the authors' rule).
        max_iter: maximum number of iterations. If it is reached, `converged` of the result is
            False, and nothing warns.

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
        grid, index = collect(grid.cells + step.astype(np.int64), offsets, grid.weights)
        mode_of_cell = index[mode_of_cell]
        if is_converged or (stop == "no_merge" and len(grid.cells) == before):
            return Modes(grid, mode_of_cell, iteration, True)
    return Modes(grid, mode_of_cell, max_iter, False)


# The scan covers bandwidths from 1/100 to 1/2 of the data's extent, 10 % apart. Finer cells hold
# single rows even if the data have clusters; coarser ones make everything one neighborhood.
_FINEST, _COARSEST, _RATIO = 0.01, 0.5, 1.1
# The scan clusters at most 10,000 rows, so that its cost does not grow with the set, and scores
# 1,000 of them: their silhouettes need all pairwise distances.
_CLUSTERED, _SCORED = 10_000, 1_000
# `min_cluster_size`: number of rows, and fraction of the cluster of the median row. In generated
# sets, clusters ten times smaller than the largest one must count, and outliers in clusters of a
# few rows must not.
_MIN_ROWS, _MIN_FRACTION = 3, 0.05
# Scores this close to the best count as equal: splitting a fragment off a cluster hardly changes
# the score.
_TOLERANCE = 0.02
# Score of separate clusters. On the tuning halves sets of several blobs score 0.66 to 0.85,
# everything else (one blob, uniform noise, moons) 0.17 to 0.56.
_CLEAR_SCORE = 0.6
# One cluster: at this bandwidth (in extents) and above, one cluster has this fraction of the
# rows. A single blob does so from 0.04-0.09 up; noise and moons stay split up to 0.12-0.16.
_MAX_SPLIT_BANDWIDTH, _MIN_LARGEST_FRACTION = 0.115, 0.8
# Iterations of one fit of the scan: separate modes converge in about ten, those that still drift
# after fifty get no score.
_ITERATIONS = 50


class BandwidthCurve(NamedTuple):
    """Result of a scan over bandwidths.

    Attributes:
        bandwidths: float64 `[b]`, ascending.
        n_clusters: int64 `[b]`, clusters of at least `min_cluster_size`.
        scores: float64 `[b]`, below 1; NaN where fewer than two clusters are that large, or the
            shift did not converge.
        best_index: index of the selected bandwidth.
        verdict: `"clear"`: the score is that of separate clusters; `"one_cluster"`: the score is
            lower, and a small bandwidth already puts most rows into one cluster; else `"unclear"`.
    """

    bandwidths: NDArray
    n_clusters: NDArray
    scores: NDArray
    best_index: int
    verdict: str


def min_cluster_size(sizes: NDArray) -> float:
    """Returns the size from which a cluster counts; the rows of smaller clusters are outliers.

    The threshold is 3 rows or, if that is more, 5 % of the size of the cluster that holds the
    median row when rows are ordered by the size of their cluster. It is at most the size of the
    largest cluster.

    Args:
        sizes: number of rows of each cluster, `[k]`, in any order; at least one cluster.

    Example:
        >>> sizes = np.array([100, 6, 5, 2, 1])
        >>> sizes >= min_cluster_size(sizes)
        array([ True,  True,  True, False, False])
    """
    ascending = np.sort(sizes)
    median = np.searchsorted(np.cumsum(ascending), ascending.sum() / 2)
    median_size = float(ascending[min(median, len(sizes) - 1)])
    size = max(_MIN_ROWS, _MIN_FRACTION * median_size)
    return min(size, float(ascending[-1]))


def scan(
    points: NDArray, *, stop: str = "fixed_point", max_iter: int = 500, seed: int = 0
) -> BandwidthCurve:
    """Returns the scores of bandwidths on a logarithmic grid, and the bandwidth that is chosen.

    The score is the mean silhouette (Rousseeuw 1987) of the scored rows. Rows of clusters below
    `min_cluster_size` count as 0, so that a few outliers hardly change it. The bandwidths within
    0.02 of the highest score are compared. Of those with the fewest clusters, the middle one is
    chosen, because more clusters at the same score are fragments; if no bandwidth has a score, the
    largest one is chosen. The verdict is "clear" if the score of the chosen one is at least 0.6.

    Otherwise the data are one cluster if, from some bandwidth of at most 0.115 of the extent up,
    every bandwidth puts 80 % of the rows into one cluster: uniform noise stays split there. Then
    the middle one of these bandwidths is chosen instead, as it is for equal points. In all other
    cases the verdict is "unclear".

    At most 10,000 rows are clustered, and at most 1,000 of these are scored. Which rows these are
    does not depend on the order of the rows.

    Args:
        points: float64 `[n, d]`, finite, with at least one row.
        stop: stop rule of the shift, see `shift`.
        max_iter: maximum number of iterations; values above 50 count as 50. A bandwidth whose shift
            does not converge gets no score: two of its modes still drift toward each other.
        seed: random seed of the choice of the rows that are scored.

    Raises:
        InputError: the largest absolute coordinate is above 1e150, or below 1e-150 and not 0; or
            the points are so far from 0 that their cells have no exact numbers, see `bin_points`.

    Example:
        >>> curve = scan(np.array([[0.0], [1.0], [2.0], [9.0], [10.0], [11.0]]))
        >>> curve.verdict, int(curve.n_clusters[curve.best_index])
        ('clear', 2)
    """
    points = points[np.argsort(digests(points), kind="stable")[:_CLUSTERED]]
    extent = _extent(points)
    steps = int(np.ceil(np.log(_COARSEST / _FINEST) / np.log(_RATIO))) + 1
    bandwidths = extent * np.geomspace(_FINEST, _COARSEST, steps)

    scored = np.random.default_rng(seed).permutation(len(points))[:_SCORED]
    # Far from the origin, squared distances are differences of large numbers.
    distances = euclidean_distances(points[scored] - points[scored].mean(axis=0))
    np.fill_diagonal(distances, 0)
    n_clusters = np.empty(steps, np.int64)
    largest = np.empty(steps)
    scores = np.full(steps, np.nan)
    rule: dict[str, Any] = {"stop": stop, "max_iter": min(max_iter, _ITERATIONS)}
    for b, bandwidth in enumerate(bandwidths.tolist()):
        _, modes, labels = seek(points, bandwidth, **rule)
        sizes = np.bincount(labels)
        is_large = sizes >= min_cluster_size(sizes)
        n_clusters[b] = is_large.sum()
        largest[b] = sizes.max() / len(labels)
        if modes.converged and n_clusters[b] > 1:
            own = labels[scored]
            scores[b] = _silhouette(distances, np.where(is_large[own], own, -1))
    best, verdict = _choose(bandwidths / extent, n_clusters, largest, scores)
    return BandwidthCurve(bandwidths, n_clusters, scores, best, verdict)


def _extent(points: NDArray) -> float:
    """Returns the largest range of a coordinate from its 1st to its 99th percentile; never 0.

    If this range is 0 in all coordinates, the largest difference of maximum and minimum takes its
    place. For equal points the result is 1, or 2^-40 of the largest absolute entry if that is more.

    Raises:
        InputError: the largest absolute entry is above 1e150, or below 1e-150 and not 0, so that
            squares overflow or vanish in float64.
    """
    size = float(np.abs(points).max())
    if size and not 1 / LARGEST <= size <= LARGEST:
        must = f"X must have its largest entry between {1 / LARGEST:g} and {LARGEST:g}"
        raise InputError(f"{must}, so that squares are numbers; got {size:g}: scale X")
    low, high = np.percentile(points, (1, 99), axis=0)
    inner = high - low
    full = np.ptp(points, axis=0)
    # Equal points: any bandwidth works if its cells still have exact numbers.
    smallest = max(1.0, size * 2.0**-40)
    return float(inner.max()) or float(full.max()) or smallest


def _silhouette(distances: NDArray, labels: NDArray) -> float:
    """Returns the mean silhouette of all rows, in which a row of the label -1 counts as 0.

    The result is NaN if the other rows have fewer than two labels, or each a label of its own.

    Args:
        distances: float `[n, n]`, between all rows.
        labels: int `[n]`, -1 or more.
    """
    rows = np.flatnonzero(labels >= 0)
    among = distances[np.ix_(rows, rows)]
    if not 2 <= len(np.unique(labels[rows])) < len(rows):
        return float("nan")
    return float(silhouette_samples(among, labels[rows], metric="precomputed").sum() / len(labels))


def _choose(
    relative: NDArray, n_clusters: NDArray, largest: NDArray, scores: NDArray
) -> tuple[int, str]:
    """Returns the index of the bandwidth chosen by the rules of `scan`, and its verdict.

    Args:
        relative: bandwidths, ascending, as fractions of the extent of the data.
        n_clusters: number of clusters of at least `min_cluster_size` at each bandwidth.
        largest: fraction of the rows in the largest cluster at each.
        scores: score of each, NaN without one.
    """
    best = len(scores) - 1
    if not np.isnan(scores).all():
        near_best = np.flatnonzero(scores >= np.nanmax(scores) - _TOLERANCE)
        fewest = near_best[n_clusters[near_best] == n_clusters[near_best].min()]
        best = int(fewest[len(fewest) // 2])
        if scores[best] >= _CLEAR_SCORE:
            return best, CLEAR
    # First bandwidth from which on one cluster holds most rows.
    split = np.flatnonzero(largest < _MIN_LARGEST_FRACTION)
    first_merged = int(split[-1]) + 1 if len(split) else 0
    if first_merged < len(scores) and relative[first_merged] <= _MAX_SPLIT_BANDWIDTH:
        return (first_merged + len(scores)) // 2, ONE
    return best, UNCLEAR


class GridShift(ClusterMixin, BaseEstimator):
    """Mode seeking on a grid: finds clusters and their number, in linear time.

    Points are put into cells of side `bandwidth`. The cells move to the weighted mean of their
    neighborhood until convergence, see `shift`, and points follow their cell.

    In more than about ten dimensions hardly any two cells are neighbors, or all are: reduce the
    features first (`cluster_jax.clustering.reduce`). The clusters do not depend on the order of the
    rows, up to rounding, but on where the grid lies.

    Args:
        bandwidth: side of a cell in the unit of the data, or `"auto"`: chosen without labels by
            `scan`.
        stop: `"fixed_point"` or `"no_merge"`, see `shift`.
        max_iter: maximum number of iterations; reaching it warns.
        random_state: seed of the rows that are scored to choose a bandwidth.

    Attributes:
        labels_: int64 `[n]`, the cluster of each row, an index in `cluster_centers_`. Outliers have
            a cluster too.
        outliers_: bool `[n]`, rows of clusters below `min_cluster_size`.
        n_clusters_: k, the number of modes, those of outliers included.
        cluster_centers_: float64 `[k, d]`, the modes, in lexicographic order of their cells.
        cluster_sizes_: float64 `[k]`, rows of each cluster.
        bandwidth_: the bandwidth used.
        n_iter_: number of iterations.
        bandwidth_curve_: the scan's `BandwidthCurve`; None for a numeric bandwidth.

    Example:
        >>> model = GridShift(1.0).fit([[0.5], [0.7], [6.0], [6.2], [6.4]])
        >>> model.labels_.tolist(), model.cluster_centers_.round(2).tolist()
        ([0, 0, 1, 1, 1], [[0.6], [6.2]])
        >>> model.predict([[-0.4], [6.9]]).tolist()
        [0, 1]
    """

    def __init__(
        self,
        bandwidth: float | str = "auto",
        stop: str = "fixed_point",
        max_iter: int = 500,
        random_state: int = 0,
    ) -> None:
        self.bandwidth = bandwidth
        self.stop = stop
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: None = None) -> Self:
        """Finds the modes of `X` float `[n, d]`; `y` is ignored.

        If `fit` raises an error, the results of an earlier fit stay.

        Raises:
            InputError: an argument is out of range, or `X` is not finite, has no rows, or is too
                large or too many bandwidths from 0, see `scan` and `bin_points`.
            TypeError: `X` cannot be converted to an array of numbers, such as a sparse matrix.
        """
        if self.bandwidth != "auto":
            limits = sys.float_info.min, sys.float_info.max
            checks.between("bandwidth, if it is not 'auto',", cast(float, self.bandwidth), *limits)
        checks.one_of("stop", self.stop, STOPS)
        checks.whole("max_iter", self.max_iter, 1)
        checks.whole("random_state", self.random_state, 0)
        points = numeric(X, "X").astype(np.float64)
        rule: dict[str, Any] = {"stop": self.stop, "max_iter": self.max_iter}
        curve = None
        if self.bandwidth == "auto":
            curve = scan(points, **rule, seed=self.random_state)
            bandwidth = float(curve.bandwidths[curve.best_index])
        else:
            bandwidth = float(self.bandwidth)
        grid, modes, labels = seek(points, bandwidth, **rule)
        if not modes.converged:
            checks.warn(
                f"GridShift did not converge in {self.max_iter} iterations: raise max_iter or "
                "choose another bandwidth",
                2,
                ConvergenceWarning,
            )
        # Set last, so that a failed fit keeps the previous one.
        validate_data(self, X, reset=True, skip_check_array=True)
        self.bandwidth_curve_ = curve
        self.bandwidth_ = bandwidth
        self._grid = grid
        self._modes = modes
        self.labels_ = labels
        self.n_iter_ = modes.n_iter
        self.cluster_centers_ = modes.grid.centers(bandwidth)
        self.n_clusters_ = len(self.cluster_centers_)
        self.cluster_sizes_ = modes.grid.weights
        is_small = self.cluster_sizes_ < min_cluster_size(self.cluster_sizes_)
        self.outliers_ = is_small[self.labels_]
        return self

    def predict(self, X: ArrayLike) -> NDArray:
        """Returns the cluster of each row of `X` float `[n, d]`, int64 `[n]`.

        The cluster of a row is that of the nearest cell with training points, by the Chebyshev
        distance of the cells' numbers. Rows do not affect each other.

        Raises:
            NotFittedError: the estimator is not fitted.
            ValueError: `X` is not finite, has a different number of columns than in `fit`, or is
                too many bandwidths from 0.
            TypeError: `X` cannot be converted to an array of numbers.
        """
        check_is_fitted(self)
        points = numeric(X, "X").astype(np.float64)
        validate_data(self, X, reset=False, skip_check_array=True)
        cells = bin_points(points, self.bandwidth_)[0]
        return self._modes.mode_of_cell[KDTree(self._grid.cells).query(cells, p=np.inf)[1]]
