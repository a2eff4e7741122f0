"""GridShift's time by number of points, and against scikit-learn's MeanShift.

The points are ten blobs of standard deviation 1 in three dimensions, float64. MeanShift
(`bin_seeding=True`, `n_jobs=-1`) clusters them once, GridShift three times before and after.
"""

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import MeanShift
from sklearn.metrics import adjusted_rand_score

from cluster_jax import GridShift
from experiments.benchmark import _measure

REPEATS = {10_000: 9, 100_000: 9, 1_000_000: 5, 10_000_000: 3}
BANDWIDTH = 0.5
PEER_SIZE, PEER_BANDWIDTH = 100_000, 1.0


def blobs(n: int) -> tuple[NDArray, NDArray]:
    """The points, float64 `[n, 3]`, and their labels; centers are at least 8 apart in a cube."""
    rng = np.random.default_rng(0)
    centers = np.empty((0, 3))
    while len(centers) < 10:
        center = rng.uniform(-20, 20, (1, 3))
        if (np.linalg.norm(centers - center, axis=1) >= 8).all():
            centers = np.concatenate([centers, center])
    truth = rng.integers(0, 10, n)
    return centers[truth] + rng.normal(size=(n, 3)), truth


def measure() -> dict:
    """Seconds at every size, slope of log time over log size, ratio to MeanShift's time."""
    points, truth = blobs(max(REPEATS))
    times = {}
    for n, repeats in REPEATS.items():
        part = points[:n]
        GridShift(BANDWIDTH).fit(part[:1000])
        runs = [_measure.seconds(GridShift(BANDWIDTH).fit, part) for _ in range(repeats)]
        times[n] = _measure.spread(runs)
    medians = [t["median"] for t in times.values()]
    slope = np.polyfit(np.log(list(times)), np.log(medians), 1)[0]

    sample = points[:PEER_SIZE]
    ours = GridShift(PEER_BANDWIDTH)
    peer = MeanShift(bandwidth=PEER_BANDWIDTH, bin_seeding=True, n_jobs=-1)
    before = [_measure.seconds(ours.fit, sample) for _ in range(3)]
    seconds = _measure.seconds(peer.fit, sample)
    own = before + [_measure.seconds(ours.fit, sample) for _ in range(3)]
    return {
        "seconds": times,
        "slope": slope,
        "ratio": _measure.spread([seconds / t for t in own]),
        "gridshift": {"seconds": _measure.spread(own), **_found(ours, truth[:PEER_SIZE])},
        "meanshift": {"seconds": seconds, **_found(peer, truth[:PEER_SIZE])},
    }


def _found(model: GridShift | MeanShift, truth: NDArray) -> dict[str, float]:
    ari = adjusted_rand_score(truth, model.labels_)
    return {"ari": ari, "clusters": len(model.cluster_centers_)}
