"""Two views encoded by one network: SimCLR, SimSiam, Barlow Twins, Kernel-InfoNCE."""

from collections.abc import Callable

import jax
from jax import Array, lax

from cluster_jax.core.checks import InputError
from cluster_jax.core.collectives import Axis
from cluster_jax.methods import base
from cluster_jax.methods.base import Encoded, MethodContext, SamplerInputs, Tree, TwoView


def two_view(context: MethodContext, objective: Callable, *, name: str, predicts: bool) -> TwoView:
    """A method without a target network. Kept after training: the network.

    Args:
        context: network, augmentation and sizes.
        objective: the `objective` of the method, see `TwoView`.
        name: the method's, for messages.
        predicts: whether there is a predictor. The objective then finds `predictions`, and as
            `targets` the projections themselves as constants: a view predicts the other's
            projection.

    Raises:
        InputError: shuffled BatchNorm, or no predictor where one is needed.
    """
    network = context.network
    if context.shuffle:
        raise InputError(
            "network.norm 'shuffle' needs a method with a target network; use 'sync' or 'local'"
        )
    if predicts and network.predict is None:
        raise InputError(f"{name} needs network.predictor; got None")

    def init(key: Array, images: Array) -> tuple[Tree, Tree]:
        params, stats = network.init(key, images)
        return params, {"stats": stats}

    def encode(
        params: Tree,
        model_state: Tree,
        views: tuple[Array, Array],
        index: Array,
        step: Array,
        key: Array,
        axis: Axis,
    ) -> tuple[Encoded, Tree]:
        def project(weights: Tree, stats: Tree, images: Array) -> tuple[Array, Tree]:
            out = network.forward(weights, stats, images, train=True, axis=axis)
            return out.projection, out.stats

        a, b = views
        # One forward pass of view a serves the loss and, through `pull`, a sampler.
        z_a, pull, stats = jax.vjp(
            lambda x: project(params, model_state["stats"], x), a, has_aux=True
        )
        z_b, stats = project(params, stats, b)
        predictions = targets = None
        if predicts:
            q_a, stats = network.predict(params, stats, z_a, train=True, axis=axis)
            q_b, stats = network.predict(params, stats, z_b, train=True, axis=axis)
            predictions, targets = (q_a, q_b), (lax.stop_gradient(z_a), lax.stop_gradient(z_b))

        def again(images: Array) -> Array:
            return project(base.constants(params), stats, images)[0]

        sampler_inputs = SamplerInputs(
            a, z_a, lambda ct: pull(ct)[0], b, z_b, again, {"online": again}
        )
        encoded = Encoded((z_a, z_b), predictions, targets, sampler_inputs, index)
        return encoded, {**model_state, "stats": stats}

    def after(params: Tree, model_state: Tree, step: Array) -> Tree:
        return model_state

    embed = base.embedder(
        network, context.augment, lambda params, model_state: (params, model_state["stats"])
    )
    return TwoView(
        init,
        encode,
        objective,
        after,
        embed,
        base.never,
        base.unchanged,
        context.augment,
        branches=("online",),
        anchors=("projection", "prediction") if predicts else ("projection",),
    )
