"""GridShift's time by number of points, and against scikit-learn's MeanShift.

The points are ten blobs of standard deviation 1 in three dimensions, float64. MeanShift
(`bin_seeding=True`, `n_jobs=-1`) clusters them once, GridShift three times before and after.
"""

from typing import Any

import numpy as np
from sklearn.cluster import MeanShift
from sklearn.metrics import adjusted_rand_score

from cluster_jax import GridShift
from experiments.benchmark import _measure

REPEATS = {10_000: 9, 100_000: 9, 1_000_000: 5, 10_000_000: 3}
BANDWIDTH = 0.5
PEER_SIZE, PEER_BANDWIDTH = 100_000, 1.0


def measure() -> dict[str, Any]:
    """Seconds at every size, slope of log time over log size, ratio to MeanShift's time."""
    points, truth = _measure.blobs(max(REPEATS))
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
    peer_seconds = _measure.seconds(peer.fit, sample)
    own = before + [_measure.seconds(ours.fit, sample) for _ in range(3)]
    models = {"gridshift": ours, "meanshift": peer}
    return {
        "seconds": {str(n): t for n, t in times.items()},
        "slope": float(slope),
        "meanshift": {
            "ratio": _measure.spread([peer_seconds / t for t in own]),
            "seconds": {"gridshift": _measure.spread(own), "meanshift": peer_seconds},
            "ari": {
                name: adjusted_rand_score(truth[:PEER_SIZE], model.labels_)
                for name, model in models.items()
            },
            "clusters": {name: len(model.cluster_centers_) for name, model in models.items()},
        },
    }
