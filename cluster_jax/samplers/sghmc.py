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
    a momentum of zero, give exactly the gradients' part of the motion.

    Attributes:
        position: s `[b, ...]`.
        momentum: p `[b, ...]`.
        gradient_displacement: the gradients' part of the displacement `[b, ...]`.
        gradient_momentum: the gradients' part of the momentum `[b, ...]`.
    """

    position: Position
    momentum: Position
    gradient_displacement: Position
    gradient_momentum: Position


def init(keys: Array, position: Position) -> SGHMCState[Position]:
    """The state before the first iteration: a standard normal momentum.

    Args:
        keys: one typed PRNG key per image `[b]`.
        position: s_0 `[b, ...]`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> init(jax.random.split(jax.random.key(0), 2), jnp.zeros((2, 3))).momentum.shape
        (2, 3)
    """
    zero = jax.tree.map(jnp.zeros_like, position)
    return SGHMCState(position, base.standard_normal(keys, position, 0), zero, zero)


def kick(
    state: SGHMCState[Position],
    gradient: Position,
    random: Position,
    *,
    step_size: Array | float = 0.05,
    friction: Array | float = 0.1,
    noise: Array | float = 0.99,
) -> SGHMCState[Position]:
    """NRCC (17): the momentum after friction, the gradient's impulse and the noise.

    Args:
        state: at whose position `gradient` was taken.
        gradient: of the potential `[b, ...]`.
        random: standard normal noise r `[b, ...]`.
        step_size: delta_2.
        friction: delta_1.
        noise: delta_3.

    Returns:
        The state with its new momentum.

    Source: NRCC (17); the defaults are the published constants.

    Example:
        >>> import jax.numpy as jnp
        >>> one, zero = jnp.ones((1, 1)), jnp.zeros((1, 1))
        >>> state = kick(SGHMCState(zero, one, zero, zero), gradient=2 * one, random=zero)
        >>> round(state.momentum.item(), 3), round(state.gradient_momentum.item(), 3)
        (0.8, -0.1)
    """
    impulse = jax.tree.map(lambda g: step_size * g, gradient)
    return state._replace(
        momentum=jax.tree.map(
            lambda p, i, r: (1 - friction) * p - i + noise * r, state.momentum, impulse, random
        ),
        gradient_momentum=jax.tree.map(
            lambda p, i: (1 - friction) * p - i, state.gradient_momentum, impulse
        ),
    )


@jax.jit
def drift(state: SGHMCState[Position], *, step_size: Array | float = 0.05) -> SGHMCState[Position]:
    """NRCC (18): the position after a step along the momentum of `state`.

    Args:
        state: position and momentum.
        step_size: delta_2, by default as published.

    Returns:
        The state with its new position.

    Example:
        >>> import jax.numpy as jnp
        >>> one, zero = jnp.ones((1, 1)), jnp.zeros((1, 1))
        >>> round(drift(SGHMCState(zero, one, zero, zero)).position.item(), 3)
        0.05
    """

    def along(x: Position, momentum: Position) -> Position:
        return jax.tree.map(lambda x, p: x + step_size * p, x, momentum)

    return state._replace(
        position=along(state.position, state.momentum),
        gradient_displacement=along(state.gradient_displacement, state.gradient_momentum),
    )


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
    """One iteration of (17) and (18), with `gradient` taken at `state.position`.

    Args:
        state: see `kick`.
        gradient: see `kick`.
        random: see `kick`.
        step_size: delta_2.
        friction: delta_1.
        noise: delta_3.
        momentum: the one that moves the position: "new", kick then drift, or "old".

    Returns:
        The next state.

    Source: NRCC (17), (18); see `sghmc` for the momentum.

    Example:
        >>> import jax.numpy as jnp
        >>> one, zero = jnp.ones((1, 1)), jnp.zeros((1, 1))
        >>> state = SGHMCState(zero, one, zero, zero)
        >>> [round(step(state, 2 * one, zero, momentum=m).position.item(), 3) for m in MOMENTA]
        [0.04, 0.05]
    """
    kick_fn = functools.partial(
        kick,
        gradient=gradient,
        random=random,
        step_size=step_size,
        friction=friction,
        noise=noise,
    )
    if momentum == "new":
        return drift(kick_fn(state), step_size=step_size)
    return kick_fn(drift(state, step_size=step_size))


def build_sghmc(
    potential_and_grad: PotentialAndGrad[Position],
    *,
    step_size: Array | float = 0.05,
    friction: Array | float = 0.1,
    noise: Array | float = 0.99,
    momentum: str = "new",
    clip: Array | float | None = 1.0,
    normalize_gradient: bool = False,
) -> Sampler[Position, SGHMCState[Position]]:
    """SGHMC as `init` and `step`, for a loop of one's own; the settings are those of `sghmc`.

    Each step evaluates the potential once, at the position where it starts.

    Raises:
        ValueError: a momentum of another name.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> def potential_and_grad(x):
        ...     return (x**2).sum(1) / 2, x
        >>> @jax.jit
        ... def sample(key, position):
        ...     sampler = build_sghmc(potential_and_grad, step_size=0.1)
        ...     def body(state, key):
        ...         return sampler.step(jax.random.split(key, 1000), state)
        ...     keys = jax.random.split(key, 101)
        ...     state = sampler.init(jax.random.split(keys[0], 1000), position)
        ...     return jax.lax.scan(body, state, keys[1:])
        >>> state, info = sample(jax.random.key(0), jnp.zeros((1000, 1)))
        >>> state.position.shape, info.gradient_share.shape
        ((1000, 1), (100, 1000))
    """
    checks.one_of("momentum", momentum, MOMENTA)

    def one(keys: Array, state: SGHMCState[Position]) -> tuple[SGHMCState[Position], SamplerInfo]:
        gradient = potential_and_grad(state.position)[1]
        after = step(
            state,
            base.shape_gradient(gradient, state.position, clip, normalize_gradient),
            base.standard_normal(keys, state.position, 0),
            step_size=step_size,
            friction=friction,
            noise=noise,
            momentum=momentum,
        )
        share = base.gradient_share(state, after)
        return after, SamplerInfo(share, jnp.ones_like(share))

    return Sampler(init, one)


def sghmc(
    keys: Array,
    images: Position,
    potential_and_grad: PotentialAndGrad[Position],
    initial: tuple[Array, Position],
    *,
    iterations: int = 1,
    step_size: Array | float = 0.05,
    friction: Array | float = 0.1,
    noise: Array | float = 0.99,
    momentum: str = "new",
    clip: Array | float | None = 1.0,
    normalize_gradient: bool = False,
    unroll: bool = True,
) -> tuple[Position, SamplerInfo]:
    """Moves every image by `iterations` steps of underdamped Langevin dynamics.

    p_0 = r_0 and, for j = 0, 1, ...,
    p_{j+1} = (1 - friction) p_j - step_size grad P(s_j) + noise r_{j+1},
    s_{j+1} = s_j + step_size p_{j+1} (momentum "new") or s_j + step_size p_j (momentum "old"),
    with independent standard normal r_j.

    The gradient is evaluated only where it moves the view: `iterations - 1` times with "new"
    momentum, so that one iteration needs `initial` alone, and one time fewer with "old".

    The function is pure and not jitted, so that a new closure is never compiled by itself: call it
    in a jitted function.

    Args:
        keys: one typed PRNG key per image `[b]`: a view does not depend on the rest of the batch.
        images: the initial images s_0 `[b, ...]`, in the units of the network's input, or a pytree
            of arrays with the same first axis.
        potential_and_grad: `images -> (P [b], gradient [b, ...])`, the potential of every image
            and the gradient of their sum. It may close over traced values.
        initial: its value at `images`.
        iterations: zeta, at least 1.
        step_size: delta_2.
        friction: delta_1, in [0, 1].
        noise: delta_3.
        momentum: "new" or "old", the momentum that moves the position.
        clip: largest absolute value of a pixel's gradient, or None.
        normalize_gradient: scale each image's gradient, clipped, to a root mean square of one.
        unroll: whether the iterations are compiled one after the other, or by `jax.lax.scan`, which
            compiles in less time; on a CPU, convolutions inside of a scan are slow.

    Returns:
        The views, shape and dtype of `images`, without gradient; and `SamplerInfo`.

    Raises:
        ValueError: `iterations` is not a whole number of at least 1, or a momentum of another name.

    Source: NRCC (16)-(18) and Algorithm 1, whose constants are the defaults, with these deviations.
      - As printed, (18) uses the old momentum and s_zeta is returned (Algorithm 1 makes zeta + 1
        passes and throws the last away): with zeta = 1, as in all the paper's experiments, that is
        s_0 + delta_2 r_0, noise without any gradient. "old" is this; "new" is the authors' code.
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
        >>> initial = potential_and_grad(images)
        >>> views, info = sghmc(keys, images, potential_and_grad, initial)
        >>> round((views - images).std().item(), 2)
        0.07
        >>> [round(share, 2) for share in info.gradient_share.tolist()]
        [0.04, 0.04]
    """
    checks.whole("iterations", iterations, 1)
    checks.one_of("momentum", momentum, MOMENTA)

    def advance(state: SGHMCState[Position], gradient: Position, j: Array | int) -> SGHMCState:
        return step(
            state,
            base.shape_gradient(gradient, images, clip, normalize_gradient),
            base.standard_normal(keys, images, j + 1),
            step_size=step_size,
            friction=friction,
            noise=noise,
            momentum=momentum,
        )

    def iterate(state: SGHMCState[Position], j: Array | int) -> SGHMCState:
        return advance(state, potential_and_grad(state.position)[1], j)

    start = state = init(keys, images)
    # The momentum after the last drift of "old" would never be used: skip its gradient.
    kicks = iterations if momentum == "new" else iterations - 1
    if kicks:
        state = base.repeat(iterate, advance(state, initial[1], 0), 1, kicks, unroll)
    if momentum == "old":
        state = drift(state, step_size=step_size)
    share = base.gradient_share(start, state)
    return jax.lax.stop_gradient((state.position, SamplerInfo(share, jnp.ones_like(share))))
