"""BYOL: an online network predicts the projections of its own moving average (NRCC (4))."""

import dataclasses

from jax import Array

from cluster_jax.core.checks import Fraction
from cluster_jax.core.collectives import Axis
from cluster_jax.losses.byol import byol_views
from cluster_jax.methods import encoders
from cluster_jax.methods.base import Encoded, MethodContext, TwoView, stateless


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Hyper-parameters of BYOL.

    Attributes:
        decay: decay of the moving average at the first step (0.996).
        final_decay: decay at the last step, approached by half a cosine.
    """

    decay: Fraction
    final_decay: Fraction


def make(context: MethodContext, config: Config) -> TwoView[encoders.MomentumState]:
    """Builds the method BYOL.

    The predictor is on the online branch. (NRCC section 3.1 and Table 11 say target; this is an
    error, because the loss (4) applies q to the online projection.) The target network is kept
    after training.

    Raises:
        InputError: the network has no predictor.
    """
    two_view: TwoView[encoders.MomentumState] = encoders.momentum(
        context,
        stateless(alignment),
        name="BYOL",
        decays=(config.decay, config.final_decay),
        predicts=True,
        initial_state=encoders.MomentumState,
    )
    return two_view._replace(kept=encoders.target_network)


def alignment(encoded: Encoded, axis: Axis) -> Array:
    """Computes mean squared distances of unit predictions and targets, both directions, over 2."""
    return byol_views(encoded.predictions, encoded.targets)
