"""SimCLR: InfoNCE between the two views of a batch (NRCC (1)-(3); Kernel-InfoNCE (8))."""

from jax import Array

from cluster_jax.core import checks
from cluster_jax.core.collectives import Axis
from cluster_jax.losses import infonce
from cluster_jax.methods.base import Encoded, MethodContext, Tree, TwoView
from cluster_jax.methods.encoders import online


def make(context: MethodContext, *, temperature: float, positive_in_denominator: bool) -> TwoView:
    """SimCLR.

    Args:
        context: network, augmentation and sizes.
        temperature: tau, divides the cosines; > 0.
        positive_in_denominator: True for SimCLR's own NT-Xent, False for NRCC's InfoNCE.

    Raises:
        InputError: a value is out of range.
    """
    checks.positive("method.temperature", temperature)

    def objective(
        params: Tree, encoded: Encoded, model_state: Tree, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, Tree, dict]:
        value = infonce.info_nce_views(
            *encoded.projections,
            temperature=temperature,
            positive_in_denominator=positive_in_denominator,
            axis=axis,
        )
        return value, model_state, {}

    return online.two_view(context, objective, name="SimCLR", predicts=False)
