"""SimCLR: InfoNCE between the two views of a batch (NRCC (1)-(3); Kernel-InfoNCE (8))."""

import jax
from jax import Array

from cluster_jax import settings
from cluster_jax.collectives import Axis
from cluster_jax.losses import infonce
from cluster_jax.methods import base
from cluster_jax.methods.base import Density, Encoded, Setting, Tree, TwoView


def make(setting: Setting, *, temperature: float, positive_in_denominator: bool) -> TwoView:
    """SimCLR.

    Args:
        setting: network, augmentation and sizes.
        temperature: tau, divides the cosines; > 0.
        positive_in_denominator: True for SimCLR's own NT-Xent, False for NRCC's InfoNCE.

    Raises:
        InputError: a value is out of range.
    """
    settings.positive("method.temperature", temperature)
    if setting.shuffle:
        raise settings.InputError(
            "network.norm 'shuffle' needs a method with a target network; use 'sync' or 'local'"
        )
    network = setting.network

    def init(key: Array, images: Array) -> tuple[Tree, Tree]:
        params, stats = network.init(key, images)
        return params, {"stats": stats}

    def encode(
        params: Tree, extra: Tree, views: tuple[Array, Array], key: Array, axis: Axis
    ) -> tuple[Encoded, Tree]:
        def project(weights: Tree, stats: Tree, images: Array) -> tuple[Array, Tree]:
            out = network.forward(weights, stats, images, train=True, axis=axis)
            return out.projection, out.stats

        a, b = views
        # One forward pass of view a serves the loss and, through `pull`, a sampler.
        z_a, pull, stats = jax.vjp(lambda x: project(params, extra["stats"], x), a, has_aux=True)
        z_b, stats = project(params, stats, b)

        def again(images: Array) -> Array:
            return project(base.constants(params), stats, images)[0]

        density = Density(a, z_a, lambda ct: pull(ct)[0], b, z_b, again, {"online": again})
        return Encoded((z_a, z_b), None, None, density), {**extra, "stats": stats}

    def objective(
        params: Tree, encoded: Encoded, extra: Tree, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, Tree, dict]:
        value = infonce.info_nce_views(
            *encoded.projections,
            temperature=temperature,
            positive_in_denominator=positive_in_denominator,
            axis=axis,
        )
        return value, extra, {}

    def after(params: Tree, extra: Tree, step: Array) -> Tree:
        return extra

    embed = base.embedder(network, setting.augment, lambda params, extra: (params, extra["stats"]))
    return TwoView(
        init,
        encode,
        objective,
        after,
        embed,
        base.never,
        base.unchanged,
        setting.augment,
        routes=("online",),
        anchors=("projection",),
    )
