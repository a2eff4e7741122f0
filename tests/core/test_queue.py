"""The queue against a list: order, wrap-around, state, gradients, devices, bad lengths."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax.core.queue import create_queue, enqueue
from tests.rows import every_row

push = jax.jit(enqueue)


def entry():
    return {"key": jnp.zeros(3), "index": jnp.zeros((), jnp.int32)}


def batches(keys, count, rows):
    for i in range(count):
        key = np.asarray(jax.random.normal(next(keys), (rows, 3)))
        yield {"key": key, "index": np.arange(rows, dtype=np.int32) + 100 * i}


@every_row("rows", [1, 2, 3, 6])
def test_queue_holds_the_last_rows(keys, rows):
    queue, everything = create_queue(6, entry()), {"key": [], "index": []}
    for batch in batches(keys, 15 // rows, rows):
        queue = push(queue, batch)
        for name, values in batch.items():
            everything[name].extend(values)
        count = min(len(everything["key"]), 6)
        assert queue.filled == count
        for name, values in everything.items():
            held = np.asarray(queue.rows[name][:count])
            # The oldest entry is where the next one will go.
            order = np.roll(np.arange(count), -int(queue.place) if count == 6 else 0)
            np.testing.assert_array_equal(held[order], values[-count:])


def test_entries_are_constants(keys):
    queue = create_queue(4, jnp.zeros(3))

    def loss(x):
        return jnp.sum(enqueue(queue, x).rows * 3)

    np.testing.assert_array_equal(jax.grad(loss)(jnp.ones((2, 3))), 0)


@pytest.mark.parametrize(("length", "rows"), [(6, 4), (4, 8)])
def test_the_length_is_a_multiple_of_the_batch(length, rows):
    queue = create_queue(length, jnp.zeros(3))
    message = f"length of the queue must be a multiple of the global batch, {rows}; got {length}"
    with pytest.raises(ValueError, match=message):
        enqueue(queue, jnp.zeros((rows, 3)))


def test_a_queue_of_no_entries_is_refused():
    with pytest.raises(ValueError, match="length of a queue must be at least 1; got 0"):
        create_queue(0, jnp.zeros(3))
