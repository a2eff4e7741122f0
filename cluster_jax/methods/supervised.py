"""Supervised classification of the labeled images alone. The second stage of NCL."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.core.collectives import Axis
from cluster_jax.losses.ncl import cross_entropy
from cluster_jax.methods import base
from cluster_jax.methods.base import Aux, Method, MethodContext, PyTree, Watched
from cluster_jax.methods.encoders import classifiers
from cluster_jax.methods.encoders.classifiers import LABELED
from cluster_jax.methods.encoders.online import NetworkState


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Supervised classification has no hyper-parameters of its own."""


def make(context: MethodContext, config: Config) -> Method:
    """Cross-entropy of a linear classifier on the known classes (NCL (1)).

    Every row of a batch is labeled.

    Raises:
        InputError: batches with other rows, or a network with a projector.
    """
    classifiers.check(context, "supervised", labeled=context.batch_size)
    loss = functools.partial(_loss, context)
    method = classifiers.method(context, loss, {LABELED: context.known_classes}, NetworkState)
    return method._replace(watched=Watched(chance=("loss", math.log(context.known_classes))))


def _loss(
    context: MethodContext,
    params: PyTree,
    model_state: NetworkState,
    batch: Mapping[str, Any],
    step: Array,
    key: Array,
    axis: Axis,
) -> tuple[Array, Aux]:
    rows = batch["labeled"]
    views = jax.vmap(context.augment.view)(base.image_keys(key, rows["index"]), rows["image"])
    logits, _, batch_stats = classifiers.forward(
        context, params, model_state.batch_stats, views, LABELED, axis
    )
    value = cross_entropy(logits, rows["label"])
    accuracy = jnp.mean(jnp.argmax(logits, axis=1) == rows["label"])
    return value, Aux(NetworkState(batch_stats), {"loss": value, "accuracy": accuracy})
