"""Sharp and smooth rows: features in which clusters are easier to find, learned without labels.

Given features `x_i`, of length one for cosine similarity, `fit` takes three steps.

1. Denoise: subtract the mean, and keep the principal axes whose variance is above the
   Marchenko-Pastur edge of noise, `s (1 + sqrt(m / n))^2`, where `s` is the mean of the `m`
   remaining variances [1]; the edge is raised by the spread of the largest eigenvalue of noise. If
   only one axis is above the edge, the second is kept as well. All axes are kept if none is above
   the edge, or if rows are in clusters along the axes below it: the covariance of many random
   centers is that of noise, but the distance to the nearest row is less than 0.75 of that of
   Gaussian rows. Rows of the cosine metric are not scaled again after the mean is subtracted: the
   mean lies in a huge cluster, whose rows would become long ones.
2. Whiten by the differences of neighbors: with `W = mean (x_i - x_j)(x_i - x_j)^T` over the k
   nearest neighbors j of every row i, shrunk by a tenth towards the identity, the sharp rows are
   `W^(-1/2) x_i`. This is linear discriminant analysis with neighbors instead of classes, and a
   relative of relevant component analysis [2].
3. Smooth: twice, each row becomes the mean of itself and its k nearest neighbors among the sharp
   rows, `s <- (I + A) s / (k + 1)`: a low-pass filter on the graph, as in simplified graph
   convolutions [3].

A row has ten neighbors, fewer in a small set, see `n_neighbors`. In more than three axes, rows of
the cosine metric are scaled to length one after each step.

`fit_all` takes the same steps with micro-clusters of rows, where rows are too many to be compared
with each other. A row then has itself, the others of its micro-cluster, and the nearest
micro-clusters as neighbors.

Clusters are found in the smooth rows, and judged by the sharp ones, which no averaging has touched.

References:
    [1] Marchenko and Pastur 1967, Distribution of eigenvalues for some sets of random matrices.
    [2] Bar-Hillel, Hertz, Shental and Weinshall 2003, Learning distance functions using equivalence
        relations.
    [3] Wu et al. 2019, Simplifying graph convolutional networks.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from cluster_jax.core import knn
from cluster_jax.core.arrays import Rows, blocks, cluster_means, normalize_rows

METRICS = ("cosine", "euclidean")
# Principal axes at most.
MAX_AXES = 64
# Axes up to which rows keep their lengths, and clusters may have shapes other than round ones.
FEW_AXES = 3
# Neighbors of a row for the square root of the rows, the fewest and the most; rounds of averaging
# over them.
PER_ROOT, MIN_NEIGHBORS, MAX_NEIGHBORS, N_ROUNDS = 0.6, 2, 10, 2
# Shrinkage of the neighbors' covariance towards a multiple of the identity.
SHRINKAGE = 0.1
# Rows along the axes of noise are in clusters where the distance to the nearest row is below this
# share of that of Gaussian rows (0.9 to 1.04 without clusters, 0.3 to 0.7 with random centers);
# number of rows that are compared, at most.
NEARER, _LOOK = 0.75, 10_000
# Fewest rows of which this is asked; so many rows for each value of a column, on average, are
# rounded values.
_FEWEST, _ROWS_PER_VALUE = 50, 3
# Updates of the micro-clusters.
_UPDATES = 10
# An axis has no spread but rounding below this share of the largest spread.
_NO_SPREAD = 1e-6
# Sums of squares of larger numbers leave the range of float64.
LARGEST = 1e150
# Length of sharp rows, of which those of the training have 1 on average, from which the direction
# alone decides: longer ones leave the range of float32.
_FAR = 1e6


class Smoother(NamedTuple):
    """A fitted representation of `n` training rows.

    Attributes:
        mean: float64 `[d]`, of the (normalized) rows.
        components: float64 `[d, r]`, principal axes times the whitening.
        is_cosine: whether rows are scaled to length one.
        sharp: float32 `[n, r]`, the denoised and whitened training rows.
        smooth: float32 `[n, r]`, the sharp rows after the rounds of averaging.
        neighbors: int64 `[n, k]`, the nearest other sharp rows of each row.
        counts: float32 `[n]`, number of rows of each micro-cluster, whose means are `sharp`; None:
            there are no micro-clusters.
        squares: float32 `[n]`, mean squared length of the sharp rows of each micro-cluster, or
            None.
    """

    mean: NDArray
    components: NDArray
    is_cosine: bool
    sharp: NDArray
    smooth: NDArray
    neighbors: NDArray
    counts: NDArray | None = None
    squares: NDArray | None = None

    @property
    def metric(self) -> str:
        """The metric of `fit`, `"cosine"` or `"euclidean"`."""
        return "cosine" if self.is_cosine else "euclidean"

    def has_direction(self, x: NDArray) -> NDArray:
        """Returns whether each row of `[m, d]` can be compared, bool `[m]`.

        With the cosine a row of zeros cannot, with the Euclidean metric every row can.
        """
        return np.asarray(x.any(axis=1) | (not self.is_cosine))

    @property
    def weights(self) -> NDArray:
        """Weights of each row and of its k neighbors, float32 `[n, k + 1]`, see `near`."""
        return _weights(self.neighbors, self.counts)

    def project(self, x: NDArray) -> NDArray:
        """Returns sharp rows float32 `[m, r]` of finite features `[m, d]`, each on its own.

        Rows that are a million times as far from the mean as the training rows are moved to this
        distance.
        """
        sharp = np.empty((len(x), self.components.shape[1]), np.float32)
        for rows in blocks(*x.shape):
            centered = _centered(x[rows], self.mean, self.is_cosine)
            with np.errstate(over="ignore", invalid="ignore"):
                projected = centered @ self.components
            is_far = ~(np.abs(projected).max(axis=1, initial=0.0) <= _FAR)
            if is_far.any():
                ends = centered[is_far] / np.abs(centered[is_far]).max(axis=1, keepdims=True)
                projected[is_far] = _FAR * normalize_rows(ends @ self.components)
            sharp[rows] = self._scaled(projected)
        return sharp

    def transform(self, x: NDArray) -> NDArray:
        """Returns smooth rows float32 `[m, r]` of finite features `[m, d]`.

        Each is the mean of the smooth rows of the training rows whose sharp rows are nearest. So
        the result for a training row is not its row of `smooth`.
        """
        count = max(1, n_neighbors(len(self.sharp)))
        near = knn.nearest(self.project(x), self.sharp, count).indices
        total = np.zeros((len(x), self.smooth.shape[1]))
        for column in near.T:
            total += self.smooth[column]
        return self._scaled(total / count).astype(np.float32)

    def _scaled(self, rows: NDArray) -> NDArray:
        """Returns rows of length one; with the Euclidean metric, or in few axes, the same rows."""
        keeps_lengths = not self.is_cosine or self.components.shape[1] <= FEW_AXES
        return rows if keeps_lengths else normalize_rows(rows)


def fit(x: NDArray, metric: str = "cosine", *, n_axes: int | None = None) -> Smoother:
    """Returns the representation of the module's docstring, learned from features.

    Args:
        x: finite numbers `[n, d]`, of at most 1e150, n at least 1; nothing is checked.
        metric: `"cosine"`, for features of networks, or `"euclidean"`.
        n_axes: number of principal axes that are kept, of at most 64 and min(n, d) that there are;
            None: those above the Marchenko-Pastur edge, see step 1.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(300, 50)) + 3 * rng.normal(size=(3, 50))[np.arange(300) % 3]
        >>> rows = fit(x)
        >>> rows.sharp.shape, rows.transform(x[:2]).shape
        ((300, 2), (2, 2))
    """
    start, scale = _denoised(x, metric, n_axes)
    return _smoothed(start, scale, start.sharp)


def fit_all(
    x: Rows,
    order: NDArray,
    n_sample: int,
    n_groups: int,
    metric: str,
    seed: int,
    weights: NDArray | None = None,
) -> tuple[Smoother, NDArray]:
    """Returns the representation of micro-clusters of rows in memory, a memory map, or shards.

    The axes are those of a sample. Projected to them, the rows have at most 64 columns and fit into
    memory; k-means in two levels makes micro-clusters of them, on all devices of this process.

    Args:
        x: finite rows `[n, d]`.
        order: int `[m]`, the indices of the rows that are used, in this order.
        n_sample: number of rows of the sample, at most m.
        n_groups: number of micro-clusters, at most m; empty ones are left out. With m each row is
            one.
        metric: as for `fit`.
        seed: random seed of the sample and of k-means.
        weights: int `[m]`, the number of rows that each row of `order` stands for; None: one each.

    Returns:
        The representation of the k micro-clusters, and the micro-cluster of each row of `order`,
        int64 `[m]`, 0 to k - 1.

    Raises:
        ValueError: a row is not finite, or k-means cannot have `n_groups` clusters.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 5))
        >>> rows, groups = fit_all(x, np.arange(300), 200, 60, "cosine", seed=0)
        >>> bool(len(rows.sharp) == groups.max() + 1 <= 60), int(rows.counts.sum())
        (True, 300)
    """
    import jax
    from jax.sharding import Mesh

    from cluster_jax.clustering.condense import condense

    sample = np.random.default_rng(seed).choice(len(order), n_sample, replace=False)
    start, scale = _denoised(np.asarray(x[order[np.sort(sample)]]), metric, None)
    axes = start.components.astype(np.float32)
    rows = np.empty((len(order), axes.shape[1]), np.float32)
    for part in blocks(len(order), x.shape[1]):
        centered = _centered(np.asarray(x[order[part]]), start.mean, start.is_cosine)
        rows[part] = (centered / scale).astype(np.float32) @ axes
    # Not those of other processes, which may not be here.
    mesh = Mesh(np.array(jax.local_devices()), ("rows",))
    if n_groups == len(order):
        return _smoothed(start, scale, rows, np.arange(n_groups), weights), np.arange(n_groups)
    centers = condense(rows, n_groups, max_iter=_UPDATES, seed=seed, mesh=mesh)
    nearest = knn.nearest(rows, centers, 1).indices[:, 0]
    groups = np.unique(nearest, return_inverse=True)[1].astype(np.int64)
    return _smoothed(start, scale, rows, groups, weights), groups


def _denoised(x: NDArray, metric: str, n_axes: int | None) -> tuple[Smoother, float]:
    """Returns a representation after step 1, and the scale of the rows.

    `sharp` and `smooth` of the representation are the projected rows, divided by the scale: the
    largest absolute number of the centered rows `x`. There are no neighbors yet.
    """
    is_cosine = metric == "cosine"
    mean = (unit_rows(x) if is_cosine else x).mean(axis=0, dtype=np.float64)
    centered = _centered(x, mean, is_cosine)
    scale = float(np.abs(centered).max(initial=0)) or 1.0
    centered = (centered / scale).astype(np.float32)
    axes = _principal_axes(centered, n_axes)
    rows = centered @ axes
    none = np.empty((len(rows), 0), np.int64)
    return Smoother(mean, axes.astype(np.float64), is_cosine, rows, rows, none), scale


def _smoothed(
    start: Smoother,
    scale: float,
    rows: NDArray,
    groups: NDArray | None = None,
    weights: NDArray | None = None,
) -> Smoother:
    """Returns the representation after steps 2 and 3.

    Args:
        start: the representation after step 1, of these rows or of a sample.
        scale: scale of the rows, see `_denoised`.
        rows: float32 `[n, r]`, all projected rows, divided by the scale.
        groups: int `[n]`, the micro-cluster of each row, none of them empty: the representation is
            that of the micro-clusters. None: it is that of the rows.
        weights: see `fit_all`; with `groups` only.
    """
    counts = squares = None
    points = rows
    within = np.zeros((rows.shape[1],) * 2)
    if groups is not None:
        counts = np.bincount(groups, weights).astype(np.float32)
        points = cluster_means(rows, groups).astype(np.float32)
        for part in blocks(*rows.shape):
            gaps = (rows[part] - points[groups[part]]).astype(np.float64)
            within += gaps.T @ gaps
    whiten = _whitening(points, *near(start._scaled(points), counts), counts, within)
    sharp = np.empty_like(rows)
    lengths = np.empty(len(rows))
    for part in blocks(*rows.shape):
        lengths[part] = np.square(rows[part] @ whiten).sum(axis=1)
    rms = float(np.sqrt(lengths.mean())) or 1.0
    for part in blocks(*rows.shape):
        sharp[part] = start._scaled(rows[part] @ whiten / rms)
    if groups is not None:
        squares = cluster_means(np.einsum("ij,ij->i", sharp, sharp)[:, None], groups)[:, 0]
        squares = squares.astype(np.float32)
        sharp = cluster_means(sharp, groups).astype(np.float32)
    smooth = sharp
    neighbors, weights = near(sharp, counts)
    for _ in range(N_ROUNDS):
        total = smooth.astype(np.float64) * weights[:, :1]
        for column, weight in zip(neighbors.T, weights.T[1:], strict=True):
            total += smooth[column] * weight[:, None]
        smooth = start._scaled(total / weights.sum(axis=1)[:, None]).astype(np.float32)
    components = start.components @ whiten / scale / rms
    parts = start.mean, components, start.is_cosine, sharp, smooth, neighbors
    return Smoother(*parts, counts, squares)


def n_neighbors(n: int) -> int:
    """Returns the number of neighbors of each of n rows: 0.6 sqrt(n), 2 to 10, at most all others.

    So it is 0 for one row. In a small set, ten neighbors would belong to several clusters.

    Example:
        >>> [n_neighbors(n) for n in (2, 9, 100, 10_000)]
        [1, 2, 6, 10]
    """
    wanted = round(PER_ROOT * np.sqrt(n))
    return min(max(wanted, MIN_NEIGHBORS), MAX_NEIGHBORS, max(n - 1, 0))


def dequantize(x: NDArray, seed: int = 0) -> NDArray:
    """Returns rows `[n, d]` with uniform noise, one step wide, on columns of rounded values.

    The step is the smallest difference of two values of the column; values that differ by at most
    1e-6 of the column's range count as one, because such differences come from the arithmetic. Rows
    on a coarse grid coincide, and every grid point would be a cluster: on nine sets of rounded
    columns the mean ARI is 0.993 with the noise and 0.871 without. A column counts as rounded if it
    has at least four distinct values, and on average at least three rows for each value; a column
    of fewer values holds categories. In a large set, a rounded column is noticed only if values
    repeat among 400 to 800 evenly spaced rows. Without such a column the result is `x` itself,
    otherwise a copy in float64.

    Example:
        >>> x = np.arange(200.0)[:, None] // 50
        >>> spread = dequantize(x)
        >>> bool((np.abs(spread - x) <= 0.5).all()), len(np.unique(spread))
        (True, 200)
    """
    n = len(x)
    spread = None
    rng = np.random.default_rng(seed)
    look = x[:: max(1, n // 400)]
    is_repeated = (np.diff(np.sort(look, axis=0), axis=0) == 0).any(axis=0)
    for j in np.flatnonzero(is_repeated):
        values = np.unique(x[:, j].astype(np.float64))  # Gaps of small integers would overflow.
        gaps = np.diff(values)
        steps = gaps[gaps > 1e-6 * (values[-1] - values[0])]
        if 4 <= len(steps) + 1 <= n / _ROWS_PER_VALUE:
            spread = x.astype(np.float64) if spread is None else spread
            spread[:, j] += rng.uniform(-0.5, 0.5, n) * steps.min()
    return x if spread is None else spread


def unit_rows(x: NDArray) -> NDArray:
    """Returns rows scaled to length one, float64 `[n, d]`; a row of zeros stays zero.

    Example:
        >>> unit_rows(np.array([[3, 4], [0, 0]])).tolist()
        [[0.6, 0.8], [0.0, 0.0]]
    """
    return normalize_rows(x.astype(np.float64))


def _centered(x: NDArray, mean: NDArray, is_cosine: bool) -> NDArray:
    """Returns rows less the mean, float64 `[m, d]`; for cosine, rows are first of length one."""
    rows = unit_rows(x) if is_cosine else x.astype(np.float64)
    gaps = rows - mean
    # Equal rows differ from their mean by rounding, which must not become a direction.
    gaps[np.abs(gaps) <= 1e-14 * np.abs(mean)] = 0
    return gaps


def _principal_axes(x: NDArray, n_axes: int | None) -> NDArray:
    """Returns the orthonormal principal axes float32 `[d, r]` of centered rows `[n, d]`.

    The axes are in descending order of their variance. There are `n_axes`, but at most 64 and
    min(n, d). `n_axes` None: those of step 1, or all in up to three columns.
    """
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
    vectors = vectors[:, :MAX_AXES].astype(np.float32)
    if n_axes is None and d > FEW_AXES:
        n_axes = _above_noise(variances, float(np.trace(gram)) / n, n, d)
        # A plane is enough for a curve; no axis that stands out means that all may matter.
        n_axes = 2 if n_axes == 1 else n_axes or d
        n_axes = d if _has_clusters(x @ vectors[:, n_axes:]) else n_axes
    axes = vectors[:, :n_axes]
    # Constant and repeated columns add axes along which no rows differ; these are left out.
    spread = np.abs(x @ axes).max(axis=0)
    return axes[:, spread > _NO_SPREAD * spread.max()] if spread.any() else axes[:, :1]


def _has_clusters(rows: NDArray) -> bool:
    """Returns whether rows `[n, r]` are far nearer to each other than Gaussian rows would be.

    The result for fewer than 50 rows is False.
    """
    rows = rows[:: -(-len(rows) // _LOOK)]
    if not rows.size or len(rows) < _FEWEST:
        return False
    null = np.random.default_rng(0).standard_normal(rows.shape, np.float32) * rows.std(axis=0)
    gaps, expected = (
        np.median(knn.nearest(each, each, 1, exclude_self=True).distances) for each in (rows, null)
    )
    return bool(gaps < NEARER * expected)


def _above_noise(variances: NDArray, total: float, n: int, d: int) -> int:
    """Returns how many descending variances are above the Marchenko-Pastur edge of the rest.

    Args:
        variances: the largest variances, descending.
        total: sum of the variances of all axes.
        n: number of rows.
        d: number of columns.
    """
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


def near(rows: NDArray, counts: NDArray | None) -> tuple[NDArray, NDArray]:
    """Returns the neighbors int64 `[n, k]` of each row, and the weights of row and neighbors.

    The weight of a row or neighbor is the number of rows that it stands for. The weights of a row
    and its neighbors, the nearest first, are cut off where their sum reaches k + 1.

    Args:
        rows: `[n, r]`.
        counts: float32 `[n]`, the number of rows that each row stands for; None: one, and all
            weights are 1.

    Returns:
        The neighbors, nearest first, where k is `n_neighbors` of n; and the weights, float32
        `[n, k + 1]`, that of the row itself first.

    Example:
        >>> rows, counts = np.float32([[0], [1], [9]]), np.float32([2, 5, 1])
        >>> near(rows, counts)[1].tolist()
        [[2.0, 1.0, 0.0], [3.0, 0.0, 0.0], [1.0, 2.0, 0.0]]
    """
    indices = knn.nearest(rows, rows, n_neighbors(len(rows)), exclude_self=True).indices
    return indices, _weights(indices, counts)


def _weights(neighbors: NDArray, counts: NDArray | None) -> NDArray:
    """Returns the weights of `near`, float32 `[n, k + 1]`, from the neighbors int `[n, k]`."""
    n, k = neighbors.shape
    if counts is None:
        return np.ones((n, k + 1), np.float32)
    before = np.cumsum(np.concatenate([counts[:, None], counts[neighbors]], axis=1), axis=1)
    return np.diff(np.minimum(before, k + 1), axis=1, prepend=0).astype(np.float32)


def _whitening(
    rows: NDArray,
    neighbors: NDArray,
    weights: NDArray,
    counts: NDArray | None,
    within: NDArray,
) -> NDArray:
    """Returns the matrix M float64 `[r, r]` that whitens differences of neighbors, as `rows @ M`.

    After it, the covariance of these differences is the identity, up to a factor and to the
    shrinkage of step 2. M is the `W^(-1/2)` of that step, followed by a rotation: not symmetric.

    Args:
        rows: `[n, r]`.
        neighbors: int `[n, k]`.
        weights: `[n, k + 1]`, see `near`.
        counts: number of rows that each row stands for, or None.
        within: float64 `[r, r]`, scatter matrix of the rows around the row that stands for them.
    """
    r, k = rows.shape[1], neighbors.shape[1]
    # Each of them has k neighbors, from which it differs by twice the covariance within, too.
    covariance = 2.0 * k * within
    for column, weight in zip(neighbors.T, weights.T[1:], strict=True):
        gaps = (rows - rows[column]).astype(np.float64)
        weighted = gaps if counts is None else gaps * (weight * counts)[:, None]
        covariance += weighted.T @ gaps
    mean_variance = float(np.trace(covariance)) / r or 1.0
    covariance = (1 - SHRINKAGE) * covariance / mean_variance + SHRINKAGE * np.eye(r)
    variances, vectors = np.linalg.eigh(covariance)
    return vectors / np.sqrt(variances)
