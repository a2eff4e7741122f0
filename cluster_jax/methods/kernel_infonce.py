"""Kernel-InfoNCE: SimCLR or MoCo with another kernel than the Gaussian, or a mixture of two."""

from collections.abc import Sequence

from jax import Array

from cluster_jax.core.checks import InputError
from cluster_jax.core.collectives import Axis
from cluster_jax.losses import kernel_infonce
from cluster_jax.methods import moco
from cluster_jax.methods.base import Encoded, MethodContext, Tree, TwoView
from cluster_jax.methods.encoders import online


def make(
    context: MethodContext,
    *,
    gammas: Sequence[float],
    temperatures: Sequence[float],
    mixture: str | None,
    weight: float | None,
    halves: bool,
    queue: int | None,
    decay: float | None,
    final_decay: float | None,
) -> TwoView:
    """Kernel-InfoNCE (8); see `losses.kernel_infonce`.

    Args:
        context: network, augmentation and sizes.
        gammas: see `make_kernel`, here and below.
        temperatures: of each kernel.
        mixture: `"kernel"`, `"loss"`, or None for one kernel.
        weight: share of the first kernel, None for one kernel.
        halves: whether each kernel sees one half of the projection.
        queue: number of MoCo's keys; None for SimCLR, the views of a batch.
        decay: of MoCo's moving average at the first step; None for SimCLR.
        final_decay: at the last step; None for SimCLR.

    Raises:
        InputError: a value is out of range, or they do not fit together.
    """
    try:
        kernel = kernel_infonce.make_kernel(
            gammas=gammas,
            temperatures=temperatures,
            mixture=mixture,
            weight=weight,
            halves=halves,
        )
    except ValueError as error:
        raise InputError(f"method: {error}") from error

    if queue is not None:

        def loss(anchors: Array, keys: Array, rows: Array, filled: Array) -> Array:
            return kernel_infonce.kernel_info_nce_queue(anchors, keys, rows, filled, kernel=kernel)

        return moco.with_queue(
            context,
            loss,
            name="Kernel-InfoNCE",
            length=queue,
            decay=decay,
            final_decay=final_decay,
        )
    if decay is not None or final_decay is not None:
        raise InputError(
            "method.decay and method.final_decay belong to a queue; set method.queue, or both to "
            f"None, not {decay} and {final_decay}"
        )

    def objective(
        params: Tree, encoded: Encoded, model_state: Tree, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, Tree, dict]:
        a, b = encoded.projections
        return kernel_infonce.kernel_info_nce_views(a, b, kernel=kernel, axis=axis), model_state, {}

    return online.two_view(context, objective, name="Kernel-InfoNCE", predicts=False)
