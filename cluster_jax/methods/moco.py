"""MoCo: InfoNCE with a queue of negatives, the keys of a momentum encoder."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from cluster_jax.core import checks, collectives, ops
from cluster_jax.core.checks import Count, Positive
from cluster_jax.core.collectives import Axis
from cluster_jax.core.queue import Queue, create_queue, enqueue
from cluster_jax.losses import infonce
from cluster_jax.methods import encoders
from cluster_jax.methods.base import Encoded, MethodContext, PyTree, TwoView, Watched
from cluster_jax.methods.encoders import Target

# (anchors [b, d], keys [b, d], rows of the queue [Q, d], how many are filled) -> loss.
QueueLoss = Callable[[Array, Array, Array, Array], Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(encoders.AverageConfig):
    """Hyper-parameters of MoCo: those of the moving average and two more.

    Attributes:
        temperature: tau, the divisor of the cosines; > 0.
        queue: number of keys, a multiple of the batch size; best at most half the number of
            training images, because in a longer queue many negatives are views of the anchor's own
            image.
    """

    temperature: Positive
    queue: Count


class MoCoState(NamedTuple):
    """State of MoCo.

    Attributes:
        batch_stats: running BatchNorm statistics of the online network.
        target: the target network.
        queue: unit keys of view b of earlier batches `[Q, d]`.
    """

    batch_stats: PyTree
    target: Target
    queue: Queue


def make(context: MethodContext, config: Config) -> TwoView[MoCoState]:
    """Builds the method MoCo, both directions.

    He et al. (2020), "Momentum Contrast for Unsupervised Visual Representation Learning", with
    the projector of its second version. Shuffled BatchNorm is `network.norm = "shuffle"`.
    Deviation: the paper uses queries from one view only; here the loss is the mean of both
    directions (`test_bare`). The keys of view b enter the queue. The online network is kept after
    training.

    Raises:
        InputError: the queue is no multiple of the batch.
    """
    loss = functools.partial(infonce.info_nce_queue, temperature=config.temperature)
    return with_queue(context, loss, name="MoCo", length=config.queue, decays=config.decays)


def with_queue(
    context: MethodContext, loss: QueueLoss, *, name: str, length: int, decays: tuple[float, float]
) -> TwoView[MoCoState]:
    """Builds MoCo with a given loss; both directions are averaged.

    Args:
        context: network, augmentation and sizes.
        loss: loss of one direction.
        name: name of the method, for messages.
        length: number of keys in the queue.
        decays: see `encoders.momentum`.

    Raises:
        InputError: the queue is no multiple of the batch.
    """
    check_queue(length, context)

    def initial_state(batch_stats: PyTree, target: Target) -> MoCoState:
        queue = create_queue(length, jnp.zeros(context.network.projections))
        return MoCoState(batch_stats, target, queue)

    def objective(
        params: PyTree, encoded: Encoded, state: MoCoState, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, MoCoState, dict[str, Array]]:
        queue = state.queue
        (z_a, z_b), (target_a, target_b) = encoded.projections, encoded.targets
        value = loss(z_a, target_b, queue.rows, queue.filled)
        value = (value + loss(z_b, target_a, queue.rows, queue.filled)) / 2
        keys = collectives.gather(ops.l2_normalize(target_b), axis)
        return value, state._replace(queue=enqueue(queue, keys)), {}

    two_view = encoders.momentum(
        context, objective, name=name, decays=decays, predicts=False, initial_state=initial_state
    )
    return two_view._replace(watched=Watched(chance=("loss", math.log(length + 1))))


def check_queue(length: int, context: MethodContext) -> None:
    """Raises an `InputError` unless the queue is a multiple of the batch; warns if it is long."""
    checks.multiple("method.queue", length, context.batch_size, "train.batch_size")
    if length > context.images / 2:
        text = f"method.queue = {length} is more than half of the {context.images} training images"
        checks.warn(f"{text}: many negatives will be the anchor's own image", 2)
