"""Kernel-InfoNCE: SimCLR or MoCo with another kernel than the Gaussian, or a mixture of two."""

import dataclasses
import functools
import math

from jax import Array

from cluster_jax.core import checks
from cluster_jax.core.checks import InputError
from cluster_jax.core.collectives import Axis
from cluster_jax.losses import kernel_infonce
from cluster_jax.losses.kernel_infonce import Kernel
from cluster_jax.methods import moco
from cluster_jax.methods.base import Encoded, MethodContext, ModelState, PyTree, TwoView, Watched
from cluster_jax.methods.encoders import momentum, online


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Hyper-parameters of Kernel-InfoNCE.

    Attributes:
        gammas: see `losses.kernel_infonce.make_kernel`, here and below.
        temperatures: of each kernel.
        mixture: `"kernel"`, `"loss"`, or None for one kernel.
        weight: share of the first kernel, None for one kernel.
        halves: whether each kernel sees one half of the projection.
        queue: number of MoCo's keys; None for SimCLR, the views of a batch.
        decay: of MoCo's moving average at the first step; None for SimCLR.
        final_decay: at the last step; None for SimCLR.

    Raises:
        InputError: a value is out of range, or the values are inconsistent.
    """

    gammas: tuple[float, ...]
    temperatures: tuple[float, ...]
    mixture: str | None
    weight: float | None
    halves: bool
    queue: int | None
    decay: float | None
    final_decay: float | None

    def __post_init__(self) -> None:
        self.kernel()
        if self.queue is not None:
            checks.whole("method.queue", self.queue, 1)
            momentum.check_decays(self.decay, self.final_decay)
        elif self.decay is not None or self.final_decay is not None:
            raise InputError(
                "method.decay and method.final_decay must be None without method.queue; "
                f"got {self.decay} and {self.final_decay}"
            )

    def kernel(self) -> Kernel:
        """The kernel, or the mixture of two."""
        try:
            return kernel_infonce.make_kernel(
                gammas=self.gammas,
                temperatures=self.temperatures,
                mixture=self.mixture,
                weight=self.weight,
                halves=self.halves,
            )
        except ValueError as error:
            raise InputError(f"method.{error}") from error


def make(context: MethodContext, config: Config) -> TwoView:
    """Kernel-InfoNCE (8); see `losses.kernel_infonce`.

    Raises:
        InputError: the queue is no multiple of the batch.
    """
    kernel = config.kernel()
    if config.queue is None or config.decay is None or config.final_decay is None:
        two_view = online.two_view(
            context, functools.partial(objective, kernel), name="Kernel-InfoNCE", predicts=False
        )
        return two_view._replace(
            watched=Watched(chance=("loss", math.log(2 * context.batch_size - 1)))
        )
    return moco.with_queue(
        context,
        functools.partial(_queue_loss, kernel),
        name="Kernel-InfoNCE",
        length=config.queue,
        decay=config.decay,
        final_decay=config.final_decay,
    )


def objective(
    kernel: Kernel,
    params: PyTree,
    encoded: Encoded,
    model_state: ModelState,
    step: Array,
    key: Array,
    axis: Axis,
) -> tuple[Array, ModelState, dict[str, Array]]:
    """Kernel-InfoNCE between the views of a batch, see `base.Objective`."""
    a, b = encoded.projections
    return kernel_infonce.kernel_info_nce_views(a, b, kernel=kernel, axis=axis), model_state, {}


def _queue_loss(kernel: Kernel, anchors: Array, keys: Array, rows: Array, filled: Array) -> Array:
    return kernel_infonce.kernel_info_nce_queue(anchors, keys, rows, filled, kernel=kernel)
