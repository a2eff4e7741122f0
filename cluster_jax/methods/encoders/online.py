"""Siamese encoder: one network embeds two views (SimCLR, SimSiam, Barlow Twins, CC)."""

import functools
from typing import NamedTuple

import jax
from jax import Array, lax

from cluster_jax.core.checks import InputError
from cluster_jax.core.collectives import Axis
from cluster_jax.methods import base
from cluster_jax.methods.base import Encoded, MethodContext, PyTree, SamplerInputs, TwoView
from cluster_jax.nets import norm
from cluster_jax.nets.network import Predict


class NetworkState(NamedTuple):
    """The state of a method without a target network or a queue.

    Attributes:
        batch_stats: running BatchNorm statistics.
    """

    batch_stats: PyTree


def two_view(
    context: MethodContext, objective: base.Objective, *, name: str, predicts: bool
) -> TwoView:
    """A method of one network, without a target network. The network is kept after training.

    Args:
        context: network, augmentation and sizes.
        objective: the `objective` of the method, see `TwoView`.
        name: name of the method, for messages.
        predicts: whether the network has a predictor. The objective then gets `predictions`, and
            as `targets` the projections themselves as constants: each view predicts the other's
            projection.

    Raises:
        InputError: shuffled BatchNorm, or no predictor where one is needed.
    """
    if context.shuffle:
        raise InputError(
            "network.norm must be 'sync' or 'local' for a method without a target network; "
            "got 'shuffle'"
        )

    def init(key: Array, images: Array) -> tuple[PyTree, NetworkState]:
        params, batch_stats = context.network.init(key, images)
        return params, NetworkState(batch_stats)

    return TwoView(
        init,
        functools.partial(_encode, context, predictor(context, name, predicts)),
        objective,
        base.no_average,
        base.embedder(context, base.online_network),
        context.augment,
        branches=("online",),
        anchor_layers=("projection", "prediction") if predicts else ("projection",),
    )


def predictor(context: MethodContext, name: str, predicts: bool) -> Predict | None:
    """The network's predictor if the method `name` uses one.

    Raises:
        InputError: the method uses one and the network has none.
    """
    if predicts and context.network.predict is None:
        raise InputError(f"network.predictor must be set for {name}; got None")
    return context.network.predict if predicts else None


def _encode(
    context: MethodContext,
    predict: Predict | None,
    params: PyTree,
    model_state: NetworkState,
    views: tuple[Array, Array],
    index: Array,
    step: Array,
    key: Array,
    axis: Axis,
) -> tuple[Encoded, NetworkState]:
    """The forward passes of a step, see `base.Encode`."""
    keys = jax.random.split(key, 3)
    inputs, representations, batch_stats = project_views(
        context, params, model_state.batch_stats, views, keys, axis
    )
    z_a, z_b = inputs.projection, inputs.reference
    predictions = targets = None
    if predict is not None:
        q_a, batch_stats = predict(params, batch_stats, z_a, train=True, axis=axis)
        q_b, batch_stats = predict(params, batch_stats, z_b, train=True, axis=axis)
        # SimSiam collapses without this; it also makes NRCC's positives constants, as in (6).
        predictions, targets = (q_a, q_b), (lax.stop_gradient(z_a), lax.stop_gradient(z_b))
    encoded = Encoded((z_a, z_b), predictions, targets, inputs, index, representations)
    return encoded, model_state._replace(batch_stats=batch_stats)


def project_views(
    context: MethodContext,
    params: PyTree,
    batch_stats: PyTree,
    views: tuple[Array, Array],
    keys: Array,
    axis: Axis,
) -> tuple[SamplerInputs, tuple[Array, Array], PyTree]:
    """Both views by the network of a sampler's potential: its inputs, features, new statistics.

    The features, of the backbone, have the permuted order of shuffled BatchNorm.
    With shuffled BatchNorm the groups hold other images than the online network's: through the
    statistics of a common group the online network could tell which key is its own (MoCo).
    The running statistics are updated by view a, then by view b; not by a sampler's passes.

    Args:
        context: network, augmentation and sizes.
        params: parameters of the network.
        batch_stats: its BatchNorm statistics.
        views: a and b `[b, H, W, C]`.
        keys: of the permutations of view a, view b and a sampler's passes, `[3]`.
        axis: mesh axis that holds the batch, or None.
    """

    def project(
        params: PyTree, stats: PyTree, images: Array, key: Array
    ) -> tuple[Array, tuple[Array, PyTree]]:
        if context.shuffle:
            images, order = norm.shuffle(key, images, axis)
        out = context.network.forward(params, stats, images, train=True, axis=axis)
        z = norm.unshuffle(out.projection, order, axis) if context.shuffle else out.projection
        return z, (out.representation, out.stats)

    # One forward pass of view a serves the loss and, through `vjp_fn`, a sampler.
    z_a, vjp_fn, (h_a, stats_a) = jax.vjp(
        lambda images: project(params, batch_stats, images, keys[0]), views[0], has_aux=True
    )
    z_b, (h_b, stats_b) = project(params, stats_a, views[1], keys[1])

    def project_constant(images: Array) -> Array:
        # The parameters are constants: a sampler differentiates with respect to images only.
        return project(lax.stop_gradient(params), stats_b, images, keys[2])[0]

    inputs = SamplerInputs(
        images=views[0],
        projection=z_a,
        vjp_fn=lambda cotangent: vjp_fn(cotangent)[0],
        other_images=views[1],
        reference=z_b,
        project=project_constant,
        branches={"online": project_constant},
    )
    return inputs, (h_a, h_b), stats_b
