"""Cost of `GridShift(bandwidth="auto")` relative to one fit at the finest bandwidth it scans.

The points are ten blobs of standard deviation 1 in three dimensions, float64.
"""

from typing import Any

from cluster_jax import GridShift
from experiments.benchmark import _measure

SIZE, REPEATS = 100_000, 9


def measure() -> dict[str, Any]:
    """Seconds of both, measured alternately, and their ratio."""
    points, _ = _measure.blobs(SIZE)
    auto = GridShift().fit(points)
    finest = GridShift(float(auto.bandwidth_curve_.bandwidths[0]))
    calls = {"auto": lambda: auto.fit(points), "finest": lambda: finest.fit(points)}
    times = _measure.alternate(calls, REPEATS)
    return {
        "ratio": _measure.ratios(times["auto"], times["finest"]),
        "seconds": {name: _measure.spread(values) for name, values in times.items()},
        "bandwidths": len(auto.bandwidth_curve_.bandwidths),
        "clusters": len(auto.cluster_centers_),
        "verdict": auto.bandwidth_curve_.verdict,
    }
