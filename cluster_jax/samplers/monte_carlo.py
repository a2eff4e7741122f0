"""Views without a gradient: the random walk of NRCC's Table 8, and plain noise."""

import functools

import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.core import ops
from cluster_jax.samplers import base


@functools.partial(jax.jit, static_argnames=("iterations",))
def monte_carlo(
    keys: Array, images: Array, *, iterations: int, step_size: float
) -> tuple[Array, base.Info]:
    """A Gaussian random walk: `iterations` independent steps of standard deviation `step_size`.

    Args:
        keys: one typed PRNG key per image `[b]`.
        images: the seeds `[b, ...]`, in the units of the network's input.
        iterations: number of steps, at least 1; unrolled.
        step_size: standard deviation of a pixel's step.

    Returns:
        The views, shape and dtype of `images`; and `Info` with share 0 and acceptance 1.

    Raises:
        ValueError: `iterations` below 1.

    Source: the peer called "regular Monte Carlo" in section 4.5 and Table 8 of NRCC. The paper
    says only that it is a predecessor of SGHMC, run for one iteration (89.1 % accuracy on CIFAR-10,
    0.69 times the training time of SGHMC) and for as many as bring it closest to SGHMC (93.2 %,
    1.37 times; the number is not given). It states no proposal, step or accept rule. One iteration
    costs 14 minutes more than BYOL's 5 h 33 min, too little for a gradient, so there is none here,
    and nothing is rejected.
    """
    base.check_iterations(iterations)
    view = images
    for i in range(iterations):
        view = view + step_size * base.normals(keys, images, i)
    return jax.lax.stop_gradient(view), _no_gradient(images)


@jax.jit
def noise(keys: Array, images: Array, *, scale: float) -> tuple[Array, base.Info]:
    """Plain Gaussian noise of standard deviation `scale`, the control that the paper lacks.

    With a scale of 0.067 it is as large as one step of SGHMC with the published constants.

    Args:
        keys: one typed PRNG key per image `[b]`.
        images: the seeds `[b, ...]`, in the units of the network's input.
        scale: standard deviation of a pixel.

    Returns:
        The views, shape and dtype of `images`; and `Info` with share 0 and acceptance 1.
    """
    view = images + scale * base.normals(keys, images, 0)
    return jax.lax.stop_gradient(view), _no_gradient(images)


def _no_gradient(images: Array) -> base.Info:
    zero = jnp.zeros_like(images, shape=images.shape[:1], dtype=ops.upcast(images).dtype)
    return base.Info(zero, jnp.ones_like(zero))
