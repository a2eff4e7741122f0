"""Barlow Twins: decorrelates the dimensions of the projections (NRCC Table 9)."""

import dataclasses

from jax import Array

from cluster_jax.core.checks import NonNegative, Positive
from cluster_jax.core.collectives import Axis
from cluster_jax.losses.barlow import barlow_twins
from cluster_jax.methods import encoders
from cluster_jax.methods.base import Encoded, MethodContext, TwoView, stateless


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Hyper-parameters of Barlow Twins.

    Attributes:
        off_diagonal: weight of the off-diagonal correlations; >= 0 (0.005).
        scale: factor of the loss; > 0 (the authors' code: 0.024). It sets the weight of the loss
            relative to NRCC's regularizer.
    """

    off_diagonal: NonNegative
    scale: Positive


def make(context: MethodContext, config: Config) -> TwoView[encoders.NetworkState]:
    """Builds the method Barlow Twins; see `losses.barlow_twins`.

    Deviation: the projector has one hidden layer, the paper's has two
    (`test_projector_and_predictor_are_chained_after_the_backbone`).

    Raises:
        InputError: the network's BatchNorm is shuffled.
    """

    def loss(encoded: Encoded, axis: Axis) -> Array:
        value = barlow_twins(*encoded.projections, off_diagonal=config.off_diagonal, axis=axis)
        return config.scale * value

    return encoders.siamese(context, stateless(loss), name="Barlow Twins", predicts=False)
