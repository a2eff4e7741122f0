"""SimCLR: InfoNCE between the two views of a batch (NRCC (1)-(3); Kernel-InfoNCE (8))."""

from jax import Array

from cluster_jax import settings
from cluster_jax.collectives import Axis
from cluster_jax.losses import infonce
from cluster_jax.methods.base import Encoded, Setting, Tree, TwoView
from cluster_jax.methods.encoders import online


def make(setting: Setting, *, temperature: float, positive_in_denominator: bool) -> TwoView:
    """SimCLR.

    Args:
        setting: network, augmentation and sizes.
        temperature: tau, divides the cosines; > 0.
        positive_in_denominator: True for SimCLR's own NT-Xent, False for NRCC's InfoNCE.

    Raises:
        InputError: a value is out of range.
    """
    settings.positive("method.temperature", temperature)

    def objective(
        params: Tree, encoded: Encoded, extra: Tree, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, Tree, dict]:
        value = infonce.info_nce_views(
            *encoded.projections,
            temperature=temperature,
            positive_in_denominator=positive_in_denominator,
            axis=axis,
        )
        return value, extra, {}

    return online.two_view(setting, objective, name="SimCLR", predicts=False)
