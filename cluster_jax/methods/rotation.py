"""RotNet: predicts by how many quarter turns an image was rotated. The first stage of NCL."""

import dataclasses

import jax.numpy as jnp
from jax import Array

from cluster_jax.core.checks import InputError
from cluster_jax.data.batches import Batch
from cluster_jax.methods import base, encoders
from cluster_jax.methods.base import Method, MethodContext

TURNS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Rotation prediction has no hyper-parameters of its own."""


def make(context: MethodContext, config: Config) -> Method[encoders.NetworkState]:
    """Builds RotNet, on all images, labeled or not (NCL section 3.1).

    Gidaris et al. (2018), "Unsupervised Representation Learning by Predicting Image Rotations".
    Each image of a batch is augmented once and shown in all four rotations, as in the paper, so
    that a step sees four times `train.batch_size` images.

    Raises:
        InputError: batches with labeled rows, or a network with a projector.
    """
    encoders.check_classifiers(context, "rotation", labeled=None)

    def rotated(batch: Batch, key: Array) -> tuple[Array, Array]:
        views = base.augmented(context.augment.view, key, batch)
        if views.ndim != 4:
            raise InputError("the method rotation must be trained on images; got features")
        images = jnp.concatenate([jnp.rot90(views, k, axes=(1, 2)) for k in range(TURNS)])
        return images, jnp.repeat(jnp.arange(TURNS), len(views))

    return encoders.one_head(context, "rotation", TURNS, rotated)
