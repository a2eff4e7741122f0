"""GridShift: mode seeking on a grid, which determines the number of clusters.

A scikit-learn estimator that needs no JAX. Source: NRCC (papers/nrcc.txt) section 3.6 and Kumar et
al., "GridShift: A Faster Mode-seeking Algorithm for Image Segmentation and Object Tracking", CVPR
2022.
"""

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
from cluster_jax.clustering.grid import STOPS, follow, seek
from cluster_jax.core import checks
from cluster_jax.core.arrays import distances_to_centers, numeric


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
    their neighborhood until convergence (see `grid.shift`). Points follow their cell. All sums
    are in float64.

    In more than about ten dimensions a grid works poorly: all cells are compared with each other,
    and hardly any two are neighbors. Reduce first (`cluster_jax.clustering.reduce`).

    The partition does not depend on the order of the rows (up to rounding of sums). It depends on
    the origin of the grid, up to shifts by whole cells.

    Args:
        bandwidth: side of a cell in the unit of the data, or `"auto"`: chosen without labels by
            `cluster_jax.clustering.bandwidth.scan`.
        stop: `"fixed_point"` or `"no_merge"`, see `grid.shift`.
        max_iter: maximum number of iterations; reaching it warns.
        random_state: seed of the rows that the choice of an `"auto"` bandwidth looks at.

    Attributes:
        labels_: int64 `[n]`, rows of `cluster_centers_`.
        outliers_: bool `[n]`, rows of clusters below `bandwidth.min_cluster_size`.
        cluster_centers_: float64 `[k, d]`, the modes, in lexicographic order of their cells.
        cluster_sizes_: float64 `[k]`, rows of each cluster.
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

        Raises:
            ValueError: an argument or the points are out of range.
        """
        self._check_options()
        points = numeric(X, "X").astype(np.float64)
        curve = stability = None
        stop, max_iter, seed = self.stop, self.max_iter, self.random_state
        if self.bandwidth == "auto":
            sample = bandwidths.sample(points, seed)
            curve = bandwidths.scan(sample, stop=stop, max_iter=max_iter, seed=seed)
            bandwidth = float(curve.bandwidths[curve.best_index])
            stability = bandwidths.stability(
                sample, bandwidth, stop=stop, max_iter=max_iter, seed=seed
            )
        else:
            bandwidth = float(self.bandwidth)
        grid, modes, labels = seek(points, bandwidth, stop=stop, max_iter=max_iter)
        if not modes.converged:
            warnings.warn(
                f"GridShift did not converge in {self.max_iter} iterations: raise max_iter or "
                "choose another bandwidth",
                ConvergenceWarning,
                stacklevel=2,
            )
        # Set last, so that a failed fit keeps the previous one.
        validate_data(self, X, reset=True, skip_check_array=True)
        self.bandwidth_curve_, self.stability_, self.bandwidth_ = curve, stability, bandwidth
        self._grid, self._modes, self.labels_ = grid, modes, labels
        self.n_iter_ = modes.n_iter
        self.cluster_centers_ = modes.grid.centers(bandwidth)
        self.cluster_sizes_ = modes.grid.weights
        self._is_large = self.cluster_sizes_ >= bandwidths.min_cluster_size(self.cluster_sizes_)
        self.outliers_ = ~self._is_large[self.labels_]
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

        For arguments and errors see `predict`.
        """
        check_is_fitted(self)
        points = numeric(X, "X").astype(np.float64)
        validate_data(self, X, reset=False, skip_check_array=True)
        labels, is_isolated = follow(
            points, self._grid, self._modes, self.bandwidth_, self.max_iter
        )
        distances = distances_to_centers(points, self.cluster_centers_, labels)
        return Location(labels, distances / self.bandwidth_, is_isolated | ~self._is_large[labels])

    def _check_options(self) -> None:
        h = self.bandwidth
        if isinstance(h, str | bool) or not isinstance(h, numbers.Real):
            is_valid = h == "auto"
        else:
            is_valid = 0 < h <= sys.float_info.max
        if not is_valid:
            raise ValueError(f"bandwidth must be 'auto' or a positive finite number; got {h!r}")
        checks.one_of("stop", self.stop, STOPS)
        checks.whole("max_iter", self.max_iter, 1)
        checks.whole("random_state", self.random_state, 0)
