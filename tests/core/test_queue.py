"""The queue against a list: order, wrap-around, state, gradients, devices, bad lengths."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from cluster_jax.core import collectives
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


def test_a_new_queue_is_empty():
    queue = create_queue(4, entry())
    assert (queue.place, queue.filled) == (0, 0)
    assert queue.rows["key"].shape == (4, 3)
    assert queue.rows["index"].dtype == jnp.int32
    shapes = jax.eval_shape(lambda: create_queue(4, jax.eval_shape(entry)))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), queue) == jax.tree.map(
        lambda x: (x.shape, x.dtype), shapes
    )


def test_entries_are_constants(keys):
    queue = create_queue(4, jnp.zeros(3))

    def loss(x):
        return jnp.sum(enqueue(queue, x).rows * 3)

    np.testing.assert_array_equal(jax.grad(loss)(jnp.ones((2, 3))), 0)


def test_four_devices_hold_the_queue_of_one(keys):
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))

    def body(queue, batch):
        gathered = jax.tree.map(lambda x: collectives.gather(x, "data"), batch)
        return enqueue(queue, gathered)

    rows, whole = PartitionSpec("data"), PartitionSpec()
    many = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(whole, rows), out_specs=whole))
    one = other = create_queue(16, entry())
    for batch in batches(keys, 3, 8):
        one, other = push(one, batch), many(other, batch)
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(("length", "rows"), [(6, 4), (4, 8)])
def test_the_length_is_a_multiple_of_the_batch(length, rows):
    queue = create_queue(length, jnp.zeros(3))
    message = f"length of the queue must be a multiple of the global batch, {rows}; got {length}"
    with pytest.raises(ValueError, match=message):
        enqueue(queue, jnp.zeros((rows, 3)))


def test_a_queue_of_no_entries_is_refused():
    with pytest.raises(ValueError, match="length of a queue must be at least 1; got 0"):
        create_queue(0, jnp.zeros(3))
