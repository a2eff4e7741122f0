"""Momentum encoder: a network and its moving average embed two views (BYOL, MoCo, NCC, PCL)."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from cluster_jax.core import schedules
from cluster_jax.core.collectives import Axis
from cluster_jax.methods import base
from cluster_jax.methods.base import Encoded, MethodContext, ModelState, PyTree, TwoView
from cluster_jax.methods.encoders import online
from cluster_jax.nets.network import Predict

# (projections [b, d], index [b], step, key) -> the predictor's input in place of the projections.
Perturb = Callable[[Array, Array, Array, Array], Array]


class Target(NamedTuple):
    """The target network: the moving average of the online network, without its predictor.

    Attributes:
        params: moving average of the online parameters.
        batch_stats: BatchNorm statistics of its own.
    """

    params: PyTree
    batch_stats: PyTree


class MomentumState(NamedTuple):
    """The state of a method with a target network; other methods add fields to these two.

    Attributes:
        batch_stats: running BatchNorm statistics of the online network.
        target: the target network.
    """

    batch_stats: PyTree
    target: Target


def target_network(params: PyTree, model_state: ModelState) -> tuple[PyTree, PyTree]:
    """Parameters and BatchNorm statistics of the target network; `params` is unused."""
    return model_state.target.params, model_state.target.batch_stats


def two_view(
    context: MethodContext,
    objective: base.Objective,
    *,
    name: str,
    decays: tuple[float, float],
    predicts: bool,
    kept_network: Callable[[PyTree, ModelState], tuple[PyTree, PyTree]] = base.online_network,
    initial_state: Callable[[PyTree, Target], ModelState] = MomentumState,
    perturb: Perturb | None = None,
) -> TwoView:
    """A method with a target network, which has no predictor.

    The target's BatchNorm uses the statistics of the batch and keeps running ones of its own.
    With shuffled BatchNorm it sees the global batch in a permuted order.

    Args:
        context: network, augmentation and sizes.
        objective: the `objective` of the method, see `TwoView`.
        name: name of the method, for messages.
        decays: decay of the moving average at the first step and at the last one, which it
            approaches by half a cosine.
        predicts: whether the online network has a predictor.
        kept_network: the network that is kept after training, `base.online_network` or
            `target_network`.
        initial_state: `(batch_stats, target) -> model_state` before the first step.
        perturb: changes the predictor's input (NCC's positive sampling); None: the projections
            are not changed.

    Raises:
        InputError: no predictor where one is needed.
    """
    predict = online.predictor(context, name, predicts)
    ema_decay = schedules.cosine(*decays, context.total_steps)

    def init(key: Array, images: Array) -> tuple[PyTree, ModelState]:
        params, batch_stats = context.network.init(key, images)
        # Copies: the state is donated to a step and must not hold one buffer twice.
        target = jax.tree.map(jnp.copy, Target(*map(_without_predictor, (params, batch_stats))))
        return params, initial_state(batch_stats, target)

    def after(params: PyTree, model_state: ModelState, step: Array) -> ModelState:
        target, decay = model_state.target, ema_decay(step)
        averaged = jax.tree.map(
            lambda new, old: old + (1 - decay).astype(old.dtype) * (new - old),
            _without_predictor(params),
            target.params,
        )
        return model_state._replace(target=target._replace(params=averaged))

    return TwoView(
        init,
        functools.partial(_encode, context, predict, perturb),
        objective,
        after,
        base.embedder(context, kept_network),
        context.augment,
        branches=("target", "target_predictor", "online") if predicts else ("target", "online"),
        anchor_layers=("projection", "prediction") if predicts else ("projection",),
    )


def _encode(
    context: MethodContext,
    predict: Predict | None,
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
    target: Target = model_state.target
    # Each pass of the target has its own permutation, each view its own noise.
    keys = jax.random.split(key, 5)

    def encode_online(batch_stats: PyTree, i: int) -> tuple[Array, Array | None, PyTree]:
        out = context.network.forward(params, batch_stats, views[i], train=True, axis=axis)
        if predict is None:
            return out.projection, None, out.stats
        z = out.projection
        z = z if perturb is None else perturb(z, index, step, keys[3 + i])
        q, batch_stats = predict(params, out.stats, z, train=True, axis=axis)
        return out.projection, q, batch_stats

    # The order of the passes is that of the running statistics: view a, then view b, in each of
    # the two networks; the predictor's pass of a view follows its projection.
    z_a, q_a, batch_stats = encode_online(model_state.batch_stats, 0)
    z_b, q_b, batch_stats = encode_online(batch_stats, 1)
    inputs, _, target_stats = online.project_views(context, *target, views, keys[:3], axis)
    # All branches embed the sampled view by constant networks.
    constants = lax.stop_gradient(params)

    def project_online(images: Array) -> Array:
        out = context.network.forward(constants, batch_stats, images, train=True, axis=axis)
        return out.projection

    branches = {"target": inputs.project, "online": project_online}
    if predict is not None:
        branches["target_predictor"] = lambda images: predict(
            constants, batch_stats, inputs.project(images), train=True, axis=axis
        )[0]
    predictions = None if q_a is None or q_b is None else (q_a, q_b)
    # Neither a method's loss nor NRCC's positives may send a gradient into the target network.
    targets = (lax.stop_gradient(inputs.projection), lax.stop_gradient(inputs.reference))
    model_state = model_state._replace(
        batch_stats=batch_stats, target=target._replace(batch_stats=target_stats)
    )
    encoded = Encoded((z_a, z_b), predictions, targets, inputs._replace(branches=branches), index)
    return encoded, model_state


def _without_predictor(tree: PyTree) -> PyTree:
    """The parts of the online network that a target network has."""
    return {name: part for name, part in tree.items() if name != "predictor"}
