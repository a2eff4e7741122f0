"""A backbone under linear classifiers: the stages of novel class discovery."""

from collections.abc import Callable, Mapping

import jax
from jax import Array

from cluster_jax.core.checks import InputError
from cluster_jax.core.collectives import Axis
from cluster_jax.methods import base
from cluster_jax.methods.base import Features, Loss, Method, MethodContext, ModelState, PyTree
from cluster_jax.nets import heads

LABELED, NOVEL = "labeled", "novel"


def check(context: MethodContext, name: str, *, labeled: int | None) -> None:
    """Raises an `InputError` unless batches have `labeled` rows and there is no projector."""
    if context.labeled_batch_size != labeled:
        raise InputError(
            f"train.labeled_batch_size must be {labeled} for the method {name}; "
            f"got {context.labeled_batch_size}"
        )
    if context.shuffle:
        raise InputError(f"network.norm must be 'sync' for the method {name}; got 'shuffle'")
    if context.network.projections != context.network.features or context.network.predict:
        raise InputError(
            f"network.projector and network.predictor must be None for the method {name}, which "
            "classifies the backbone's features; got at least one of them"
        )


def forward(
    context: MethodContext,
    params: PyTree,
    batch_stats: PyTree,
    images: Array,
    head: str,
    axis: Axis,
) -> tuple[Array, Array, PyTree]:
    """Logits `[b, classes]` of a head, features `[b, f]` and new statistics, in training."""
    out = context.network.forward(params, batch_stats, images, train=True, axis=axis)
    return logits(params, head, out.representation), out.representation, out.stats


def logits(params: PyTree, head: str, features: Array) -> Array:
    """Logits `[b, classes]` of a head for features `[b, f]`."""
    return heads.classify(params["heads"][head], features)


def method(
    context: MethodContext,
    loss: Loss,
    classes: Mapping[str, int],
    initial_state: Callable[[PyTree], ModelState],
) -> Method:
    """A method of one network with classifiers. Its `embed` gives features and all logits.

    Args:
        context: network, augmentation and sizes.
        loss: see `Method`.
        classes: number of classes of each head.
        initial_state: `(batch_stats) -> model_state` before the first step.
    """
    network = context.network

    def init(key: Array, images: Array) -> tuple[PyTree, ModelState]:
        params, batch_stats = network.init(key, images)
        # Sorted, so that a head's initial values do not depend on the order of the mapping.
        classifiers = {
            name: heads.classifier(jax.random.fold_in(key, i), network.features, count)
            for i, (name, count) in enumerate(sorted(classes.items()), start=1)
        }
        return {**params, "heads": classifiers}, initial_state(batch_stats)

    def embed(params: PyTree, model_state: ModelState, images: Array) -> Features:
        inputs = jax.vmap(context.augment.clean)(images)
        out = network.forward(params, model_state.batch_stats, inputs, train=False, axis=None)
        outputs = {name: logits(params, name, out.representation) for name in classes}
        return {"backbone": out.representation, **outputs}

    return Method(init, loss, base.no_average, embed)
