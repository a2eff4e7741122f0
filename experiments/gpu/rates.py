"""Rates of training steps: images/s, share of the chip's peak, memory, time of the first step."""

import statistics
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh

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
    The share is of the chip's dense peak, for float32 of that in TF32.
    """
    config = settings.config_of(item, tiny)
    run = settings.build_run(config, settings.images_for(item, tiny)).training
    figures = measure_run(run, 0.02 if tiny else ROUND_SECONDS)
    chip = chips.find(jax.devices()[0].device_kind)
    return figures | {
        "share_of_peak": None if chip is None else share_of_peak(figures, chip, item["dtype"])
    }


def share_of_peak(figures: Mapping[str, Any], chip: chips.Chip, dtype: str) -> float:
    """Operations per second over those that the chip can do."""
    operations_per_second = 1e9 * figures["gflops_per_image"] * figures["images_per_second"]
    return operations_per_second / chips.peak_flops(chip, dtype)


def operations(run: TrainingRun) -> float:
    """Operations of a step for one image, as traced.

    Before XLA, since the compiled step hides convolutions in calls of cuDNN that count as nothing;
    lowered for a CPU, since other backends do not count.
    """
    mesh = mesh_of(jax.devices("cpu")[0])
    state = jax.eval_shape(
        lambda: states.initial(run.method, run.optimizer, seed=0, shape=run.shape)
    )
    placed = next(endless(run))
    batch = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype), placed)
    resident = jax.ShapeDtypeStruct(run.dataset.images.shape, jnp.uint8)
    lowered = make_step(run.method, run.optimizer, mesh).lower(state, batch, resident)
    return lowered.cost_analysis()["flops"] / run.schedule.batch_size


def measure_run(run: TrainingRun, round_seconds: float) -> dict[str, Any]:
    """Figures of a run's step, after at least `round_seconds` of steps in each round."""
    state = build.initial_state(run)
    resident = jax.device_put(run.dataset.images, states.replicated(run.mesh))
    stream = endless(run)
    batch = next(stream)
    start = time.perf_counter()
    step = make_step(run.method, run.optimizer, run.mesh)
    compiled = step.lower(state, batch, resident).compile()
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
    return {
        "images_per_second": batch_size / statistics.median(rounds),
        "images_per_second_range": [batch_size / max(rounds), batch_size / min(rounds)],
        "steps_per_round": count,
        "milliseconds": 1e3 * statistics.median(rounds),
        "first_step_seconds": first,
        "gflops_per_image": operations(run) / 1e9,
        "memory_gb": memory_gb(compiled),
    }


def mesh_of(device: jax.Device) -> Mesh:
    """The mesh of one device."""
    return jax.make_mesh((1,), (states.AXIS,), axis_types=(AxisType.Auto,), devices=[device])


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
