"""Stochastic gradient Hamiltonian Monte Carlo, NRCC's sampler of the third view."""

import functools
from typing import Generic, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.core import checks
from cluster_jax.samplers import base
from cluster_jax.samplers.base import Position, PotentialAndGrad, Sampler, SamplerInfo

MOMENTA = ("new", "old")


class SGHMCState(NamedTuple, Generic[Position]):
    """A point of phase space, and the part of it due to the gradients.

    The recursion is linear in gradients and noise, so the same gradients without the noise, from
    rest at zero, give the gradients' part of the motion.

    Attributes:
        position: s `[b, ...]`.
        momentum: p `[b, ...]`.
        gradient_displacement: the gradients' part of the displacement `[b, ...]`.
        gradient_momentum: the gradients' part of the momentum `[b, ...]`.
        potential_grad: gradient at the position `[b, ...]`; None where the next step evaluates it.
    """

    position: Position
    momentum: Position
    gradient_displacement: Position
    gradient_momentum: Position
    potential_grad: Position | None = None


@functools.partial(jax.jit, static_argnames=("momentum",))
def step(
    state: SGHMCState[Position],
    gradient: Position,
    random: Position,
    *,
    step_size: Array | float = 0.05,
    friction: Array | float = 0.1,
    noise: Array | float = 0.99,
    momentum: str = "new",
) -> SGHMCState[Position]:
    """Takes a step of NRCC (17), a kick of the momentum, and (18), a drift along a momentum.

    Args:
        state: at whose position `gradient` was taken.
        gradient: of the potential `[b, ...]`.
        random: standard normal noise r `[b, ...]`.
        step_size: delta_2.
        friction: delta_1.
        noise: delta_3.
        momentum: the one that moves the position: "new", kick then drift, or "old".

    Returns:
        The next state.

    Source: NRCC (17), (18); the defaults are the published constants. See `sghmc` for the momentum.

    Example:
        >>> import jax.numpy as jnp
        >>> one, zero = jnp.ones((1, 1)), jnp.zeros((1, 1))
        >>> state = SGHMCState(zero, one, zero, zero)
        >>> [round(step(state, 2 * one, zero, momentum=m).position.item(), 3) for m in MOMENTA]
        [0.04, 0.05]
    """
    impulse = jax.tree.map(lambda g: step_size * g, gradient)
    old = state.momentum, state.gradient_momentum
    new = (
        jax.tree.map(lambda p, i, r: (1 - friction) * p - i + noise * r, old[0], impulse, random),
        jax.tree.map(lambda p, i: (1 - friction) * p - i, old[1], impulse),
    )
    position, displacement = jax.tree.map(
        lambda x, p: (x + step_size * p).astype(x.dtype),
        (state.position, state.gradient_displacement),
        new if momentum == "new" else old,
    )
    return SGHMCState(position, new[0], displacement, new[1])


def sghmc(
    potential_and_grad: PotentialAndGrad[Position],
    *,
    step_size: Array | float = 0.05,
    friction: Array | float = 0.1,
    noise: Array | float = 0.99,
    momentum: str = "new",
    clip: Array | float | None = 1.0,
    normalize_gradient: bool = False,
) -> Sampler[Position, SGHMCState[Position]]:
    """Moves every image by steps of underdamped Langevin dynamics.

    p_0 = r_0 and, for j = 0, 1, ...,
    p_{j+1} = (1 - friction) p_j - step_size grad P(s_j) + noise r_{j+1},
    s_{j+1} = s_j + step_size p_{j+1} (momentum "new") or s_j + step_size p_j (momentum "old"),
    with independent standard normal r_j.

    Each step evaluates the gradient where it starts; the first one does not if it is given to
    `init`, so that one iteration needs no evaluation of its own. With "old" momentum the last
    gradient moves no view, and compiling drops it from an unrolled loop.

    Args:
        potential_and_grad: `images -> (P [b], gradient [b, ...])`, the potential of every image
            and the gradient of their sum. It may close over traced values.
        step_size: delta_2, positive. Of this and the next two, numbers are checked, arrays are not.
        friction: delta_1, in [0, 1].
        noise: delta_3, 0 or more.
        momentum: "new" or "old", the momentum that moves the position.
        clip: largest absolute value of a pixel's gradient, positive, or None.
        normalize_gradient: scale each image's gradient, clipped, to a root mean square of one.

    Returns:
        `init` and `step`; iterations, NRCC's zeta, are those of `samplers.sample`.

    Raises:
        ValueError: a value is out of range.

    Source: NRCC (16)-(18) and Algorithm 1, whose constants are the defaults, with these deviations.
      - As printed, (18) uses the old momentum and s_zeta is returned (Algorithm 1 makes zeta + 1
        passes and throws the last away): with zeta = 1, as in all the paper's experiments, that is
        s_0 + delta_2 r_0, noise without any gradient. "old" is this; "new" is the authors' code
        (`test_nrcc_eq_18_as_printed_is_noise_without_any_gradient`).
      - The clip is the authors' code (1); the normalization is ours. With the published constants
        (0.05, 0.1, 0.99) one step moves a pixel by 0.067 (standard deviation, "old": 0.050) and
        the gradient's part of it is at most step_size^2 clip = 0.0025. The temperature of the
        stationary distribution, noise^2 / (2 friction) = 4.9, exceeds the range of the potential.
      - With batch statistics in the network, the gradient of the potentials' sum is not strictly
        each image's own.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> def potential_and_grad(x):
        ...     return (x**2).sum((1, 2, 3)) / 2, x
        >>> keys, images = jax.random.split(jax.random.key(0), 2), jnp.ones((2, 32, 32, 3))
        >>> views, info = base.sample(sghmc(potential_and_grad), keys, images)
        >>> round((views - images).std().item(), 2)
        0.07
        >>> [round(share, 2) for share in info.gradient_share.tolist()]
        [0.04, 0.04]

        A chain in a loop of one's own:

        >>> @jax.jit
        ... def chain(key, position):
        ...     sampler = sghmc(potential_and_grad, step_size=0.1)
        ...     keys = jax.random.split(key, (101, len(position)))
        ...     state = sampler.init(keys[0], position)
        ...     return jax.lax.scan(lambda s, keys: sampler.step(keys, s), state, keys[1:])
        >>> state, info = chain(jax.random.key(0), images)
        >>> state.position.shape, info.gradient_share.shape
        ((2, 32, 32, 3), (100, 2))
    """
    checks.one_of("momentum", momentum, MOMENTA)
    checks.if_number(checks.positive, "step_size", step_size)
    checks.if_number(checks.between, "friction", friction, 0, 1)
    checks.if_number(checks.at_least, "noise", noise, 0)
    checks.if_number(checks.positive, "clip", clip)

    def shaped(gradient: Position, position: Position) -> Position:
        return base.shape_gradient(gradient, position, clip, normalize_gradient)

    def init(
        keys: Array, position: Position, initial: tuple[Array, Position] | None = None
    ) -> SGHMCState[Position]:
        zero = jax.tree.map(jnp.zeros_like, position)
        gradient = initial and shaped(initial[1], position)
        random = base.standard_normal(keys, position, 0)
        return SGHMCState(position, random, zero, zero, gradient)

    def one(
        keys: Array, state: SGHMCState[Position], index: Array | int = 0
    ) -> tuple[SGHMCState[Position], SamplerInfo]:
        gradient = state.potential_grad
        if gradient is None:
            gradient = shaped(potential_and_grad(state.position)[1], state.position)
        after = step(
            state,
            gradient,
            base.standard_normal(keys, state.position, index + 1),
            step_size=step_size,
            friction=friction,
            noise=noise,
            momentum=momentum,
        )
        share = base.gradient_share(state, after)
        return after, SamplerInfo(share, jnp.ones_like(share))

    return Sampler(init, one)
