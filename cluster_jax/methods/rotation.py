"""Rotation: tell by how many quarter turns an image was rotated. The first stage of NCL."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.core.checks import InputError
from cluster_jax.core.collectives import Axis
from cluster_jax.losses.ncl import cross_entropy
from cluster_jax.methods import base
from cluster_jax.methods.base import Aux, Method, MethodContext, PyTree, Watched
from cluster_jax.methods.encoders import classifiers
from cluster_jax.methods.encoders.online import NetworkState

HEAD = "rotation"
TURNS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Rotation prediction has no hyper-parameters of its own."""


def make(context: MethodContext, config: Config) -> Method:
    """RotNet, on all images, labeled or not (NCL section 3.1).

    Gidaris et al. (2018), "Unsupervised Representation Learning by Predicting Image Rotations".
    Each image of a batch is augmented once and shown in all four rotations, as in the paper, so
    that a step sees four times `train.batch_size` images.

    Raises:
        InputError: batches with labeled rows, or a network with a projector.
    """
    classifiers.check(context, "rotation", labeled=None)
    loss = functools.partial(_loss, context)
    method = classifiers.method(context, loss, {HEAD: TURNS}, NetworkState)
    return method._replace(watched=Watched(chance=("loss", math.log(TURNS))))


def _loss(
    context: MethodContext,
    params: PyTree,
    model_state: NetworkState,
    batch: Mapping[str, Any],
    step: Array,
    key: Array,
    axis: Axis,
) -> tuple[Array, Aux]:
    views = jax.vmap(context.augment.view)(base.image_keys(key, batch["index"]), batch["image"])
    if views.ndim != 4:
        raise InputError("the method rotation must be trained on images; got features")
    turned = jnp.concatenate([jnp.rot90(views, k, axes=(1, 2)) for k in range(TURNS)])
    turns = jnp.repeat(jnp.arange(TURNS), len(views))
    logits, _, batch_stats = classifiers.forward(
        context, params, model_state.batch_stats, turned, HEAD, axis
    )
    value = cross_entropy(logits, turns)
    accuracy = jnp.mean(jnp.argmax(logits, axis=1) == turns)
    return value, Aux(NetworkState(batch_stats), {"loss": value, "accuracy": accuracy})
