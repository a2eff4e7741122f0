"""Choice of GridShift's bandwidth without labels: a scan over bandwidths and a score for each."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score
from sklearn.metrics.pairwise import euclidean_distances

# The scan covers bandwidths from 1/100 to 1/2 of the data's extent, 10 % apart.
_FINEST, _COARSEST, _RATIO = 0.01, 0.5, 1.1
# Rows that the scan clusters, and rows on which the silhouette is computed.
_CLUSTERED, _SCORED = 10_000, 1_000
# A cluster counts from this many rows, and from this part of the cluster of the median row.
_FEW, _SMALL = 3, 0.05
# Scores this close to the best are as good as the best.
_TOLERANCE = 0.02
# On the choosing half of `experiments/bandwidth_sets.py` blobs score 0.66 to 0.85, everything
# that is not several blobs (one blob, uniform noise, moons) 0.17 to 0.56.
_CLEAR = 0.6
# From this part of the extent upwards one cluster holds most rows of a single blob (from 0.04 to
# 0.09 on there), while noise and moons fall apart up to 0.12 to 0.16.
_ONE, _MOST = 0.115, 0.8
# Answers beside the chosen one that are reported, and pairs of halves that stability compares.
_RUNNERS_UP, _SPLITS = 3, 3

VERDICTS = ("clear", "one cluster", "no clear answer")


class Answer(NamedTuple):
    """A partition that was not taken: bandwidth, clusters that count, score."""

    bandwidth: float
    n_clusters: int
    score: float


class Curve(NamedTuple):
    """What a scan over bandwidths saw.

    Attributes:
        bandwidths: float64 `[b]`, ascending.
        n_clusters: int64 `[b]`, clusters that count (see `substantial`).
        scores: float64 `[b]`, below 1; NaN where fewer than two clusters count or the cells did
            not come to rest.
        chosen: index of the bandwidth taken.
        verdict: `"clear"`: the score is one that separate clusters reach; `"one cluster"`: it is
            not, and a small bandwidth already puts most rows into one cluster; `"no clear answer"`.
        runners_up: best `Answer` for each of the three other numbers of clusters that score best.
    """

    bandwidths: NDArray
    n_clusters: NDArray
    scores: NDArray
    chosen: int
    verdict: str
    runners_up: tuple[Answer, ...]

    @property
    def clear(self) -> bool:
        """Whether the data support the answer, be it several clusters or one."""
        return self.verdict != VERDICTS[2]


def substantial(sizes: NDArray, rows: int) -> NDArray:
    """Which clusters count, bool `[k]`; the others hold outliers.

    A cluster counts from 3 rows and from 5 % of the rows of the cluster that holds the median
    row. The largest counts in any case.

    Args:
        sizes: rows (or sum of weights) of each cluster, `[k]`.
        rows: number of rows, those without weight left out. Weights that are less than 1 on
            average count as parts of that average, larger ones as so many rows.
    """
    ascending = np.sort(sizes)
    middle = np.searchsorted(np.cumsum(ascending), ascending.sum() / 2)
    row = min(1.0, float(ascending.sum()) / rows)
    least = max(_FEW * row, _SMALL * float(ascending[min(middle, len(sizes) - 1)]))
    return sizes >= min(least, ascending[-1])


def sample(points: NDArray) -> NDArray:
    """At most 10,000 of the rows, the same whatever their order; drawn with a fixed seed.

    Args:
        points: float64 `[n, d]`.
    """
    rng = np.random.default_rng(0)
    direction = rng.normal(size=points.shape[1])
    direction /= np.abs(direction).sum()
    # Column by column: the rounding of a matrix product depends on the place of a row.
    along = np.zeros(len(points))
    for column, part in zip(points.T, direction, strict=True):
        along += column * part
    return points[np.argsort(along)[_places(len(points), _CLUSTERED, rng)]]


def scan(points: NDArray, partition: Callable[[NDArray, float], tuple[NDArray, bool]]) -> Curve:
    """Clusters `points` at bandwidths on a logarithmic grid, scores each partition, takes one.

    The score is the silhouette (Rousseeuw 1987) in the space of `points`, computed among the
    clusters that count and averaged over all rows, those of the others with 0: a few outliers,
    each a cluster of its own, neither win nor lose. Of the bandwidths that score within 0.02 of
    the best, those with the fewest clusters are kept (the others split off fragments at almost
    the same score), and the middle one is taken. Where no score is as high as separate clusters
    reach, and at all bandwidths from 0.115 of the extent upwards one cluster holds 80 % of the
    rows, the answer is one cluster: uniform noise does not hold together there.
    `experiments/bandwidth.md` has the evidence, and what other rules reach.

    All rows are clustered, and 1,000 of them, drawn with a fixed seed, are scored.

    Args:
        points: float64 `[n, d]`, finite; of large sets a `sample`.
        partition: gives labels int `[n]`, counted from 0, for points and a bandwidth, and
            whether the cells came to rest; if not (two modes still crawl along a thin bridge
            toward each other), the bandwidth gets no score.

    Returns:
        The whole curve. Where no bandwidth allows a score (all points equal, or too few), the
        largest is chosen.
    """
    rng = np.random.default_rng(0)
    extent = _extent(points)
    steps = int(np.ceil(np.log(_COARSEST / _FINEST) / np.log(_RATIO))) + 1
    bandwidths = extent * np.geomspace(_FINEST, _COARSEST, steps)

    rows = _places(len(points), _SCORED, rng)
    # Squares of distances are differences of large numbers unless the origin is near.
    distances = euclidean_distances(points[rows] - points[rows].mean(axis=0))
    np.fill_diagonal(distances, 0)
    n_clusters = np.empty(steps, np.int64)
    largest = np.empty(steps)
    scores = np.full(steps, np.nan)
    last: tuple[NDArray, float] = (np.empty(0), np.nan)
    for b, h in enumerate(bandwidths):
        labels, met = partition(points, float(h))
        sizes = np.bincount(labels)
        counts = substantial(sizes, len(labels))
        n_clusters[b], largest[b] = counts.sum(), sizes.max() / len(labels)
        if met and n_clusters[b] > 1:
            # Where the clusters are separate, many bandwidths give the same partition.
            among = np.where(counts, np.arange(len(counts)), -1)[labels[rows]]
            if not np.array_equal(among, last[0]):
                last = among, _silhouette(distances, among)
            scores[b] = last[1]
    chosen, verdict = _choose(bandwidths / extent, n_clusters, largest, scores)
    return Curve(
        bandwidths, n_clusters, scores, chosen, verdict,
        _runners_up(bandwidths, n_clusters, scores, chosen),
    )  # fmt: skip


def stability(points: NDArray, assign: Callable[[NDArray, NDArray], NDArray]) -> float:
    """Agreement of clusterings of random halves of the points: mean adjusted Rand index.

    Three times the rows are split in two halves, both are clustered, and both clusterings assign
    the same 1,000 rows; drawn with a fixed seed.

    Args:
        points: float64 `[n, d]`; of large sets a `sample`.
        assign: gives the labels of the second argument's points under a clustering of the first's.

    Returns:
        At most 1, about 0 for chance; NaN for fewer than 2 points. It says whether a partition is
        reproducible, not whether it is the right one: cutting uniform noise by a coarse grid is
        perfectly reproducible.
    """
    rng = np.random.default_rng(0)
    half = len(points) // 2
    if not half:
        return float("nan")
    asked = points[_places(len(points), _SCORED, rng)]
    found = []
    for _ in range(_SPLITS):
        order = rng.permutation(len(points))
        halves = points[order[:half]], points[order[half:]]
        found.append(adjusted_rand_score(*(assign(part, asked) for part in halves)))
    return float(np.mean(found))


def _places(n: int, most: int, rng: np.random.Generator) -> NDArray:
    """At most so many of the numbers 0 to n - 1, ascending."""
    return np.arange(n) if n <= most else np.sort(rng.choice(n, most, replace=False))


def _extent(points: NDArray) -> float:
    """Largest range of a coordinate without its outermost hundredths; positive.

    Raises:
        ValueError: the range is more than a float can hold.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = np.percentile(points, (1, 99), axis=0)
        ranges = high - low, np.ptp(points, axis=0)
    if not all(np.isfinite(r).all() for r in ranges):
        raise ValueError(
            f"X reaches from {points.min():g} to {points.max():g}, a range that no float can hold; "
            "scale it down"
        )
    # Equal points: any bandwidth does at which their cells can be told apart.
    least = max(1.0, float(np.abs(points).max()) * 2.0**-40)
    return float(ranges[0].max()) or float(ranges[1].max()) or least


def _silhouette(distances: NDArray, labels: NDArray) -> float:
    """Silhouette among the rows with a label from 0 up, averaged over all; NaN if undefined.

    scikit-learn's goes row by row through Python, which took most of the scan's time; here all
    sums of one partition are one pass over the distances.
    """
    kept = np.flatnonzero(labels >= 0)
    order = kept[np.argsort(labels[kept], kind="stable")]
    clusters, first, own, sizes = np.unique(
        labels[order], return_index=True, return_inverse=True, return_counts=True
    )
    if not 2 <= len(clusters) < len(order):
        return float("nan")
    sums = np.add.reduceat(distances[np.ix_(order, order)], first, axis=1)
    each = np.arange(len(order))
    inside = sums[each, own] / np.maximum(sizes[own] - 1, 1)
    means = sums / sizes
    means[each, own] = np.inf
    nearest = means.min(axis=1)
    widest = np.maximum(inside, nearest)
    defined = (sizes[own] > 1) & (widest > 0)
    return float(((nearest - inside)[defined] / widest[defined]).sum() / len(labels))


def _choose(
    relative: NDArray, n_clusters: NDArray, largest: NDArray, scores: NDArray
) -> tuple[int, str]:
    """Index of the bandwidth to take and the verdict.

    `relative` are parts of the extent, `largest` the parts of the rows in the largest cluster.
    """
    chosen = len(scores) - 1
    if not np.isnan(scores).all():
        good = np.flatnonzero(scores >= np.nanmax(scores) - _TOLERANCE)
        fewest = good[n_clusters[good] == n_clusters[good].min()]
        chosen = int(fewest[len(fewest) // 2])
        if scores[chosen] >= _CLEAR:
            return chosen, VERDICTS[0]
    apart = np.flatnonzero(largest < _MOST)
    one = int(apart[-1]) + 1 if len(apart) else 0
    if one < len(scores) and relative[one] <= _ONE:
        return (one + len(scores)) // 2, VERDICTS[1]
    return chosen, VERDICTS[2]


def _runners_up(
    bandwidths: NDArray, n_clusters: NDArray, scores: NDArray, chosen: int
) -> tuple[Answer, ...]:
    best: dict[int, Answer] = {}
    for b in np.argsort(-scores, kind="stable"):
        k = int(n_clusters[b])
        if k != n_clusters[chosen] and k not in best and not np.isnan(scores[b]):
            best[k] = Answer(float(bandwidths[b]), k, float(scores[b]))
    return tuple(best.values())[:_RUNNERS_UP]
