"""Hamiltonian Monte Carlo: leapfrog trajectories, each accepted or rejected."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.core import checks, ops
from cluster_jax.samplers import base
from cluster_jax.samplers.base import PotentialAndGrad, SamplerInfo


class HMCState(NamedTuple):
    """A point of phase space, and what the next step needs.

    Attributes:
        position: `[b, ...]`.
        momentum: `[b, ...]`.
        potential: P at the position `[b]`.
        potential_grad: its (shaped) gradient `[b, ...]`.
        gradient_displacement: part of the displacement that is linear in the gradients `[b, ...]`.
        gradient_momentum: the same part of the momentum `[b, ...]`.
    """

    position: Array
    momentum: Array
    potential: Array
    potential_grad: Array
    gradient_displacement: Array
    gradient_momentum: Array


def leapfrog(
    potential_and_grad: PotentialAndGrad,
    state: HMCState,
    *,
    leapfrog_steps: int,
    step_size: float,
) -> HMCState:
    """`leapfrog_steps` steps of half a kick, a drift, and half a kick.

    Args:
        potential_and_grad: `position -> (P, gradient)`, called once in each step.
        state: where the trajectory starts.
        leapfrog_steps: number of steps.
        step_size: length of a step; negative runs time backward.

    Returns:
        The end of the trajectory.

    Example:
        An oscillator of period 2 pi is back after 63 steps of 0.1:

        >>> import jax.numpy as jnp
        >>> def potential_and_grad(x):
        ...     return (x**2).sum(1) / 2, x
        >>> x, zero = jnp.array([[1.0]]), jnp.zeros((1, 1))
        >>> start = HMCState(x, zero, *potential_and_grad(x), zero, zero)
        >>> end = leapfrog(potential_and_grad, start, leapfrog_steps=63, step_size=0.1)
        >>> round(end.position.item(), 3)
        1.0
    """
    half = step_size / 2
    position, momentum, potential, gradient, displacement, gradient_momentum = state
    for _ in range(leapfrog_steps):
        momentum = momentum - half * gradient
        gradient_momentum = gradient_momentum - half * gradient
        position = position + step_size * momentum
        displacement = displacement + step_size * gradient_momentum
        potential, gradient = potential_and_grad(position)
        momentum = momentum - half * gradient
        gradient_momentum = gradient_momentum - half * gradient
    return HMCState(position, momentum, potential, gradient, displacement, gradient_momentum)


def kinetic_energy_change(before: Array, after: Array) -> Array:
    """`(|after|^2 - |before|^2) / 2` per image, `[b, ...]` -> `[b]`, at least float32.

    Summed over pixels as a product of sum and difference: the two squares are large and close.

    Example:
        >>> import jax.numpy as jnp
        >>> kinetic_energy_change(jnp.array([[3.0, 4.0]]), jnp.array([[6.0, 8.0]])).tolist()
        [37.5]
    """
    before, after = ops.upcast(before), ops.upcast(after)
    pixels = tuple(range(1, before.ndim))
    return jnp.sum((after - before) * (after + before), axis=pixels) / 2


def _uniform(keys: Array, like: Array, index: int) -> Array:
    """One uniform number per key in the dtype of `like`, from the draw `index`."""
    return jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, index), (), like.dtype))(
        keys
    )


@functools.partial(
    jax.jit,
    static_argnames=("potential_and_grad", "iterations", "leapfrog_steps", "normalize_gradient"),
)
def hmc(
    keys: Array,
    images: Array,
    potential_and_grad: PotentialAndGrad,
    initial: tuple[Array, Array],
    *,
    leapfrog_steps: int,
    step_size: float,
    iterations: int = 1,
    clip: float | None = None,
    normalize_gradient: bool = False,
) -> tuple[Array, SamplerInfo]:
    """Samples from exp(-P) per image, with H = P + |p|^2 / 2 and acceptance min(1, exp(-dH)).

    Each iteration draws a fresh momentum, follows `leapfrog_steps` leapfrog steps and accepts or
    rejects their end, image by image. The potential is evaluated `iterations * leapfrog_steps`
    times. A proposal whose energy is not a number is rejected.

    Neither clipping nor normalizing changes the sampled distribution: leapfrog is reversible and
    keeps volume under any force that depends on the position alone, and the accept step uses P
    itself. But the force is then no longer -grad P, so H drifts and more proposals are rejected.
    What does break detailed balance is a potential in which images influence each other (batch
    statistics).

    Args:
        keys: one typed PRNG key per image `[b]`.
        images: the initial images `[b, ...]`, in the units of the network's input.
        potential_and_grad: `images -> (P [b], gradient [b, ...])`, see `samplers.base`. It may
            close over traced values.
        initial: its value at `images`.
        leapfrog_steps: steps per proposal, at least 1; unrolled.
        step_size: length of a leapfrog step.
        iterations: proposals, at least 1; unrolled.
        clip: largest absolute value of a pixel's gradient, or None.
        normalize_gradient: scale each image's gradient, clipped, to a root mean square of one.

    Returns:
        The views, shape and dtype of `images`, without gradient; and `SamplerInfo`.

    Raises:
        ValueError: `iterations` or `leapfrog_steps` is not a whole number of at least 1.

    Source: Duane et al. 1987; a baseline in NRCC's Table 8, which gives no step size and no number
    of steps, so that these have no default.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> def potential_and_grad(x):
        ...     return (x**2).sum(1) / 2, x
        >>> keys, images = jax.random.split(jax.random.key(0), 2), jnp.zeros((2, 9))
        >>> initial = potential_and_grad(images)
        >>> settings = {"leapfrog_steps": 5, "step_size": 0.1}
        >>> views, info = hmc(keys, images, potential_and_grad, initial, **settings)
        >>> views.shape, info.acceptance_rate.tolist()
        ((2, 9), [1.0, 1.0])
    """
    checks.whole("iterations", iterations, 1)
    checks.whole("leapfrog_steps", leapfrog_steps, 1)

    def shaped_potential_and_grad(position: Array) -> tuple[Array, Array]:
        potential, gradient = potential_and_grad(position)
        return potential, base.shape_gradient(gradient, images, clip, normalize_gradient)

    position, displacement = images, jnp.zeros_like(images)
    potential = initial[0]
    gradient = base.shape_gradient(initial[1], images, clip, normalize_gradient)
    accepted = jnp.zeros_like(potential)
    for i in range(iterations):
        momentum = base.standard_normal(keys, images, 2 * i)
        uniform = _uniform(keys, potential, 2 * i + 1)
        state = HMCState(
            position, momentum, potential, gradient, displacement, jnp.zeros_like(images)
        )
        proposal = leapfrog(
            shaped_potential_and_grad, state, leapfrog_steps=leapfrog_steps, step_size=step_size
        )
        energy_change = proposal.potential - potential
        energy_change = energy_change + kinetic_energy_change(momentum, proposal.momentum)
        # False where the change is not a number.
        is_accepted = jnp.log(uniform) < -energy_change
        accepted = accepted + is_accepted.astype(accepted.dtype)
        mask = base.expand_like(is_accepted, images)
        position = jnp.where(mask, proposal.position, position)
        displacement = jnp.where(mask, proposal.gradient_displacement, displacement)
        gradient = jnp.where(mask, proposal.potential_grad, gradient)
        potential = jnp.where(is_accepted, proposal.potential, potential)
    gradient_share = base.norm_ratio(displacement, position - images)
    info = SamplerInfo(gradient_share, accepted / iterations)
    return jax.lax.stop_gradient((position, info))
