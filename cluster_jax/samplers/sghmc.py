"""Stochastic gradient Hamiltonian Monte Carlo, NRCC's sampler of the third view."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.core import checks
from cluster_jax.samplers import base
from cluster_jax.samplers.base import PotentialAndGrad, SamplerInfo

MOMENTA = ("new", "old")


class SGHMCState(NamedTuple):
    """A point of phase space, and the part of it due to the gradients.

    The recursion is linear in gradients and noise, so the same gradients without the noise, from
    a momentum of zero, give exactly the gradients' part of the motion.

    Attributes:
        position: s `[b, ...]`.
        momentum: p `[b, ...]`.
        gradient_displacement: the gradients' part of the displacement `[b, ...]`.
        gradient_momentum: the gradients' part of the momentum `[b, ...]`.
    """

    position: Array
    momentum: Array
    gradient_displacement: Array
    gradient_momentum: Array


def kick(
    state: SGHMCState,
    gradient: Array,
    random: Array,
    *,
    step_size: float = 0.05,
    friction: float = 0.1,
    noise: float = 0.99,
) -> SGHMCState:
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
    impulse = step_size * gradient
    return state._replace(
        momentum=(1 - friction) * state.momentum - impulse + noise * random,
        gradient_momentum=(1 - friction) * state.gradient_momentum - impulse,
    )


def drift(state: SGHMCState, *, step_size: float = 0.05) -> SGHMCState:
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
    return state._replace(
        position=state.position + step_size * state.momentum,
        gradient_displacement=state.gradient_displacement + step_size * state.gradient_momentum,
    )


def step(
    state: SGHMCState,
    gradient: Array,
    random: Array,
    *,
    step_size: float = 0.05,
    friction: float = 0.1,
    noise: float = 0.99,
    momentum: str = "new",
) -> SGHMCState:
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


@functools.partial(
    jax.jit,
    static_argnames=("potential_and_grad", "iterations", "momentum", "normalize_gradient"),
)
def sghmc(
    keys: Array,
    images: Array,
    potential_and_grad: PotentialAndGrad,
    initial: tuple[Array, Array],
    *,
    iterations: int = 1,
    step_size: float = 0.05,
    friction: float = 0.1,
    noise: float = 0.99,
    momentum: str = "new",
    clip: float | None = 1.0,
    normalize_gradient: bool = False,
) -> tuple[Array, SamplerInfo]:
    """Moves every image by `iterations` steps of underdamped Langevin dynamics.

    p_0 = r_0 and, for j = 0, 1, ...,
    p_{j+1} = (1 - friction) p_j - step_size grad P(s_j) + noise r_{j+1},
    s_{j+1} = s_j + step_size p_{j+1} (momentum "new") or s_j + step_size p_j (momentum "old"),
    with independent standard normal r_j.

    The gradient is evaluated only where it moves the view: `iterations - 1` times with "new"
    momentum, so that one iteration needs `initial` alone, and one time fewer with "old".

    Args:
        keys: one typed PRNG key per image `[b]`: a view does not depend on the rest of the batch.
        images: the initial images s_0 `[b, ...]`, in the units of the network's input.
        potential_and_grad: `images -> (P [b], gradient [b, ...])`, see `samplers.base`. It may
            close over traced values.
        initial: its value at `images`.
        iterations: zeta, at least 1; unrolled.
        step_size: delta_2.
        friction: delta_1, in [0, 1].
        noise: delta_3.
        momentum: "new" or "old", the momentum that moves the position.
        clip: largest absolute value of a pixel's gradient, or None.
        normalize_gradient: scale each image's gradient, clipped, to a root mean square of one.

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

    def gradient_at(position: Array, j: int) -> Array:
        gradient = initial[1] if j == 0 else potential_and_grad(position)[1]
        return base.shape_gradient(gradient, images, clip, normalize_gradient)

    zero = jnp.zeros_like(images)
    state = SGHMCState(images, base.standard_normal(keys, images, 0), zero, zero)
    for j in range(iterations):
        if momentum == "old" and j == iterations - 1:
            # The momentum after this drift would never be used: skip its gradient.
            state = drift(state, step_size=step_size)
            break
        state = step(
            state,
            gradient_at(state.position, j),
            base.standard_normal(keys, images, j + 1),
            step_size=step_size,
            friction=friction,
            noise=noise,
            momentum=momentum,
        )
    gradient_share = base.norm_ratio(state.gradient_displacement, state.position - images)
    info = SamplerInfo(gradient_share, jnp.ones_like(gradient_share))
    return jax.lax.stop_gradient((state.position, info))
