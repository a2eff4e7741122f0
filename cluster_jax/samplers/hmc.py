"""Hamiltonian Monte Carlo: leapfrog trajectories, each accepted or rejected."""

from collections.abc import Callable
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
    """`leapfrog_steps` steps of half a kick, a drift, and half a kick.

    Args:
        potential_and_grad: `position -> (P, gradient)`, called once in each step.
        state: where the trajectory starts.
        leapfrog_steps: number of steps.
        step_size: length of a step; negative runs time backward.
        unroll: see `hmc`.

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

    return base.repeat(step, state, 0, leapfrog_steps, unroll)


@jax.jit
def _along(x: Position, slope: Position, length: Array | float) -> Position:
    return jax.tree.map(lambda x, v: x + length * v, x, slope)


def kinetic_energy_change(before: Position, after: Position) -> Array:
    """`(|after|^2 - |before|^2) / 2` per image, `[b, ...]` -> `[b]`, at least float32.

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
    """One uniform number per key in the dtype of `like`, from the draw `index`."""
    return jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, index), (), like.dtype))(
        keys
    )


def _kernel(
    potential_and_grad: PotentialAndGrad[Position],
    leapfrog_steps: int,
    step_size: Array | float,
    clip: Array | float | None,
    normalize_gradient: bool,
    unroll: bool,
) -> tuple[Callable, Callable]:
    """The state at a position whose potential and gradient are known, and one proposal."""
    checks.whole("leapfrog_steps", leapfrog_steps, 1)

    def shaped(position: Position) -> tuple[Array, Position]:
        potential, gradient = potential_and_grad(position)
        return potential, base.shape_gradient(gradient, position, clip, normalize_gradient)

    def start(position: Position, value: tuple[Array, Position]) -> HMCState[Position]:
        zero = jax.tree.map(jnp.zeros_like, position)
        gradient = base.shape_gradient(value[1], position, clip, normalize_gradient)
        return HMCState(position, zero, value[0], gradient, zero, zero)

    def propose(
        keys: Array, state: HMCState[Position], i: Array | int
    ) -> tuple[HMCState[Position], Array]:
        momentum = base.standard_normal(keys, state.position, 2 * i)
        uniform = _uniform(keys, state.potential, 2 * i + 1)
        zero = jax.tree.map(jnp.zeros_like, momentum)
        state = state._replace(momentum=momentum, gradient_momentum=zero)
        end = leapfrog(
            shaped, state, leapfrog_steps=leapfrog_steps, step_size=step_size, unroll=unroll
        )
        energy_change = end.potential - state.potential
        energy_change = energy_change + kinetic_energy_change(momentum, end.momentum)
        # False where the change is not a number.
        is_accepted = jnp.log(uniform) < -energy_change

        def choose(new: Array, old: Array) -> Array:
            return jnp.where(base.expand_like(is_accepted, new), new, old)

        return jax.tree.map(choose, end, state), is_accepted.astype(energy_change.dtype)

    return start, propose


def build_hmc(
    potential_and_grad: PotentialAndGrad[Position],
    *,
    leapfrog_steps: int,
    step_size: Array | float,
    clip: Array | float | None = None,
    normalize_gradient: bool = False,
    unroll: bool = True,
) -> Sampler[Position, HMCState[Position]]:
    """HMC as `init` and `step`, for a loop of one's own; the settings are those of `hmc`.

    The initial state does not depend on the keys. It evaluates the potential once, a step
    `leapfrog_steps` times.

    Raises:
        ValueError: `leapfrog_steps` is not a whole number of at least 1.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> def potential_and_grad(x):
        ...     return (x**2).sum(1) / 2, x
        >>> sampler = build_hmc(potential_and_grad, leapfrog_steps=5, step_size=0.3)
        >>> keys = jax.random.split(jax.random.key(0), 2)
        >>> state = sampler.init(keys, jnp.zeros((2, 9)))
        >>> state, info = jax.jit(sampler.step)(keys, state)
        >>> state.position.shape, info.acceptance_rate.tolist()
        ((2, 9), [1.0, 1.0])
    """
    start, propose = _kernel(
        potential_and_grad, leapfrog_steps, step_size, clip, normalize_gradient, unroll
    )

    def init(keys: Array, position: Position) -> HMCState[Position]:
        return start(position, potential_and_grad(position))

    def step(keys: Array, state: HMCState[Position]) -> tuple[HMCState[Position], SamplerInfo]:
        after, accepted = propose(keys, state, 0)
        return after, SamplerInfo(base.gradient_share(state, after), accepted)

    return Sampler(init, step)


def hmc(
    keys: Array,
    images: Position,
    potential_and_grad: PotentialAndGrad[Position],
    initial: tuple[Array, Position],
    *,
    leapfrog_steps: int,
    step_size: Array | float,
    iterations: int = 1,
    clip: Array | float | None = None,
    normalize_gradient: bool = False,
    unroll: bool = True,
) -> tuple[Position, SamplerInfo]:
    """Samples from exp(-P) per image, with H = P + |p|^2 / 2 and acceptance min(1, exp(-dH)).

    Each iteration draws a fresh momentum, follows `leapfrog_steps` leapfrog steps and accepts or
    rejects their end, image by image. The potential is evaluated `iterations * leapfrog_steps`
    times. A proposal whose energy is not a number is rejected. The function is pure and not jitted,
    so that a new closure is never compiled by itself: call it in a jitted function.

    Neither clipping nor normalizing changes the sampled distribution: leapfrog is reversible and
    keeps volume under any force that depends on the position alone, and the accept step uses P
    itself. But the force is then no longer -grad P, so H drifts and more proposals are rejected.
    What does break detailed balance is a potential in which images influence each other (batch
    statistics).

    Args:
        keys: one typed PRNG key per image `[b]`.
        images: the initial images `[b, ...]`, in the units of the network's input, or a pytree of
            arrays with the same first axis.
        potential_and_grad: `images -> (P [b], gradient [b, ...])`, the potential of every image
            and the gradient of their sum. It may close over traced values.
        initial: its value at `images`.
        leapfrog_steps: steps per proposal, at least 1.
        step_size: length of a leapfrog step.
        iterations: proposals, at least 1.
        clip: largest absolute value of a pixel's gradient, or None.
        normalize_gradient: scale each image's gradient, clipped, to a root mean square of one.
        unroll: whether proposals and leapfrog steps are compiled one after the other, or by
            `jax.lax.scan`, which compiles in less time; on a CPU, convolutions inside of a scan are
            slow.

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
    start, propose = _kernel(
        potential_and_grad, leapfrog_steps, step_size, clip, normalize_gradient, unroll
    )

    def iterate(carry: tuple, i: Array | int) -> tuple:
        state, is_accepted = propose(keys, carry[0], i)
        return state, carry[1] + is_accepted

    before = start(images, initial)
    accepted = jnp.zeros_like(before.potential)
    after, accepted = base.repeat(iterate, (before, accepted), 0, iterations, unroll)
    info = SamplerInfo(base.gradient_share(before, after), accepted / iterations)
    return jax.lax.stop_gradient((after.position, info))
