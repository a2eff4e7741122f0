"""BYOL: an online network predicts the projections of its own moving average (NRCC (4))."""

import dataclasses

from jax import Array

from cluster_jax.core.collectives import Axis
from cluster_jax.losses.byol import byol_views
from cluster_jax.methods import encoders
from cluster_jax.methods.base import Encoded, MethodContext, TwoView, stateless


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(encoders.AverageConfig):
    """Hyper-parameters of BYOL: those of the moving average."""


def make(context: MethodContext, config: Config) -> TwoView[encoders.MomentumState]:
    """Builds the method BYOL.

    The predictor is on the online branch. (NRCC section 3.1 and Table 11 say target; this is an
    error, because the loss (4) applies q to the online projection:
    `test_nrcc_eq_19_misprints_the_target_and_the_factor`.) The target network is kept after
    training.

    Raises:
        InputError: the network has no predictor.
    """
    two_view: TwoView[encoders.MomentumState] = encoders.momentum(
        context,
        stateless(alignment),
        name="BYOL",
        decays=config.decays,
        predicts=True,
        initial_state=encoders.MomentumState,
    )
    return two_view._replace(kept=encoders.target_network)


def alignment(encoded: Encoded, axis: Axis) -> Array:
    """Computes mean squared distances of unit predictions and targets, both directions, over 2."""
    return byol_views(encoded.predictions, encoded.targets)
