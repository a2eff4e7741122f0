"""Optimizers with the parameter groups that the papers use."""

import dataclasses
import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import optax

from cluster_jax.core import checks, schedules
from cluster_jax.core.checks import BelowOne, Duration, NonNegative, Positive
from cluster_jax.core.logs import logger

TRUST = 0.001  # LARS trust coefficient; the papers' learning rates assume it


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Section `optimizer`.

    Attributes:
        name: `"sgd"` (weight decay added to the gradient, then heavy-ball momentum, as in PyTorch),
            `"lars"` or `"adamw"`.
        learning_rate: peak rate for `base_batch_size` images.
        base_batch_size: the rate is multiplied by `images / base_batch_size` (256 in the papers),
            where `images` are those of an update, `batch_size * accumulate`; None: no scaling.
        weight_decay: coefficient of the weight decay.
        momentum: momentum of SGD and LARS, or AdamW's beta_1.
        predictor_lr_multiplier: ratio of the predictor's rate to that of all other parameters (10
            in NRCC and NCC).
        warmup: duration of the linear warm-up.
        lr_decay_every: duration between divisions of the rate by ten; None: a cosine decay to 0.
    """

    name: Literal["sgd", "adamw", "lars"]
    learning_rate: Positive
    base_batch_size: Annotated[int, checks.positive] | None
    weight_decay: NonNegative
    momentum: BelowOne
    predictor_lr_multiplier: Positive
    warmup: Duration
    lr_decay_every: Duration | None


def make(
    config: OptimizerConfig,
    *,
    total_steps: int,
    steps_per_epoch: int,
    batch_size: int,
    accumulate: int,
    frozen: Callable[[Any], Any] | None,
) -> tuple[optax.GradientTransformation, schedules.Schedule]:
    """Makes the optimizer and its learning rate as a function of the step.

    The rate warms up linearly, for a tenth of the training where `warmup` is longer than all of it,
    then decays to 0 by a cosine or is divided by ten at intervals.
    Weight decay and LARS adaptation skip normalization parameters and biases, that is all arrays
    of fewer than two axes. (NCC's code exempts them on ImageNet only, by name, and misses half.)

    LARS scales the gradient of each kernel, weight decay added, to 0.001 times the kernel's norm:
    its factor is |w| / |g + lambda w|, as in `optax` and the code of Barlow Twins. You et al.
    (2017) have |w| / (|g| + lambda |w|) in (6), which is never larger. Heavy-ball momentum
    follows. As in the code of BYOL and Barlow Twins the learning rate multiplies the momentum
    buffer; in the paper (and `optax.lars`) it is applied before.

    Args:
        config: see `OptimizerConfig`.
        total_steps: length of the training in steps.
        steps_per_epoch: length of an epoch in steps.
        batch_size: images per step, over all devices.
        accumulate: number of steps whose mean gradient makes one update, see `TrainConfig`. The
            optimizer and its rate then count updates.
        frozen: see `nets.network.Network`; marked parameters do not change, not even by decay.

    Raises:
        InputError: `lr_decay_every` is 0 steps, or the training is shorter than `accumulate`.
    """
    most = "steps, all of train.duration"
    checks.at_most("train.accumulate", accumulate, total_steps, most)
    warmup = checks.steps("optimizer.warmup", config.warmup, steps_per_epoch)
    if warmup > total_steps:
        shorter = max(1, total_steps // 10)
        logger.warning(
            "optimizer.warmup, %d steps, is longer than train.duration, %d: it is %d here, a tenth",
            warmup, total_steps, shorter,
        )  # fmt: skip
        warmup = shorter
    peak = config.learning_rate
    if config.base_batch_size is not None:
        peak = peak * batch_size * accumulate / config.base_batch_size
    # By the number of earlier updates; parts of updates are rounded up.
    warmup = math.ceil(warmup / accumulate)
    if config.lr_decay_every is None:
        rate = schedules.warmup_cosine(peak, warmup, total_steps // accumulate)
    else:
        every = checks.steps("optimizer.lr_decay_every", config.lr_decay_every, steps_per_epoch)
        checks.at_least("optimizer.lr_decay_every", every, 1)
        rate = schedules.warmup_drops(peak, warmup, math.ceil(every / accumulate))
    decay = optax.add_decayed_weights(config.weight_decay, mask=_kernels)
    adapt = optax.masked(optax.scale_by_trust_ratio(trust_coefficient=TRUST), _kernels)
    heavy_ball = optax.trace(config.momentum)
    parts: tuple[optax.GradientTransformation, ...] = {
        "sgd": (decay, heavy_ball),
        "lars": (decay, adapt, heavy_ball),
        "adamw": (optax.scale_by_adam(b1=config.momentum), decay),
    }[config.name]
    predictor = optax.masked(optax.scale(config.predictor_lr_multiplier), _predictor)
    updates = optax.chain(*parts, optax.scale_by_learning_rate(rate), predictor)
    if frozen is not None:
        updates = optax.chain(updates, optax.masked(optax.set_to_zero(), frozen))
    if accumulate == 1:
        return updates, rate
    several = optax.MultiSteps(updates, accumulate, accumulator_dtype=jnp.result_type(float))
    return several.gradient_transformation(), lambda step: rate(step // accumulate)


def _kernels(params: Any) -> Any:
    return jax.tree.map(lambda p: p.ndim > 1, params)


def _predictor(params: Any) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, _: path[0].key == "predictor", params)
