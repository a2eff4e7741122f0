"""A queue of rows from earlier steps: a ring buffer that is part of the state."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

Tree = Any


class Queue(NamedTuple):
    """First in, first out.

    Attributes:
        rows: pytree of arrays `[length, ...]`; the first `filled` rows of each hold entries.
        place: the row that is written next, int32 `[]`.
        filled: number of entries, int32 `[]`.
    """

    rows: Tree
    place: Array
    filled: Array


def create_queue(length: int, entry: Tree) -> Queue:
    """An empty queue.

    Args:
        length: number of entries that it can hold.
        entry: pytree whose leaves have the shape and dtype of one entry's; values do not matter.

    Raises:
        ValueError: the length is not positive.
    """
    if length < 1:
        raise ValueError(f"a queue holds at least 1 entry; got a length of {length}")
    rows = jax.tree.map(lambda x: jnp.zeros((length, *x.shape), x.dtype), entry)
    return Queue(rows, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))


def enqueue(queue: Queue, batch: Tree) -> Queue:
    """The queue with the rows of a batch in place of its oldest ones.

    Args:
        queue: the queue.
        batch: pytree like `queue.rows`, leaves `[n, ...]` of all devices together
            (`collectives.gather`), the same n at every push.

    Raises:
        ValueError: the queue's length is not a multiple of n.
    """
    length, n = (jax.tree.leaves(tree)[0].shape[0] for tree in (queue.rows, batch))
    if n < 1 or length % n:
        raise ValueError(
            f"the length of the queue ({length}) must be a multiple of the global batch ({n})"
        )
    rows = jax.tree.map(
        lambda old, new: lax.dynamic_update_slice_in_dim(
            old, lax.stop_gradient(new).astype(old.dtype), queue.place, axis=0
        ),
        queue.rows,
        batch,
    )
    return Queue(rows, (queue.place + n) % length, jnp.minimum(queue.filled + n, length))
