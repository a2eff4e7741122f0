"""Barlow Twins: features of two views agree and do not repeat each other (NRCC Table 9)."""

from jax import Array

from cluster_jax.core import checks
from cluster_jax.core.collectives import Axis
from cluster_jax.losses import barlow
from cluster_jax.methods.base import Encoded, MethodContext, Tree, TwoView
from cluster_jax.methods.encoders import online


def make(context: MethodContext, *, off_diagonal: float, scale: float) -> TwoView:
    """Barlow Twins; see `losses.barlow`.

    Deviation: the projector has one hidden layer, the paper's has two.

    Args:
        context: network, augmentation and sizes.
        off_diagonal: weight of the correlations between features; >= 0 (0.005).
        scale: the loss is multiplied by it; > 0 (the authors' code: 0.024). It sets the loss's
            size against NRCC's.

    Raises:
        InputError: a value is out of range, or the network's BatchNorm is shuffled.
    """
    checks.at_least("method.off_diagonal", off_diagonal, 0)
    checks.positive("method.scale", scale)

    def objective(
        params: Tree, encoded: Encoded, model_state: Tree, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, Tree, dict]:
        value = barlow.barlow(*encoded.projections, off_diagonal=off_diagonal, axis=axis)
        return scale * value, model_state, {}

    return online.two_view(context, objective, name="Barlow Twins", predicts=False)
