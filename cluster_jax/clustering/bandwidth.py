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


def substantial(sizes: NDArray, owner: NDArray) -> NDArray:
    """Which clusters count, bool `[k]`; the others hold outliers.

    A cluster counts from 3 rows and from 5 % of the rows of the cluster that holds the median
    row. The largest counts in any case.

    Args:
        sizes: rows (or sum of weights) of each cluster, `[k]`.
        owner: cluster of each row, int `[n]`.
    """
    least = max(_FEW, _SMALL * float(np.median(sizes[owner])))
    return sizes >= min(least, sizes.max())


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

    Large sets are clustered on a fixed sample of 10,000 rows and scored on one of 1,000; the
    samples are drawn with a fixed seed, so the answer depends on the data only.

    Args:
        points: float64 `[n, d]`, finite.
        partition: gives labels int `[n]`, counted from 0, for points and a bandwidth, and
            whether the cells came to rest; if not (two modes still crawl along a thin bridge
            towards each other), the bandwidth gets no score.

    Returns:
        The whole curve. Where no bandwidth allows a score (all points equal, or too few), the
        largest is chosen.
    """
    rng = np.random.default_rng(0)
    points = _sample(points, _CLUSTERED, rng)
    low, high = np.percentile(points, (1, 99), axis=0)
    extent = float((high - low).max()) or float(np.ptp(points, axis=0).max()) or 1.0
    steps = int(np.ceil(np.log(_COARSEST / _FINEST) / np.log(_RATIO))) + 1
    bandwidths = extent * np.geomspace(_FINEST, _COARSEST, steps)

    rows = _sample(np.arange(len(points)), _SCORED, rng)
    distances = euclidean_distances(points[rows])
    np.fill_diagonal(distances, 0)
    n_clusters = np.empty(steps, np.int64)
    largest = np.empty(steps)
    scores = np.full(steps, np.nan)
    last: tuple[NDArray, float] = (np.empty(0), np.nan)
    for b, h in enumerate(bandwidths):
        labels, met = partition(points, float(h))
        sizes = np.bincount(labels)
        counts = substantial(sizes, labels)
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

    Three times the rows (at most 10,000, drawn with a fixed seed) are split in two halves, both
    are clustered, and both clusterings assign the same 1,000 rows.

    Args:
        points: float64 `[n, d]`.
        assign: gives the labels of the second argument's points under a clustering of the first's.

    Returns:
        At most 1, about 0 for chance; NaN for fewer than 2 points. It says whether a partition is
        reproducible, not whether it is the right one: cutting uniform noise by a coarse grid is
        perfectly reproducible.
    """
    rng = np.random.default_rng(0)
    points = _sample(points, _CLUSTERED, rng)
    half = len(points) // 2
    if not half:
        return float("nan")
    asked = _sample(points, _SCORED, rng)
    found = []
    for _ in range(_SPLITS):
        order = rng.permutation(len(points))
        halves = points[order[:half]], points[order[half:]]
        found.append(adjusted_rand_score(*(assign(part, asked) for part in halves)))
    return float(np.mean(found))


def _sample(rows: NDArray, most: int, rng: np.random.Generator) -> NDArray:
    if len(rows) <= most:
        return rows
    return rows[np.sort(rng.choice(len(rows), most, replace=False))]


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
