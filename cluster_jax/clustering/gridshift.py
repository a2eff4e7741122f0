"""GridShift: mode seeking on a grid of cells, which finds the number of clusters by itself.

Needs no JAX. Source: NRCC (papers/nrcc.txt) section 3.6 and Kumar et al., "GridShift: A Faster
Mode-seeking Algorithm for Image Segmentation and Object Tracking", CVPR 2022.
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
from cluster_jax.clustering.grid import (
    Sums,
    Table,
    accumulate,
    bin_points,
    collect,
    group,
    neighborhood,
    shift,
)
from cluster_jax.clustering.validation import check_weights, nearest, numeric

STOPS = ("fixed_point", "no_merge")
# Iterations of one fit of the scan over bandwidths: separate modes rest after about ten, those
# that still crawl after fifty get no score.
_SCAN_ITERATIONS = 50
# Points that are placed at a time, at least.
_QUERIES = 1_000


class Location(NamedTuple):
    """Where points lie among the clusters.

    Attributes:
        labels: int64 `[n]`, rows of `cluster_centers_`.
        distances: float64 `[n]`, Euclidean, to the mode of that cluster, in bandwidths.
        outliers: bool `[n]`: the point has no fitted row in the 3^d cells around it, or its
            cluster is too small to count (see `bandwidth.substantial`).
    """

    labels: NDArray
    distances: NDArray
    outliers: NDArray


class GridShift(ClusterMixin, BaseEstimator):
    """Mode seeking on a grid: clusters without a given number of clusters, in linear time.

    Points are binned to cells of side `bandwidth`; the cells then drift to the weighted mean of
    their neighborhood until they rest (see `shift`). Points follow their cell. All sums are in
    float64.

    In more than about ten dimensions a grid is a poor idea: all cells are compared with each other,
    and hardly any two are neighbors. Reduce first (`cluster_jax.clustering.reduce`).

    The partition does not depend on the order of the rows (up to rounding of sums). It depends on
    where the grid lies, except for moves by whole cells.

    Args:
        bandwidth: side of a cell in the unit of the data, or `"auto"`: chosen without labels by
            `cluster_jax.clustering.bandwidth.scan`.
        stop: `"fixed_point"` or `"no_merge"`, see `shift`.
        max_iter: largest number of iterations; reaching it warns.

    Attributes:
        labels_: int64 `[n]`, rows of `cluster_centers_`; of all rows seen so far, in their order.
        outliers_: bool `[n]`, rows of clusters that are too small to count.
        cluster_centers_: float64 `[k, d]`, the modes, in lexicographic order of their cells.
        cluster_sizes_: float64 `[k]`, rows (or sum of weights) of each cluster.
        bandwidth_: the bandwidth used.
        n_iter_: iterations made.
        bandwidth_curve_: the scan's `Curve`; None for a numeric bandwidth.
        stability_: agreement of clusterings of random halves, see `bandwidth.stability`; None for
            a numeric bandwidth.
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
        points = numeric(X, "X").astype(np.float64)
        weights = check_weights(sample_weight, len(points))
        if weights is not None and not weights.any():
            raise ValueError("sample_weight is zero everywhere: at least one row must count")
        curve = stability = None
        if self.bandwidth == "auto":
            kept = points if weights is None else points[weights > 0]
            some = bandwidths.sample(kept)
            curve = bandwidths.scan(some, self._partition)
            bandwidth = float(curve.bandwidths[curve.chosen])
            stability = bandwidths.stability(some, functools.partial(self._assign, bandwidth))
        else:
            bandwidth = float(self.bandwidth)
        collected = self._collect(points, weights, bandwidth)
        # Only now, so that a fit that fails leaves the last one as it was.
        validate_data(self, X, reset=True, skip_check_array=True)
        self.bandwidth_curve_, self.stability_, self.bandwidth_ = curve, stability, bandwidth
        self._set(*collected)
        return self

    def partial_fit(
        self, X: ArrayLike, y: None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Adds the rows of `X` float `[n, d]` to those seen so far.

        The same as one `fit` of all rows, up to rounding of sums (exactly on dyadic numbers):
        tables of cells are added. Beside the table only each row's cell is kept, 8 bytes a row,
        and the points of rows without weight.

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
                f"partial_fit goes on with bandwidth {self.bandwidth_:g}, with which it began; got "
                f"{self.bandwidth:g}: use fit to begin anew"
            )
        weights = check_weights(sample_weight, len(points))
        self._add(*self._collect(points, weights, self.bandwidth_))
        return self

    def merge(self, other: "GridShift") -> Self:
        """Adds all rows that `other` has seen, as if they had been fitted here after the own ones.

        So the shards of a large set can be fitted apart, on other machines even, and be combined
        to the same clusters. Its own stop rule and max_iter hold.

        Raises:
            ValueError: the bandwidths are not the same number, or the columns differ.
        """
        check_is_fitted(self)
        check_is_fitted(other)
        for estimator in (self, other):
            estimator._check_numeric("merge")
        if other.bandwidth_ != self.bandwidth_:
            raise ValueError(
                "merge needs tables of one grid; got bandwidths "
                f"{self.bandwidth_:g} and {other.bandwidth_:g}"
            )
        if other.n_features_in_ != self.n_features_in_:
            raise ValueError(
                "merge needs points of as many coordinates; got "
                f"{self.n_features_in_} and {other.n_features_in_}"
            )
        self._add(other._sums, other._rows, other._idle)
        return self

    def predict(self, X: ArrayLike) -> NDArray:
        """Cluster of each row of `X` float `[n, d]`, int64 `[n]`; rows do not affect each other.

        A point in a cell that held training points gets their label. From an empty cell it moves
        to the mean of the training points in the 3^d neighborhood until it meets an occupied
        cell; where there is no neighbor it goes to the nearest mode.

        Raises:
            ValueError: the points are not usable or have another number of columns than in `fit`.
        """
        return self.locate(X).labels

    def locate(self, X: ArrayLike) -> Location:
        """Cluster, distance to its mode and outlier flag of each row of `X` float `[n, d]`.

        Args and errors are those of `predict`.
        """
        check_is_fitted(self)
        points = self._points(X)
        labels, alone = self._follow(points)
        apart = np.linalg.norm(points - self.cluster_centers_[labels], axis=1) / self.bandwidth_
        return Location(labels, apart, alone | ~self._counts[labels])

    def _collect(
        self, points: NDArray, weights: NDArray | None, bandwidth: float
    ) -> tuple[Sums, NDArray, NDArray]:
        """Sums of the points' cells, each row's place there (-1 without weight), those points."""
        cells, offsets = bin_points(points, bandwidth)
        if weights is None or weights.all():
            sums, rows = collect(cells, offsets, weights)
            return sums, rows, points[:0]
        used = weights > 0
        rows = np.full(len(points), -1, np.int64)
        sums, rows[used] = collect(cells[used], offsets[used], weights[used])
        return sums, rows, points[~used]

    def _add(self, sums: Sums, rows: NDArray, idle: NDArray) -> None:
        own = len(self._sums.cells)
        pairs = zip(self._sums, sums, strict=True)
        both, place = accumulate(*(np.concatenate(pair) for pair in pairs))
        # A row without weight, -1, stays that: it finds the last entry.
        moved = np.append(place[own:], -1)[rows]
        stay = np.append(place[:own], -1)[self._rows]
        self._set(both, np.concatenate([stay, moved]), np.concatenate([self._idle, idle]))

    def _set(self, sums: Sums, rows: NDArray, idle: NDArray) -> None:
        """Shifts the cells and labels all rows."""
        self._sums, self._rows, self._idle = sums, rows, idle
        self._table = sums.table()
        modes, self._modes, self.n_iter_, met = shift(
            self._table, stop=self.stop, max_iter=self.max_iter
        )
        if not met:
            warnings.warn(
                f"GridShift did not meet its stop rule in {self.max_iter} iterations: raise "
                "max_iter or choose another bandwidth",
                ConvergenceWarning,
                stacklevel=3,
            )
        self.cluster_centers_ = modes.centers(self.bandwidth_)
        self.cluster_sizes_ = modes.weights
        self.labels_ = self._modes[rows]
        if len(idle):
            self.labels_[rows < 0], _ = self._follow(idle)
        self._counts = bandwidths.substantial(self.cluster_sizes_, int((rows >= 0).sum()))
        self.outliers_ = ~self._counts[self.labels_]

    def _follow(self, points: NDArray) -> tuple[NDArray, NDArray]:
        """Labels, and which points have no fitted row around them."""
        # In many dimensions all cells are compared with each other: not too many at a time.
        rows = max(_QUERIES, len(self._table.cells))
        parts = [self._follow_block(points[i : i + rows]) for i in range(0, len(points), rows)]
        labels, alone = zip(*parts, strict=True)
        return np.concatenate(labels), np.concatenate(alone)

    def _follow_block(self, points: NDArray) -> tuple[NDArray, NDArray]:
        m = len(self._table.cells)
        labels = np.full(len(points), -1, np.int64)
        alone = np.zeros(len(points), bool)
        cells, _ = bin_points(points, self.bandwidth_)
        open_ = np.arange(len(points))
        for iteration in range(self.max_iter):
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
            total, moment = neighborhood(joined)
            felt = total[own] > 0
            if iteration == 0:
                alone[open_] = ~felt
            step = np.floor(moment[own[felt]] / total[own[felt], None]).astype(np.int64)
            moves = step.any(axis=1)
            open_ = open_[felt][moves]
            cells[open_] += step[moves]
            if not len(open_):
                break
        lost = np.flatnonzero(labels < 0)
        if len(lost):
            labels[lost] = nearest(points[lost], self.cluster_centers_)
        return labels, alone

    def _partition(self, points: NDArray, bandwidth: float) -> tuple[NDArray, bool]:
        sums, row = collect(*bin_points(points, bandwidth), None)
        limit = min(self.max_iter, _SCAN_ITERATIONS)
        _, mode, _, met = shift(sums.table(), stop=self.stop, max_iter=limit)
        return mode[row], met

    def _assign(self, bandwidth: float, part: NDArray, points: NDArray) -> NDArray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return GridShift(bandwidth, self.stop, self.max_iter).fit(part).predict(points)

    def _check_options(self) -> None:
        h = self.bandwidth
        number = isinstance(h, numbers.Real) and not isinstance(h, bool)
        if not (h == "auto" if isinstance(h, str) else number and 0 < h <= sys.float_info.max):
            raise ValueError(f"bandwidth must be 'auto' or a positive finite number; got {h!r}")
        if self.stop not in STOPS:
            raise ValueError(f"stop must be one of {', '.join(STOPS)}; got {self.stop!r}")
        whole = isinstance(self.max_iter, numbers.Integral)
        if not whole or self.max_iter < 1:
            raise ValueError(f"max_iter must be a positive whole number; got {self.max_iter!r}")

    def _check_numeric(self, name: str) -> None:
        if self.bandwidth == "auto":
            raise ValueError(
                f"{name} needs a numeric bandwidth, because 'auto' must see all rows at once: fit "
                "a sample with 'auto' and give its bandwidth_ here"
            )

    def _points(self, X: ArrayLike) -> NDArray:
        points = numeric(X, "X").astype(np.float64)
        validate_data(self, X, reset=False, skip_check_array=True)
        return points
