"""What the benchmarks share: times, spreads, and a point cloud."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
from numpy.typing import NDArray

SEED = 0


def seconds(function: Callable[..., object], *arguments: object) -> float:
    """Wall time of one call, until its arrays on the devices are there."""
    start = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    return time.perf_counter() - start


def alternate(calls: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Wall times of calls that take turns, so that other work on the machine slows all alike."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            times[name].append(seconds(call))
    return times


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def ratios(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """The spread of the ratios of paired values."""
    return spread([a / b for a, b in zip(above, below, strict=True)])


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
