"""SimCLR: InfoNCE between the two views of a batch (NRCC (1)-(3); Kernel-InfoNCE (8))."""

import dataclasses
import math

from jax import Array

from cluster_jax.core.checks import Positive
from cluster_jax.core.collectives import Axis
from cluster_jax.losses import infonce
from cluster_jax.methods import encoders
from cluster_jax.methods.base import Encoded, MethodContext, TwoView, Watched, stateless


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Hyper-parameters of SimCLR.

    Attributes:
        temperature: tau, the divisor of the cosines; > 0.
        positive_in_denominator: True for SimCLR's own NT-Xent, False for NRCC's InfoNCE.
    """

    temperature: Positive
    positive_in_denominator: bool


def make(context: MethodContext, config: Config) -> TwoView[encoders.NetworkState]:
    """Builds the method SimCLR.

    Raises:
        InputError: the network's BatchNorm is shuffled.
    """

    def loss(encoded: Encoded, axis: Axis) -> Array:
        return infonce.info_nce_views(
            *encoded.projections,
            temperature=config.temperature,
            positive_in_denominator=config.positive_in_denominator,
            axis=axis,
        )

    two_view = encoders.siamese(context, stateless(loss), name="SimCLR", predicts=False)
    # The candidates of each of the 2n views are all other views, with or without its positive.
    candidates = 2 * context.batch_size - 1 - (not config.positive_in_denominator)
    return two_view._replace(watched=Watched(chance=("loss", math.log(max(candidates, 1)))))
