"""A profile of training steps: the kernels that take longest, and the device's idle time."""

import pathlib
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import jax

from cluster_jax.pipeline import build
from cluster_jax.training import state as states
from cluster_jax.training.step import make_step
from experiments.gpu import rates, settings

WARM_UP, STEPS, KERNELS = 5, 10, 10


def measure(item: Mapping[str, Any], tiny: bool) -> dict[str, Any]:
    """The ten kernels with the largest sums of time in ten steps, and the gaps between kernels."""
    config = settings.config_of(item, tiny)
    run = settings.build_run(config, settings.images_for(item, tiny)).training
    state = build.initial_state(run)
    resident = jax.device_put(run.dataset.images, states.replicated(run.mesh))
    step, stream = make_step(run.method, run.optimizer, run.mesh), rates.endless(run)
    for _ in range(WARM_UP):
        state, _ = step(state, next(stream), resident)
    jax.block_until_ready(state)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(STEPS):
                state, _ = step(state, next(stream), resident)
            jax.block_until_ready(state)
        (file,) = pathlib.Path(folder).rglob("*.xplane.pb")
        return {"steps": STEPS, **summarize(_events(file))}


def summarize(events: list[tuple[str, float, float]]) -> dict[str, Any]:
    """Figures of device events (name, start, duration in ns).

    Returns:
        `{"busy": share of the window in which a kernel runs, "milliseconds": the window,
        "kernels": number, "largest": [{"name", "milliseconds", "share", "calls"}, ...]}`; a share
        is of the sum of all durations.
    """
    if not events:
        return {"busy": None, "milliseconds": None, "kernels": 0, "largest": []}
    sums: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for name, _, duration in events:
        sums[name] += duration
        calls[name] += 1
    spans = sorted((start, start + duration) for _, start, duration in events)
    busy, reached = 0.0, spans[0][0]
    for start, end in spans:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    window, total = reached - spans[0][0], sum(sums.values())
    largest = sorted(sums, key=lambda name: -sums[name])[:KERNELS]
    return {
        "busy": busy / window if window else None,
        "milliseconds": window / 1e6,
        "kernels": len(events),
        "largest": [
            {
                "name": name,
                "milliseconds": sums[name] / 1e6,
                "share": sums[name] / total,
                "calls": calls[name],
            }
            for name in largest
        ],
    }


def _events(file: pathlib.Path) -> list[tuple[str, float, float]]:
    """Kernels on the device; on a CPU, which has no device plane, XLA's own operations."""
    data = jax.profiler.ProfileData.from_file(str(file))
    planes = list(data.planes)
    device = [p for p in planes if p.name.startswith("/device:GPU")]
    events = []
    for plane in device or planes:
        for line in plane.lines:
            wanted = line.name.startswith("Stream") if device else "XLA" in line.name
            if wanted:
                events += [(e.name, e.start_ns, e.duration_ns) for e in line.events]
    return events
