"""Shared by the samplers: `init` and `step`, noise per image, potentials, shaping of gradients.

A sampler turns a batch of images into a batch of views. Its density exp(-P) is given as a function
`potential_and_grad`: `images [b, ...] -> (P [b], gradient [b, ...])`, the potential of every image
and the gradient of the potentials' sum with respect to the images. The images, here also called
the position, are an array `[b, ...]` or a pytree of arrays with the same first axis.
"""

import functools
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.core import checks, ops
from cluster_jax.core.checks import InputError

# A pytree of arrays `[b, ...]`.
Position = TypeVar("Position")
Position_co = TypeVar("Position_co", covariant=True)
State = TypeVar("State")
# `images [b, ...] -> (P [b], gradient [b, ...])`.
PotentialAndGrad = Callable[[Position], tuple[Array, Position]]

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


class Sampler(NamedTuple, Generic[Position, State]):
    """A sampler as two pure functions; `sghmc` and `hmc` make one of a potential.

    `sample` runs it. For a loop of one's own, jit the loop: neither function is jitted, so that a
    new closure of a potential is not compiled by itself.

    Attributes:
        init: `(keys, position, initial=None) -> state`. Keys are typed PRNG keys `[b]`, one for
            each image; `initial` is `potential_and_grad(position)` if it is already known.
        step: `(keys, state, index=0) -> (state, SamplerInfo)`, one iteration, and the info of this
            iteration. Iterations with the same keys differ in their index.
    """

    init: Callable[..., State]
    step: Callable[..., tuple[State, SamplerInfo]]


class SamplerState(Protocol[Position_co]):
    """State of a sampler that knows which part of its displacement is due to the gradients."""

    @property
    def position(self) -> Position_co:
        """`[b, ...]`."""

    @property
    def gradient_displacement(self) -> Position_co:
        """`[b, ...]`."""


def sample(
    sampler: Sampler[Position, Any],
    keys: Array,
    images: Position,
    initial: tuple[Array, Position] | None = None,
    *,
    iterations: int = 1,
    unroll: bool = True,
) -> tuple[Position, SamplerInfo]:
    """Samples the view of each image: `iterations` steps of a sampler.

    Args:
        sampler: from `sghmc` or `hmc`.
        keys: one typed PRNG key per image `[b]`: a view does not depend on the rest of the batch.
        images: the initial images `[b, ...]`, in the units of the network's input, or a pytree of
            arrays with the same first axis.
        initial: the potential `[b]` and its gradient at `images`, if they are already known.
        iterations: number of steps, at least 1.
        unroll: see `repeat`.

    Returns:
        The views, shapes and dtypes of `images`, without gradient; and `SamplerInfo`, whose
        gradient share is that of the whole displacement.

    Raises:
        InputError: `iterations` is not a whole number of at least 1, or images are no floats, are
            empty, or do not have one key each.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from cluster_jax import samplers
        >>> sampler = samplers.sghmc(lambda x: ((x**2).sum(1) / 2, x), noise=0.5)
        >>> keys, images = jax.random.split(jax.random.key(0), 2), jnp.zeros((2, 9))
        >>> views, info = sample(sampler, keys, images, iterations=3)
        >>> views.shape, info.acceptance_rate.tolist()
        ((2, 9), [1.0, 1.0])
    """
    checks.whole("iterations", iterations, 1)
    check_images(keys, images)

    def body(carry: tuple[Any, Array], index: Array | int) -> tuple[Any, Array]:
        state, info = sampler.step(keys, carry[0], index)
        return state, carry[1] + info.acceptance_rate

    start = sampler.init(keys, images, initial)
    # The first step apart: only it may know its gradient.
    state, info = sampler.step(keys, start, 0)
    indices = range(1, iterations)
    state, accepted = repeat(body, (state, info.acceptance_rate), indices, unroll)
    info = SamplerInfo(gradient_share(start, state), accepted / iterations)
    return jax.lax.stop_gradient((state.position, info))


def check_images(keys: Any, images: Any) -> None:
    """Raises an `InputError` unless images are floats `[b, ...]`, b >= 1, with a key for each.

    Example:
        >>> check_images(jax.random.split(jax.random.key(0), 2), jnp.ones((2, 3), int))
        Traceback (most recent call last):
        cluster_jax.core.checks.InputError: images must be float arrays [b, ...]; got int32[2,3]
    """
    for x in jax.tree.leaves(images):
        is_array = hasattr(x, "shape") and hasattr(x, "dtype")
        got = f"{x.dtype}[{','.join(map(str, x.shape))}]" if is_array else f"a {type(x).__name__}"
        if not is_array or not jnp.issubdtype(x.dtype, jnp.floating) or 0 in (x.shape or (0,)):
            raise InputError(f"images must be float arrays [b, ...]; got {got}")
        if jnp.shape(keys)[:1] != x.shape[:1]:
            must = f"keys must be one for each image, [{len(x)}], as jax.random.split makes them"
            raise InputError(f"{must}; got {list(jnp.shape(keys))}")


def gradient_share(before: SamplerState, after: SamplerState) -> Array:
    """Computes how much of the displacement between two states is due to the gradients, `[b]`.

    Example:
        >>> import types
        >>> import jax.numpy as jnp
        >>> zero, one = jnp.zeros((1, 2)), jnp.ones((1, 2))
        >>> before = types.SimpleNamespace(position=zero, gradient_displacement=zero)
        >>> after = types.SimpleNamespace(position=2 * one, gradient_displacement=one)
        >>> gradient_share(before, after).item()
        0.5
    """
    subtract = functools.partial(jax.tree.map, jnp.subtract)
    part = subtract(after.gradient_displacement, before.gradient_displacement)
    return norm_ratio(part, subtract(after.position, before.position))


def repeat(
    body: Callable[[State, Array | int], State], state: State, indices: range, unroll: bool
) -> State:
    """Repeats `state = body(state, j)` for each j of `indices`.

    Args:
        body: one iteration.
        state: before the first iteration.
        indices: of the iterations, in steps of one.
        unroll: whether each iteration is compiled, one after the other, or one for all of them by
            `jax.lax.scan`, in which j is traced. XLA compiles a scan in less time, but on a CPU it
            runs convolutions inside of one tens of times slower.

    Returns:
        The state after the last iteration.

    Example:
        >>> repeat(lambda state, j: state + j, 0, range(1, 4), unroll=True)
        6
        >>> repeat(lambda state, j: state + j, 0, range(1, 4), unroll=False).item()
        6
    """
    if unroll:
        return functools.reduce(body, indices, state)
    js = jnp.arange(indices.start, indices.stop, dtype=jnp.int32)
    return jax.lax.scan(lambda state, j: (body(state, j), None), state, js)[0]


def standard_normal(keys: Array, images: Position, index: Array | int) -> Position:
    """Draws standard normal noise of the shape and dtype of `images`, from one key per image.

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
    leaves, structure = jax.tree.flatten(images)

    def draw(number: int, leaf: Array) -> Array:
        def of_image(key: Array) -> Array:
            key = jax.random.fold_in(key, index)
            if len(leaves) > 1:
                key = jax.random.fold_in(key, number)
            return jax.random.normal(key, leaf.shape[1:], leaf.dtype)

        return jax.vmap(of_image)(keys)

    return jax.tree.unflatten(structure, [draw(*leaf) for leaf in enumerate(leaves)])


def inverse(similarity: Array) -> Array:
    """Computes the potential `1 / (1 + similarity)`; descending it raises the similarity.

    Below a similarity of -0.99 it continues along its tangent: the slope stays at 1e4 instead of
    growing without bound, and does not vanish where the force should be strongest.

    Args:
        similarity: cosines, of any shape.

    Returns:
        The potentials, of that shape.

    Source: NRCC (16). The paper calls it a density, but (17) descends it and Theorem 3.6 minimizes
    it (`test_nrcc_eq_16_is_a_potential_and_not_the_density_that_its_text_says`). The continuation
    is ours.

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
    """Computes the potential `log(1 / (1 + similarity^2))`; descending it raises |similarity|.

    Args:
        similarity: cosines, of any shape.

    Returns:
        The potentials, of that shape.

    Source: the authors' code, which uses it in place of NRCC (16)
    (`test_nrcc_eq_16_gradient_of_the_similarity_density`).

    Example:
        >>> import jax.numpy as jnp
        >>> [round(p, 3) for p in log_inverse_square(jnp.array([1.0, 0.0, -1.0])).tolist()]
        [-0.693, -0.0, -0.693]
    """
    return -jnp.log1p(jnp.square(similarity))


# Potentials of a similarity, by their names in a config.
POTENTIALS: dict[str, Callable[[Array], Array]] = {
    "inverse": inverse,
    "log_inverse_square": log_inverse_square,
}


def similarity_potential(
    project: Callable[[Array], Array],
    reference: Array,
    potential_fn: Callable[[Array], Array] = inverse,
) -> PotentialAndGrad[Array]:
    """Makes the potential of the cosine of projected images with reference projections.

    With BatchNorm on batch statistics an image's projection depends slightly on the other images,
    and the gradient of the potentials' sum is only approximately each image's own.

    Args:
        project: images `[b, ...]` -> projections `[b, d]`, of any length.
        reference: projections `[b, d]` whose similarity to those of the images counts; constants.
        potential_fn: of a similarity.

    Returns:
        `images [b, ...] -> (P [b], gradient [b, ...])`, by one forward and one backward pass.

    Source: NRCC (16).

    Example:
        >>> import jax.numpy as jnp
        >>> potential_and_grad = similarity_potential(lambda x: x, jnp.array([[0.0, 1.0]]))
        >>> potential, gradient = potential_and_grad(jnp.array([[1.0, 0.0]]))
        >>> potential.item(), gradient[0, 1].item()
        (1.0, -1.0)
    """

    def potential_and_grad(images: Array) -> tuple[Array, Array]:
        z, project_vjp = jax.vjp(project, images)
        potential, gradient = similarity_gradient(z, reference, potential_fn)
        return potential, project_vjp(gradient)[0]

    return potential_and_grad


def similarity_gradient(
    z: Array, reference: Array, potential_fn: Callable[[Array], Array]
) -> tuple[Array, Array]:
    """Computes the potential of the cosine of `z` and `reference`, and its gradient in `z`.

    Args:
        z: projections `[b, d]`.
        reference: projections `[b, d]`; constants.
        potential_fn: of a similarity.

    Returns:
        P `[b]` and the gradient of its sum `[b, d]`.

    Example:
        >>> import jax.numpy as jnp
        >>> z, reference = jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 1.0]])
        >>> similarity_gradient(z, reference, inverse)[1][0, 1].item()
        -1.0
    """
    reference = jax.lax.stop_gradient(reference)
    potential, vjp = jax.vjp(lambda z: potential_fn(ops.cosine(z, reference)), z)
    return potential, vjp(jnp.ones_like(potential))[0]


def normalize_by_rms(gradient: Position) -> Position:
    """Scales `gradient` `[b, ...]` to a root mean square of one per image; zero stays zero.

    Example:
        >>> import jax.numpy as jnp
        >>> normalize_by_rms(jnp.array([[2.0, -2.0], [0.0, 0.0]])).tolist()
        [[1.0, -1.0], [0.0, 0.0]]
    """

    def divide(x: Array, values: Array) -> Array:
        return x / expand_like(jnp.where(values > 0, values, 1), x).astype(x.dtype)

    # Dividing by the largest pixel first keeps the squares from underflowing.
    largest = jax.tree.reduce(
        jnp.maximum, jax.tree.map(lambda g: jnp.max(jnp.abs(g), axis=_pixels(g)), gradient)
    )
    scaled = jax.tree.map(lambda g: divide(g, largest), gradient)
    mean = sum_of_squares(scaled) / sum(g[0].size for g in jax.tree.leaves(gradient))
    return jax.tree.map(lambda g: divide(g, jnp.sqrt(mean)), scaled)


@functools.partial(jax.jit, static_argnames=("normalize",))
def shape_gradient(
    gradient: Position,
    images: Position,
    clip: Array | float | None = None,
    normalize: bool = False,
) -> Position:
    """Shapes the gradient for a sampler: dtype of `images`, clipped, then normalized if asked.

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
    if clip is not None:
        gradient = jax.tree.map(lambda g: jnp.clip(g, -clip, clip), gradient)
    gradient = normalize_by_rms(gradient) if normalize else gradient
    return jax.tree.map(lambda g, x: g.astype(x.dtype), gradient, images)


def norm_ratio(part: Position, whole: Position) -> Array:
    """Computes norm of `part` over norm of `whole`, `[b, ...]` -> `[b]`; 0 where `whole` is 0.

    At most one: noise that opposes the gradients can leave the whole shorter than its part.

    Example:
        >>> import jax.numpy as jnp
        >>> ratio = norm_ratio(jnp.array([[3.0, 0.0]]), jnp.array([[3.0, 4.0]]))
        >>> round(ratio.item(), 3)
        0.6
    """
    part_norm = jnp.sqrt(sum_of_squares(part))
    norm = jnp.sqrt(sum_of_squares(whole))
    return jnp.minimum(part_norm / jnp.where(norm > 0, norm, 1), 1)


def sum_of_squares(images: Position) -> Array:
    """Sums the squares of each image's pixels, `[b, ...]` -> `[b]`, at least float32.

    Example:
        >>> import jax.numpy as jnp
        >>> sum_of_squares({"x": jnp.array([[3.0, 4.0]]), "y": jnp.ones((1, 2, 2))}).tolist()
        [29.0]
    """
    return jax.tree.reduce(
        jnp.add, jax.tree.map(lambda x: jnp.sum(jnp.square(ops.upcast(x)), _pixels(x)), images)
    )


def expand_like(values: Array, images: Array) -> Array:
    """Adds axes of length one to `values` `[b]`, to combine them with `images` `[b, ...]`.

    Example:
        >>> import jax.numpy as jnp
        >>> expand_like(jnp.ones(2), jnp.ones((2, 4, 4, 3))).shape
        (2, 1, 1, 1)
    """
    return values.reshape((-1,) + (1,) * (images.ndim - 1))


def _pixels(images: Array) -> tuple[int, ...]:
    return tuple(range(1, images.ndim))
