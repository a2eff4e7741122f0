"""Rotation: tell by how many quarter turns an image was rotated. The first stage of NCL."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.core.collectives import Axis
from cluster_jax.losses.ncl import cross_entropy
from cluster_jax.methods import base
from cluster_jax.methods.base import Aux, Method, MethodContext, Tree
from cluster_jax.methods.encoders import classifiers

HEAD = "rotation"
TURNS = 4


def make(context: MethodContext) -> Method:
    """RotNet, on all images, labeled or not (NCL section 3.1).

    Gidaris et al. (2018), "Unsupervised Representation Learning by Predicting Image Rotations".
    Each image of a batch is augmented once and shown in all four rotations, as in the paper, so
    that a step sees four times `train.batch_size` images.

    Args:
        context: network, augmentation and sizes.

    Raises:
        InputError: batches with labeled rows, or a network with a projector.
    """
    classifiers.check(context, "rotation", labeled=None)

    def loss(
        params: Tree, model_state: Tree, batch: Mapping, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, Aux]:
        views = jax.vmap(context.augment.view)(base.image_keys(key, batch["index"]), batch["image"])
        turned = jnp.concatenate([jnp.rot90(views, k, axes=(1, 2)) for k in range(TURNS)])
        turns = jnp.repeat(jnp.arange(TURNS), len(views))
        logits, _, stats = classifiers.forward(context, params, model_state, turned, HEAD, axis)
        value = cross_entropy(logits, turns)
        right = jnp.mean(jnp.argmax(logits, axis=1) == turns)
        return value, Aux({"stats": stats}, {"loss": value, "accuracy": right})

    return classifiers.method(context, loss, {HEAD: TURNS})
