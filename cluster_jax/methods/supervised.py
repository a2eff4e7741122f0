"""Supervised classification of the labeled images. The second stage of NCL."""

import dataclasses

from jax import Array

from cluster_jax.data.batches import Batch
from cluster_jax.methods import base, encoders
from cluster_jax.methods.base import Method, MethodContext
from cluster_jax.methods.encoders import LABELED


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Supervised classification has no hyper-parameters of its own."""


def make(context: MethodContext, config: Config) -> Method[encoders.NetworkState]:
    """Builds the training of a linear classifier of the known classes by cross-entropy (NCL (1)).

    Every row of a batch is labeled.

    Raises:
        InputError: batches with unlabeled rows, or a network with a projector.
    """
    encoders.check_classifiers(context, "supervised", labeled=context.batch_size)

    def labeled(batch: Batch, key: Array) -> tuple[Array, Array]:
        rows = batch["labeled"]
        return base.augmented(context.augment.view, key, rows), rows["label"]

    return encoders.one_head(context, LABELED, context.known_classes, labeled)
