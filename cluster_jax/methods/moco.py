"""MoCo: InfoNCE against a queue of a momentum encoder's keys (CueCo, NCC and NRCC build on it)."""

import warnings
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from cluster_jax.core import checks, collectives, ops
from cluster_jax.core.checks import InputError
from cluster_jax.core.collectives import Axis
from cluster_jax.core.queue import Queue, create_queue, enqueue
from cluster_jax.losses import infonce
from cluster_jax.methods.base import Encoded, MethodContext, Tree, TwoView
from cluster_jax.methods.encoders import momentum


def make(
    context: MethodContext, *, temperature: float, queue: int, decay: float, final_decay: float
) -> TwoView:
    """MoCo, both directions.

    He et al. (2020), "Momentum Contrast for Unsupervised Visual Representation Learning", with
    the projector of its second version. Shuffled BatchNorm is `network.norm = "shuffle"`.
    Deviation: the paper takes queries of one view alone; here each view is the other's query,
    over 2. The keys of view b enter the queue. Kept after training: the online network.

    Args:
        context: network, augmentation and sizes.
        temperature: tau, divides the cosines; > 0.
        queue: number of keys, a multiple of the batch; best at most half the training images: in
            a longer queue many negatives are the anchor's own image.
        decay: of the moving average at the first step (0.999 on ImageNet, 0.99 on small sets).
        final_decay: at the last step, reached by half a cosine; equal to `decay`: constant.

    Raises:
        InputError: a value is out of range.
    """
    checks.positive("method.temperature", temperature)

    def loss(anchors: Array, keys: Array, rows: Array, filled: Array) -> Array:
        return infonce.info_nce_queue(anchors, keys, rows, filled, temperature=temperature)

    return with_queue(
        context, loss, name="MoCo", length=queue, decay=decay, final_decay=final_decay
    )


def with_queue(
    context: MethodContext,
    loss: Callable[[Array, Array, Array, Array], Array],
    *,
    name: str,
    length: int,
    decay: float,
    final_decay: float,
) -> TwoView:
    """MoCo with any `loss(anchors, keys, queue, filled)`, the mean of both directions.

    Args:
        context: network, augmentation and sizes.
        loss: of one direction.
        name: the method's, for messages.
        length: number of keys in the queue.
        decay: see `make`.
        final_decay: see `make`.

    Raises:
        InputError: a value is out of range.
    """
    check_queue(length, context)

    def objective(
        params: Tree, encoded: Encoded, model_state: Tree, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, Tree, dict]:
        held: Queue = model_state["queue"]
        (z_a, z_b), (target_a, target_b) = encoded.projections, encoded.targets
        value = loss(z_a, target_b, held.rows, held.filled)
        value = (value + loss(z_b, target_a, held.rows, held.filled)) / 2
        keys = collectives.gather(ops.l2_normalize(target_b), axis)
        return value, {**model_state, "queue": enqueue(held, keys)}, {}

    return momentum.two_view(
        context,
        objective,
        name=name,
        decay=decay,
        final_decay=final_decay,
        predicts=False,
        kept="online",
        memory=lambda: {"queue": create_queue(length, jnp.zeros(context.network.projections))},
        perturb=None,
    )


def check_queue(length: int, context: MethodContext) -> None:
    """Raises an `InputError` for a length that no batches make; warns of a long queue."""
    checks.at_least("method.queue", length, 1)
    if length % context.batch_size:
        raise InputError(
            f"method.queue must be a multiple of train.batch_size, {context.batch_size}; "
            f"got {length}"
        )
    if length > context.images / 2:
        warnings.warn(
            f"method.queue = {length} is more than half of the {context.images} training images: "
            "many negatives will be the anchor's own image",
            stacklevel=2,
        )
