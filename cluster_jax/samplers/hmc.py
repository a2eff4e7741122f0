"""Hamiltonian Monte Carlo: leapfrog trajectories, each accepted or rejected."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.core import ops
from cluster_jax.samplers import base


class Phase(NamedTuple):
    """A point of phase space, and what the next step needs.

    Attributes:
        position: `[b, ...]`.
        momentum: `[b, ...]`.
        value: potential at the position `[b]`.
        gradient: its (shaped) gradient `[b, ...]`.
        drift: part of the position's motion that is linear in the gradients `[b, ...]`.
        drift_momentum: the same part of the momentum `[b, ...]`.
    """

    position: Array
    momentum: Array
    value: Array
    gradient: Array
    drift: Array
    drift_momentum: Array


def trajectory(
    evaluate: base.Energy, phase: Phase, *, leapfrog_steps: int, step_size: float
) -> Phase:
    """`leapfrog_steps` steps of half a kick, a move, and half a kick.

    Args:
        evaluate: `position -> (potential, gradient)`.
        phase: where it starts.
        leapfrog_steps: number of steps; the energy is evaluated once in each.
        step_size: length of a step; negative runs time backwards.
    """
    half = step_size / 2
    position, momentum, value, gradient, drift, drift_momentum = phase
    for _ in range(leapfrog_steps):
        momentum = momentum - half * gradient
        drift_momentum = drift_momentum - half * gradient
        position = position + step_size * momentum
        drift = drift + step_size * drift_momentum
        value, gradient = evaluate(position)
        momentum = momentum - half * gradient
        drift_momentum = drift_momentum - half * gradient
    return Phase(position, momentum, value, gradient, drift, drift_momentum)


def kinetic_change(before: Array, after: Array) -> Array:
    """`(|after|^2 - |before|^2) / 2` per image, `[b, ...]` -> `[b]`, at least float32.

    Summed over pixels as a product of sum and difference: the two squares are large and close.
    """
    before, after = ops.upcast(before), ops.upcast(after)
    pixels = tuple(range(1, before.ndim))
    return jnp.sum((after - before) * (after + before), axis=pixels) / 2


def _uniforms(keys: Array, like: Array, index: int) -> Array:
    """One uniform number per key in the dtype of `like`, from the draw `index`."""
    return jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, index), (), like.dtype))(
        keys
    )


@functools.partial(
    jax.jit, static_argnames=("energy", "iterations", "leapfrog_steps", "normalize_gradient")
)
def hmc(
    keys: Array,
    images: Array,
    energy: base.Energy,
    start: tuple[Array, Array],
    *,
    iterations: int,
    leapfrog_steps: int,
    step_size: float,
    clip: float | None,
    normalize_gradient: bool,
) -> tuple[Array, base.Info]:
    """Samples from exp(-P) per image, with H = P + |p|^2 / 2 and acceptance min(1, exp(-dH)).

    Each iteration draws a fresh momentum, follows `leapfrog_steps` leapfrog steps and accepts or
    rejects their end, image by image. The energy is called `iterations * leapfrog_steps` times.
    A proposal whose energy is not a number is rejected.

    Neither clipping nor normalizing changes the law that is sampled: leapfrog is reversible and
    keeps volume under any force that depends on the position alone, and the accept step uses P
    itself. But the force is then no longer -grad P, so H drifts and more proposals are rejected.
    What does break detailed balance is an energy in which images influence each other (batch
    statistics).

    Args:
        keys: one typed PRNG key per image `[b]`.
        images: the seeds `[b, ...]`, in the units of the network's input.
        energy: `images -> (P [b], gradient)`, see `samplers.base`. It may close over traced values.
        start: the energy's values at `images`.
        iterations: proposals, at least 1; unrolled.
        leapfrog_steps: steps per proposal, at least 1; unrolled.
        step_size: length of a leapfrog step.
        clip: largest absolute value of a pixel's gradient, or None.
        normalize_gradient: scale each image's gradient, clipped, to a root mean square of one.

    Returns:
        The views, shape and dtype of `images`, without gradient; and `Info`.

    Raises:
        ValueError: `iterations` or `leapfrog_steps` below 1.

    Source: Duane et al. 1987; a peer in NRCC's Table 8, which gives no step size and no number of
    steps.
    """
    base.check_iterations(iterations)
    if leapfrog_steps < 1:
        raise ValueError(f"HMC needs at least 1 leapfrog step; got {leapfrog_steps}")

    def evaluate(position: Array) -> tuple[Array, Array]:
        value, gradient = energy(position)
        return value, base.shaped(gradient, images, clip, normalize_gradient)

    position, drift = images, jnp.zeros_like(images)
    value, gradient = start[0], base.shaped(start[1], images, clip, normalize_gradient)
    accepted = jnp.zeros_like(value)
    for i in range(iterations):
        momentum = base.normals(keys, images, 2 * i)
        uniform = _uniforms(keys, value, 2 * i + 1)
        proposal = trajectory(
            evaluate,
            Phase(position, momentum, value, gradient, drift, jnp.zeros_like(images)),
            leapfrog_steps=leapfrog_steps,
            step_size=step_size,
        )
        change = proposal.value - value + kinetic_change(momentum, proposal.momentum)
        accept = jnp.log(uniform) < -change
        accepted = accepted + accept.astype(accepted.dtype)
        chosen = base.per_image(accept, images)
        position = jnp.where(chosen, proposal.position, position)
        drift = jnp.where(chosen, proposal.drift, drift)
        gradient = jnp.where(chosen, proposal.gradient, gradient)
        value = jnp.where(accept, proposal.value, value)
    share = base.share(drift, position - images)
    return jax.lax.stop_gradient((position, base.Info(share, accepted / iterations)))
