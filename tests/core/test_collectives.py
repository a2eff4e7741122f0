"""Reductions over devices: values, gradients, and the identity on one device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from cluster_jax.core import collectives

DATA, WHOLE = PartitionSpec("data"), PartitionSpec()


def mesh(devices=4):
    return jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,))


def sharded(function, in_specs, out_specs):
    return jax.jit(jax.shard_map(function, mesh=mesh(), in_specs=in_specs, out_specs=out_specs))


def test_one_device_is_the_identity():
    x = jnp.arange(6.0).reshape(3, 2)
    tree = {"x": x, "n": jnp.array(2)}
    for function in (
        collectives.mean,
        collectives.total,
        collectives.varying,
        collectives.replicate,
    ):
        assert function(tree, None) is tree
    assert collectives.gather(x, None) is x
    assert collectives.scatter(x, None) is x
    assert (collectives.size(None), collectives.rank(None)) == (1, 0)
    np.testing.assert_array_equal(collectives.local_rows(3, None), [0, 1, 2])


def test_reductions_and_ranks():
    def body(x):
        return (
            collectives.mean({"x": x}, "data")["x"],
            collectives.total(x, "data"),
            jnp.asarray(collectives.rank("data"))[None],
            collectives.local_rows(3, "data"),
            jnp.full(1, collectives.size("data")),
        )

    x = jnp.array([[1.0, 5.0], [2.0, -1.0], [4.0, 0.5], [9.0, 3.0]])
    mean, total, ranks, rows, size = sharded(body, DATA, (WHOLE, WHOLE, DATA, DATA, DATA))(x)
    np.testing.assert_allclose(mean, [[4.0, 1.875]])
    np.testing.assert_allclose(total, [[16.0, 7.5]])
    np.testing.assert_array_equal(ranks, [0, 1, 2, 3])
    np.testing.assert_array_equal(rows, np.arange(12))
    np.testing.assert_array_equal(size, 4)
    assert rows.dtype == jnp.int32


def test_gather_has_the_global_order_and_scatter_undoes_it(keys):
    x = jax.random.normal(next(keys), (8, 3))

    def body(x):
        every = collectives.gather(x, "data")
        return every, collectives.scatter(every, "data")

    # `WHOLE` is checked by shard_map: the gathered array is typed as equal on all devices.
    every, own = sharded(body, DATA, (WHOLE, DATA))(x)
    np.testing.assert_array_equal(every, x)
    np.testing.assert_array_equal(own, x)


def test_gradient_of_a_gathered_row_reaches_its_owner(keys):
    x, weight = jax.random.normal(next(keys), (2, 8, 3))

    def loss(x, weight, axis):
        # Each device weighs all rows differently: rows @ its own weights.
        every = collectives.gather(x, axis)
        return jnp.sum(jnp.sin(every @ weight.T)) + jnp.sum(x**3)

    def body(x, weight):
        return jax.grad(loss)(x, weight, "data")

    got = sharded(body, (DATA, DATA), DATA)(x, weight)
    want = jax.grad(loss)(x, weight, None)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_varying_keeps_gradients_local_and_accepts_what_already_varies(keys):
    w, x = jax.random.normal(next(keys), (3,)), jax.random.normal(next(keys), (8, 3))

    def body(w, x):
        tree = collectives.varying({"w": w, "x": x}, "data")

        def loss(w):
            return jnp.mean(jnp.tanh(tree["x"] @ w))

        local = jax.grad(loss)(tree["w"])
        return local[None], collectives.mean(local, "data")

    local, mean = sharded(body, (WHOLE, DATA), (DATA, WHOLE))(w, x)
    for i in range(4):
        part = x[2 * i : 2 * i + 2]
        want = jax.grad(lambda w, part=part: jnp.mean(jnp.tanh(part @ w)))(w)
        np.testing.assert_allclose(local[i], want, rtol=1e-5, atol=1e-6)
    want = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w)))(w)
    np.testing.assert_allclose(mean, want, rtol=1e-5, atol=1e-6)


def test_replicate_averages_floats_that_differ_and_nothing_else():
    def body(w, n, x):
        return collectives.replicate({"w": w, "n": n, "x": x}, "data")

    x = jnp.array([1.0, 2.0, 4.0, 9.0])
    got = sharded(body, (WHOLE, WHOLE, DATA), WHOLE)(jnp.array([3.0]), jnp.array([7]), x)
    np.testing.assert_array_equal(got["w"], [3.0])
    np.testing.assert_array_equal(got["n"], [7])
    assert got["n"].dtype == jnp.int32
    np.testing.assert_allclose(got["x"], [4.0])


def test_replicate_refuses_integers_that_differ():
    with pytest.raises(TypeError, match=r"int32 leaf of shape \(1,\) differs"):
        sharded(lambda n: collectives.replicate(n, "data"), DATA, WHOLE)(jnp.arange(4))
