"""Schedules as pure functions of the step.

Not optax's: its cosine multiplies by `alpha` instead of adding the end, which differs from `cosine`
in the last bit at every second step, and its warm-up reaches the peak one step later.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

Schedule = Callable[[Array | int], Array]


def warmup_cosine(peak: float, warmup: int, total: int, end: float = 0.0) -> Schedule:
    """Makes a schedule: from `peak / warmup` to `peak` in `warmup` steps, then cosine to `end`.

    The cosine spans `total - warmup` steps, so the last step comes close to `end`. The official
    NCC code divides by `total` instead and ends above it.
    """
    fall = cosine(peak, end, total - warmup)
    return _after_warmup(peak, warmup, lambda step: fall(step - warmup))


def warmup_linear(peak: float, warmup: int, total: int, end: float = 0.0) -> Schedule:
    """Makes a schedule: linear warm-up as in `warmup_cosine`, then a line to `end`."""

    def fall(step: Array) -> Array:
        return peak + (end - peak) * jnp.clip((step - warmup) / max(total - warmup, 1), 0, 1)

    return _after_warmup(peak, warmup, fall)


def warmup_constant(peak: float, warmup: int) -> Schedule:
    """Makes a schedule: linear warm-up as in `warmup_cosine`, then `peak`."""
    return _after_warmup(peak, warmup, lambda step: jnp.full_like(step, peak))


def warmup_drops(peak: float, warmup: int, every: int) -> Schedule:
    """Makes a schedule: linear warm-up as in `warmup_cosine`, a tenth after each `every` steps.

    The steps are counted from 0, so the warm-up does not shift the drops.
    """
    return _after_warmup(peak, warmup, lambda step: peak * 0.1 ** jnp.floor(step / every))


def _after_warmup(peak: float, warmup: int, after: Callable[[Array], Array]) -> Schedule:
    def schedule(step: Array | int) -> Array:
        step = jnp.asarray(step, jnp.result_type(float))
        rise = peak * (step + 1) / max(warmup, 1)
        return jnp.where(step < warmup, rise, after(step))

    return schedule


def cosine(start: float, end: float, total: int) -> Schedule:
    """Makes a schedule: half a cosine from `start` to `end` in `total` steps, constant afterward.

    Used for the decay of the exponential moving average: `cosine(0.996, 1.0, total)` is BYOL's
    schedule, `cosine(m, m, total)` is constant.
    """

    def schedule(step: Array | int) -> Array:
        step = jnp.asarray(step, jnp.result_type(float))
        progress = jnp.clip(step / max(total, 1), 0, 1)
        return end - (end - start) * 0.5 * (1 + jnp.cos(jnp.pi * progress))

    return schedule
