"""What the samplers share: their record, per-image noise, potentials, shaping of gradients.

A sampler turns a batch of images into a batch of views. Its density is given as an energy,
`images [b, ...] -> (P [b], gradient [b, ...])`: the potential of every image, and the gradient of
the potentials' sum with respect to the images. `start` is that pair at the seed images, which the
caller has already computed for the loss.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.core import ops

Energy = Callable[[Array], tuple[Array, Array]]

# `inverse` is 1 / (1 + similarity) down to this distance from the pole; there its slope is 1e4.
FLOOR = 0.01


class Info(NamedTuple):
    """What a sampler did to each image.

    Attributes:
        gradient_share: how much of the displacement is drift, `[b]` in [0, 1]: norm over pixels of
            its part that is linear in the gradients, over the norm of the whole.
        acceptance: share of the proposals that were accepted `[b]`; 1 without an accept step.
    """

    gradient_share: Array
    acceptance: Array


def normals(keys: Array, images: Array, index: int) -> Array:
    """Standard normal noise of the shape and dtype of `images`, from one key per image.

    Args:
        keys: typed PRNG keys `[b]`.
        images: `[b, ...]`.
        index: number of the draw; each number gives independent noise from the same keys.
    """
    return jax.vmap(
        lambda key: jax.random.normal(
            jax.random.fold_in(key, index), images.shape[1:], images.dtype
        )
    )(keys)


def inverse(similarity: Array) -> Array:
    """The potential `1 / (1 + similarity)`; descending it raises the similarity.

    Below a similarity of -0.99 it continues along its tangent: the slope stays at 1e4 instead of
    growing without bound, and does not vanish where the drift should be strongest.

    Source: NRCC (16). The paper calls it a density, but (17) descends it and Theorem 3.6 minimizes
    it. The continuation is ours.
    """
    distance = 1 + similarity
    # The inner maximum keeps the branch that is not taken finite.
    curve = 1 / jnp.maximum(distance, FLOOR)
    return jnp.where(distance > FLOOR, curve, 2 / FLOOR - distance / FLOOR**2)


def log_inverse_square(similarity: Array) -> Array:
    """The potential `log(1 / (1 + similarity^2))`; descending it raises |similarity|.

    Source: the authors' code, which uses it in place of NRCC (16).
    """
    return -jnp.log1p(jnp.square(similarity))


def potential(name: str) -> Callable[[Array], Array]:
    """The potential called `name`.

    Raises:
        ValueError: there is none of that name.
    """
    potentials = {"inverse": inverse, "log_inverse_square": log_inverse_square}
    if name not in potentials:
        raise ValueError(f"unknown potential {name!r}; choose one of {', '.join(potentials)}")
    return potentials[name]


def clipped(gradient: Array, clip: float | None) -> Array:
    """Every pixel of `gradient` within `[-clip, clip]`; None changes nothing."""
    return gradient if clip is None else jnp.clip(gradient, -clip, clip)


def normalized(gradient: Array) -> Array:
    """`gradient` `[b, ...]` scaled to a root mean square of one per image; zero stays zero."""
    pixels = tuple(range(1, gradient.ndim))
    # Dividing by the largest pixel first keeps the squares from underflowing.
    largest = jnp.max(jnp.abs(gradient), axis=pixels, keepdims=True)
    scaled = gradient / jnp.where(largest > 0, largest, 1)
    square = jnp.mean(jnp.square(ops.upcast(scaled)), axis=pixels, keepdims=True)
    return scaled / jnp.sqrt(jnp.where(square > 0, square, 1)).astype(gradient.dtype)


def shaped(gradient: Array, images: Array, clip: float | None, normalize: bool) -> Array:
    """The gradient a sampler uses, in the dtype of `images`: clipped, then normalized if asked.

    In this order a normalized gradient has a root mean square of exactly one.
    """
    gradient = clipped(gradient, clip)
    return (normalized(gradient) if normalize else gradient).astype(images.dtype)


def share(part: Array, whole: Array) -> Array:
    """Norm of `part` over norm of `whole` per image, `[b, ...]` -> `[b]`; 0 without displacement.

    At most one: noise that opposes the drift can leave the whole shorter than its part.
    """
    pixels = tuple(range(1, whole.ndim))
    part = jnp.sqrt(jnp.sum(jnp.square(ops.upcast(part)), axis=pixels))
    whole = jnp.sqrt(jnp.sum(jnp.square(ops.upcast(whole)), axis=pixels))
    return jnp.minimum(part / jnp.where(whole > 0, whole, 1), 1)


def per_image(values: Array, images: Array) -> Array:
    """`values` `[b]` with axes of length one, to combine with `images` `[b, ...]`."""
    return values.reshape((-1,) + (1,) * (images.ndim - 1))


def check_iterations(iterations: int) -> None:
    """Raises ValueError unless `iterations` is at least one."""
    if iterations < 1:
        raise ValueError(f"a sampler needs at least 1 iteration; got iterations = {iterations}")
