"""What the samplers share: their info, noise per image, potentials, shaping of gradients.

A sampler turns a batch of images into a batch of views. Its density exp(-P) is given as a function
`potential_and_grad`: `images [b, ...] -> (P [b], gradient [b, ...])`, the potential of every image
and the gradient of the potentials' sum with respect to the images. `initial` is its value at the
initial images, which the caller has already computed for the loss.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.core import checks, ops

# `images [b, ...] -> (P [b], gradient [b, ...])`.
PotentialAndGrad = Callable[[Array], tuple[Array, Array]]

# `inverse` is 1 / (1 + similarity) down to this distance from the pole; there its slope is 1e4.
FLOOR = 0.01


class SamplerInfo(NamedTuple):
    """Diagnostics of each view.

    Attributes:
        gradient_share: how much of the displacement is due to the gradients, `[b]` in [0, 1]: norm
            over pixels of its part that is linear in the gradients, over the norm of the whole.
        acceptance_rate: share of the proposals that were accepted `[b]`; 1 without an accept step.
    """

    gradient_share: Array
    acceptance_rate: Array


def standard_normal(keys: Array, images: Array, index: int) -> Array:
    """Standard normal noise of the shape and dtype of `images`, from one key per image.

    Args:
        keys: typed PRNG keys `[b]`.
        images: `[b, ...]`.
        index: number of the draw; each number gives independent noise from the same keys.

    Returns:
        `[b, ...]`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> keys = jax.random.split(jax.random.key(0), 2)
        >>> standard_normal(keys, jnp.zeros((2, 4, 4, 3)), 0).shape
        (2, 4, 4, 3)
    """
    return jax.vmap(
        lambda key: jax.random.normal(
            jax.random.fold_in(key, index), images.shape[1:], images.dtype
        )
    )(keys)


def inverse(similarity: Array) -> Array:
    """The potential `1 / (1 + similarity)`; descending it raises the similarity.

    Below a similarity of -0.99 it continues along its tangent: the slope stays at 1e4 instead of
    growing without bound, and does not vanish where the force should be strongest.

    Args:
        similarity: cosines, of any shape.

    Returns:
        The potentials, of that shape.

    Source: NRCC (16). The paper calls it a density, but (17) descends it and Theorem 3.6 minimizes
    it. The continuation is ours.

    Example:
        >>> import jax.numpy as jnp
        >>> inverse(jnp.array([1.0, 0.0, -1.0])).round(2).tolist()
        [0.5, 1.0, 200.0]
    """
    distance = 1 + similarity
    # The inner maximum keeps the branch that is not taken finite.
    curve = 1 / jnp.maximum(distance, FLOOR)
    return jnp.where(distance > FLOOR, curve, 2 / FLOOR - distance / FLOOR**2)


def log_inverse_square(similarity: Array) -> Array:
    """The potential `log(1 / (1 + similarity^2))`; descending it raises |similarity|.

    Args:
        similarity: cosines, of any shape.

    Returns:
        The potentials, of that shape.

    Source: the authors' code, which uses it in place of NRCC (16).

    Example:
        >>> import jax.numpy as jnp
        >>> [round(p, 3) for p in log_inverse_square(jnp.array([1.0, 0.0, -1.0])).tolist()]
        [-0.693, -0.0, -0.693]
    """
    return -jnp.log1p(jnp.square(similarity))


POTENTIALS: dict[str, Callable[[Array], Array]] = {
    "inverse": inverse,
    "log_inverse_square": log_inverse_square,
}


def potential_fn(name: str) -> Callable[[Array], Array]:
    """The potential of a similarity, by its name in `POTENTIALS`.

    Raises:
        ValueError: no such potential.

    Example:
        >>> round(potential_fn("inverse")(0.25).item(), 3)
        0.8
    """
    checks.one_of("potential", name, tuple(POTENTIALS))
    return POTENTIALS[name]


def clip_by_value(gradient: Array, clip: float | None) -> Array:
    """Every pixel of `gradient` `[b, ...]` within `[-clip, clip]`; None changes nothing.

    Example:
        >>> import jax.numpy as jnp
        >>> clip_by_value(jnp.array([-3.0, 0.5]), 1.0).tolist()
        [-1.0, 0.5]
    """
    return gradient if clip is None else jnp.clip(gradient, -clip, clip)


def normalize_by_rms(gradient: Array) -> Array:
    """`gradient` `[b, ...]` scaled to a root mean square of one per image; zero stays zero.

    Example:
        >>> import jax.numpy as jnp
        >>> normalize_by_rms(jnp.array([[2.0, -2.0], [0.0, 0.0]])).tolist()
        [[1.0, -1.0], [0.0, 0.0]]
    """
    pixels = tuple(range(1, gradient.ndim))
    # Dividing by the largest pixel first keeps the squares from underflowing.
    largest = jnp.max(jnp.abs(gradient), axis=pixels, keepdims=True)
    scaled = gradient / jnp.where(largest > 0, largest, 1)
    square = jnp.mean(jnp.square(ops.upcast(scaled)), axis=pixels, keepdims=True)
    return scaled / jnp.sqrt(jnp.where(square > 0, square, 1)).astype(gradient.dtype)


def shape_gradient(
    gradient: Array, images: Array, clip: float | None = None, normalize: bool = False
) -> Array:
    """The gradient a sampler uses, in the dtype of `images`: clipped, then normalized if asked.

    In this order a normalized gradient has a root mean square of exactly one.

    Args:
        gradient: `[b, ...]`.
        images: `[b, ...]`.
        clip: see `clip_by_value`.
        normalize: whether to apply `normalize_by_rms`.

    Returns:
        `[b, ...]`.

    Example:
        >>> import jax.numpy as jnp
        >>> gradient = jnp.array([[0.5, -9.0]])
        >>> shape_gradient(gradient, gradient, clip=0.5, normalize=True).tolist()
        [[1.0, -1.0]]
    """
    gradient = clip_by_value(gradient, clip)
    return (normalize_by_rms(gradient) if normalize else gradient).astype(images.dtype)


def norm_ratio(part: Array, whole: Array) -> Array:
    """Norm of `part` over norm of `whole` per image, `[b, ...]` -> `[b]`; 0 where `whole` is 0.

    At most one: noise that opposes the gradients can leave the whole shorter than its part.

    Example:
        >>> import jax.numpy as jnp
        >>> ratio = norm_ratio(jnp.array([[3.0, 0.0]]), jnp.array([[3.0, 4.0]]))
        >>> round(ratio.item(), 3)
        0.6
    """
    pixels = tuple(range(1, whole.ndim))
    part = jnp.sqrt(jnp.sum(jnp.square(ops.upcast(part)), axis=pixels))
    whole = jnp.sqrt(jnp.sum(jnp.square(ops.upcast(whole)), axis=pixels))
    return jnp.minimum(part / jnp.where(whole > 0, whole, 1), 1)


def expand_like(values: Array, images: Array) -> Array:
    """`values` `[b]` with axes of length one, to combine with `images` `[b, ...]`.

    Example:
        >>> import jax.numpy as jnp
        >>> expand_like(jnp.ones(2), jnp.ones((2, 4, 4, 3))).shape
        (2, 1, 1, 1)
    """
    return values.reshape((-1,) + (1,) * (images.ndim - 1))
