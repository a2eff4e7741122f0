"""Schedules as pure functions of the step, and durations in steps or epochs."""

import math
from collections.abc import Callable, Mapping

import jax.numpy as jnp
from jax import Array

Schedule = Callable[[Array | int], Array]


def duration(value: Mapping[str, float], steps_per_epoch: int) -> int:
    """Length in steps of `{"steps": s}` or `{"epochs": e}`: exactly one of the two is given.

    Raises:
        ValueError: both or none given, not a number of zero or more, or a fraction of a step.
    """
    given = {unit: n for unit, n in value.items() if n is not None}
    if len(given) != 1 or set(given) - {"steps", "epochs"}:
        raise ValueError(f"a duration is either steps or epochs, one of the two; got {dict(value)}")
    ((unit, n),) = given.items()
    if not 0 <= n < math.inf:
        raise ValueError(f"a duration is a finite number of at least 0; got {unit} = {n}")
    if unit == "steps":
        if n != int(n):
            raise ValueError(f"a duration in steps is a whole number; got {unit} = {n}")
        return int(n)
    # Rounded first: 0.55 epochs of 100 steps are 55.00000000000001 in floating point.
    return math.ceil(round(n * steps_per_epoch, 6))


def warmup_cosine(peak: float, warmup: int, total: int, end: float = 0.0) -> Schedule:
    """Linear from `peak / warmup` at step 0 to `peak` at step `warmup - 1`, then cosine to `end`.

    The cosine spans `total - warmup` steps, so the last step comes close to `end`; dividing by
    `total` instead, as official NCC code does, never gets there.
    """

    def schedule(step: Array | int) -> Array:
        step = jnp.asarray(step, jnp.result_type(float))
        rise = peak * (step + 1) / max(warmup, 1)
        progress = jnp.clip((step - warmup) / max(total - warmup, 1), 0, 1)
        fall = end + (peak - end) * 0.5 * (1 + jnp.cos(jnp.pi * progress))
        return jnp.where(step < warmup, rise, fall)

    return schedule


def cosine(start: float, end: float, total: int) -> Schedule:
    """From `start` at step 0 by half a cosine to `end` at step `total`, constant afterwards.

    The decay of the exponential moving average uses it: `cosine(0.996, 1.0, total)` is BYOL's
    schedule, `cosine(m, m, total)` a constant one.
    """

    def schedule(step: Array | int) -> Array:
        step = jnp.asarray(step, jnp.result_type(float))
        progress = jnp.clip(step / max(total, 1), 0, 1)
        return end - (end - start) * 0.5 * (1 + jnp.cos(jnp.pi * progress))

    return schedule
