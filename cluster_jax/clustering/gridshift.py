"""GridShift: mode seeking on a grid, which determines the number of clusters.

A scikit-learn estimator that needs no JAX. Source: NRCC (papers/nrcc.txt) section 3.6 and Kumar et
al., "GridShift: A Faster Mode-seeking Algorithm for Image Segmentation and Object Tracking", CVPR
2022.
"""

import functools
import numbers
import sys
import warnings
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from cluster_jax.clustering import bandwidth as bandwidths
from cluster_jax.clustering.grid import CellSums, accumulate, bin_points, collect
from cluster_jax.clustering.shift import STOPS, follow, shift
from cluster_jax.clustering.validation import check_weights, numeric
from cluster_jax.core.arrays import distances_to_centers

# Iterations of one fit of the scan over bandwidths: separate modes converge in about ten, those
# that still drift after fifty get no score.
_SCAN_ITERATIONS = 50
# New points that are assigned at a time, at least.
_QUERIES = 1_000


class Location(NamedTuple):
    """Where points lie among the clusters.

    Attributes:
        labels: int64 `[n]`, rows of `cluster_centers_`.
        distances: float64 `[n]`, Euclidean, to the mode of that cluster, in bandwidths.
        outliers: bool `[n]`: the point has no fitted row in the 3^d cells around it, or its
            cluster is below `bandwidth.min_cluster_size`.
    """

    labels: NDArray
    distances: NDArray
    outliers: NDArray


class GridShift(ClusterMixin, BaseEstimator):
    """Mode seeking on a grid: finds clusters and their number, in linear time.

    Points are binned to cells of side `bandwidth`; the cells then move to the weighted mean of
    their neighborhood until convergence (see `shift.shift`). Points follow their cell. All sums
    are in float64.

    In more than about ten dimensions a grid works poorly: all cells are compared with each other,
    and hardly any two are neighbors. Reduce first (`cluster_jax.clustering.reduce`).

    The partition does not depend on the order of the rows (up to rounding of sums). It depends on
    the origin of the grid, up to shifts by whole cells.

    Args:
        bandwidth: side of a cell in the unit of the data, or `"auto"`: chosen without labels by
            `cluster_jax.clustering.bandwidth.scan`.
        stop: `"fixed_point"` or `"no_merge"`, see `shift.shift`.
        max_iter: maximum number of iterations; reaching it warns.

    Attributes:
        labels_: int64 `[n]`, rows of `cluster_centers_`; of all rows seen so far, in their order.
        outliers_: bool `[n]`, rows of clusters below `bandwidth.min_cluster_size`.
        cluster_centers_: float64 `[k, d]`, the modes, in lexicographic order of their cells.
        cluster_sizes_: float64 `[k]`, rows (or sum of weights) of each cluster.
        bandwidth_: the bandwidth used.
        n_iter_: number of iterations.
        bandwidth_curve_: the scan's `BandwidthCurve`; None for a numeric bandwidth.
        stability_: agreement of clusterings of random halves, see `bandwidth.stability`; None for
            a numeric bandwidth.

    Example:
        >>> model = GridShift(1.0).fit([[0.5], [0.7], [6.0], [6.2], [6.4]])
        >>> model.labels_.tolist(), model.cluster_centers_.round(2).tolist()
        ([0, 0, 1, 1, 1], [[0.6], [6.2]])
        >>> model.predict([[-0.4], [6.9]]).tolist()
        [0, 1]
    """

    def __init__(
        self, bandwidth: float | str = "auto", stop: str = "fixed_point", max_iter: int = 500
    ) -> None:
        self.bandwidth = bandwidth
        self.stop = stop
        self.max_iter = max_iter

    def fit(self, X: ArrayLike, y: None = None, sample_weight: ArrayLike | None = None) -> Self:
        """Finds the modes of `X` float `[n, d]`.

        Args:
            X: points.
            y: ignored.
            sample_weight: non-negative float `[n]`; a weight of 2 equals two copies of the row,
                and a row of weight 0 only gets a label. The choice of an `"auto"` bandwidth sees
                the rows of positive weight, not their weights.

        Returns:
            The estimator.

        Raises:
            ValueError: an argument, the points or the weights are out of range.
        """
        self._check_options()
        points = numeric(X, "X").astype(np.float64)
        weights = check_weights(sample_weight, len(points))
        if weights is not None and not weights.any():
            raise ValueError("sample_weight must be positive for at least one row; got zeros")
        curve = stability = None
        if self.bandwidth == "auto":
            weighted = points if weights is None else points[weights > 0]
            sample = bandwidths.sample(weighted)
            curve = bandwidths.scan(sample, self._partition)
            bandwidth = float(curve.bandwidths[curve.best_index])
            stability = bandwidths.stability(sample, functools.partial(self._assign, bandwidth))
        else:
            bandwidth = float(self.bandwidth)
        collected = self._collect(points, weights, bandwidth)
        # Set last, so that a failed fit keeps the previous one.
        validate_data(self, X, reset=True, skip_check_array=True)
        self.bandwidth_curve_, self.stability_, self.bandwidth_ = curve, stability, bandwidth
        self._set(*collected)
        return self

    def partial_fit(
        self, X: ArrayLike, y: None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Adds the rows of `X` float `[n, d]` to those seen so far.

        Equal to one `fit` of all rows, up to rounding of sums (exactly on dyadic numbers): the
        sums of cells are added. In addition, only the cell of each row (8 bytes per row) and
        the points of zero-weight rows are stored.

        Raises:
            ValueError: the bandwidth is not a number, or as for `fit`.
        """
        self._check_options()
        self._check_numeric("partial_fit")
        if not hasattr(self, "_sums"):
            return self.fit(X, sample_weight=sample_weight)
        points = self._points(X)
        if float(self.bandwidth) != self.bandwidth_:
            raise ValueError(
                f"bandwidth must stay {self.bandwidth_:g} between calls of partial_fit; got "
                f"{self.bandwidth:g}: call fit to start over"
            )
        weights = check_weights(sample_weight, len(points))
        self._add(*self._collect(points, weights, self.bandwidth_))
        return self

    def merge(self, other: "GridShift") -> Self:
        """Adds all rows that `other` has seen, as if `partial_fit` had been called with them.

        The shards of a large set can thus be fitted separately, even on different machines, and
        combined to the same clusters. The `stop` and `max_iter` of this estimator apply.

        Raises:
            ValueError: the bandwidths are not the same number, or the columns differ.
        """
        check_is_fitted(self)
        check_is_fitted(other)
        for estimator in (self, other):
            estimator._check_numeric("merge")
        if other.bandwidth_ != self.bandwidth_:
            raise ValueError(
                f"other must have the same bandwidth, {self.bandwidth_:g}; got {other.bandwidth_:g}"
            )
        if other.n_features_in_ != self.n_features_in_:
            raise ValueError(
                f"other must have {self.n_features_in_} features; got {other.n_features_in_}"
            )
        self._add(other._sums, other._cell_of_row, other._unweighted)
        return self

    def predict(self, X: ArrayLike) -> NDArray:
        """Cluster of each row of `X` float `[n, d]`, int64 `[n]`; rows do not affect each other.

        A point in a cell that held training points gets their label. From an empty cell it moves
        to the mean of the training points in the 3^d neighborhood until it meets an occupied
        cell; where there is no neighbor it goes to the nearest mode.

        Raises:
            ValueError: `X` is not finite or has a different number of columns than in `fit`.
        """
        return self.locate(X).labels

    def locate(self, X: ArrayLike) -> Location:
        """Cluster, distance to its mode and outlier flag of each row of `X` float `[n, d]`.

        Args and errors are those of `predict`.
        """
        check_is_fitted(self)
        points = self._points(X)
        labels, is_isolated = self._follow(points)
        distances = distances_to_centers(points, self.cluster_centers_, labels)
        return Location(labels, distances / self.bandwidth_, is_isolated | ~self._is_large[labels])

    def _collect(
        self, points: NDArray, weights: NDArray | None, bandwidth: float
    ) -> tuple[CellSums, NDArray, NDArray]:
        """Sums of cells, each row's index there (-1 without weight), and points without weight."""
        cells, offsets = bin_points(points, bandwidth)
        if weights is None or weights.all():
            sums, cell_of_row = collect(cells, offsets, weights)
            return sums, cell_of_row, points[:0]
        weighted = weights > 0
        cell_of_row = np.full(len(points), -1, np.int64)
        sums, cell_of_row[weighted] = collect(cells[weighted], offsets[weighted], weights[weighted])
        return sums, cell_of_row, points[~weighted]

    def _add(self, sums: CellSums, cell_of_row: NDArray, unweighted: NDArray) -> None:
        n_old = len(self._sums.cells)
        pairs = zip(self._sums, sums, strict=True)
        union, index = accumulate(*(np.concatenate(pair) for pair in pairs))
        # Rows without weight keep their -1, which picks the appended last entry.
        old = np.append(index[:n_old], -1)[self._cell_of_row]
        new = np.append(index[n_old:], -1)[cell_of_row]
        self._set(union, np.concatenate([old, new]), np.concatenate([self._unweighted, unweighted]))

    def _set(self, sums: CellSums, cell_of_row: NDArray, unweighted: NDArray) -> None:
        """Shifts the cells and labels all rows."""
        self._sums, self._cell_of_row, self._unweighted = sums, cell_of_row, unweighted
        self._grid = sums.grid()
        modes = shift(self._grid, stop=self.stop, max_iter=self.max_iter)
        if not modes.converged:
            warnings.warn(
                f"GridShift did not converge in {self.max_iter} iterations: raise max_iter or "
                "choose another bandwidth",
                ConvergenceWarning,
                stacklevel=3,
            )
        self._mode_of_cell, self.n_iter_ = modes.mode_of_cell, modes.n_iter
        self.cluster_centers_ = modes.grid.centers(self.bandwidth_)
        self.cluster_sizes_ = modes.grid.weights
        self.labels_ = self._mode_of_cell[cell_of_row]
        if len(unweighted):
            self.labels_[cell_of_row < 0], _ = self._follow(unweighted)
        n_weighted = int((cell_of_row >= 0).sum())
        smallest = bandwidths.min_cluster_size(self.cluster_sizes_, n_weighted)
        self._is_large = self.cluster_sizes_ >= smallest
        self.outliers_ = ~self._is_large[self.labels_]

    def _follow(self, points: NDArray) -> tuple[NDArray, NDArray]:
        """Labels of new points, and which of them have no fitted row around them."""
        # In many dimensions all cells are compared with each other: points are taken in blocks.
        step = max(_QUERIES, len(self._grid.cells))
        blocks = [
            follow(
                points[start : start + step],
                self._grid,
                self._mode_of_cell,
                self.cluster_centers_,
                bandwidth=self.bandwidth_,
                max_iter=self.max_iter,
            )
            for start in range(0, len(points), step)
        ]
        labels, is_isolated = zip(*blocks, strict=True)
        return np.concatenate(labels), np.concatenate(is_isolated)

    def _partition(self, points: NDArray, bandwidth: float) -> tuple[NDArray, bool]:
        """Labels of points at a bandwidth of the scan, and whether the shift converged."""
        sums, cell_of_row = collect(*bin_points(points, bandwidth), None)
        max_iter = min(self.max_iter, _SCAN_ITERATIONS)
        modes = shift(sums.grid(), stop=self.stop, max_iter=max_iter)
        return modes.mode_of_cell[cell_of_row], modes.converged

    def _assign(self, bandwidth: float, half: NDArray, queries: NDArray) -> NDArray:
        """Labels of the queries under a clustering of one half of the rows."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return GridShift(bandwidth, self.stop, self.max_iter).fit(half).predict(queries)

    def _check_options(self) -> None:
        h = self.bandwidth
        if isinstance(h, str):
            is_valid = h == "auto"
        else:
            is_number = isinstance(h, numbers.Real) and not isinstance(h, bool)
            is_valid = is_number and 0 < h <= sys.float_info.max
        if not is_valid:
            raise ValueError(f"bandwidth must be 'auto' or a positive finite number; got {h!r}")
        if self.stop not in STOPS:
            raise ValueError(f"stop must be one of {', '.join(STOPS)}; got {self.stop!r}")
        if not isinstance(self.max_iter, numbers.Integral) or self.max_iter < 1:
            raise ValueError(f"max_iter must be an integer of at least 1; got {self.max_iter!r}")

    def _check_numeric(self, name: str) -> None:
        if self.bandwidth == "auto":
            raise ValueError(
                f"bandwidth must be a number for {name}; got 'auto', which must see all rows at "
                "once: fit a sample with 'auto' and pass its bandwidth_"
            )

    def _points(self, X: ArrayLike) -> NDArray:
        points = numeric(X, "X").astype(np.float64)
        validate_data(self, X, reset=False, skip_check_array=True)
        return points
