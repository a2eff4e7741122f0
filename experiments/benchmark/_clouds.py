"""Point clouds and timing shared by the clustering benchmarks."""

import statistics
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

SEED = 0


def blobs(n: int) -> tuple[NDArray, NDArray]:
    """Ten blobs of standard deviation 1 in a box of side 40: float64 `[n, 3]`, and their labels.

    Centers are at least 8 apart, so that the blobs are separate.
    """
    rng = np.random.default_rng(SEED)
    centers = np.empty((0, 3))
    while len(centers) < 10:
        center = rng.uniform(-20, 20, (1, 3))
        if (np.linalg.norm(centers - center, axis=1) >= 8).all():
            centers = np.concatenate([centers, center])
    truth = rng.integers(0, 10, n)
    return centers[truth] + rng.normal(size=(n, 3)), truth


def seconds(function: Callable[..., object], *arguments: object) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def spread(values: list[float]) -> dict[str, float]:
    """Median, lowest and highest."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}
