"""Whether groups of rows are apart: a valley of density, seen on rows held out; distances."""

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage, sparse

from cluster_jax.clustering import basins, outliers

# Points of the line between two groups at which densities are compared; rows of a group that the
# estimate uses, at most.
_GRID, _ROWS = 60, 400
# Rows no farther off a line than this fraction of its length lie on it.
_OFF_LINE = 1e-3
# Where rows are numbers: bins of a width of the kernel; widths from group to group at most, as each
# is a try at a gap of chance; and a width in spacings of the values, which may be rounded.
_BINS_PER_WIDTH, _MOST_WIDTHS, _SPACINGS = 6, 30, 2
# Rows whose silhouettes are taken, at most; they are compared with all. Nearest rows that must be
# of its group for a row to be inside it.
_SCORED, _AROUND = 1_500, 10


def valley(x: NDArray, first: NDArray, second: NDArray, is_training: NDArray) -> float:
    """How surely density falls and rises again between two groups, in standard errors.

    The line between the groups (Fisher's discriminant, its covariance shrunk) is estimated on one
    half of the rows, and the other half is projected on it, in turn: rows that chose the line would
    look apart in many columns. Both groups count alike, whatever their sizes.

    Args:
        x: float64 `[n, r]`.
        first: rows of one group, int `[a]`.
        second: rows of the other, int `[b]`.
        is_training: bool `[n]`, a random half.

    Returns:
        0 or more: the difference of the square roots of the rows expected at the lower peak and in
        the valley, doubled; 0 where either half lacks rows.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(400, 3))
        >>> x[200:] += 6
        >>> groups, half = np.arange(400).reshape(2, 200), np.arange(400) % 2 == 0
        >>> valley(x, *groups, half) > 8, valley(x[:200], *groups.reshape(4, 100)[:2], half) < 3
        (True, True)
    """
    scores: tuple[list[NDArray], list[NDArray]] = ([], [])
    for training in (is_training, ~is_training):
        a, b = x[first[training[first]]], x[second[training[second]]]
        tests = x[first[~training[first]]], x[second[~training[second]]]
        if min(len(a), len(b), len(tests[0]), len(tests[1])) < 2:
            continue
        line, middle = _discriminant(a, b)
        for collected, test in zip(scores, tests, strict=True):
            collected.append((test - middle) @ line)
    if not scores[0]:
        return 0.0
    return _depth(np.concatenate(scores[0]), np.concatenate(scores[1]))


def _discriminant(a: NDArray, b: NDArray) -> tuple[NDArray, NDArray]:
    """Fisher's direction from `b` to `a`, in standard deviations, and the point between."""
    mean_a, mean_b = a.mean(axis=0), b.mean(axis=0)
    gap, r, n = mean_a - mean_b, a.shape[1], len(a) + len(b)
    residuals = np.concatenate([a - mean_a, b - mean_b])
    covariance = residuals.T @ residuals / n
    spread = np.trace(covariance) / r
    spread = max(spread, 1e-12 * float(gap @ gap) + np.finfo(float).tiny)
    shrinkage = min(1.0, (r + 2) / (n + 1))
    covariance = (1 - shrinkage) * covariance + (shrinkage + 1e-9) * spread * np.eye(r)
    direction = np.linalg.solve(covariance, gap)
    scale = np.sqrt(max(float(direction @ covariance @ direction), np.finfo(float).tiny))
    return direction / scale, (mean_a + mean_b) / 2


def _depth(a: NDArray, b: NDArray) -> float:
    """Depth of the valley between projections `a`, above, and `b`, in standard errors."""
    if a.mean() <= b.mean():
        return 0.0
    tiny = 1e-12 * (a.mean() - b.mean())
    spread_a, spread_b = a.std() + tiny, b.std() + tiny
    fewest = min(len(a), len(b))
    a, b = (t[:: max(1, len(t) // _ROWS)] for t in (a, b))
    line = np.linspace(b.mean() - spread_b / 2, a.mean() + spread_a / 2, _GRID)
    width_a, width_b = spread_a * len(a) ** -0.2, spread_b * len(b) ** -0.2
    density = _density(line, a, width_a) + _density(line, b, width_b)
    return _fall(density * 2 * max(width_a, width_b) * fewest)


def _fall(counts: NDArray) -> float:
    """From the lower peak to the valley where that is deepest, in standard errors of counts."""
    ascent = np.maximum.accumulate(counts)
    descent = np.maximum.accumulate(counts[::-1])[::-1]
    lower_peak = np.minimum(ascent, descent)
    deepest = int((lower_peak / np.maximum(counts, 1e-12 * counts.max())).argmax())
    return float(2 * (np.sqrt(lower_peak[deepest]) - np.sqrt(counts[deepest])))


def gap(first: NDArray, second: NDArray) -> float:
    """How surely density falls and rises again between two groups of numbers, in standard errors.

    On one line no direction is chosen, so that no rows need be held out, and every row counts once:
    the tail of a skewed group does not look like a second one.

    Args:
        first: float64 `[a]`.
        second: float64 `[b]`.

    Returns:
        0 or more, see `valley`.

    Example:
        >>> x = np.random.default_rng(0).normal(size=400)
        >>> gap(x[:200], x[200:] + 6) > 8, gap(x[x < 0.5], x[x >= 0.5]) < 3
        (True, True)
    """
    low, high = sorted((first, second), key=np.mean)
    width = min(values.std() * len(values) ** -0.2 for values in (low, high))
    start, stop = low.mean() - low.std() / 2, high.mean() + high.std() / 2
    if not width > 0 or not stop > start:
        return 0.0
    values = np.concatenate([low, high])
    spacing = np.median(np.diff(np.unique(values)))
    width = max(width, (stop - start) / _MOST_WIDTHS, _SPACINGS * spacing)
    # In bins of the histogram:
    n_bins = int(np.ceil(_BINS_PER_WIDTH * (stop - start) / width))
    sigma = width * n_bins / (stop - start)
    margin = int(np.ceil(4 * sigma))
    around = margin * (stop - start) / n_bins
    counts, _ = np.histogram(values, n_bins + 2 * margin, (start - around, stop + around))
    smooth = ndimage.gaussian_filter1d(counts.astype(np.float64), sigma, mode="constant")
    return _fall(2 * sigma * smooth[margin : margin + n_bins])


def on_a_line(rows: NDArray) -> NDArray | None:
    """Positions float64 `[n]` of rows `[n, r]` on the line on which they lie, None where on none.

    Example:
        >>> rows = np.array([[0.0, 7.0], [1.0, 7.0], [3.0, 7.0]])
        >>> on_a_line(rows).tolist(), on_a_line(np.eye(3))
        ([0.0, 1.0, 3.0], None)
    """
    spreads = np.ptp(rows, axis=0)
    widest = int(spreads.argmax())
    line = rows[:, widest]
    if not spreads[widest] > 0:
        return None
    # Every column must be a multiple of the widest.
    centered = rows - rows.mean(axis=0)
    along = centered[:, widest]
    slopes = along @ centered / (along @ along)
    residuals = np.abs(centered - along[:, None] * slopes).max()
    return line if residuals <= _OFF_LINE * spreads[widest] else None


def _density(line: NDArray, values: NDArray, width: float) -> NDArray:
    """Kernel density of values at the points of a line, up to a constant."""
    gaps = (line[:, None] - values[None, :]) / width
    return np.exp(-(gaps**2) / 2).mean(axis=1) / width


def roundness(rows: NDArray, groups: NDArray) -> float:
    """Fraction of the rows inside groups that are nearer to the mean of theirs than to any other.

    Rows are inside where their nearest rows are all of the group. Of round groups nearly all those
    agree, also where groups overlap; of curved ones they do not. 0 where no row is inside.

    Args:
        rows: float64 `[n, r]`.
        groups: int `[n]`, 0 to k - 1.

    Example:
        >>> rows = np.arange(60.0)[:, None]
        >>> around = np.repeat([0, 1, 0], [20, 25, 15])
        >>> roundness(rows, np.repeat([0, 1, 2], 20)), roundness(rows, around)
        (1.0, 0.625)
    """
    _, means, _ = _moments(rows, groups)
    scored = _scored(len(rows))
    _, nearest = basins.nearest_to(rows[scored], rows, min(_AROUND + 1, len(rows)))
    inside = scored[(groups[nearest] == groups[scored, None]).all(axis=1)]
    if not len(inside):
        return 0.0
    gaps = np.square(means).sum(axis=1) - 2 * rows[inside] @ means.T
    return float((gaps.argmin(axis=1) == groups[inside]).mean())


def silhouettes(rows: NDArray, groups: NDArray, merges: NDArray, counts: NDArray) -> NDArray:
    """Mean silhouettes (Rousseeuw 1987) of nested groups, from mean squared distances.

    Those follow from the mean and the mean square of a group: no two rows are compared.

    Args:
        rows: float64 `[n, r]`.
        groups: int `[n]`, 0 to k - 1.
        merges: int `[k - 1, 2]`, the groups that merge; the i-th merge is group k + i.
        counts: bool `[k]`, the others and their rows take no part.

    Returns:
        float64 `[k - 1]`, of k groups, k - 1, and so on, down to two; 0 where only one counts.

    Example:
        >>> rows = np.array([[0.0], [1.0], [4.0], [5.0], [50.0], [51.0]])
        >>> groups, merges = np.arange(6) // 2, np.array([[0, 1], [2, 3]])
        >>> silhouettes(rows, groups, merges, np.ones(3, bool)).round(2).tolist()
        [0.96, 1.0]
        >>> silhouettes(rows, groups, merges, np.arange(3) != 1).round(2).tolist()
        [1.0, 1.0]
    """
    k = len(merges) + 1
    rows = rows - np.median(rows, axis=0)
    sizes, means, mean_squares = _moments(rows, groups)
    scored = _scored(len(rows))
    scored = scored[counts[groups[scored]]]
    own, every = groups[scored], np.arange(len(scored))
    squares = np.square(rows[scored]).sum(axis=1)
    apart = squares[:, None] - 2 * rows[scored] @ means.T + mean_squares
    sizes[~counts] = 0
    apart[:, ~counts] = np.inf
    scores, column = [], np.arange(2 * k - 1)
    for merged, (i, j) in enumerate(merges, k):
        others = apart.copy()
        others[every, own] = np.inf
        nearest = others.min(axis=1)
        # A row is not among those that it is compared with.
        within = apart[every, own] * (sizes / np.maximum(sizes - 1, 1))[own]
        if np.count_nonzero(sizes) > 1:
            largest = np.maximum(np.maximum(nearest, within), np.finfo(float).tiny)
            scores.append(np.where(sizes[own] > 1, (nearest - within) / largest, 0).mean())
        else:
            scores.append(0.0)
        a, b = column[i], column[j]
        if not sizes[a]:
            a, b = b, a
        column[merged] = a
        if sizes[b]:
            apart[:, a] = (sizes[a] * apart[:, a] + sizes[b] * apart[:, b]) / (sizes[a] + sizes[b])
            sizes[a] += sizes[b]
            sizes[b] = 0
        apart[:, b] = np.inf
        own = np.where(own == b, a, own)
    return np.array(scores)


def _scored(n: int) -> NDArray:
    return np.random.default_rng(0).permutation(n)[:_SCORED]


def _moments(rows: NDArray, groups: NDArray) -> tuple[NDArray, NDArray, NDArray]:
    """Core rows of each group, float64 `[k]`, their mean, `[k, r]`, and that of their squares."""
    core = outliers.core_groups(rows, groups)
    (kept,) = np.nonzero(core >= 0)
    sizes = np.bincount(core[kept]).astype(np.float64)
    shape = (len(sizes), len(rows))
    members = sparse.csr_array((np.ones(len(kept)), (core[kept], kept)), shape=shape)
    squares = np.square(rows).sum(axis=1)
    return sizes, members @ rows / sizes[:, None], members @ squares / sizes


def ward(sizes: NDArray, means: NDArray) -> NDArray:
    """Merges of groups that add the least to the squared distances to their means (Ward 1963).

    SciPy's linkage counts every group as one row.

    Args:
        sizes: rows of each group, int `[k]`.
        means: float64 `[k, r]`.

    Returns:
        int64 `[k - 1, 2]`, the groups that merge, the lower first; the i-th merge is group k + i.

    Example:
        >>> ward(np.array([50, 50, 2]), np.array([[0.0], [4.0], [9.0]])).tolist()
        [[1, 2], [0, 3]]
    """
    k = len(sizes)
    sizes, means = sizes.astype(np.float64), means.copy()
    node, merges = np.arange(k), []
    cost = np.stack([_added(sizes, means, i) for i in range(k)])
    for merged in range(k, 2 * k - 1):
        i, j = divmod(int(cost.argmin()), k)
        merges.append(sorted((node[i], node[j])))
        node[i] = merged
        means[i] += (means[j] - means[i]) * sizes[j] / (sizes[i] + sizes[j])
        sizes[i] += sizes[j]
        sizes[j] = np.inf
        cost[i] = cost[:, i] = _added(sizes, means, i)
        cost[j] = cost[:, j] = np.inf
    return np.array(merges, np.int64).reshape(-1, 2)


def _added(sizes: NDArray, means: NDArray, i: int) -> NDArray:
    """What a merge of group i with each other adds to the sum of squares; infinite sizes: gone."""
    added = np.square(means - means[i]).sum(axis=1) / (1 / sizes + 1 / sizes[i])
    added[np.isinf(sizes)] = added[i] = np.inf
    return added
