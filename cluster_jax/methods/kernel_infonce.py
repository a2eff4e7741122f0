"""Kernel-InfoNCE: SimCLR or MoCo with an exponential kernel or a mixture of two kernels."""

import dataclasses
import functools
import math
from dataclasses import fields

from jax import Array

from cluster_jax.core.checks import Count, Fraction, InputError
from cluster_jax.core.collectives import Axis
from cluster_jax.losses import kernel_infonce
from cluster_jax.losses.kernel_infonce import Kernel
from cluster_jax.methods import encoders, moco
from cluster_jax.methods.base import Encoded, MethodContext, TwoView, Watched, stateless


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Hyper-parameters of Kernel-InfoNCE.

    Attributes:
        gammas: exponent of each kernel, see `losses.Kernel`.
        temperatures: temperature of each kernel.
        mixture: `"kernel"`, `"loss"`, or None for one kernel.
        weight: weight of the first kernel, None for one kernel.
        halves: whether each kernel gets one half of the projection.
        queue: number of keys in MoCo's queue; None for SimCLR, whose negatives are from the batch.
        decay: decay of MoCo's moving average at the first step; None for SimCLR.
        final_decay: decay at the last step; None for SimCLR.

    Raises:
        InputError: a value is out of range, or the values are inconsistent.
    """

    gammas: tuple[float, ...]
    temperatures: tuple[float, ...]
    mixture: str | None
    weight: float | None
    halves: bool
    queue: Count | None
    decay: Fraction | None
    final_decay: Fraction | None

    def __post_init__(self) -> None:
        self.kernel()
        is_set = {value is not None for value in (self.queue, self.decay, self.final_decay)}
        if len(is_set) == 2:
            must = "method.decay and method.final_decay must be set if and only if method.queue is"
            got = f"{self.decay}, {self.final_decay} and a queue of {self.queue}"
            raise InputError(f"{must}; got {got}")

    def kernel(self) -> Kernel:
        """Returns the kernel, or the mixture of two."""
        try:
            return Kernel(**{field.name: getattr(self, field.name) for field in fields(Kernel)})
        except ValueError as error:
            raise InputError(f"method.{error}") from error


def make(context: MethodContext, config: Config) -> TwoView:
    """Builds Kernel-InfoNCE (8); see `losses.kernel_infonce`.

    Raises:
        InputError: the queue is no multiple of the batch.
    """
    kernel = config.kernel()
    name = "Kernel-InfoNCE"
    if config.queue is not None and config.decay is not None and config.final_decay is not None:
        loss = functools.partial(kernel_infonce.kernel_info_nce_queue, kernel=kernel)
        decays = config.decay, config.final_decay
        return moco.with_queue(context, loss, name=name, length=config.queue, decays=decays)

    def views_loss(encoded: Encoded, axis: Axis) -> Array:
        return kernel_infonce.kernel_info_nce_views(*encoded.projections, kernel=kernel, axis=axis)

    two_view = encoders.siamese(context, stateless(views_loss), name=name, predicts=False)
    return two_view._replace(watched=Watched(chance=("loss", math.log(2 * context.batch_size - 1))))
