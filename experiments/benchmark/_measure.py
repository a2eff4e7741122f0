"""What the benchmarks share: times and their spread."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import jax

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
# The clock of `seconds`, which the flag --clock sets.
now = CLOCKS["wall"]


def seconds(function: Callable[..., object], *arguments: object) -> float:
    """Time of one call by the clock, until its arrays on the devices are there."""
    start = now()
    jax.block_until_ready(function(*arguments))
    return now() - start


def alternate(calls: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Times of calls that take turns, so that other work on the machine slows all alike."""
    rounds = [[seconds(call) for call in calls.values()] for _ in range(repeats)]
    return dict(zip(calls, map(list, zip(*rounds, strict=True)), strict=True))


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def ratios(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """The spread of the ratios of paired values."""
    return spread([a / b for a, b in zip(above, below, strict=True)])
