"""Cost of `GridShift(bandwidth="auto")` relative to one fit at the finest bandwidth it scans."""

from cluster_jax import GridShift
from experiments.benchmark import _clouds

SIZE, REPEATS = 100_000, 9


def measure() -> tuple[dict, dict]:
    """Seconds of both, measured alternately, and their ratio."""
    points, _ = _clouds.blobs(SIZE)
    auto = GridShift().fit(points)
    finest = GridShift(float(auto.bandwidth_curve_.bandwidths[0]))
    ratios, autos, fits = [], [], []
    for _ in range(REPEATS):
        autos.append(_clouds.seconds(auto.fit, points))
        fits.append(_clouds.seconds(finest.fit, points))
        ratios.append(autos[-1] / fits[-1])
    figures = {
        "ratio": _clouds.spread(ratios),
        "seconds": {"auto": _clouds.spread(autos), "finest": _clouds.spread(fits)},
        "clusters": len(auto.cluster_centers_),
        "verdict": auto.bandwidth_curve_.verdict,
    }
    return figures, {
        "data": f"ten blobs of standard deviation 1 in three dimensions, {SIZE} points, float64",
        "bandwidths": len(auto.bandwidth_curve_.bandwidths),
        "repeats": REPEATS,
        "seed": _clouds.SEED,
    }
