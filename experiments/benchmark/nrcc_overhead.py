"""What NRCC adds to a BYOL step: ResNet-18 with CIFAR stem, 32x32, batch 64, float32.

In theory, a BYOL step costs 8 forward passes (two views, online 2 x 3, target 2 x 1). The gradient
with respect to the initial view and the target's forward pass of the sampled view add 2, a ratio of
1.25. NRCC's Table 7 reports 1.43 in time. The sampler is SGHMC with one iteration on the own view,
the other view as reference.
"""

from collections.abc import Callable
from typing import Any

from experiments.benchmark import _measure, _steps
from experiments.benchmark._steps import Item

BATCH, REPEATS = 64, 5


def measure() -> dict[str, Any]:
    """FLOPs of both compiled steps, and the ratio of their times, measured alternately."""
    sides = {"byol+nrcc": _prepare("sghmc"), "byol": _prepare(None)}
    times = _measure.alternate({name: step for name, (step, _) in sides.items()}, REPEATS)
    flops = {name: count for name, (_, count) in sides.items()}
    return {
        "flops_ratio": flops["byol+nrcc"] / flops["byol"],
        "time_ratio": _measure.ratios(times["byol+nrcc"], times["byol"]),
        "gflops": {name: count / 1e9 for name, count in flops.items()},
        "seconds": {name: _measure.spread(values) for name, values in times.items()},
    }


def _prepare(sampler: str | None) -> tuple[Callable[[], object], float]:
    """A step that goes on from its last state, run once, and its FLOPs."""
    item = Item(dtype="float32", batch=BATCH, sampler=sampler)
    state, step, stream, resident = _steps.prepare(_steps.build_run(item))
    batch = next(stream)
    compiled = step.lower(state, batch, resident).compile()

    def advance() -> object:
        nonlocal state
        state, _ = compiled(state, batch, resident)
        return state

    _measure.seconds(advance)
    return advance, compiled.cost_analysis()["flops"]
