"""GridShift's time by number of points, and against scikit-learn's MeanShift."""

import numpy as np
from sklearn.cluster import MeanShift
from sklearn.metrics import adjusted_rand_score

from cluster_jax import GridShift
from experiments.benchmark import _clouds

SIZES = {10_000: 9, 100_000: 9, 1_000_000: 5, 10_000_000: 3}
BANDWIDTH = 0.5
PEER_SIZE, PEER_BANDWIDTH = 100_000, 1.0


def measure() -> tuple[dict, dict]:
    """Seconds at every size, slope of log time over log size, ratio to MeanShift's time."""
    points, truth = _clouds.blobs(max(SIZES))
    times = {}
    for n, repeats in SIZES.items():
        part = points[:n]
        GridShift(BANDWIDTH).fit(part[:1000])
        times[n] = _clouds.spread(
            [_clouds.seconds(GridShift(BANDWIDTH).fit, part) for _ in range(repeats)]
        )
    medians = [t["median"] for t in times.values()]
    slope = np.polyfit(np.log(list(times)), np.log(medians), 1)[0]

    sample, sample_truth = points[:PEER_SIZE], truth[:PEER_SIZE]
    gridshift = GridShift(PEER_BANDWIDTH)
    peer = MeanShift(bandwidth=PEER_BANDWIDTH, bin_seeding=True, n_jobs=-1)
    before = [_clouds.seconds(gridshift.fit, sample) for _ in range(3)]
    peer_seconds = _clouds.seconds(peer.fit, sample)
    after = [_clouds.seconds(gridshift.fit, sample) for _ in range(3)]
    ratios = [peer_seconds / t for t in before + after]
    figures = {
        "seconds": {str(n): t for n, t in times.items()},
        "slope": float(slope),
        "meanshift": {
            "ratio": _clouds.spread(ratios),
            "seconds": {"gridshift": _clouds.spread(before + after), "meanshift": peer_seconds},
            "ari": {
                "gridshift": adjusted_rand_score(sample_truth, gridshift.labels_),
                "meanshift": adjusted_rand_score(sample_truth, peer.labels_),
            },
            "clusters": {
                "gridshift": len(gridshift.cluster_centers_),
                "meanshift": len(peer.cluster_centers_),
            },
        },
    }
    return figures, {
        "data": "ten blobs of standard deviation 1 in three dimensions, float64",
        "bandwidth": BANDWIDTH,
        "repeats": {str(n): r for n, r in SIZES.items()},
        "peer": f"MeanShift(bandwidth={PEER_BANDWIDTH}, bin_seeding=True, n_jobs=-1) on "
        f"{PEER_SIZE} points, once; GridShift three times before and three times after",
        "seed": _clouds.SEED,
    }
