"""The pure functions of a network: shapes, dtypes, statistics, devices, gradients, bad input."""

import functools
import math
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax.core.checks import InputError
from cluster_jax.core.config import parse_section
from cluster_jax.nets.config import NetworkConfig
from cluster_jax.nets.network import make
from tests.rows import every_row

SMALL = {
    "name": "small",
    "width": 2,
    "stem": None,
    "projector": {"hidden": 7, "out": 5},
    "predictor": {"hidden": 6, "init_std": None},
    "weights": None,
    "frozen": None,
    "norm": "sync",
    "group": None,
    "dtype": "float32",
}
RESNET = {**SMALL, "name": "resnet18", "stem": "cifar"}
VIT = {**SMALL, "name": "vit_tiny_patch16", "width": 192}
IMAGE = jnp.zeros((1, 8, 8, 1))


# A network is made once, so that what is compiled for it is shared.
make_once = functools.cache(make)


def network_of(section):
    return make_once(parse_section(NetworkConfig, "network", section))


def build(**changes):
    return network_of({**SMALL, **changes})


def numbers_of(keys):
    """NumPy's random numbers of a fresh key: JAX would compile each shape that is drawn."""
    return np.random.default_rng(np.asarray(jax.random.key_data(next(keys))))


def start(keys, network, image=IMAGE):
    """Parameters of the usual variance, statistics, and every vector off its zeros and ones."""
    rng = numbers_of(keys)

    def draw(path, x):
        if x.ndim > 1:
            return rng.normal(0, math.prod(x.shape[:-1]) ** -0.5, x.shape).astype(x.dtype)
        is_around_one = path[-1].key in ("scale", "var")
        return (is_around_one + rng.uniform(0.1, 0.5, x.shape)).astype(x.dtype)

    shapes = jax.eval_shape(network.init, jax.random.key(0), image)
    return jax.tree.map_with_path(draw, shapes)


def images_of(keys, n=8, side=8):
    """Images that differ in contrast and brightness, so that every group has its own statistics."""
    scale = np.arange(1, n + 1, dtype=np.float32)[:, None, None, None]
    return numbers_of(keys).normal(scale, scale, (n, side, side, 1)).astype(np.float32)


def double(tree):
    return jax.tree.map(lambda x: x.astype(jnp.float64), tree)


def same(a, b, **tolerance):
    jax.tree.map(partial(np.testing.assert_allclose, **tolerance), a, b)


def differ(a, b):
    """True for each leaf that is not the same in both trees."""
    return jax.tree.leaves(jax.tree.map(lambda x, y: not np.array_equal(x, y), a, b))


def whole(network, params, stats, images, train=True, axis=None):
    """Forward and predict, as one pass over all three parts."""
    out = network.forward(params, stats, images, train=train, axis=axis)
    prediction, stats = network.predict(params, out.stats, out.projection, train=train, axis=axis)
    return (out.representation, out.projection, prediction), stats


run = jax.jit(whole, static_argnames=("network", "train", "axis"))


# --- shapes and dtypes ---------------------------------------------------------------------------


# Those of the deeper ResNets follow from their published numbers of parameters (test_backbones).
@every_row(
    ("name", "width", "features", "dtype", "side"),
    [
        ("resnet18", 64, 512, "float32", 32),
        ("resnet18", 10, 80, "bfloat16", 8),
        ("resnet50", 64, 2048, "bfloat16", 8),
        ("small", 16, 256, "float32", 8),
        ("small", 16, 256, "bfloat16", 32),
    ],
)
def test_shapes_and_dtypes(name, width, features, dtype, side):
    stem = None if name == "small" else "cifar"
    network = build(name=name, width=width, stem=stem, dtype=dtype)
    assert (network.features, network.projections) == (features, 5)
    image = jax.ShapeDtypeStruct((1, side, side, 3), jnp.float32)
    params, stats = jax.eval_shape(network.init, jax.random.key(0), image)
    assert set(params) == set(stats) == {"backbone", "projector", "predictor"}
    batch = jax.ShapeDtypeStruct((4, side, side, 3), jnp.float32)
    outputs, new = jax.eval_shape(partial(whole, network), params, stats, batch)
    assert [o.shape for o in outputs] == [(4, features), (4, 5), (4, 5)]
    assert {x.dtype for x in jax.tree.leaves((params, stats, outputs, new))} == {jnp.dtype("f4")}
    assert jax.tree.map(jnp.shape, new) == jax.tree.map(jnp.shape, stats)


def test_a_target_network_needs_no_predictor(keys):
    network = build()
    params, stats = start(keys, network)
    images = images_of(keys)
    target = {k: v for k, v in params.items() if k != "predictor"}
    target_stats = {k: v for k, v in stats.items() if k != "predictor"}
    forward = jax.jit(partial(network.forward, train=True, axis=None))
    without, full = forward(target, target_stats, images), forward(params, stats, images)
    assert set(without.stats) == {"backbone", "projector"}
    np.testing.assert_array_equal(without.projection, full.projection)


# --- initial values ------------------------------------------------------------------------------


def test_init_is_a_function_of_the_key_and_works_inside_jit(keys):
    network, key, other = build(), next(keys), next(keys)
    params, stats = network.init(key, IMAGE)
    same(network.init(key, IMAGE), (params, stats), rtol=0)
    # Another program: the same numbers up to rounding.
    same(jax.jit(network.init)(key, IMAGE), (params, stats), rtol=1e-5, atol=1e-7)
    kernels = [
        (a, b)
        for a, b in zip(
            jax.tree.leaves(params), jax.tree.leaves(network.init(other, IMAGE)[0]), strict=True
        )
        if a.ndim > 1
    ]
    assert len(kernels) == 9
    assert all(not np.array_equal(a, b) for a, b in kernels)


def test_parts_start_from_keys_of_their_own(keys):
    network = build(projector={"hidden": 5, "out": 5}, predictor={"hidden": 5, "init_std": None})
    params, _ = network.init(next(keys), IMAGE)
    projector, predictor = (params[p]["Dense_1"]["kernel"] for p in ("projector", "predictor"))
    assert projector.shape == predictor.shape == (5, 5)
    assert not np.array_equal(projector, predictor)


def test_the_predictor_starts_with_the_given_standard_deviation(keys):
    network = build(
        projector={"hidden": 8, "out": 200}, predictor={"hidden": 300, "init_std": 0.01}
    )
    params, _ = network.init(next(keys), IMAGE)
    for layer in ("Dense_0", "Dense_1"):
        assert np.std(params["predictor"][layer]["kernel"]) == pytest.approx(0.01, rel=0.02)
    assert not np.any(params["predictor"]["Dense_1"]["bias"])
    # The projector keeps LeCun's.
    assert np.std(params["projector"]["Dense_1"]["kernel"]) == pytest.approx(8**-0.5, rel=0.1)


# --- heads ---------------------------------------------------------------------------------------


def head_by_hand(p, x):
    """Fully connected, BatchNorm of the batch, ReLU, fully connected."""
    p, x = jax.tree.map(np.asarray, p), np.asarray(x)
    x = x @ p["Dense_0"]["kernel"]
    x = (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + 1e-5)
    x = np.maximum(x * p["BatchNorm_0"]["scale"] + p["BatchNorm_0"]["bias"], 0)
    return x @ p["Dense_1"]["kernel"] + p["Dense_1"]["bias"]


def test_projector_and_predictor_are_chained_after_the_backbone(x64, keys):
    network = build()
    params, stats = double(start(keys, network))
    assert {k: v["kernel"].shape for k, v in params["projector"].items() if "Dense" in k} == {
        "Dense_0": (32, 7),
        "Dense_1": (7, 5),
    }
    assert {k: v["kernel"].shape for k, v in params["predictor"].items() if "Dense" in k} == {
        "Dense_0": (5, 6),
        "Dense_1": (6, 5),
    }
    (representation, projection, prediction), _ = run(network, params, stats, images_of(keys))
    same(projection, head_by_hand(params["projector"], representation), rtol=1e-9, atol=1e-12)
    same(prediction, head_by_hand(params["predictor"], projection), rtol=1e-9, atol=1e-12)


# --- statistics ----------------------------------------------------------------------------------


def test_training_moves_the_statistics_of_the_parts_it_runs_and_no_other(keys):
    network = build()
    params, stats = start(keys, network)
    out = jax.jit(partial(network.forward, train=True, axis=None))(params, stats, images_of(keys))
    assert all(differ(out.stats["backbone"], stats["backbone"]))
    assert all(differ(out.stats["projector"], stats["projector"]))
    assert not any(differ(out.stats["predictor"], stats["predictor"]))
    _, new = network.predict(params, out.stats, out.projection, train=True, axis=None)
    assert all(differ(new["predictor"], stats["predictor"]))
    assert not any(differ(new["backbone"], out.stats["backbone"]))
    assert not any(differ(new["projector"], out.stats["projector"]))


@pytest.mark.parametrize("norm", [{}, {"norm": "local", "group": 3}])
def test_evaluation_sees_one_image_at_a_time(x64, keys, norm):
    network = build(**norm)
    params, stats = double(start(keys, network))
    images = images_of(keys, n=5)
    outputs, new = run(network, params, stats, images, train=False)
    assert not any(differ(new, stats))
    alone, _ = run(network, params, stats, images[3:4], train=False)
    same(alone, tuple(o[3:4] for o in outputs), rtol=1e-11, atol=1e-12)
    assert all(np.std(o, axis=0).max() > 1e-3 for o in outputs)
    other, _ = run(network, params, jax.tree.map(lambda s: 2 * s, stats), images, train=False)
    assert all(differ(other, outputs))


# --- precision -----------------------------------------------------------------------------------


def test_bfloat16_is_close_to_float32_and_keeps_float32_where_it_matters(keys):
    network, coarse = build(width=4), build(width=4, dtype="bfloat16")
    params, stats = start(keys, network)
    images = images_of(keys)
    exact, exact_stats = run(network, params, stats, images)
    # XLA may otherwise keep more digits between two operations than were asked for.
    as_asked = jax.jit(
        partial(whole, coarse), compiler_options={"xla_allow_excess_precision": False}
    )
    outputs, new = as_asked(params, stats, images)
    assert {x.dtype for x in jax.tree.leaves((outputs, new))} == {jnp.dtype("f4")}
    for rough, fine in zip(outputs, exact, strict=True):
        error = np.sqrt(np.mean((rough - fine) ** 2) / np.mean(fine**2))
        # One rounding to 8 bits is 2^-9; nine layers add up.
        assert 1e-4 < error < 0.03
        # The last layer of each part was in bfloat16 too.
        np.testing.assert_array_equal(rough, rough.astype(jnp.bfloat16).astype(jnp.float32))
    same(new, exact_stats, rtol=0.05, atol=0.02)


# --- bad input -----------------------------------------------------------------------------------


@every_row(
    ("changes", "message"),
    [
        ({"name": "resnet19"}, "network.name must be one of 'efficientnet_lite2', "),
        ({"stem": "cifar"}, "network.stem of small must be None; got 'cifar'"),
        ({"name": "resnet18"}, "network.stem of resnet18 must be one of 'cifar',"),
        ({"norm": "local"}, "network.group must be at least 2"),
        ({"group": 4}, "network.group must be None"),
        ({"projector": {"hidden": 4}}, "missing config key network.projector.out"),
        ({"projector": None}, "network.projector must be set"),
    ],
)
def test_bad_input_is_named(changes, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        build(**changes)
