"""MoCo: InfoNCE against a queue of a momentum encoder's keys (CueCo, NCC and NRCC build on it)."""

import warnings
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from cluster_jax import collectives, memory, ops, settings
from cluster_jax.collectives import Axis
from cluster_jax.losses import infonce
from cluster_jax.methods.base import Encoded, Setting, Tree, TwoView
from cluster_jax.methods.encoders import momentum


def make(
    setting: Setting, *, temperature: float, queue: int, decay: float, final_decay: float
) -> TwoView:
    """MoCo, both directions.

    He et al. (2020), "Momentum Contrast for Unsupervised Visual Representation Learning", with
    the projector of its second version. Shuffled BatchNorm is `network.norm = "shuffle"`.
    Deviation: the paper takes queries of one view alone; here each view is the other's query,
    over 2. The keys of view b enter the queue. Kept after training: the online network.

    Args:
        setting: network, augmentation and sizes.
        temperature: tau, divides the cosines; > 0.
        queue: number of keys, a multiple of the batch; best at most half the training images: in
            a longer queue many negatives are the anchor's own image.
        decay: of the moving average at the first step (0.999 on ImageNet, 0.99 on small sets).
        final_decay: at the last step, reached by half a cosine; equal to `decay`: constant.

    Raises:
        InputError: a value is out of range.
    """
    settings.positive("method.temperature", temperature)

    def loss(anchors: Array, keys: Array, rows: Array, filled: Array) -> Array:
        return infonce.info_nce_queue(anchors, keys, rows, filled, temperature=temperature)

    return with_queue(
        setting, loss, name="MoCo", length=queue, decay=decay, final_decay=final_decay
    )


def with_queue(
    setting: Setting,
    loss: Callable[[Array, Array, Array, Array], Array],
    *,
    name: str,
    length: int,
    decay: float,
    final_decay: float,
) -> TwoView:
    """MoCo with any `loss(anchors, keys, queue, filled)`, the mean of both directions.

    Args:
        setting: network, augmentation and sizes.
        loss: of one direction.
        name: the method's, for messages.
        length: number of keys in the queue.
        decay: see `make`.
        final_decay: see `make`.

    Raises:
        InputError: a value is out of range.
    """
    check_queue(length, setting)

    def objective(
        params: Tree, encoded: Encoded, extra: Tree, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, Tree, dict]:
        held: memory.Queue = extra["queue"]
        (z_a, z_b), (target_a, target_b) = encoded.projections, encoded.targets
        value = loss(z_a, target_b, held.rows, held.filled)
        value = (value + loss(z_b, target_a, held.rows, held.filled)) / 2
        keys = collectives.gather(ops.unit(target_b), axis)
        return value, {**extra, "queue": memory.push(held, keys)}, {}

    return momentum.two_view(
        setting,
        objective,
        name=name,
        decay=decay,
        final_decay=final_decay,
        predicts=False,
        kept="online",
        memory=lambda: {"queue": memory.create(length, jnp.zeros(setting.network.projections))},
        perturb=None,
    )


def check_queue(length: int, setting: Setting) -> None:
    """Raises an `InputError` for a length that no batches make; warns of a long queue."""
    settings.at_least("method.queue", length, 1)
    if length % setting.batch_size:
        raise settings.InputError(
            f"method.queue must be a multiple of train.batch_size, {setting.batch_size}; "
            f"got {length}"
        )
    if length > setting.images / 2:
        warnings.warn(
            f"method.queue = {length} is more than half of the {setting.images} training images: "
            "many negatives will be the anchor's own image",
            stacklevel=2,
        )
