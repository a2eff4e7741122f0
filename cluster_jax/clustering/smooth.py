"""Sharp and smooth rows: features in which clusters are easier to find, learned without labels.

Given features `x_i`, of length one for cosine similarity, `fit` takes three steps.

1. Denoise: center (and scale to length one again), and keep twice as many principal axes as exceed
   the Marchenko-Pastur edge of noise, `s (1 + sqrt(m / n))^2`, where `s` is the mean of the `m`
   remaining variances [1]; the edge is raised by the spread of the largest eigenvalue of noise. Of
   one to three axes above it, at least two and none beside them are kept; without any, all are.
2. Whiten by what neighbors differ in: with `W = mean (x_i - x_j)(x_i - x_j)^T` over the ten nearest
   neighbors j of every row i, shrunk by a tenth towards the identity, the sharp rows are
   `W^(-1/2) x_i`. Directions in which neighbors
   differ are noise, those in which they agree are signal: linear discriminant analysis with
   neighbors in place of classes; relevant component analysis is its relative [2].
3. Smooth: twice, each row becomes the mean of itself and its ten nearest neighbors among the sharp
   rows, `s <- (I + A) s / 11`: a low-pass filter on the graph, as in simplified graph
   convolutions [3].

In more than three axes, rows of the cosine metric get length one after each step.

Cluster the smooth rows; judge clusters by the sharp rows, whose distances no averaging has touched.

References:
    [1] Marchenko and Pastur 1967, Distribution of eigenvalues for some sets of random matrices.
    [2] Bar-Hillel, Hertz, Shental and Weinshall 2003, Learning distance functions using equivalence
        relations.
    [3] Wu et al. 2019, Simplifying graph convolutional networks.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg

from cluster_jax.clustering import knn
from cluster_jax.core import checks
from cluster_jax.core.arrays import blocks, normalize_rows, numeric
from cluster_jax.core.names import counted

METRICS = ("cosine", "euclidean")
# Principal axes at most, and how many are kept for each that stands out from noise.
MAX_AXES, AXES_PER_SIGNAL = 64, 2
# Axes up to which rows keep their lengths, and shapes other than round ones are looked for.
FEW_AXES = 3
# Neighbors of a row, and rounds of averaging over them.
N_NEIGHBORS, N_ROUNDS = 10, 2
# Shrinkage of the neighbors' covariance towards a multiple of the identity.
SHRINKAGE = 0.1
# Rows for each value from which the values of a column are taken to be rounded.
ROWS_PER_VALUE = 20
# Sums of squares of larger numbers leave the range of float64.
LARGEST = 1e150


class Smoother(NamedTuple):
    """A fitted representation of `n` training rows.

    Attributes:
        mean: float64 `[d]`, of the (normalized) rows.
        components: float64 `[d, r]`, principal axes times the whitening.
        is_cosine: whether rows are scaled to length one.
        sharp: float32 `[n, r]`, the denoised and whitened training rows.
        stages: after each round of averaging but the last, float32 `[n, r]`; the first is `sharp`.
        smooth: float32 `[n, r]`, after the last.
    """

    mean: NDArray
    components: NDArray
    is_cosine: bool
    sharp: NDArray
    stages: tuple[NDArray, ...]
    smooth: NDArray

    def project(self, x: NDArray) -> NDArray:
        """Sharp rows float32 `[m, r]` of features `[m, d]`; rows do not affect each other."""
        sharp = np.empty((len(x), self.components.shape[1]), np.float32)
        for rows in blocks(*x.shape):
            centered = _centered(x[rows], self.mean, self.is_cosine)
            sharp[rows] = self._scaled(centered @ self.components)
        return sharp

    def transform(self, x: ArrayLike) -> NDArray:
        """Smooth rows float32 `[m, r]` of features `[m, d]`: averaged over training rows.

        Raises:
            ValueError: `x` has another number of columns, or is not finite.
        """
        x = numeric(x, "X", LARGEST)
        if x.shape[1] != len(self.mean):
            raise ValueError(
                f"X must have {counted(len(self.mean), 'column')} like the training rows; "
                f"got {x.shape[1]}"
            )
        smooth = self.project(x)
        neighbors = knn.nearest(smooth, self.sharp, N_NEIGHBORS).indices
        for stage in self.stages:
            smooth = self._averaged(smooth, stage, neighbors)
        return smooth

    def _averaged(self, rows: NDArray, stage: NDArray, neighbors: NDArray) -> NDArray:
        total = rows.astype(np.float64)
        for column in neighbors.T:
            total += stage[column]
        return self._scaled(total / (neighbors.shape[1] + 1)).astype(np.float32)

    def _scaled(self, rows: NDArray) -> NDArray:
        # With the Euclidean metric, or in few axes, rows keep their lengths.
        keeps_lengths = not self.is_cosine or self.components.shape[1] <= FEW_AXES
        return rows if keeps_lengths else normalize_rows(rows)


def fit(x: ArrayLike, metric: str = "cosine", *, n_axes: int | None = None) -> Smoother:
    """Learns the representation of the module's docstring from features.

    Args:
        x: finite numbers `[n, d]`, of at most 1e150.
        metric: `"cosine"`, for features of networks, or `"euclidean"`.
        n_axes: number of axes; None: as the Marchenko-Pastur edge says.

    Raises:
        ValueError: the metric is unknown, or `x` cannot be used.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(300, 50)) + 3 * rng.normal(size=(3, 50))[np.arange(300) % 3]
        >>> rows = fit(x)
        >>> rows.sharp.shape, rows.transform(x[:2]).shape
        ((300, 2), (2, 2))
    """
    checks.one_of("metric", metric, METRICS)
    x = numeric(x, "x", LARGEST)
    is_cosine = metric == "cosine"
    mean = (unit_rows(x) if is_cosine else x).mean(axis=0, dtype=np.float64)
    centered = _centered(x, mean, is_cosine)
    largest = np.abs(centered).max(initial=0)
    centered = (centered / (largest or 1)).astype(np.float32)
    axes = _principal_axes(centered, n_axes)
    rows = centered @ axes
    smoother = Smoother(mean, axes.astype(np.float64), is_cosine, rows, (), rows)
    whiten = _whitening(rows, _near(smoother._scaled(rows)))
    sharp = rows @ whiten
    rms = float(np.sqrt(np.square(sharp).sum(axis=1).mean())) or 1.0
    sharp = smoother._scaled(sharp / rms).astype(np.float32)
    stages, neighbors = [sharp], _near(sharp)
    for _ in range(N_ROUNDS):
        stages.append(smoother._averaged(stages[-1], stages[-1], neighbors))
    components = smoother.components @ whiten / (largest or 1) / rms
    return Smoother(mean, components, is_cosine, sharp, tuple(stages[:-1]), stages[-1])


def dequantize(x: NDArray, seed: int = 0) -> NDArray:
    """`x` `[n, d]` with the values of rounded columns spread over their smallest gap.

    Rows on a coarse grid coincide, and every value would be a cluster. A column is rounded if it
    has at least four values and 20 rows for each; fewer values are categories. `seed`: of the
    draws.

    Example:
        >>> x = np.arange(200.0)[:, None] // 50
        >>> spread = dequantize(x)
        >>> bool((np.abs(spread - x) <= 0.5).all()), len(np.unique(spread))
        (True, 200)
    """
    n, spread, rng = len(x), None, np.random.default_rng(seed)
    look = x[:: max(1, n // 400)]
    is_repeated = (np.diff(np.sort(look, axis=0), axis=0) == 0).any(axis=0)
    for j in np.flatnonzero(is_repeated):
        values = np.unique(x[:, j].astype(np.float64))  # Gaps of small integers would overflow.
        if 4 <= len(values) <= n / ROWS_PER_VALUE:
            spread = x.astype(np.float64) if spread is None else spread
            spread[:, j] += rng.uniform(-0.5, 0.5, n) * np.diff(values).min()
    return x if spread is None else spread


def unit_rows(x: NDArray) -> NDArray:
    """Rows float64 `[n, d]` of length one; a row of zeros stays zero.

    Example:
        >>> unit_rows(np.array([[3, 4], [0, 0]])).tolist()
        [[0.6, 0.8], [0.0, 0.0]]
    """
    return normalize_rows(x.astype(np.float64))


def _centered(x: NDArray, mean: NDArray, is_cosine: bool) -> NDArray:
    """Rows float64 `[m, d]` less the mean; for cosine of length one before and after."""
    rows = unit_rows(x) if is_cosine else x.astype(np.float64)
    gaps = rows - mean
    # Equal rows differ from their mean by rounding, which must not become a direction.
    gaps[np.abs(gaps) <= 1e-14 * np.abs(mean)] = 0
    return unit_rows(gaps) if is_cosine else gaps


def _principal_axes(x: NDArray, n_axes: int | None) -> NDArray:
    """Orthonormal axes float32 `[d, r]` of centered rows `[n, d]`."""
    n, d = x.shape
    is_wide = d > n
    gram = (x @ x.T if is_wide else x.T @ x).astype(np.float64)
    m = min(n, d)
    first = max(0, m - MAX_AXES)
    variances, vectors = linalg.eigh(gram, subset_by_index=(first, m - 1))
    variances = np.maximum(variances[::-1], 0) / n
    vectors = vectors[:, ::-1]
    if is_wide:
        lengths = np.sqrt(np.maximum(variances * n, 1e-12 * variances[0] * n))
        vectors = x.T @ (vectors / np.where(lengths > 0, lengths, 1))
    if n_axes is None:
        found = _above_noise(variances, float(np.trace(gram)) / n, n, d)
        n_axes = d if d <= FEW_AXES else AXES_PER_SIGNAL * found
        if d > FEW_AXES and found <= FEW_AXES:
            # A plane is enough for a curve; no axis that stands out means that all may matter.
            n_axes = max(found, 2) if found else d
    return vectors[:, : min(n_axes, MAX_AXES)].astype(np.float32)


def _above_noise(variances: NDArray, total: float, n: int, d: int) -> int:
    """How many of the descending variances exceed the edge of noise of the variance left."""
    for count, variance in enumerate(variances):
        columns = d - count
        if columns < 2 or count >= n - 1:
            return count
        # The largest eigenvalue of noise exceeds the edge by about 1.5 m^(-2/3) of it.
        edge = total / columns * (1 + np.sqrt(columns / n)) ** 2
        if variance <= edge * (1 + 1.5 * min(n, columns) ** (-2 / 3)):
            return count
        total = max(total - variance, 0.0)
    return len(variances)


def _near(rows: NDArray) -> NDArray:
    """The neighbors int64 `[n, 10]` of each row, fewer columns for up to ten rows."""
    return knn.nearest(rows, rows, N_NEIGHBORS, exclude_self=True).indices


def _whitening(rows: NDArray, neighbors: NDArray) -> NDArray:
    """The matrix float64 `[r, r]` that whitens the differences of neighbors."""
    r = rows.shape[1]
    covariance = np.zeros((r, r))
    for column in neighbors.T:
        gaps = (rows - rows[column]).astype(np.float64)
        covariance += gaps.T @ gaps
    mean_variance = float(np.trace(covariance)) / r or 1.0
    covariance = (1 - SHRINKAGE) * covariance / mean_variance + SHRINKAGE * np.eye(r)
    variances, vectors = np.linalg.eigh(covariance)
    return vectors / np.sqrt(variances)
