"""Two views encoded by a network and by its moving average: BYOL, MoCo, NCC, CueCo."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
from jax import Array, lax

from cluster_jax.core import schedules
from cluster_jax.core.checks import InputError
from cluster_jax.core.collectives import Axis
from cluster_jax.methods import base
from cluster_jax.methods.base import (
    Encoded,
    MethodContext,
    ModelState,
    Objective,
    PyTree,
    SamplerInputs,
    TwoView,
)
from cluster_jax.nets import norm

# (projections [b, d], index [b], step, key) -> what the predictor sees in place of the projections.
Perturb = Callable[[Array, Array, Array, Array], Array]


class Target(NamedTuple):
    """The moving average of the online network; it has no predictor.

    Attributes:
        params: moving average of the online parameters.
        batch_stats: BatchNorm statistics of its own.
    """

    params: PyTree
    batch_stats: PyTree


class MomentumState(NamedTuple):
    """The state of a method that has only its two networks as state.

    The state of every method with a target network has these two fields.

    Attributes:
        batch_stats: running BatchNorm statistics of the online network.
        target: the target network.
    """

    batch_stats: PyTree
    target: Target


def check_decays(decay: float | None, final_decay: float | None) -> None:
    """Raises an `InputError` unless both decays of the moving average are between 0 and 1."""
    for key, value in (("decay", decay), ("final_decay", final_decay)):
        if value is None or not 0 <= value <= 1:
            raise InputError(f"method.{key} must be between 0 and 1; got {value}")


def target_network(params: PyTree, model_state: ModelState) -> tuple[PyTree, PyTree]:
    """Parameters and BatchNorm statistics of the target network; `params` is unused."""
    return model_state.target.params, model_state.target.batch_stats


def two_view(
    context: MethodContext,
    objective: Objective,
    *,
    name: str,
    decay: float,
    final_decay: float,
    predicts: bool,
    kept_network: Callable[[PyTree, ModelState], tuple[PyTree, PyTree]],
    initial_state: Callable[[PyTree, Target], ModelState],
    perturb: Perturb | None,
) -> TwoView:
    """A method with a target network, which has no predictor.

    The target's BatchNorm uses the statistics of the batch and keeps running ones of its own.
    With shuffled BatchNorm it sees the global batch in a permuted order.

    Args:
        context: network, augmentation and sizes.
        objective: the `objective` of the method, see `TwoView`.
        name: the method's, for messages.
        decay: of the moving average at the first step.
        final_decay: at the last step, reached by half a cosine; equal to `decay`: constant.
        predicts: whether the online network has a predictor.
        kept_network: the network that is kept after training, `base.online_network` or
            `target_network`.
        initial_state: `(batch_stats, target) -> model_state` before the first step.
        perturb: what the predictor sees (NCC's positive sampling); None for the projections.

    Raises:
        InputError: no predictor where one is needed.
    """
    network = context.network
    if predicts and network.predict is None:
        raise InputError(f"network.predictor must be set for {name}; got None")
    ema_decay = schedules.cosine(decay, final_decay, context.total_steps)

    def init(key: Array, images: Array) -> tuple[PyTree, ModelState]:
        params, batch_stats = network.init(key, images)
        target = base.copy(Target(_without_predictor(params), _without_predictor(batch_stats)))
        return params, initial_state(batch_stats, target)

    def after(params: PyTree, model_state: ModelState, step: Array) -> ModelState:
        target = model_state.target
        moved = base.moving_average(_without_predictor(params), target.params, ema_decay(step))
        return model_state._replace(target=target._replace(params=moved))

    return TwoView(
        init,
        functools.partial(_encode, context, predicts, perturb),
        objective,
        after,
        base.embedder(network, context.augment, kept_network),
        context.augment,
        branches=("target", "target_predictor", "online") if predicts else ("target", "online"),
        anchor_layers=("projection", "prediction") if predicts else ("projection",),
    )


def _encode(
    context: MethodContext,
    predicts: bool,
    perturb: Perturb | None,
    params: PyTree,
    model_state: ModelState,
    views: tuple[Array, Array],
    index: Array,
    step: Array,
    key: Array,
    axis: Axis,
) -> tuple[Encoded, ModelState]:
    """The forward passes of a step, see `base.Encode`."""
    a, b = views
    target: Target = model_state.target
    # Each pass of the target has its own permutation, each view its own noise.
    shuffle_a, shuffle_b, shuffle_c, noise_a, noise_b = jax.random.split(key, 5)
    online = functools.partial(_online, context, predicts, perturb, params, index, step, axis)
    project = functools.partial(_project, context, target.params, axis)

    # The order of the passes is that of the running statistics: view a, then view b, in each of
    # the two networks; the predictor's pass of a view follows its projection.
    z_a, q_a, batch_stats = online(model_state.batch_stats, a, noise_a)
    z_b, q_b, batch_stats = online(batch_stats, b, noise_b)
    # One forward pass of view a serves the loss and, through `vjp_fn`, a sampler.
    target_a, vjp_fn, target_stats = jax.vjp(
        lambda images: project(shuffle_a, target.batch_stats, images), a, has_aux=True
    )
    target_b, target_stats = project(shuffle_b, target_stats, b)

    def project_constant(images: Array) -> Array:
        # A sampler's passes do not update the running statistics.
        return project(shuffle_c, target_stats, images)[0]

    sampler_inputs = SamplerInputs(
        images=a,
        projection=target_a,
        vjp_fn=lambda cotangent: vjp_fn(cotangent)[0],
        other_images=b,
        reference=target_b,
        project=project_constant,
        branches=_branches(context, predicts, params, batch_stats, project_constant, axis),
    )
    predictions = None if q_a is None or q_b is None else (q_a, q_b)
    # Neither a method's loss nor NRCC's positives may send a gradient into the target network.
    targets = (lax.stop_gradient(target_a), lax.stop_gradient(target_b))
    model_state = model_state._replace(
        batch_stats=batch_stats, target=target._replace(batch_stats=target_stats)
    )
    return Encoded((z_a, z_b), predictions, targets, sampler_inputs, index), model_state


def _online(
    context: MethodContext,
    predicts: bool,
    perturb: Perturb | None,
    params: PyTree,
    index: Array,
    step: Array,
    axis: Axis,
    batch_stats: PyTree,
    images: Array,
    key: Array,
) -> tuple[Array, Array | None, PyTree]:
    """Projections, predictions and new statistics of the online network."""
    network = context.network
    out = network.forward(params, batch_stats, images, train=True, axis=axis)
    if not predicts or network.predict is None:
        return out.projection, None, out.stats
    z = out.projection if perturb is None else perturb(out.projection, index, step, key)
    q, batch_stats = network.predict(params, out.stats, z, train=True, axis=axis)
    return out.projection, q, batch_stats


def _project(
    context: MethodContext,
    params: PyTree,
    axis: Axis,
    key: Array,
    batch_stats: PyTree,
    images: Array,
) -> tuple[Array, PyTree]:
    """Projections and new statistics of the target network.

    With shuffled BatchNorm its groups hold other images than the online network's: through the
    statistics of a common group the online network could tell which key is its own (MoCo).
    """
    if not context.shuffle:
        out = context.network.forward(params, batch_stats, images, train=True, axis=axis)
        return out.projection, out.stats
    shuffled, order = norm.shuffle(key, images, axis)
    out = context.network.forward(params, batch_stats, shuffled, train=True, axis=axis)
    return norm.unshuffle(out.projection, order, axis), out.stats


def _branches(
    context: MethodContext,
    predicts: bool,
    params: PyTree,
    batch_stats: PyTree,
    project: Callable[[Array], Array],
    axis: Axis,
) -> dict[str, Callable[[Array], Array]]:
    """The networks that can embed a sampled view; `project` is the target's. All are constants."""
    network, constants = context.network, base.stop_gradient(params)

    def online(images: Array) -> Array:
        return network.forward(constants, batch_stats, images, train=True, axis=axis).projection

    branches = {"target": project, "online": online}
    predict = network.predict
    if predicts and predict is not None:
        branches["target_predictor"] = lambda images: predict(
            constants, batch_stats, project(images), train=True, axis=axis
        )[0]
    return branches


def _without_predictor(tree: PyTree) -> PyTree:
    """The parts of the online network that a target network has."""
    return {name: part for name, part in tree.items() if name != "predictor"}
