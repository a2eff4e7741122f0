"""Whether two groups of rows are apart: a valley of density, seen on rows held out."""

import numpy as np
from numpy.typing import NDArray

# Points of the line between two groups at which densities are compared; rows of a group that the
# estimate uses, at most.
_GRID, _ROWS = 60, 400


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
    ascent = np.maximum.accumulate(density)
    descent = np.maximum.accumulate(density[::-1])[::-1]
    lower_peak = np.minimum(ascent, descent)
    deepest = int((lower_peak / np.maximum(density, 1e-12 * density.max())).argmax())
    window = 2 * max(width_a, width_b) * fewest
    peak, floor = lower_peak[deepest] * window, density[deepest] * window
    return float(2 * (np.sqrt(peak) - np.sqrt(floor)))


def _density(line: NDArray, values: NDArray, width: float) -> NDArray:
    """Kernel density of values at the points of a line, up to a constant."""
    gaps = (line[:, None] - values[None, :]) / width
    return np.exp(-(gaps**2) / 2).mean(axis=1) / width
