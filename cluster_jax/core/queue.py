"""First-in, first-out queue: a ring buffer of rows of earlier steps, in the training state."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from cluster_jax.core import checks

PyTree = Any


class Queue(NamedTuple):
    """A ring buffer of rows.

    Attributes:
        rows: pytree of arrays `[length, ...]`; the first `filled` rows of each are valid entries.
        place: row index at which the next batch is written, int32 `[]`.
        filled: number of valid entries, int32 `[]`.
    """

    rows: PyTree
    place: Array
    filled: Array


def create_queue(length: int, entry: PyTree) -> Queue:
    """Returns an empty queue.

    Args:
        length: capacity in entries.
        entry: pytree with the shapes and dtypes of one entry; the values are ignored.

    Raises:
        ValueError: the length is below 1.
    """
    checks.at_least("the length of a queue", length, 1)
    rows = jax.tree.map(lambda x: jnp.zeros((length, *x.shape), x.dtype), entry)
    return Queue(rows, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))


def enqueue(queue: Queue, batch: PyTree) -> Queue:
    """Replaces the oldest entries of the queue by the rows of a batch.

    Args:
        queue: the queue.
        batch: pytree like `queue.rows` with leaves `[n, ...]`, the rows of all devices
            (`collectives.gather`); n is the same in every call.

    Raises:
        ValueError: the queue's length is not a multiple of n.
    """
    length, n = (jax.tree.leaves(tree)[0].shape[0] for tree in (queue.rows, batch))
    checks.multiple("the length of the queue", length, n, "the global batch")

    def replaced(old: Array, new: Array) -> Array:
        new = lax.stop_gradient(new).astype(old.dtype)
        return lax.dynamic_update_slice_in_dim(old, new, queue.place, axis=0)

    rows = jax.tree.map(replaced, queue.rows, batch)
    return Queue(rows, (queue.place + n) % length, jnp.minimum(queue.filled + n, length))
