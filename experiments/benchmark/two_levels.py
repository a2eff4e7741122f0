"""k-means in two levels: 100,000 clusters of a million rows, and 1,000 beside one level."""

import time
from typing import Any

import numpy as np

from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.clustering.two_levels import kmeans_two_levels
from experiments.benchmark import _measure

ROWS, COLUMNS, CLUSTERS = 1_000_000, 64, 100_000
SMALL_ROWS, SMALL_CLUSTERS = 50_000, 1_000
UPDATES, SEED = 20, 0
# Written before the first measurement.
PREDICTED = {
    "large": {
        "tflop_one_level": 2e-12 * ROWS * COLUMNS * CLUSTERS * UPDATES,
        "tflop": 2e-12 * ROWS * COLUMNS * 2 * 316 * UPDATES,
        "seconds": 120,
        "largest_cluster": "below 10 times the mean of 10 rows",
    },
    "inertia_ratio": "two levels to one: 1.02 to 1.05",
}


def measure() -> dict[str, Any]:
    """Seconds, sizes of clusters and memory of the large one; inertia of the small ones."""
    x = _rows(SMALL_ROWS, 2 * SMALL_CLUSTERS)
    one = kmeans(x, SMALL_CLUSTERS, n_init=1, max_iter=UPDATES)
    two = kmeans_two_levels(x, SMALL_CLUSTERS, max_iter=UPDATES)
    x = _rows(ROWS, CLUSTERS)
    start = time.perf_counter()
    found = kmeans_two_levels(x, CLUSTERS, max_iter=UPDATES)
    seconds = time.perf_counter() - start
    sizes = np.bincount(found.labels, minlength=CLUSTERS)
    return {
        "inertia_ratio": two.inertia / one.inertia,
        "large": {
            "seconds": seconds,
            "largest_cluster": int(sizes.max()),
            "empty_clusters": int((sizes == 0).sum()),
            "peak_mb": _measure.memory_mb(),
        },
    }


def _rows(n: int, blobs: int) -> np.ndarray:
    """Gaussian blobs, centers N(0, 1) and deviation 0.5, float32 `[n, 64]`."""
    rng = np.random.default_rng(SEED)
    centers = rng.standard_normal((blobs, COLUMNS), np.float32)
    noise = rng.standard_normal((n, COLUMNS), np.float32)
    return centers[rng.integers(0, blobs, n)] + noise / 2
