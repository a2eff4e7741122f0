"""What NRCC adds to a BYOL step: ResNet-18 with CIFAR stem, 32x32, batch 64.

In theory, a BYOL step costs 8 forward passes (two views, online 2 x 3, target 2 x 1). The gradient
with respect to the initial view and the target's forward pass of the sampled view add 2, a ratio of
1.25.
NRCC's Table 7 reports 1.43 in time.
"""

import statistics
import time

import jax

from experiments.benchmark import _steps
from experiments.benchmark._steps import Item

BATCH, REPEATS = 64, 5


def measure() -> tuple[dict, dict]:
    """FLOPs of both compiled steps, and the median ratio of their times, measured alternately."""
    with_nrcc, without = (_prepare(nrcc) for nrcc in (True, False))
    ratios, times = [], ([], [])
    for _ in range(REPEATS):
        pair = [_time(side) for side in (with_nrcc, without)]
        ratios.append(pair[0] / pair[1])
        for side_times, seconds in zip(times, pair, strict=True):
            side_times.append(seconds)
    figures = {
        "flops_ratio": with_nrcc["flops"] / without["flops"],
        "time_ratio": statistics.median(ratios),
        "time_ratio_range": [min(ratios), max(ratios)],
        "gflops": {"byol+nrcc": with_nrcc["flops"] / 1e9, "byol": without["flops"] / 1e9},
        "seconds": {"byol+nrcc": statistics.median(times[0]), "byol": statistics.median(times[1])},
    }
    setup = {
        "network": "resnet18, CIFAR stem, 32x32, float32",
        "batch": BATCH,
        "repeats": REPEATS,
        "seed": 0,
        "sampler": "SGHMC, one iteration, own view, the other view as reference",
        "device": jax.devices()[0].device_kind,
    }
    return figures, setup


def _prepare(nrcc: bool) -> dict:
    item = Item(dtype="float32", batch=BATCH, sampler="sghmc" if nrcc else None)
    state, step, stream, resident = _steps.prepare(_steps.build_run(item))
    batch = next(stream)
    compiled = step.lower(state, batch, resident).compile()
    side = {
        "flops": compiled.cost_analysis()["flops"],
        "step": lambda state: compiled(state, batch, resident)[0],
        "state": state,
    }
    _time(side)
    return side


def _time(side: dict) -> float:
    start = time.perf_counter()
    side["state"] = jax.block_until_ready(side["step"](side["state"]))
    return time.perf_counter() - start
