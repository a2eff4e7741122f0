"""BYOL: an online network predicts the projections of its own moving average (NRCC (4))."""

from jax import Array

from cluster_jax.core.collectives import Axis
from cluster_jax.losses import byol
from cluster_jax.methods.base import Encoded, MethodContext, Tree, TwoView
from cluster_jax.methods.encoders import momentum


def make(context: MethodContext, *, decay: float, final_decay: float) -> TwoView:
    """BYOL.

    The predictor is on the online branch (NRCC section 3.1 and Table 11 say target: a slip, the
    loss (4) applies q to the online projection). Kept after training: the target network.

    Args:
        context: network with a predictor, augmentation and sizes.
        decay: of the moving average at the first step (0.996).
        final_decay: at the last step, reached by half a cosine; equal to `decay`: constant.

    Raises:
        InputError: a value is out of range, or the network has no predictor.
    """

    def objective(
        params: Tree, encoded: Encoded, model_state: Tree, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, Tree, dict]:
        return byol.byol_views(encoded.predictions, encoded.targets), model_state, {}

    return momentum.two_view(
        context,
        objective,
        name="BYOL",
        decay=decay,
        final_decay=final_decay,
        predicts=True,
        kept="target",
        memory=dict,
        perturb=None,
    )
