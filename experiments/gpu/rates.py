"""Rates of training steps: images/s, share of the chip's peak, memory, time of the first step."""

import statistics
import time
from collections.abc import Mapping
from typing import Any

import jax

from cluster_jax.data import batches
from cluster_jax.pipeline import build
from cluster_jax.training import state as states
from cluster_jax.training.loop import TrainingRun
from cluster_jax.training.step import make_step
from experiments.gpu import chips, settings

WARM_UP, ROUNDS, ROUND_SECONDS = 5, 3, 2.0


def measure(item: Mapping[str, Any], tiny: bool) -> dict[str, Any]:
    """Figures of the item's training step.

    Images are resident on the device and augmented inside the step; the host only sends indices.
    Operations are those of the step as traced, before XLA: the compiled one hides convolutions in
    calls of cuDNN that count as nothing.
    """
    config = settings.config_of(item, tiny)
    run = settings.build_run(config, settings.images_for(item, tiny)).training
    return measure_run(run, 0.02 if tiny else ROUND_SECONDS)


def measure_run(run: TrainingRun, round_seconds: float) -> dict[str, Any]:
    """Figures of a run's step, after at least `round_seconds` of steps in each round."""
    state = build.initial_state(run)
    resident = jax.device_put(run.dataset.images, states.replicated(run.mesh))
    stream = endless(run)
    batch = next(stream)
    start = time.perf_counter()
    lowered = make_step(run.method, run.optimizer, run.mesh).lower(state, batch, resident)
    compiled = lowered.compile()
    state, metrics = compiled(state, batch, resident)
    jax.block_until_ready(metrics)
    first = time.perf_counter() - start

    def steps(state: states.State, count: int) -> tuple[states.State, float]:
        start = time.perf_counter()
        for _ in range(count):
            state, metrics = compiled(state, next(stream), resident)
        jax.block_until_ready((state, metrics))
        return state, (time.perf_counter() - start) / count

    state, seconds = steps(state, WARM_UP)
    count = max(3, round(round_seconds / seconds))
    rounds = []
    for _ in range(ROUNDS):
        state, seconds = steps(state, count)
        rounds.append(seconds)
    batch_size = run.schedule.batch_size
    flops = (lowered.cost_analysis() or {}).get("flops")
    rate = batch_size / statistics.median(rounds)
    peak = chips.peak_flops(jax.devices()[0].device_kind)
    return {
        "images_per_second": rate,
        "images_per_second_range": [batch_size / max(rounds), batch_size / min(rounds)],
        "steps_per_round": count,
        "milliseconds": 1e3 * statistics.median(rounds),
        "first_step_seconds": first,
        "gflops_per_image": None if flops is None else flops / batch_size / 1e9,
        "share_of_peak": None if not (flops and peak) else flops / batch_size * rate / peak,
        "memory_gb": memory_gb(compiled),
    }


def endless(run: TrainingRun) -> Any:
    """Batches of indices on the device, without end."""
    schedule, sharding = run.schedule, states.sharded(run.mesh)
    stream = batches.stream(
        run.dataset,
        seed=schedule.seed,
        batch_size=schedule.batch_size,
        labeled=schedule.labeled_batch_size,
        start=0,
        stop=2**31,
        process=0,
        processes=1,
        prefetch=schedule.prefetch,
    )
    return (jax.tree.map(lambda v: jax.device_put(v, sharding), batch) for batch in stream)


def memory_gb(compiled: jax.stages.Compiled) -> float | None:
    """Arguments, results that alias none of them, and temporaries of a compiled function."""
    sizes = compiled.memory_analysis()
    if sizes is None:
        return None
    total = (
        sizes.argument_size_in_bytes
        + sizes.output_size_in_bytes
        - sizes.alias_size_in_bytes
        + sizes.temp_size_in_bytes
    )
    return total / 1e9
