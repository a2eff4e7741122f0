"""GridShift: mode seeking on a grid of cells, which finds the number of clusters by itself.

Needs no JAX. Source: NRCC (papers/nrcc.txt) section 3.6 and Kumar et al., "GridShift: A Faster
Mode-seeking Algorithm for Image Segmentation and Object Tracking", CVPR 2022.
"""

import math
import numbers
import warnings
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from cluster_jax.clustering import bandwidth as bandwidths
from cluster_jax.clustering.cells import (
    Table,
    bin_points,
    group,
    neighbourhood,
    shift,
    tabulate,
)

STOPS = ("fixed_point", "no_merge")

# Elements of one block of distances to the modes (float64: 32 MB).
_BLOCK = 2**22


class GridShift(ClusterMixin, BaseEstimator):
    """Mode seeking on a grid: clusters without a given number of clusters, in linear time.

    Points are binned to cells of side `bandwidth` with the grid's origin at 0; the cells then
    drift to the weighted mean of their neighbourhood until they rest (see `shift`). Points follow
    their cell. All sums are in float64.

    The partition does not depend on the order of the rows (up to rounding of sums). It depends on
    the grid's origin, except for moves by whole cells.

    Args:
        bandwidth: side of a cell in the unit of the data, or `"auto"`: chosen without labels by
            `cluster_jax.clustering.bandwidth.scan`.
        stop: `"fixed_point"` or `"no_merge"`, see `shift`.
        max_iter: largest number of iterations; reaching it warns.

    Attributes:
        labels_: int64 `[n]`, rows of `cluster_centers_`.
        cluster_centers_: float64 `[k, d]`, the modes, in lexicographic order of their cells.
        bandwidth_: the bandwidth used.
        n_iter_: iterations made.
        bandwidth_curve_: the scan's `Curve`; None for a numeric bandwidth.
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
            ValueError: an option, the points or the weights are not usable; says which and why.
        """
        self._check_options()
        X = self._points(X, reset=True)
        weights = _check_weights(sample_weight, len(X))
        if self.bandwidth == "auto":
            kept = X if weights is None else X[weights > 0]
            self.bandwidth_curve_ = bandwidths.scan(kept, self._partition)
            self.bandwidth_ = float(self.bandwidth_curve_.bandwidths[self.bandwidth_curve_.chosen])
        else:
            self.bandwidth_curve_ = None
            self.bandwidth_ = float(self.bandwidth)

        cells, offsets = bin_points(X, self.bandwidth_)
        used = slice(None) if weights is None else weights > 0
        mass = None if weights is None else weights[used]
        self._table, row = tabulate(cells[used], offsets[used], mass)
        modes, self._modes, self.n_iter_, met = shift(
            self._table, stop=self.stop, max_iter=self.max_iter
        )
        if not met:
            warnings.warn(
                f"GridShift did not meet its stop rule in {self.max_iter} iterations: raise "
                "max_iter or choose another bandwidth",
                ConvergenceWarning,
                stacklevel=2,
            )
        self.cluster_centers_ = modes.centers(self.bandwidth_)
        self.labels_ = np.empty(len(X), np.int64)
        self.labels_[used] = self._modes[row]
        if weights is not None and not weights.all():
            self.labels_[~used] = self._follow(X[~used])
        return self

    def predict(self, X: ArrayLike) -> NDArray:
        """Cluster of each row of `X` float `[n, d]`, int64 `[n]`; rows do not affect each other.

        A point in a cell that held training points gets their label. From an empty cell it moves
        to the mean of the training points in the 3^d neighbourhood until it meets an occupied
        cell; where there is no neighbour it goes to the nearest mode.

        Raises:
            ValueError: the points are not usable or have another number of columns than in `fit`.
        """
        check_is_fitted(self)
        return self._follow(self._points(X, reset=False))

    def _follow(self, points: NDArray) -> NDArray:
        m = len(self._table.cells)
        labels = np.full(len(points), -1, np.int64)
        cells, _ = bin_points(points, self.bandwidth_)
        open_ = np.arange(len(points))
        for _ in range(self.max_iter):
            # Points without weight join the table: they feel the others and are not felt.
            union, place = group(np.concatenate([self._table.cells, cells[open_]]))
            known = np.full(len(union), -1, np.int64)
            known[place[:m]] = self._modes
            found = known[place[m:]]
            labels[open_] = found
            missing = found < 0
            open_, own = open_[missing], place[m:][missing]
            if not len(open_):
                break
            joined = Table(union, np.zeros(union.shape), np.zeros(len(union)))
            joined.offsets[place[:m]] = self._table.offsets
            joined.weights[place[:m]] = self._table.weights
            total, moment = neighbourhood(joined)
            felt = total[own] > 0
            step = np.floor(moment[own[felt]] / total[own[felt], None]).astype(np.int64)
            moves = step.any(axis=1)
            open_ = open_[felt][moves]
            cells[open_] += step[moves]
            if not len(open_):
                break
        lost = np.flatnonzero(labels < 0)
        if len(lost):
            labels[lost] = _nearest(points[lost], self.cluster_centers_)
        return labels

    def _partition(self, points: NDArray, bandwidth: float) -> tuple[NDArray, bool]:
        table, row = tabulate(*bin_points(points, bandwidth), None)
        _, mode, _, met = shift(table, stop=self.stop, max_iter=self.max_iter)
        return mode[row], met

    def _check_options(self) -> None:
        h = self.bandwidth
        number = isinstance(h, numbers.Real) and not isinstance(h, bool)
        if not (h == "auto" if isinstance(h, str) else number and 0 < h < math.inf):
            raise ValueError(f"bandwidth must be 'auto' or a positive finite number; got {h!r}")
        if self.stop not in STOPS:
            raise ValueError(f"stop must be one of {', '.join(STOPS)}; got {self.stop!r}")
        whole = isinstance(self.max_iter, numbers.Integral)
        if not whole or self.max_iter < 1:
            raise ValueError(f"max_iter must be a positive whole number; got {self.max_iter!r}")

    def _points(self, X: ArrayLike, *, reset: bool) -> NDArray:
        points = _check_points(X)
        validate_data(self, X, reset=reset, skip_check_array=True)
        return points


def _check_points(X: ArrayLike) -> NDArray:
    """`X` as finite float64 `[n, d]`, or one sentence about what is wrong with it."""
    if hasattr(X, "toarray"):
        raise TypeError("sparse input is not supported: pass X.toarray()")
    try:
        array = np.asarray(X)
        if np.iscomplexobj(array):
            raise ValueError("Complex data not supported: pass real coordinates")
        array = np.asarray(array, np.float64)
    except TypeError as error:
        raise TypeError(f"X cannot be read as an array of numbers: {error}") from error
    if array.ndim != 2:
        raise ValueError(
            f"X must be a 2-D array of points by coordinates; got shape {array.shape}. "
            "Reshape your data with X.reshape(-1, 1) if it has a single coordinate"
        )
    n, d = array.shape
    if n == 0 or d == 0:
        kind = "sample" if n == 0 else "feature"
        raise ValueError(
            f"Found array with 0 {kind}(s) (shape={array.shape}) while a minimum of 1 is required."
        )
    bad = ~np.isfinite(array)
    if bad.any():
        i, k = np.argwhere(bad)[0]
        raise ValueError(
            f"X must be finite but contains NaN or infinity in {int(bad.sum())} places, first "
            f"{array[i, k]} in row {i}, column {k}: drop or fill those rows"
        )
    return array


def _check_weights(weights: ArrayLike | None, n: int) -> NDArray | None:
    if weights is None:
        return None
    weights = np.asarray(weights, np.float64)
    if weights.shape != (n,):
        raise ValueError(
            f"sample_weight must have one number for each of the {n} rows; got shape "
            f"{weights.shape}"
        )
    if not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise ValueError(
            "sample_weight must be finite, nowhere negative and not zero everywhere; got numbers "
            f"from {weights.min()} to {weights.max()}"
        )
    return weights


def _nearest(points: NDArray, centers: NDArray) -> NDArray:
    """Row of `centers` `[k, d]` closest to each of `points` `[n, d]`, by blocks of bounded size."""
    nearest = np.empty(len(points), np.int64)
    rows = max(1, _BLOCK // centers.size)
    for start in range(0, len(points), rows):
        block = points[start : start + rows]
        apart = block[:, None, :] - centers[None, :, :]
        nearest[start : start + rows] = np.argmin((apart**2).sum(axis=2), axis=1)
    return nearest
