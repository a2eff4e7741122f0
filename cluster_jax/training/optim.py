"""Optimizers with the parameter groups that the papers use."""

import dataclasses
import math
from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax

from cluster_jax.core import checks, outside, schedules
from cluster_jax.core.checks import BelowOne, Duration, InputError, NonNegative, Positive

TRUST = 0.001  # LARS trust coefficient; the papers' learning rates assume it
NAMES = ("sgd", "lars", "adamw")
# Those of Optax that have no parameters beyond peak, warm-up and length.
DROPS = "piecewise_constant_schedule"
SCHEDULES = ("cosine_decay_schedule", "linear_schedule", "constant_schedule", DROPS)
NEEDS = ("make",)  # what a module of one's own defines


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Section `optimizer`.

    Attributes:
        name: `"sgd"` (weight decay added to the gradient, then heavy-ball momentum, as in PyTorch),
            `"lars"`, `"adamw"`, or a module of one's own: its `make(config, learning_rate)` returns
            an optax transformation of gradients to updates, the descent step; `learning_rate` is
            the schedule, of the number of earlier updates.
        learning_rate: peak rate for `base_batch_size` images.
        base_batch_size: the rate is multiplied by `images / base_batch_size` (256 in the papers),
            where `images` are those of an update, `batch_size * accumulate`; None: no scaling.
        weight_decay: coefficient of the weight decay.
        momentum: momentum of SGD and LARS, or AdamW's beta_1.
        predictor_lr_multiplier: ratio of the predictor's rate to that of all other parameters (10
            in NRCC and NCC).
        clip_norm: largest norm of the whole gradient, to which a longer one is scaled before all
            else; None: any.
        warmup: duration of the linear warm-up, shorter than the training.
        schedule: what follows the warm-up, by Optax's name: `"cosine_decay_schedule"` or
            `"linear_schedule"` to 0, `"constant_schedule"`, `"piecewise_constant_schedule"`; or a
            module of one's own: its `make(peak, warmup, total)`, the last two in updates, returns
            the whole schedule, for example one of Optax.
        lr_decay_every: duration between divisions of the rate by ten, for
            `"piecewise_constant_schedule"`; None for the others.
    """

    name: Annotated[str, outside.named(NAMES, *NEEDS)]
    learning_rate: Positive
    base_batch_size: Annotated[int, checks.positive] | None
    weight_decay: NonNegative
    momentum: BelowOne
    predictor_lr_multiplier: Positive
    clip_norm: Positive | None
    warmup: Duration
    schedule: Annotated[str, outside.named(SCHEDULES, *NEEDS)]
    lr_decay_every: Duration | None

    def __post_init__(self) -> None:
        if (self.schedule == DROPS) != (self.lr_decay_every is not None):
            wanted = "a duration" if self.schedule == DROPS else "None"
            must = f"optimizer.lr_decay_every must be {wanted} with optimizer.schedule"
            raise InputError(f"{must} {self.schedule!r}; got {self.lr_decay_every!r}")


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

    The rate warms up linearly, and then follows `schedule`. Weight decay and LARS adaptation skip
    normalization parameters and biases, that is all arrays of fewer than two axes. (NCC's code
    exempts them on ImageNet only, by name, and misses half.)

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
        InputError: the warm-up is as long as the training, `lr_decay_every` is 0 steps, the
            training is shorter than `accumulate`, or a module of one's own cannot be imported or
            does not return what it should.
    """
    most = "steps, all of train.duration"
    checks.at_most("train.accumulate", accumulate, total_steps, most)
    peak = config.learning_rate
    if config.base_batch_size is not None:
        peak = peak * batch_size * accumulate / config.base_batch_size
    rate = _schedule(config, peak, total_steps, steps_per_epoch, accumulate)
    updates = _descent(config, rate)
    if config.clip_norm is not None:
        updates = optax.chain(optax.clip_by_global_norm(config.clip_norm), updates)
    predictor = optax.masked(optax.scale(config.predictor_lr_multiplier), _predictor)
    updates = optax.chain(updates, predictor)
    if frozen is not None:
        updates = optax.chain(updates, optax.masked(optax.set_to_zero(), frozen))
    if accumulate == 1:
        return updates, rate
    several = optax.MultiSteps(updates, accumulate, accumulator_dtype=jnp.result_type(float))
    return several.gradient_transformation(), lambda step: rate(step // accumulate)


def _schedule(
    config: OptimizerConfig, peak: float, total_steps: int, steps_per_epoch: int, accumulate: int
) -> schedules.Schedule:
    """Returns the learning rate by the number of earlier updates; arguments see `make`."""
    steps = checks.steps("optimizer.warmup", config.warmup, steps_per_epoch)
    if steps >= total_steps:
        raise InputError(
            f"optimizer.warmup must be shorter than train.duration, {total_steps:,} steps; got "
            f"{steps:,}: lower it, as in --config.optimizer.warmup='{total_steps // 10} steps'"
        )
    # Parts of updates are rounded up.
    warmup = math.ceil(steps / accumulate)
    total = total_steps // accumulate
    name = config.schedule
    if name not in SCHEDULES:
        own = outside.module("optimizer.schedule", name, SCHEDULES, NEEDS).make
        return _checked("optimizer.schedule", name, own(peak, warmup, total))
    if name == "cosine_decay_schedule":
        return schedules.warmup_cosine(peak, warmup, total)
    if name == "linear_schedule":
        return schedules.warmup_linear(peak, warmup, total)
    if name == "constant_schedule":
        return schedules.warmup_constant(peak, warmup)
    every = checks.steps("optimizer.lr_decay_every", str(config.lr_decay_every), steps_per_epoch)
    checks.at_least("optimizer.lr_decay_every", every, 1)
    return schedules.warmup_drops(peak, warmup, math.ceil(every / accumulate))


def _checked(key: str, name: str, schedule: Any) -> schedules.Schedule:
    """Returns a schedule of one's own; an `InputError` is raised unless it is a function."""
    if not callable(schedule):
        must = f"make of {key} {name} must return a function of the number of earlier updates"
        raise InputError(f"{must}; got a {type(schedule).__name__}")
    return lambda step: jnp.asarray(schedule(step), jnp.result_type(float))


def _descent(config: OptimizerConfig, rate: schedules.Schedule) -> optax.GradientTransformation:
    """Returns the transformation of gradients to updates of the parameters, see `make`."""
    if config.name not in NAMES:
        own = outside.module("optimizer.name", config.name, NAMES, NEEDS).make(config, rate)
        if not isinstance(own, optax.GradientTransformation):
            must = f"make of optimizer.name {config.name} must return an optax transformation"
            raise InputError(f"{must}; got a {type(own).__name__}")
        return own
    decay = optax.add_decayed_weights(config.weight_decay, mask=_kernels)
    adapt = optax.masked(optax.scale_by_trust_ratio(trust_coefficient=TRUST), _kernels)
    heavy_ball = optax.trace(config.momentum)
    parts: tuple[optax.GradientTransformation, ...] = {
        "sgd": (decay, heavy_ball),
        "lars": (decay, adapt, heavy_ball),
        "adamw": (optax.scale_by_adam(b1=config.momentum), decay),
    }[config.name]
    return optax.chain(*parts, optax.scale_by_learning_rate(rate))


def _kernels(params: Any) -> Any:
    return jax.tree.map(lambda p: p.ndim > 1, params)


def _predictor(params: Any) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, _: path[0].key == "predictor", params)
