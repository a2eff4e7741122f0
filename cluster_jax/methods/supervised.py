"""Supervised classification of the labelled images alone. The second stage of NCL."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.collectives import Axis
from cluster_jax.losses.ncl import cross_entropy
from cluster_jax.methods import base
from cluster_jax.methods.base import Aux, Method, Setting, Tree
from cluster_jax.methods.encoders import classifiers
from cluster_jax.methods.encoders.classifiers import LABELLED


def make(setting: Setting) -> Method:
    """Cross-entropy of a linear classifier on the known classes (NCL (1)).

    Args:
        setting: network, augmentation and sizes; every row of a batch is labelled.

    Raises:
        InputError: batches with other rows, or a network with a projector.
    """
    classifiers.check(setting, "supervised", labelled=setting.batch_size)

    def loss(
        params: Tree, extra: Tree, batch: Mapping, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, Aux]:
        rows = batch["labelled"]
        views = jax.vmap(setting.augment.view)(base.image_keys(key, rows["index"]), rows["image"])
        logits, _, stats = classifiers.forward(setting, params, extra, views, LABELLED, axis)
        value = cross_entropy(logits, rows["label"])
        right = jnp.mean(jnp.argmax(logits, axis=1) == rows["label"])
        return value, Aux({"stats": stats}, {"loss": value, "accuracy": right})

    return classifiers.method(setting, loss, {LABELLED: setting.known_classes})
