"""Choice of GridShift's bandwidth without labels: a scan over bandwidths and a score for each."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import silhouette_samples
from sklearn.metrics.pairwise import euclidean_distances

# The scan covers bandwidths from 1/100 to 1/2 of the data's extent, 10 % apart.
_FINEST, _COARSEST, _RATIO = 0.01, 0.5, 1.1
# Rows that the scan clusters, and rows on which the silhouette is computed.
_CLUSTERED, _SCORED = 100_000, 1_000
# A cluster counts from this many rows, and from this part of the cluster of the median row.
_FEW, _SMALL = 3, 0.05
# Scores this close to the best are as good as the best.
_TOLERANCE = 0.02
# On the generated sets of `experiments/bandwidth_sets.py` blobs scored 0.68 to 0.85, a single
# blob, uniform noise and moons 0.20 to 0.51.
_CLEAR = 0.6


class Curve(NamedTuple):
    """What a scan over bandwidths saw.

    `bandwidths` float64 `[b]` ascending, `n_clusters` int64 `[b]`, `scores` float64 `[b]` (below
    1; NaN where fewer than two clusters count or the cells did not come to rest), `chosen` the
    index of the bandwidth taken, and `clear`, whether its score is one that separate clusters
    reach: if not, the data may be one cluster or none.
    """

    bandwidths: NDArray
    n_clusters: NDArray
    scores: NDArray
    chosen: int
    clear: bool


def scan(points: NDArray, partition: Callable[[NDArray, float], tuple[NDArray, bool]]) -> Curve:
    """Clusters `points` at bandwidths on a logarithmic grid, scores each partition, takes one.

    The score is the silhouette (Rousseeuw 1987) in the space of `points`, computed among the
    clusters that count and averaged over all rows, those of the tiny clusters with 0: a few
    outliers, each a cluster of its own, neither win nor lose. A cluster counts from 3 rows and
    from 5 % of the rows of the cluster that holds the median row. Of the bandwidths that score
    within 0.02 of the best, those with the fewest clusters are kept (the others split off
    fragments at almost the same score), and the middle one is taken.

    Large sets are clustered on a fixed sample of 100,000 rows and scored on one of 1,000; the
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
    if len(points) > _CLUSTERED:
        points = points[np.sort(rng.choice(len(points), _CLUSTERED, replace=False))]
    low, high = np.percentile(points, (1, 99), axis=0)
    extent = float((high - low).max()) or float(np.ptp(points, axis=0).max()) or 1.0
    steps = int(np.ceil(np.log(_COARSEST / _FINEST) / np.log(_RATIO))) + 1
    bandwidths = extent * np.geomspace(_FINEST, _COARSEST, steps)

    sample = np.arange(len(points))
    if len(points) > _SCORED:
        sample = np.sort(rng.choice(len(points), _SCORED, replace=False))
    distances = euclidean_distances(points[sample])
    np.fill_diagonal(distances, 0)
    n_clusters = np.empty(steps, np.int64)
    scores = np.empty(steps)
    for b, h in enumerate(bandwidths):
        labels, met = partition(points, float(h))
        sizes = np.bincount(labels)[labels]
        n_clusters[b] = labels.max() + 1
        counts = sizes >= max(_FEW, _SMALL * np.median(sizes))
        scores[b] = _score(distances, labels[sample], counts[sample]) if met else np.nan
    chosen = _choose(n_clusters, scores)
    return Curve(bandwidths, n_clusters, scores, chosen, bool(scores[chosen] >= _CLEAR))


def _score(distances: NDArray, labels: NDArray, counts: NDArray) -> float:
    """Silhouette among the rows that count, averaged over all; NaN where it is undefined."""
    clusters = len(np.unique(labels[counts]))
    if not 2 <= clusters < counts.sum():
        return float("nan")
    among = distances[np.ix_(counts, counts)]
    each = silhouette_samples(among, labels[counts], metric="precomputed")
    return float(each.sum() / len(labels))


def _choose(n_clusters: NDArray, scores: NDArray) -> int:
    """Middle one of the bandwidths with the fewest clusters among those of almost best score."""
    if np.isnan(scores).all():
        return len(scores) - 1
    good = np.flatnonzero(scores >= np.nanmax(scores) - _TOLERANCE)
    fewest = good[n_clusters[good] == n_clusters[good].min()]
    return int(fewest[len(fewest) // 2])
