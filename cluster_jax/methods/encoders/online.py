"""Two views encoded by one network: SimCLR, SimSiam, Barlow Twins, Kernel-InfoNCE."""

import functools
from typing import NamedTuple

import jax
from jax import Array, lax

from cluster_jax.core.checks import InputError
from cluster_jax.core.collectives import Axis
from cluster_jax.methods import base
from cluster_jax.methods.base import (
    Encoded,
    MethodContext,
    Objective,
    PyTree,
    SamplerInputs,
    TwoView,
)
from cluster_jax.nets.network import Network


class NetworkState(NamedTuple):
    """The state of a method without a target network or a queue.

    Attributes:
        batch_stats: running BatchNorm statistics.
    """

    batch_stats: PyTree


def two_view(context: MethodContext, objective: Objective, *, name: str, predicts: bool) -> TwoView:
    """A method without a target network. Kept after training: the network.

    Args:
        context: network, augmentation and sizes.
        objective: the `objective` of the method, see `TwoView`.
        name: the method's, for messages.
        predicts: whether there is a predictor. The objective then gets `predictions`, and as
            `targets` the projections themselves as constants: a view predicts the other's
            projection.

    Raises:
        InputError: shuffled BatchNorm, or no predictor where one is needed.
    """
    network = context.network
    if context.shuffle:
        raise InputError(
            "network.norm must be 'sync' or 'local' for a method without a target network; "
            "got 'shuffle'"
        )
    if predicts and network.predict is None:
        raise InputError(f"network.predictor must be set for {name}; got None")

    def init(key: Array, images: Array) -> tuple[PyTree, NetworkState]:
        params, batch_stats = network.init(key, images)
        return params, NetworkState(batch_stats)

    return TwoView(
        init,
        functools.partial(_encode, network, predicts),
        objective,
        base.no_average,
        base.embedder(network, context.augment, base.online_network),
        context.augment,
        branches=("online",),
        anchor_layers=("projection", "prediction") if predicts else ("projection",),
    )


def _encode(
    network: Network,
    predicts: bool,
    params: PyTree,
    model_state: NetworkState,
    views: tuple[Array, Array],
    index: Array,
    step: Array,
    key: Array,
    axis: Axis,
) -> tuple[Encoded, NetworkState]:
    """The forward passes of a step, see `base.Encode`."""

    def project(weights: PyTree, batch_stats: PyTree, images: Array) -> tuple[Array, PyTree]:
        out = network.forward(weights, batch_stats, images, train=True, axis=axis)
        return out.projection, out.stats

    a, b = views
    # One forward pass of view a serves the loss and, through `vjp_fn`, a sampler. The running
    # statistics move with view a first, then with view b, then with the predictor's passes.
    z_a, vjp_fn, batch_stats = jax.vjp(
        lambda images: project(params, model_state.batch_stats, images), a, has_aux=True
    )
    z_b, batch_stats = project(params, batch_stats, b)
    predictions = targets = None
    if predicts and network.predict is not None:
        q_a, batch_stats = network.predict(params, batch_stats, z_a, train=True, axis=axis)
        q_b, batch_stats = network.predict(params, batch_stats, z_b, train=True, axis=axis)
        # SimSiam collapses without this; it also makes NRCC's positives constants, as in (6).
        predictions, targets = (q_a, q_b), (lax.stop_gradient(z_a), lax.stop_gradient(z_b))

    def project_constant(images: Array) -> Array:
        # The parameters are constants: a sampler differentiates with respect to images only. The
        # running statistics are not updated.
        return project(base.stop_gradient(params), batch_stats, images)[0]

    sampler_inputs = SamplerInputs(
        images=a,
        projection=z_a,
        vjp_fn=lambda cotangent: vjp_fn(cotangent)[0],
        other_images=b,
        reference=z_b,
        project=project_constant,
        branches={"online": project_constant},
    )
    encoded = Encoded((z_a, z_b), predictions, targets, sampler_inputs, index)
    return encoded, model_state._replace(batch_stats=batch_stats)
