"""BatchNorm against its formula in numpy, on any number of devices; MoCo's shuffled batch."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from cluster_jax.core import collectives
from cluster_jax.nets.norm import BatchNorm, shuffle, unshuffle
from tests.rows import every_row


def mesh(devices):
    return jax.make_mesh(
        (devices,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices]
    )


def variables(keys, channels, dtype=None):
    """Scale, bias and running statistics that are far from their initial values."""

    def draw(low, high):
        return jax.random.uniform(next(keys), (channels,), dtype, low, high)

    params = {"scale": draw(0.5, 2.0), "bias": draw(-1.0, 1.0)}
    return params, {"mean": draw(-3.0, 3.0), "var": draw(0.2, 4.0)}


def apply(params, stats, x, *, train=True, axis=None, group=None, dtype=None):
    module = BatchNorm(train=train, axis=axis, group=group, dtype=dtype)
    y, new = module.apply({"params": params, "batch_stats": stats}, x, mutable=["batch_stats"])
    return y, new["batch_stats"] if train else stats


def by_loops(params, stats, x, group):
    """Output and running statistics, one group and one channel at a time."""
    y, means, variances = np.empty_like(x), [], []
    for start in range(0, len(x), group):
        rows = x[start : start + group].reshape(-1, x.shape[-1])
        mean, var = rows.mean(axis=0), rows.var(axis=0)
        means.append(mean)
        variances.append(var)
        for c in range(x.shape[-1]):
            normal = (x[start : start + group, ..., c] - mean[c]) / np.sqrt(var[c] + 1e-5)
            y[start : start + group, ..., c] = normal * params["scale"][c] + params["bias"][c]
    return y, {
        "mean": 0.9 * stats["mean"] + 0.1 * np.mean(means, axis=0),
        "var": 0.9 * stats["var"] + 0.1 * np.mean(variances, axis=0),
    }


@pytest.mark.parametrize("shape", [(6, 5), (6, 3, 2, 5)])
@pytest.mark.parametrize("group", [None, 2, 3, 6])
def test_batch_and_running_statistics_follow_the_formula(x64, keys, shape, group):
    params, stats = variables(keys, 5)
    x = 3 * jax.random.normal(next(keys), shape) + jnp.arange(6.0).reshape(
        -1, *[1] * len(shape[1:])
    )
    y, new = apply(params, stats, x, group=group)
    expected_y, expected = by_loops(params, stats, np.asarray(x), group or len(x))
    np.testing.assert_allclose(y, expected_y, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(new["mean"], expected["mean"], rtol=1e-12)
    np.testing.assert_allclose(new["var"], expected["var"], rtol=1e-12)


def test_evaluation_uses_the_running_statistics_of_each_channel(x64, keys):
    params, stats = variables(keys, 4)
    x = jax.random.normal(next(keys), (5, 3, 4))
    for group in (None, 2):
        y, _ = apply(params, stats, x, train=False, group=group)
        p, s = jax.tree.map(np.asarray, (params, stats))
        expected = (np.asarray(x) - s["mean"]) / np.sqrt(s["var"] + 1e-5) * p["scale"] + p["bias"]
        np.testing.assert_allclose(y, expected, rtol=1e-12)


@every_row(("group", "devices"), [(None, 1), (None, 2), (None, 4), (2, 1), (2, 2), (2, 4)])
def test_devices_do_not_matter(x64, keys, group, devices):
    params, stats = variables(keys, 3)
    x = jax.random.normal(next(keys), (8, 2, 3)) * jnp.arange(1.0, 9.0)[:, None, None]
    weights = jax.random.normal(next(keys), x.shape)

    def loss(params, x, weights, axis):
        y, new = apply(params, stats, x, axis=axis, group=group)
        return jnp.mean(jnp.sin(y) * weights), (y, new)

    def step(params, x, weights):
        grad = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
        (value, (y, new)), (g, gx) = grad(collectives.varying(params, "data"), x, weights, "data")
        # The loss of the whole batch is the mean over devices, so is the gradient of an image.
        return collectives.replicate((value, g, new), "data"), y, gx / devices

    sharded = jax.shard_map(
        step,
        mesh=mesh(devices),
        in_specs=(P(), P("data"), P("data")),
        out_specs=(P(), P("data"), P("data")),
    )
    (value, g, new), y, gx = jax.jit(sharded)(params, x, weights)
    alone = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True), static_argnames="axis")
    (value_1, (y_1, new_1)), (g_1, gx_1) = alone(params, x, weights, axis=None)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13),
        (value, g, new, y, gx),
        (value_1, g_1, new_1, y_1, gx_1),
    )


def on_eight(function):
    """A function of one argument whose rows lie on eight devices."""
    split = P("data")
    return jax.jit(jax.shard_map(function, mesh=mesh(8), in_specs=split, out_specs=split))


def test_a_pass_waits_for_the_other_devices_once_and_its_gradient_once_more(keys):
    params, stats = variables(keys, 3)

    def normalized(x):
        return apply(params, stats, x, axis="data")[0]

    def gradient(x):
        return jax.grad(lambda x: jnp.sum(jnp.sin(normalized(x))))(x)

    x = jax.random.normal(next(keys), (16, 2, 3))
    for function, count in ((normalized, 1), (gradient, 2)):
        program = on_eight(function).lower(x).compile().as_text()
        kinds = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
        assert len(re.findall(rf" (?:{kinds})(?:-start)?\(", program)) == count


@every_row(
    ("devices", "running", "error"),
    # On several devices, 30 and 1,000 standard deviations from the running mean.
    [(1, 0.0, 1e-4), (8, 970.0, 1e-4), (8, 0.0, 0.1)],
)
def test_variance_is_accurate_where_the_mean_is_large(keys, devices, running, error):
    x = 1000 + jax.random.normal(next(keys), (4096, 1))
    one, zero = jnp.ones(1), jnp.zeros(1)

    def normalized(x, axis="data"):
        params, stats = {"scale": one, "bias": zero}, {"mean": one * running, "var": one}
        return apply(params, stats, x, axis=axis)[0]

    y = normalized(x, None) if devices == 1 else on_eight(normalized)(x)
    assert abs(float(jnp.var(y)) - 1) < error


@pytest.mark.parametrize("group", [None, 4])
def test_bfloat16_in_and_out_but_float32_within(keys, group):
    params, stats = variables(keys, 3)
    x = jax.random.normal(next(keys), (8, 4, 3), jnp.bfloat16)
    y, new = apply(params, stats, x, group=group, dtype=jnp.bfloat16)
    exact, expected = apply(params, stats, x.astype(jnp.float32), group=group)
    assert y.dtype == jnp.bfloat16
    assert all(s.dtype == jnp.float32 for s in jax.tree.leaves(new))
    np.testing.assert_array_equal(y, exact.astype(jnp.bfloat16))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b), new, expected)


def test_a_batch_that_is_no_multiple_of_the_group_is_refused(keys):
    params, stats = variables(keys, 3)
    x = jax.random.normal(next(keys), (6, 3))
    with pytest.raises(ValueError, match=r"multiple of network\.group, 4; got 6"):
        apply(params, stats, x, group=4)
    y, _ = apply(params, stats, x, group=4, train=False)
    assert y.shape == x.shape


def shuffled(devices, key, images):
    """The shuffled batch, the order, and the batch after coming back."""

    def body(key, images):
        axis = "data" if devices else None
        mixed, order = shuffle(key, images, axis)
        return mixed, order, unshuffle(mixed, order, axis)

    if devices:
        out = (P("data"), P(), P("data"))
        body = jax.shard_map(body, mesh=mesh(devices), in_specs=(P(), P("data")), out_specs=out)
    return jax.jit(body)(key, images)


@pytest.mark.parametrize("devices", [None, 1, 4])
def test_shuffle_permutes_the_global_batch_and_comes_back(keys, devices):
    key, images = next(keys), jax.random.normal(next(keys), (16, 2, 3))
    mixed, order, back = shuffled(devices, key, images)
    assert sorted(order.tolist()) == list(range(16))
    assert order.tolist() != np.argsort(order).tolist(), "an involution would hide a wrong inverse"
    np.testing.assert_array_equal(mixed, np.stack([images[i] for i in order.tolist()]))
    np.testing.assert_array_equal(back, images)
    np.testing.assert_array_equal(mixed, shuffled(None, key, images)[0])


def test_shuffle_depends_on_the_key(keys):
    images = jnp.arange(64.0)[:, None]
    a, b = (shuffle(next(keys), images, None)[0] for _ in range(2))
    assert not np.array_equal(a, b)
