"""What NRCC adds to a BYOL step: ResNet-18 with CIFAR stem, 32x32, batch 64, float32.

In theory, a BYOL step costs 8 forward passes (two views, online 2 x 3, target 2 x 1). The gradient
with respect to the initial view and the target's forward pass of the sampled view add 2, a ratio of
1.25. NRCC's Table 7 reports 1.43 in time. The sampler is SGHMC with one iteration on the own view,
the other view as reference.
"""

from typing import Any

from experiments.benchmark import _measure, _steps
from experiments.benchmark._steps import Item

BATCH, REPEATS = 64, 5


def measure() -> dict[str, Any]:
    """FLOPs of both compiled steps, and the ratio of their times, measured alternately."""
    sides = {
        name: _steps.advancing(
            _steps.build_run(Item(dtype="float32", batch=BATCH, sampler=sampler))
        )
        for name, sampler in {"byol+nrcc": "sghmc", "byol": None}.items()
    }
    times = _measure.alternate({name: step for name, (step, _) in sides.items()}, REPEATS)
    flops = {name: compiled.cost_analysis()["flops"] for name, (_, compiled) in sides.items()}
    return {
        "flops_ratio": flops["byol+nrcc"] / flops["byol"],
        "time_ratio": _measure.ratios(times["byol+nrcc"], times["byol"]),
        "gflops": {name: count / 1e9 for name, count in flops.items()},
        "seconds": {name: _measure.spread(values) for name, values in times.items()},
    }
