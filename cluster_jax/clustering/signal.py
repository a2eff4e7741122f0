"""The part of features that is above noise: rows in which distances say more.

In hundreds of columns of noise the nearest rows of a row are mostly chance, and with them every
graph and every map; in the few principal components that hold structure they are not.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering import outliers
from cluster_jax.clustering.reduce import MAP_COLUMNS
from cluster_jax.core.arrays import blocks

# Rows from which components are estimated, at most.
_SAMPLE = 5_000
# Twice as many components as stand out from the noise are kept: those of small clusters and of
# clusters within clusters stay below it.
_MARGIN = 2
# Components at most, unless none stands out: the cost of comparing two groups grows with the third
# power of their number.
_MOST = 128
# The largest eigenvalue of noise exceeds its limit by about this times m^(-2/3) in m columns.
_FLUCTUATION = 1.5
# Rows are scaled if they lie farther from their center than 2^40, or nearer than 2^-40: squares,
# those of float32 too, in which maps are made, keep their range. Rows still farther than 2^50 are
# put there, in their direction.
_EXPONENT, _REACH = 40, 2.0**50
# Rows in which a column of few values must repeat one.
_FIRST_LOOK = 2_000
# Columns of few values: from this many on (fewer are categories), and at most so many.
_LEVELS = (4, 20)


class Signal(NamedTuple):
    """A projection to the components that hold structure.

    Attributes:
        mean: float64 `[d]`.
        components: float64 `[d, r]`, orthonormal; the identity where all columns are kept.
        exponent: rows are divided by 2 to its power; 0 unless squares would leave their range.
    """

    mean: NDArray
    components: NDArray
    exponent: int = 0

    def project(self, x: NDArray) -> NDArray:
        """Rows `[m, d]` as float64 `[m, r]`, block by block: features are never copied whole."""
        projected = np.empty((len(x), self.components.shape[1]))
        for rows in blocks(*x.shape):
            centered = x[rows].astype(np.float64) - self.mean
            if self.exponent:
                centered = np.ldexp(centered, -self.exponent)
            projected[rows] = _within_reach(centered) @ self.components
        return projected


def fit(x: NDArray) -> Signal:
    """The principal components that stand out from noise, and as many more.

    A component stands out if its variance exceeds what noise of the variance left would reach in
    that many rows and columns (Marchenko and Pastur 1967); those found are taken out in turn. Up to
    three that stand out are a map of their own: no more are taken, nor more than 128. Where none
    stands out, or there are no more than three columns, all columns are kept. Outliers take no part
    in the mean; in the variances they count by their direction only, at the distance of a typical
    row (a generalized spatial sign covariance, Raymaekers and Rousseeuw 2019).

    Args:
        x: float `[n, d]`, finite.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(400, 60))
        >>> x[:, :2] += 9 * (np.arange(400) % 3)[:, None]
        >>> fit(x).components.shape
        (60, 1)
    """
    sample = x[np.arange(min(len(x), _SAMPLE)) * len(x) // min(len(x), _SAMPLE)].astype(np.float64)
    center, typical = outliers.median_distance(sample)
    exponent = _exponent(sample - center)
    if exponent:
        found = fit(np.ldexp(x.astype(np.float64) - center, -exponent))
        return Signal(center + np.ldexp(found.mean, exponent), found.components, exponent)
    mean = outliers.core_mean(x, outliers.is_core(x, center, typical))
    n_columns = x.shape[1]
    everything = Signal(mean, np.eye(n_columns))
    if n_columns <= MAP_COLUMNS or len(x) < 4:
        return everything
    is_core = outliers.is_core(sample, center, typical)
    centered = _within_reach(sample - outliers.core_mean(sample, is_core))
    centered[~is_core] *= typical / np.linalg.norm(centered[~is_core], axis=1, keepdims=True)
    variances, vectors = np.linalg.eigh(centered.T @ centered / len(centered))
    variances, vectors = variances[::-1], vectors[:, ::-1]
    count = _above_noise(variances, len(centered))
    if not count:
        return everything
    if count > MAP_COLUMNS:
        count = min(n_columns, _MARGIN * count, _MOST)
    return Signal(mean, vectors[:, :count])


def _exponent(centered: NDArray) -> int:
    """Power of two by which rows must be divided for the range of their squares, or 0."""
    peaks = np.abs(centered).max(axis=1)
    if not peaks.any():
        return 0
    # One row does not decide: the others would lose their range.
    typical, largest = float(np.median(peaks[peaks > 0])), float(peaks.max())
    if typical <= 2.0**_EXPONENT and largest >= 2.0**-_EXPONENT:
        return 0
    return int(np.frexp(typical if typical > 1 else largest)[1])


def _within_reach(centered: NDArray) -> NDArray:
    """Rows `[n, d]`, those too far put nearer in their direction."""
    if np.abs(centered).max(initial=0) <= _REACH:
        return centered
    peaks = np.abs(centered).max(axis=1, keepdims=True)
    return centered * (_REACH / np.maximum(peaks, _REACH))


def _above_noise(variances: NDArray, n_rows: int) -> int:
    """How many of the descending variances `[d]` are more than noise would have."""
    d = len(variances)
    left = np.cumsum(variances[::-1])[::-1]
    count = 0
    while count < d - 1:
        columns = d - count
        limit = left[count] / columns * (1 + np.sqrt(columns / n_rows)) ** 2
        if variances[count] <= limit * (1 + _FLUCTUATION * min(n_rows, columns) ** (-2 / 3)):
            break
        count += 1
    return count


def order(x: NDArray) -> NDArray:
    """An order of rows `[n, d]` that does not depend on theirs, int64 `[n]`: along a fixed line.

    Example:
        >>> x = np.array([[3.0], [1.0], [2.0]])
        >>> x[order(x)].tolist() == x[::-1][order(x[::-1])].tolist()
        True
    """
    projected = np.zeros(len(x))
    # Column by column: a product of matrices rounds a row differently among others.
    direction = np.random.default_rng(0).normal(size=(x.shape[1],))
    for column, weight in zip(x.T, direction, strict=True):
        column = column.astype(np.float64)
        projected += (column - column.min()) * weight  # a large constant would leave no digits
    return np.argsort(projected, kind="stable")


def dequantize(x: NDArray) -> NDArray:
    """`x` `[n, d]` with columns of few values spread evenly over the gap between two of them.

    Rows on a coarse grid coincide, and each value would be a cluster. Columns of 4 to 20 values, or
    n / 20 if that is more, are spread, with a fixed seed and whatever the order of the rows; others
    stay as they are.

    Example:
        >>> x = np.arange(8.0)[:, None] // 2
        >>> spread = dequantize(x)
        >>> bool((np.abs(spread - x) <= 0.5).all()), len(np.unique(spread))
        (True, 8)
    """
    spread = None
    rng = np.random.default_rng(0)
    # Not every so many rows: sorted ones would repeat less.
    first_rows = np.sort(rng.choice(len(x), min(len(x), _FIRST_LOOK), replace=False))
    for j, column in enumerate(x.T):
        first_look = column[first_rows]
        if len(np.unique(first_look)) == len(first_look):
            continue
        values = np.unique(column)
        if not _LEVELS[0] <= len(values) <= max(_LEVELS[1], len(x) / 20):
            continue
        if spread is None:
            spread, ranked = x.astype(np.float64), order(x)
        spread[ranked, j] += rng.uniform(-0.5, 0.5, len(x)) * np.diff(values).min()
    return x if spread is None else spread
