"""Selects GridShift's bandwidth without labels: a scan over bandwidths and a score for each.

The thresholds below were set on the tuning halves of generated data sets;
`experiments/bandwidth.md` compares the rule with others on the held-out halves.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score, silhouette_samples
from sklearn.metrics.pairwise import euclidean_distances

from cluster_jax.clustering.grid import follow, seek

# The scan covers bandwidths from 1/100 to 1/2 of the data's extent, 10 % apart. Finer cells hold
# single rows even if the data have clusters; coarser ones make everything one neighborhood.
_FINEST, _COARSEST, _RATIO = 0.01, 0.5, 1.1
# The scan clusters at most 10,000 rows, so that its cost does not grow with the set, and scores
# 1,000 of them: their silhouettes need all pairwise distances.
_CLUSTERED, _SCORED = 10_000, 1_000
# `min_cluster_size`: rows, and the fraction of the cluster of the median row. The generated sets
# have clusters up to 10 times smaller than their largest, which must count, and outliers that form
# clusters of a few rows each, which must not.
_MIN_ROWS, _MIN_FRACTION = 3, 0.05
# Scores this close to the best count as equal: splitting a fragment off a cluster hardly changes
# the score.
_TOLERANCE = 0.02
# Score of separate clusters. On the tuning halves sets of several blobs score 0.66 to 0.85,
# everything else (one blob, uniform noise, moons) 0.17 to 0.56.
_CLEAR_SCORE = 0.6
# One cluster: at this bandwidth (in extents) and above, one cluster holds this fraction of the
# rows. A single blob does so from 0.04-0.09 up; noise and moons stay split up to 0.12-0.16.
_MAX_SPLIT_BANDWIDTH, _MIN_LARGEST_FRACTION = 0.115, 0.8
# Iterations of one fit of the scan: separate modes converge in about ten, those that still drift
# after fifty get no score.
_ITERATIONS = 50
# Alternatives that are reported, and pairs of halves that `stability` compares.
_RUNNERS_UP, _SPLITS = 3, 3

VERDICTS = ("clear", "one cluster", "no clear answer")


class Candidate(NamedTuple):
    """A bandwidth not selected: its clusters of at least `min_cluster_size` and its score."""

    bandwidth: float
    n_clusters: int
    score: float


class BandwidthCurve(NamedTuple):
    """Result of a scan over bandwidths.

    Attributes:
        bandwidths: float64 `[b]`, ascending.
        n_clusters: int64 `[b]`, clusters of at least `min_cluster_size`.
        scores: float64 `[b]`, below 1; NaN where fewer than two clusters are that large, or the
            shift did not converge.
        best_index: index of the selected bandwidth.
        verdict: `"clear"`: the score is that of separate clusters; `"one cluster"`: it is lower,
            and a small bandwidth already puts most rows into one cluster; `"no clear answer"`.
        runners_up: best `Candidate` for each of the three other numbers of clusters that score
            best.
    """

    bandwidths: NDArray
    n_clusters: NDArray
    scores: NDArray
    best_index: int
    verdict: str
    runners_up: tuple[Candidate, ...]


def min_cluster_size(sizes: NDArray) -> float:
    """Size from which a cluster counts; smaller ones hold outliers.

    3 rows, or 5 % of the size of the cluster that holds the median row if that is more; never more
    than the largest cluster, which always counts.

    Args:
        sizes: rows of each cluster, `[k]`.

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


def sample(points: NDArray, seed: int = 0) -> NDArray:
    """At most 10,000 of the rows, drawn independently of their order.

    Args:
        points: float64 `[n, d]`.
        seed: of the draw and of the direction.

    Returns:
        float64 `[m, d]`, sorted along a random direction.

    Example:
        >>> a, b = sample(np.array([[1.0], [3.0], [2.0]])), sample(np.array([[2.0], [1.0], [3.0]]))
        >>> bool((a == b).all())
        True
    """
    rng = np.random.default_rng(seed)
    direction = rng.normal(size=points.shape[1])
    direction /= np.abs(direction).sum()
    # Column by column: the rounding of a matrix product depends on the place of a row.
    projection = np.zeros(len(points))
    for column, weight in zip(points.T, direction, strict=True):
        projection += column * weight
    return points[np.argsort(projection)[_subset(len(points), _CLUSTERED, rng)]]


def scan(
    points: NDArray, *, stop: str = "fixed_point", max_iter: int = 500, seed: int = 0
) -> BandwidthCurve:
    """Clusters `points` at bandwidths on a logarithmic grid, scores each, selects one.

    The score is the silhouette (Rousseeuw 1987) in the space of `points`, computed among the
    clusters of at least `min_cluster_size` and averaged over all rows, those of smaller clusters
    with 0: a few outliers, each a cluster of its own, neither raise nor lower it much. Of the
    bandwidths that score within 0.02 of the best, those with the fewest clusters are kept (the
    others split off fragments at almost the same score), and the middle one is taken. Where no
    score is as high as separate clusters reach, and at all bandwidths of 0.115 of the extent
    and above one cluster holds 80 % of the rows, the answer is one cluster: uniform noise does not
    hold together there. `experiments/bandwidth.md` compares the rule with others.

    All rows are clustered, and 1,000 of them, drawn at random, are scored.

    Args:
        points: float64 `[n, d]`, finite; a `sample` of large sets.
        stop: stop rule of the shift, see `grid.shift`.
        max_iter: maximum number of iterations, at most 50. Where the shift does not converge (two
            modes still drift toward each other along a thin bridge), the bandwidth gets no score.
        seed: of the draw.

    Returns:
        The whole curve. Where no bandwidth allows a score (all points equal, or too few), the
        largest is taken.

    Raises:
        ValueError: the range of the points overflows a float.

    Example:
        >>> curve = scan(np.array([[0.0], [1.0], [2.0], [9.0], [10.0], [11.0]]))
        >>> curve.verdict, int(curve.n_clusters[curve.best_index])
        ('clear', 2)
    """
    rng = np.random.default_rng(seed)
    extent = _extent(points)
    steps = int(np.ceil(np.log(_COARSEST / _FINEST) / np.log(_RATIO))) + 1
    bandwidths = extent * np.geomspace(_FINEST, _COARSEST, steps)

    scored = _subset(len(points), _SCORED, rng)
    # Far from the origin, squared distances are differences of large numbers.
    distances = euclidean_distances(points[scored] - points[scored].mean(axis=0))
    np.fill_diagonal(distances, 0)
    n_clusters = np.empty(steps, np.int64)
    largest = np.empty(steps)
    scores = np.full(steps, np.nan)
    last_labels, last_score = np.empty(0), np.nan
    for b, bandwidth in enumerate(bandwidths):
        _, modes, labels = seek(
            points, float(bandwidth), stop=stop, max_iter=min(max_iter, _ITERATIONS)
        )
        sizes = np.bincount(labels)
        is_large = sizes >= min_cluster_size(sizes)
        n_clusters[b], largest[b] = is_large.sum(), sizes.max() / len(labels)
        if modes.converged and n_clusters[b] > 1:
            scored_labels = np.where(is_large, np.arange(len(sizes)), -1)[labels[scored]]
            # Where the clusters are separate, many bandwidths give the same partition.
            if not np.array_equal(scored_labels, last_labels):
                last_labels, last_score = scored_labels, _silhouette(distances, scored_labels)
            scores[b] = last_score
    best, verdict = _choose(bandwidths / extent, n_clusters, largest, scores)
    return BandwidthCurve(
        bandwidths, n_clusters, scores, best, verdict,
        _runners_up(bandwidths, n_clusters, scores, best),
    )  # fmt: skip


def stability(
    points: NDArray,
    bandwidth: float,
    *,
    stop: str = "fixed_point",
    max_iter: int = 500,
    seed: int = 0,
) -> float:
    """Agreement of clusterings of random halves of the points: mean adjusted Rand index.

    Three times the rows are split in two halves, both are clustered, and both clusterings assign
    the same 1,000 rows, drawn at random.

    Args:
        points: float64 `[n, d]`; a `sample` of large sets.
        bandwidth: side of a cell.
        stop: stop rule of the shift, see `grid.shift`.
        max_iter: maximum number of iterations.
        seed: of the halves and the rows.

    Returns:
        At most 1, about 0 for chance; NaN for fewer than 2 points. It says whether a partition is
        reproducible, not whether it is the right one: cutting uniform noise by a coarse grid is
        perfectly reproducible.

    Example:
        >>> stability(np.arange(8.0)[:, None] + 100 * (np.arange(8) % 2)[:, None], 20.0)
        1.0
    """
    rng = np.random.default_rng(seed)
    half = len(points) // 2
    if not half:
        return float("nan")
    queries = points[_subset(len(points), _SCORED, rng)]

    def assign(rows: NDArray) -> NDArray:
        grid, modes, _ = seek(points[rows], bandwidth, stop=stop, max_iter=max_iter)
        return follow(queries, grid, modes, bandwidth, max_iter)[0]

    agreement = []
    for _ in range(_SPLITS):
        order = rng.permutation(len(points))
        agreement.append(adjusted_rand_score(assign(order[:half]), assign(order[half:])))
    return float(np.mean(agreement))


def _subset(n: int, size: int, rng: np.random.Generator) -> NDArray:
    """At most `size` of the numbers 0 to n - 1, ascending."""
    return np.arange(n) if n <= size else np.sort(rng.choice(n, size, replace=False))


def _extent(points: NDArray) -> float:
    """Largest range of a coordinate without its outermost hundredths; positive.

    Raises:
        ValueError: the range overflows a float.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = np.percentile(points, (1, 99), axis=0)
        inner, full = high - low, np.ptp(points, axis=0)
    if not (np.isfinite(inner).all() and np.isfinite(full).all()):
        raise ValueError(
            f"X must have a finite range; got values from {points.min():g} to {points.max():g}: "
            "scale it down"
        )
    # Equal points: any bandwidth works if its cells still have exact numbers.
    smallest = max(1.0, float(np.abs(points).max()) * 2.0**-40)
    return float(inner.max()) or float(full.max()) or smallest


def _silhouette(distances: NDArray, labels: NDArray) -> float:
    """Silhouette among the rows with a label from 0 up, averaged over all; NaN if undefined."""
    rows = np.flatnonzero(labels >= 0)
    among = distances[np.ix_(rows, rows)]
    # The distances of enormous coordinates overflow.
    if not 2 <= len(np.unique(labels[rows])) < len(rows) or not np.isfinite(among).all():
        return float("nan")
    return float(silhouette_samples(among, labels[rows], metric="precomputed").sum() / len(labels))


def _choose(
    relative: NDArray, n_clusters: NDArray, largest: NDArray, scores: NDArray
) -> tuple[int, str]:
    """Index of the bandwidth to take and the verdict.

    Args:
        relative: bandwidths in extents, ascending.
        n_clusters: clusters of at least `min_cluster_size` at each.
        largest: fraction of the rows in the largest cluster at each.
        scores: score of each, or NaN.
    """
    best = len(scores) - 1
    if not np.isnan(scores).all():
        near_best = np.flatnonzero(scores >= np.nanmax(scores) - _TOLERANCE)
        fewest = near_best[n_clusters[near_best] == n_clusters[near_best].min()]
        best = int(fewest[len(fewest) // 2])
        if scores[best] >= _CLEAR_SCORE:
            return best, VERDICTS[0]
    # First bandwidth from which on one cluster holds most rows.
    split = np.flatnonzero(largest < _MIN_LARGEST_FRACTION)
    first_merged = int(split[-1]) + 1 if len(split) else 0
    if first_merged < len(scores) and relative[first_merged] <= _MAX_SPLIT_BANDWIDTH:
        return (first_merged + len(scores)) // 2, VERDICTS[1]
    return best, VERDICTS[2]


def _runners_up(
    bandwidths: NDArray, n_clusters: NDArray, scores: NDArray, best: int
) -> tuple[Candidate, ...]:
    """The best-scoring bandwidth of each number of clusters other than that of `best`."""
    candidates: dict[int, Candidate] = {}
    for b in np.argsort(-scores, kind="stable"):
        k = int(n_clusters[b])
        if k != n_clusters[best] and k not in candidates and not np.isnan(scores[b]):
            candidates[k] = Candidate(float(bandwidths[b]), k, float(scores[b]))
    return tuple(candidates.values())[:_RUNNERS_UP]
