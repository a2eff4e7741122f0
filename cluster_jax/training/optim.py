"""Optimizers with the parameter groups of the papers."""

from collections.abc import Callable
from typing import Any

import jax
import optax

from cluster_jax.core import checks, schedules
from cluster_jax.core.checks import InputError

TRUST = 0.001  # LARS' coefficient: the rates of the papers are tuned to it


def make(
    total_steps: int,
    warmup_steps: int,
    drop_steps: int | None,
    batch_size: int,
    frozen: Callable[[Any], Any] | None,
    *,
    name: str,
    learning_rate: float,
    base_batch_size: int | None,
    weight_decay: float,
    momentum: float,
    predictor_lr_multiplier: float,
) -> tuple[optax.GradientTransformation, schedules.Schedule]:
    """The optimizer and its learning rate as a function of the step.

    Linear warm-up, then a cosine to 0 or drops to a tenth. Weight decay and LARS' adaptation
    leave out norms and biases: everything of fewer than two axes (told by shape; the official NCC
    code tells by name and misses half).

    LARS is You et al. (2017): each kernel's gradient, decay added, is scaled to 0.001 times the
    kernel's length; heavy-ball momentum follows. As in the code of BYOL and Barlow Twins the
    learning rate multiplies the momentum; in the paper (and `optax.lars`) it is inside.

    Args:
        total_steps: length of the training.
        warmup_steps: of which the rate rises.
        drop_steps: steps between drops of the rate to a tenth; None: a cosine.
        batch_size: images a step, over all devices.
        frozen: see `nets.network.Network`; what it marks is not moved, by decay neither.
        name: `"sgd"` (decay added to the gradient, then heavy-ball momentum, as PyTorch),
            `"lars"` or `"adamw"`.
        learning_rate: peak rate for `base_batch_size` images.
        base_batch_size: the rate is multiplied by `batch_size / base_batch_size` (256 in the
            papers); None: it is taken as it is.
        weight_decay: coefficient of the decay.
        momentum: of SGD and LARS, or AdamW's beta_1.
        predictor_lr_multiplier: the predictor's rate over that of all else (10 in NRCC, NCC).

    Raises:
        InputError: a value is out of range.
    """
    checks.one_of("optimizer.name", name, ("sgd", "adamw", "lars"))
    checks.positive("optimizer.learning_rate", learning_rate)
    checks.at_least("optimizer.weight_decay", weight_decay, 0)
    checks.positive("optimizer.predictor_lr_multiplier", predictor_lr_multiplier)
    if not 0 <= momentum < 1:
        raise InputError(f"optimizer.momentum must be at least 0 and below 1; got {momentum}")
    if base_batch_size is not None:
        checks.positive("optimizer.base_batch_size", base_batch_size)
        learning_rate = learning_rate * batch_size / base_batch_size
    rate = schedules.warmup_cosine(learning_rate, warmup_steps, total_steps)
    if drop_steps is not None:
        checks.at_least("optimizer.lr_decay_every", drop_steps, 1)
        rate = schedules.warmup_drops(learning_rate, warmup_steps, drop_steps)
    decay = optax.add_decayed_weights(weight_decay, mask=_kernels)
    if name == "sgd":
        parts = (decay, optax.trace(momentum))
    elif name == "lars":
        adapt = optax.masked(optax.scale_by_trust_ratio(trust_coefficient=TRUST), _kernels)
        parts = (decay, adapt, optax.trace(momentum))
    else:
        parts = (optax.scale_by_adam(b1=momentum), decay)
    predictor = optax.masked(optax.scale(predictor_lr_multiplier), _predictor)
    moves = optax.chain(*parts, optax.scale_by_learning_rate(rate), predictor)
    if frozen is not None:
        moves = optax.chain(moves, optax.masked(optax.set_to_zero(), frozen))
    return moves, rate


def _kernels(params: Any) -> Any:
    return jax.tree.map(lambda p: p.ndim > 1, params)


def _predictor(params: Any) -> Any:
    return {
        name: jax.tree.map(lambda _, name=name: name == "predictor", part)
        for name, part in params.items()
    }
