"""Supervised classification of the labeled images alone. The second stage of NCL."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.core.collectives import Axis
from cluster_jax.losses.ncl import cross_entropy
from cluster_jax.methods import base
from cluster_jax.methods.base import Aux, Method, MethodContext, Tree
from cluster_jax.methods.encoders import classifiers
from cluster_jax.methods.encoders.classifiers import LABELED


def make(context: MethodContext) -> Method:
    """Cross-entropy of a linear classifier on the known classes (NCL (1)).

    Args:
        context: network, augmentation and sizes; every row of a batch is labeled.

    Raises:
        InputError: batches with other rows, or a network with a projector.
    """
    classifiers.check(context, "supervised", labeled=context.batch_size)

    def loss(
        params: Tree, model_state: Tree, batch: Mapping, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, Aux]:
        rows = batch["labeled"]
        views = jax.vmap(context.augment.view)(base.image_keys(key, rows["index"]), rows["image"])
        logits, _, stats = classifiers.forward(context, params, model_state, views, LABELED, axis)
        value = cross_entropy(logits, rows["label"])
        right = jnp.mean(jnp.argmax(logits, axis=1) == rows["label"])
        return value, Aux({"stats": stats}, {"loss": value, "accuracy": right})

    return classifiers.method(context, loss, {LABELED: context.known_classes})
