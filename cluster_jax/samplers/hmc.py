"""Hamiltonian Monte Carlo: leapfrog trajectories, each accepted or rejected."""

from typing import Generic, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.core import checks, ops
from cluster_jax.samplers import base
from cluster_jax.samplers.base import Position, PotentialAndGrad, Sampler, SamplerInfo


class HMCState(NamedTuple, Generic[Position]):
    """A point of phase space, and what the next step needs.

    Attributes:
        position: `[b, ...]`.
        momentum: `[b, ...]`.
        potential: P at the position `[b]`.
        potential_grad: its (shaped) gradient `[b, ...]`.
        gradient_displacement: part of the displacement that is linear in the gradients `[b, ...]`.
        gradient_momentum: the same part of the momentum `[b, ...]`.
    """

    position: Position
    momentum: Position
    potential: Array
    potential_grad: Position
    gradient_displacement: Position
    gradient_momentum: Position


def leapfrog(
    potential_and_grad: PotentialAndGrad[Position],
    state: HMCState[Position],
    *,
    leapfrog_steps: int,
    step_size: Array | float,
    unroll: bool = True,
) -> HMCState[Position]:
    """Takes `leapfrog_steps` steps of half a kick, a drift, and half a kick.

    Args:
        potential_and_grad: `position -> (P, gradient)`, called once in each step.
        state: where the trajectory starts.
        leapfrog_steps: number of steps.
        step_size: length of a step; negative runs time backward.
        unroll: see `samplers.base.repeat`.

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

    def step(state: HMCState[Position], _: Array | int) -> HMCState[Position]:
        momentum = _along(state.momentum, state.potential_grad, -step_size / 2)
        of_gradients = _along(state.gradient_momentum, state.potential_grad, -step_size / 2)
        position = _along(state.position, momentum, step_size)
        displacement = _along(state.gradient_displacement, of_gradients, step_size)
        potential, gradient = potential_and_grad(position)
        momentum = _along(momentum, gradient, -step_size / 2)
        of_gradients = _along(of_gradients, gradient, -step_size / 2)
        return HMCState(position, momentum, potential, gradient, displacement, of_gradients)

    return base.repeat(step, state, range(leapfrog_steps), unroll)


@jax.jit
def _along(x: Position, slope: Position, length: Array | float) -> Position:
    return jax.tree.map(lambda x, v: (x + length * v).astype(x.dtype), x, slope)


def kinetic_energy_change(before: Position, after: Position) -> Array:
    """Computes `(|after|^2 - |before|^2) / 2` per image, `[b, ...]` -> `[b]`, at least float32.

    Summed over pixels as a product of sum and difference: the two squares are large and close.

    Example:
        >>> import jax.numpy as jnp
        >>> kinetic_energy_change(jnp.array([[3.0, 4.0]]), jnp.array([[6.0, 8.0]])).tolist()
        [37.5]
    """

    def change(before: Array, after: Array) -> Array:
        before, after = ops.upcast(before), ops.upcast(after)
        pixels = tuple(range(1, before.ndim))
        return jnp.sum((after - before) * (after + before), axis=pixels)

    return jax.tree.reduce(jnp.add, jax.tree.map(change, before, after)) / 2


def _uniform(keys: Array, like: Array, index: Array | int) -> Array:
    """Draws one uniform number per key in the dtype of `like`, from the draw `index`."""
    return jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, index), (), like.dtype))(
        keys
    )


def hmc(
    potential_and_grad: PotentialAndGrad[Position],
    *,
    leapfrog_steps: int = 1,
    step_size: Array | float = 0.05,
    clip: Array | float | None = None,
    normalize_gradient: bool = False,
    unroll: bool = True,
) -> Sampler[Position, HMCState[Position]]:
    """Samples from exp(-P) per image, with H = P + |p|^2 / 2 and acceptance min(1, exp(-dH)).

    Each step draws a fresh momentum, follows `leapfrog_steps` leapfrog steps and accepts or
    rejects their end, image by image. The potential is evaluated `leapfrog_steps` times, and once
    for the initial state unless it is given. A proposal whose energy is not a number is rejected.

    Neither clipping nor normalizing changes the sampled distribution: leapfrog is reversible and
    keeps volume under any force that depends on the position alone, and the accept step uses P
    itself. But the force is then no longer -grad P, so H drifts and more proposals are rejected.
    What does break detailed balance is a potential in which images influence each other (batch
    statistics).

    Args:
        potential_and_grad: `images -> (P [b], gradient [b, ...])`, the potential of every image
            and the gradient of their sum. It may close over traced values.
        leapfrog_steps: steps per proposal, at least 1.
        step_size: length of a leapfrog step, positive. Of this and `clip`, numbers are checked,
            arrays are not.
        clip: largest absolute value of a pixel's gradient, positive, or None.
        normalize_gradient: scale each image's gradient, clipped, to a root mean square of one.
        unroll: of the leapfrog steps, see `samplers.base.repeat`.

    Returns:
        `init` and `step`; the initial state does not depend on the keys.

    Raises:
        ValueError: a value is out of range.

    Source: Duane et al. 1987; a baseline in NRCC's Table 8, which gives no step size and no number
    of steps. The defaults are those of the configs: one leapfrog step of the length of SGHMC's.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> def potential_and_grad(x):
        ...     return (x**2).sum(1) / 2, x
        >>> sampler = hmc(potential_and_grad, leapfrog_steps=5, step_size=0.3)
        >>> keys = jax.random.split(jax.random.key(0), 2)
        >>> views, info = base.sample(sampler, keys, jnp.zeros((2, 9)), iterations=2)
        >>> views.shape, info.acceptance_rate.tolist()
        ((2, 9), [1.0, 1.0])
    """
    checks.whole("leapfrog_steps", leapfrog_steps, 1)
    checks.if_number(checks.positive, "step_size", step_size)
    checks.if_number(checks.positive, "clip", clip)

    def shaped(
        position: Position, value: tuple[Array, Position] | None = None
    ) -> tuple[Array, Position]:
        potential, gradient = value or potential_and_grad(position)
        return potential, base.shape_gradient(gradient, position, clip, normalize_gradient)

    def init(
        keys: Array, position: Position, initial: tuple[Array, Position] | None = None
    ) -> HMCState[Position]:
        zero = jax.tree.map(jnp.zeros_like, position)
        return HMCState(position, zero, *shaped(position, initial), zero, zero)

    def step(
        keys: Array, state: HMCState[Position], index: Array | int = 0
    ) -> tuple[HMCState[Position], SamplerInfo]:
        momentum = base.standard_normal(keys, state.position, 2 * index)
        uniform = _uniform(keys, state.potential, 2 * index + 1)
        zero = jax.tree.map(jnp.zeros_like, momentum)
        start = state._replace(momentum=momentum, gradient_momentum=zero)
        end = leapfrog(
            shaped, start, leapfrog_steps=leapfrog_steps, step_size=step_size, unroll=unroll
        )
        energy_change = end.potential - start.potential
        energy_change = energy_change + kinetic_energy_change(momentum, end.momentum)
        # False where the change is not a number.
        is_accepted = jnp.log(uniform) < -energy_change

        def choose(new: Array, old: Array) -> Array:
            return jnp.where(base.expand_like(is_accepted, new), new, old)

        after = jax.tree.map(choose, end, start)
        share = base.gradient_share(state, after)
        return after, SamplerInfo(share, is_accepted.astype(energy_change.dtype))

    return Sampler(init, step)
