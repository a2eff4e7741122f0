"""Two views encoded by a network and by its moving average: BYOL, MoCo, NCC, CueCo."""

from collections.abc import Callable

import jax
from jax import Array, lax

from cluster_jax.core import checks, schedules
from cluster_jax.core.checks import InputError
from cluster_jax.core.collectives import Axis
from cluster_jax.methods import base
from cluster_jax.methods.base import Encoded, MethodContext, SamplerInputs, Tree, TwoView
from cluster_jax.nets import norm

KEPT = ("online", "target")


def two_view(
    context: MethodContext,
    objective: Callable,
    *,
    name: str,
    decay: float,
    final_decay: float,
    predicts: bool,
    kept: str,
    memory: Callable[[], Tree],
    perturb: Callable[[Array, Array, Array, Array], Array] | None,
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
        kept: the network that is kept after training, `"online"` or `"target"`.
        memory: what else the method keeps in `model_state`, at the first step: a dictionary.
        perturb: `(projections, index, step, key) -> projections`, what the predictor sees in
            place of the projections themselves (NCC's positive sampling); None for those.

    Raises:
        InputError: a value is out of range, or no predictor where one is needed.
    """
    for key, value in (("decay", decay), ("final_decay", final_decay)):
        if value is None or not 0 <= value <= 1:
            raise InputError(f"method.{key} must be between 0 and 1; got {value}")
    if predicts and context.network.predict is None:
        raise InputError(f"{name} needs network.predictor; got None")
    checks.one_of("the network that is kept", kept, KEPT)
    network = context.network
    ema = schedules.cosine(decay, final_decay, context.total_steps)

    def init(key: Array, images: Array) -> tuple[Tree, Tree]:
        params, stats = network.init(key, images)
        target = {"params": _encoder(params), "stats": _encoder(stats)}
        return params, {"stats": stats, "target": base.copy(target), **memory()}

    def encode(
        params: Tree,
        model_state: Tree,
        views: tuple[Array, Array],
        index: Array,
        step: Array,
        key: Array,
        axis: Axis,
    ) -> tuple[Encoded, Tree]:
        a, b = views
        target = model_state["target"]["params"]
        key_a, key_b, key_c, near_a, near_b = jax.random.split(key, 5)

        def online(
            weights: Tree, stats: Tree, images: Array, near: Array
        ) -> tuple[Array, Array | None, Tree]:
            out = network.forward(weights, stats, images, train=True, axis=axis)
            if not predicts:
                return out.projection, None, out.stats
            z = out.projection if perturb is None else perturb(out.projection, index, step, near)
            q, new = network.predict(weights, out.stats, z, train=True, axis=axis)
            return out.projection, q, new

        def project(shuffle_key: Array, stats: Tree, images: Array) -> tuple[Array, Tree]:
            if context.shuffle:
                images, order = norm.shuffle(shuffle_key, images, axis)
            out = network.forward(target, stats, images, train=True, axis=axis)
            z = norm.unshuffle(out.projection, order, axis) if context.shuffle else out.projection
            return z, out.stats

        z_a, q_a, stats = online(params, model_state["stats"], a, near_a)
        z_b, q_b, stats = online(params, stats, b, near_b)
        target_a, pull, target_stats = jax.vjp(
            lambda x: project(key_a, model_state["target"]["stats"], x), a, has_aux=True
        )
        target_b, target_stats = project(key_b, target_stats, b)

        def again(images: Array) -> Array:
            return project(key_c, target_stats, images)[0]

        fixed = base.constants(params)

        def predicted(images: Array) -> Array:
            return network.predict(fixed, stats, again(images), train=True, axis=axis)[0]

        def constant(images: Array) -> Array:
            return network.forward(fixed, stats, images, train=True, axis=axis).projection

        branches = {"target": again, "online": constant}
        if predicts:
            branches["target_predictor"] = predicted
        sampler_inputs = SamplerInputs(
            a, target_a, lambda ct: pull(ct)[0], b, target_b, again, branches
        )
        predictions = (q_a, q_b) if predicts else None
        targets = (lax.stop_gradient(target_a), lax.stop_gradient(target_b))
        model_state = {
            **model_state,
            "stats": stats,
            "target": {"params": target, "stats": target_stats},
        }
        return Encoded((z_a, z_b), predictions, targets, sampler_inputs, index), model_state

    def after(params: Tree, model_state: Tree, step: Array) -> Tree:
        target = model_state["target"]
        moved = base.moving_average(_encoder(params), target["params"], ema(step))
        return {**model_state, "target": {**target, "params": moved}}

    def of_kept(params: Tree, model_state: Tree) -> tuple[Tree, Tree]:
        if kept == "online":
            return params, model_state["stats"]
        return model_state["target"]["params"], model_state["target"]["stats"]

    return TwoView(
        init,
        encode,
        objective,
        after,
        base.embedder(network, context.augment, of_kept),
        base.never,
        base.unchanged,
        context.augment,
        branches=("target", "target_predictor", "online") if predicts else ("target", "online"),
        anchors=("projection", "prediction") if predicts else ("projection",),
    )


def _encoder(tree: Tree) -> Tree:
    """The part that a target network shares: everything but the predictor."""
    return {name: part for name, part in tree.items() if name != "predictor"}
