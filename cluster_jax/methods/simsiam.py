"""SimSiam: a network predicts its own projection of the other view (NRCC Table 9)."""

import dataclasses

from cluster_jax.methods import encoders
from cluster_jax.methods.base import MethodContext, TwoView, stateless
from cluster_jax.methods.byol import alignment


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """SimSiam has no hyper-parameters of its own."""


def make(context: MethodContext, config: Config) -> TwoView[encoders.NetworkState]:
    """Builds SimSiam, BYOL without a target network.

    Chen & He (2021), "Exploring Simple Siamese Representation Learning". The loss is 2 - 2 cos, as
    in BYOL, where the paper has -cos, so that NRCC's weight means the same in both methods.
    Deviations: projector and predictor have one hidden layer and no BatchNorm on their outputs
    (`test_projector_and_predictor_are_chained_after_the_backbone`).
    With NRCC the positives are the targets of the predictor, constant projections as in NRCC (6).

    Raises:
        InputError: the network has no predictor, or its BatchNorm is shuffled.
    """
    return encoders.siamese(context, stateless(alignment), name="SimSiam", predicts=True)
