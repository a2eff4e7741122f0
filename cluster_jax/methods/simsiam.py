"""SimSiam: a network predicts its own projection of the other view (NRCC Table 9)."""

from jax import Array

from cluster_jax.core.collectives import Axis
from cluster_jax.losses import byol
from cluster_jax.methods.base import Encoded, MethodContext, Tree, TwoView
from cluster_jax.methods.encoders import online


def make(context: MethodContext) -> TwoView:
    """SimSiam, BYOL without a target network.

    Chen & He (2021), "Exploring Simple Siamese Representation Learning". The loss is on BYOL's
    scale, 2 - 2 cos where the paper has -cos, so that NRCC's weight means the same in both.
    Deviations: projector and predictor have one hidden layer and no BatchNorm on their outputs.
    With NRCC the positives are the projections that the predictor meets, constants as in NRCC (6).

    Args:
        context: network with a predictor, augmentation and sizes.

    Raises:
        InputError: the network has no predictor, or its BatchNorm is shuffled.
    """

    def objective(
        params: Tree, encoded: Encoded, model_state: Tree, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, Tree, dict]:
        return byol.byol_views(encoded.predictions, encoded.targets), model_state, {}

    return online.two_view(context, objective, name="SimSiam", predicts=True)
