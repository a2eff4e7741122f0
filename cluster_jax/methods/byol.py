"""BYOL: an online network predicts the projections of its own moving average (NRCC (4))."""

import jax
from jax import Array, lax

from cluster_jax import schedules, settings
from cluster_jax.collectives import Axis
from cluster_jax.losses import byol
from cluster_jax.methods import base
from cluster_jax.methods.base import Density, Encoded, Setting, Tree, TwoView
from cluster_jax.nets import norm


def make(setting: Setting, *, decay: float, final_decay: float) -> TwoView:
    """BYOL.

    The predictor is on the online branch (NRCC section 3.1 and Table 11 say target: a slip, the
    loss (4) applies q to the online projection). The target's BatchNorm uses the statistics of
    the batch and keeps running ones of its own. Kept after training: the target network.

    Args:
        setting: network with a predictor, augmentation and sizes.
        decay: of the moving average at the first step (0.996).
        final_decay: at the last step, reached by half a cosine; equal to `decay`: constant.

    Raises:
        InputError: a value is out of range, or the network has no predictor.
    """
    for name, value in (("decay", decay), ("final_decay", final_decay)):
        if not 0 <= value <= 1:
            raise settings.InputError(f"method.{name} must be between 0 and 1; got {value}")
    if setting.network.predict is None:
        raise settings.InputError("BYOL needs network.predictor; got None")
    network = setting.network
    ema = schedules.cosine(decay, final_decay, setting.total_steps)

    def init(key: Array, images: Array) -> tuple[Tree, Tree]:
        params, stats = network.init(key, images)
        target = {"params": _encoder(params), "stats": _encoder(stats)}
        return params, {"stats": stats, "target": base.copy(target)}

    def encode(
        params: Tree, extra: Tree, views: tuple[Array, Array], key: Array, axis: Axis
    ) -> tuple[Encoded, Tree]:
        a, b = views
        target = extra["target"]["params"]
        key_a, key_b, key_c = jax.random.split(key, 3)

        def online(weights: Tree, stats: Tree, images: Array) -> tuple[Array, Array, Tree]:
            out = network.forward(weights, stats, images, train=True, axis=axis)
            q, new = network.predict(weights, out.stats, out.projection, train=True, axis=axis)
            return out.projection, q, new

        def project(shuffle_key: Array, stats: Tree, images: Array) -> tuple[Array, Tree]:
            if setting.shuffle:
                images, order = norm.shuffle(shuffle_key, images, axis)
            out = network.forward(target, stats, images, train=True, axis=axis)
            z = norm.unshuffle(out.projection, order, axis) if setting.shuffle else out.projection
            return z, out.stats

        z_a, q_a, stats = online(params, extra["stats"], a)
        z_b, q_b, stats = online(params, stats, b)
        target_a, pull, target_stats = jax.vjp(
            lambda x: project(key_a, extra["target"]["stats"], x), a, has_aux=True
        )
        target_b, target_stats = project(key_b, target_stats, b)

        def again(images: Array) -> Array:
            return project(key_c, target_stats, images)[0]

        fixed = base.constants(params)

        def predicted(images: Array) -> Array:
            return network.predict(fixed, stats, again(images), train=True, axis=axis)[0]

        routes = {
            "target": again,
            "target_predictor": predicted,
            "online": lambda images: online(fixed, stats, images)[0],
        }
        density = Density(a, target_a, lambda ct: pull(ct)[0], b, target_b, again, routes)
        targets = (lax.stop_gradient(target_a), lax.stop_gradient(target_b))
        extra = {**extra, "stats": stats, "target": {"params": target, "stats": target_stats}}
        return Encoded((z_a, z_b), (q_a, q_b), targets, density), extra

    def objective(
        params: Tree, encoded: Encoded, extra: Tree, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, Tree, dict]:
        return byol.byol_views(encoded.predictions, encoded.targets), extra, {}

    def after(params: Tree, extra: Tree, step: Array) -> Tree:
        target = extra["target"]
        moved = base.moving_average(_encoder(params), target["params"], ema(step))
        return {**extra, "target": {**target, "params": moved}}

    embed = base.embedder(
        network,
        setting.augment,
        lambda params, extra: (extra["target"]["params"], extra["target"]["stats"]),
    )
    return TwoView(
        init,
        encode,
        objective,
        after,
        embed,
        base.never,
        base.unchanged,
        setting.augment,
        routes=("target", "target_predictor", "online"),
        anchors=("projection", "prediction"),
    )


def _encoder(tree: Tree) -> Tree:
    """The part that a target network shares: everything but the predictor."""
    return {name: part for name, part in tree.items() if name != "predictor"}
