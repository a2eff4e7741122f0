"""Stochastic gradient Hamiltonian Monte Carlo, NRCC's way to a third view of an image."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.samplers import base


class Phase(NamedTuple):
    """A point of phase space, with what the gradients alone have made of it.

    The recursion is linear in gradients and noise, so that the drift, driven by the same gradients
    from rest and without noise, is exactly the gradients' part of the motion.

    Attributes:
        position: s `[b, ...]`.
        momentum: p `[b, ...]`.
        drift: the gradients' part of the displacement `[b, ...]`.
        drift_momentum: the gradients' part of the momentum `[b, ...]`.
    """

    position: Array
    momentum: Array
    drift: Array
    drift_momentum: Array


def kick(
    phase: Phase,
    gradient: Array,
    random: Array,
    *,
    step_size: float,
    friction: float,
    noise: float,
) -> Phase:
    """NRCC (17): the momentum after friction, the gradient's pull and the noise `random`."""
    pull = step_size * gradient
    return phase._replace(
        momentum=(1 - friction) * phase.momentum - pull + noise * random,
        drift_momentum=(1 - friction) * phase.drift_momentum - pull,
    )


def move(phase: Phase, *, step_size: float) -> Phase:
    """NRCC (18): the position after a step along the momentum of `phase`."""
    return phase._replace(
        position=phase.position + step_size * phase.momentum,
        drift=phase.drift + step_size * phase.drift_momentum,
    )


def step(
    phase: Phase,
    gradient: Array,
    random: Array,
    *,
    step_size: float,
    friction: float,
    noise: float,
    momentum: str,
) -> Phase:
    """One iteration of (17) and (18), with `gradient` taken at `phase.position`.

    `momentum` names the one that moves the position: "new", kick then move, or "old".
    """
    kicked = functools.partial(
        kick,
        gradient=gradient,
        random=random,
        step_size=step_size,
        friction=friction,
        noise=noise,
    )
    if momentum == "new":
        return move(kicked(phase), step_size=step_size)
    return kicked(move(phase, step_size=step_size))


@functools.partial(
    jax.jit, static_argnames=("energy", "iterations", "momentum", "normalize_gradient")
)
def sghmc(
    keys: Array,
    images: Array,
    energy: base.Energy,
    start: tuple[Array, Array],
    *,
    iterations: int,
    step_size: float,
    friction: float,
    noise: float,
    momentum: str,
    clip: float | None,
    normalize_gradient: bool,
) -> tuple[Array, base.Info]:
    """Moves every image by `iterations` steps of underdamped Langevin dynamics.

    p_0 = r_0 and, for j = 0, 1, ...,
    p_{j+1} = (1 - friction) p_j - step_size grad P(s_j) + noise r_{j+1},
    s_{j+1} = s_j + step_size p_{j+1} (momentum "new") or s_j + step_size p_j (momentum "old"),
    with independent standard normal r_j.

    The energy is called only at positions whose gradient moves the view: `iterations - 1` times
    with "new" momentum, so that one iteration needs `start` alone, and one time fewer with "old".

    Args:
        keys: one typed PRNG key per image `[b]`: a view does not depend on the rest of the batch.
        images: the seeds s_0 `[b, ...]`, in the units of the network's input.
        energy: `images -> (P [b], gradient)`, see `samplers.base`. It may close over traced values.
        start: the energy's values at `images`.
        iterations: zeta, at least 1; unrolled.
        step_size: delta_2.
        friction: delta_1, in [0, 1].
        noise: delta_3.
        momentum: "new" or "old", the momentum that moves the position.
        clip: largest absolute value of a pixel's gradient, or None.
        normalize_gradient: scale each image's gradient, clipped, to a root mean square of one.

    Returns:
        The views, shape and dtype of `images`, without gradient; and `Info`.

    Raises:
        ValueError: `iterations` below 1, or a momentum of another name.

    Source: NRCC (16)-(18) and Algorithm 1, with these deviations.
      - As printed, (18) uses the old momentum and s_zeta is returned (Algorithm 1 makes zeta + 1
        passes and throws the last away): with zeta = 1, as in all the paper's experiments, that is
        s_0 + delta_2 r_0, noise without any gradient. "old" is this; "new" is the authors' code.
      - The clip is the authors' code (1); the normalization is ours. With the published constants
        (0.05, 0.1, 0.99) one step moves a pixel by 0.067 (standard deviation, "old": 0.050) and
        the gradient's part of it is at most step_size^2 clip = 0.0025. The temperature of the
        stationary law, noise^2 / (2 friction) = 4.9, exceeds the range of the potential.
      - With batch statistics in the network, the gradient of the potentials' sum is not strictly
        each image's own.
    """
    base.check_iterations(iterations)
    if momentum not in ("new", "old"):
        raise ValueError(f"momentum is 'new' or 'old'; got {momentum!r}")

    def gradient(position: Array, j: int) -> Array:
        raw = start[1] if j == 0 else energy(position)[1]
        return base.shaped(raw, images, clip, normalize_gradient)

    rest = jnp.zeros_like(images)
    phase = Phase(images, base.normals(keys, images, 0), rest, rest)
    for j in range(iterations):
        if momentum == "old" and j == iterations - 1:
            # The momentum after this move would never be used: spare its gradient.
            phase = move(phase, step_size=step_size)
            break
        phase = step(
            phase,
            gradient(phase.position, j),
            base.normals(keys, images, j + 1),
            step_size=step_size,
            friction=friction,
            noise=noise,
            momentum=momentum,
        )
    share = base.share(phase.drift, phase.position - images)
    return jax.lax.stop_gradient((phase.position, base.Info(share, jnp.ones_like(share))))
