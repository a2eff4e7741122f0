"""A backbone with linear classifiers, for the stages of novel class discovery."""

import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.core.checks import InputError
from cluster_jax.core.collectives import Axis
from cluster_jax.data.batches import Batch
from cluster_jax.losses.ncl import cross_entropy
from cluster_jax.methods import base
from cluster_jax.methods.base import Aux, Loss, Method, MethodContext, ModelState, PyTree
from cluster_jax.methods.encoders.online import NetworkState
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
    context: MethodContext, params: PyTree, batch_stats: PyTree, images: Array, axis: Axis
) -> tuple[dict[str, Array], Array, PyTree]:
    """Logits `[b, classes]` of each head, features `[b, f]` and new statistics, in training."""
    out = context.network.forward(params, batch_stats, images, train=True, axis=axis)
    return _logits(params, out.representation), out.representation, out.stats


def _logits(params: PyTree, features: Array) -> dict[str, Array]:
    return {name: heads.classify(head, features) for name, head in params["heads"].items()}


def method(
    context: MethodContext,
    loss: Loss,
    classes: Mapping[str, int],
    initial_state: Callable[[PyTree], ModelState] = NetworkState,
) -> Method:
    """A method of one network with linear classifiers. Its `embed` gives features and all logits.

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

    def embed(params: PyTree, model_state: ModelState, images: Array) -> base.Features:
        inputs = jax.vmap(context.augment.clean)(images)
        out = network.forward(params, model_state.batch_stats, inputs, train=False, axis=None)
        return {"backbone": out.representation, **_logits(params, out.representation)}

    return Method(init, loss, base.no_average, embed)


def one_head(
    context: MethodContext,
    head: str,
    classes: int,
    examples: Callable[[Batch, Array], tuple[Array, Array]],
) -> Method:
    """A method that minimizes the cross-entropy of one classifier; it logs the accuracy too.

    Args:
        context: network, augmentation and sizes.
        head: name of the classifier.
        classes: number of its classes.
        examples: `(batch, key) -> images [n, H, W, C], classes int32 [n]` of a step.
    """

    def loss(
        params: PyTree, state: NetworkState, batch: Batch, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, Aux]:
        images, labels = examples(batch, key)
        logits, _, stats = forward(context, params, state.batch_stats, images, axis)
        value = cross_entropy(logits[head], labels)
        accuracy = jnp.mean(jnp.argmax(logits[head], axis=1) == labels)
        return value, Aux(NetworkState(stats), {"loss": value, "accuracy": accuracy})

    watched = base.Watched(chance=("loss", math.log(classes)))
    return method(context, loss, {head: classes})._replace(watched=watched)
