"""Views without a gradient: the random walk of NRCC's Table 8; one step of it is plain noise."""

import functools

import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.core import checks, ops
from cluster_jax.samplers import base
from cluster_jax.samplers.base import SamplerInfo


def monte_carlo(
    keys: Array, images: Array, *, iterations: int = 1, step_size: Array | float = 0.067
) -> tuple[Array, SamplerInfo]:
    """Walks at random: `iterations` independent Gaussian steps of standard deviation `step_size`.

    Args:
        keys: one typed PRNG key per image `[b]`.
        images: the initial images `[b, ...]`, in the units of the network's input.
        iterations: number of steps, at least 1; unrolled.
        step_size: standard deviation of a pixel's step, 0 or more; checked if it is a number. The
            default makes a step as large as one of SGHMC with the published constants.

    Returns:
        The views, shape and dtype of `images`; and `SamplerInfo` with a gradient share of 0 and an
        acceptance rate of 1.

    Raises:
        InputError: `iterations` is not a whole number of at least 1, `step_size` is negative, or
            images are no floats, are empty, or do not have one key each.

    Source: the baseline called "regular Monte Carlo" in section 4.5 and Table 8 of NRCC. The paper
    says only that it is a predecessor of SGHMC, run for one iteration (89.1 % accuracy on CIFAR-10,
    0.69 times the training time of SGHMC) and for as many as bring it closest to SGHMC (93.2 %,
    1.37 times; the number is not given). It states no proposal, step or accept rule. One iteration
    costs 14 minutes more than BYOL's 5 h 33 min, too little for a gradient, so there is none here,
    and nothing is rejected.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> keys = jax.random.split(jax.random.key(0), 2)
        >>> views, info = monte_carlo(keys, jnp.zeros((2, 32, 32, 3)), iterations=4, step_size=0.5)
        >>> round(views.std().item(), 1)
        1.0
        >>> info.acceptance_rate.tolist()
        [1.0, 1.0]
    """
    checks.whole("iterations", iterations, 1)
    checks.if_number(checks.at_least, "step_size", step_size, 0)
    base.check_images(keys, images)
    return _walk(keys, images, step_size, iterations)


@functools.partial(jax.jit, static_argnames=("iterations",))
def _walk(
    keys: Array, images: Array, step_size: Array | float, iterations: int
) -> tuple[Array, SamplerInfo]:
    view = images
    for i in range(iterations):
        view = view + step_size * base.standard_normal(keys, images, i)
    zero = jnp.zeros_like(images, shape=images.shape[:1], dtype=ops.upcast(images).dtype)
    return jax.lax.stop_gradient(view), SamplerInfo(zero, jnp.ones_like(zero))
