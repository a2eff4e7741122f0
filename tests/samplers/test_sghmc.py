"""SGHMC against plain loops and against physics."""

import functools
import inspect
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from cluster_jax import samplers
from cluster_jax.core.config import load_config
from cluster_jax.samplers import base
from cluster_jax.samplers.sghmc import SGHMCState, sghmc, step
from tests import reference
from tests.rows import every_row
from tests.toy import image_keys

pytestmark = pytest.mark.usefixtures("x64")

PAPER = {"step_size": 0.05, "friction": 0.1, "noise": 0.99}
OFF = {"clip": None, "normalize_gradient": False}

both_momenta = pytest.mark.parametrize("momentum", ["new", "old"])


def quartic(images):
    """A potential whose gradient is not linear and differs from pixel to pixel."""
    weight = 1 + jnp.arange(images[0].size, dtype=images.dtype).reshape(images.shape[1:])
    value = jnp.sum((weight[None] * images**4).reshape(len(images), -1), 1)
    return value, 4 * weight[None] * images**3


def spring(stiffness):
    def potential_and_grad(images):
        value = stiffness * jnp.sum(images**2, axis=tuple(range(1, images.ndim))) / 2
        return value, stiffness * images

    return potential_and_grad


def flat(images):
    return jnp.zeros_like(images, shape=images.shape[:1]), jnp.zeros_like(images)


def run(key, images, potential_and_grad, *, iterations=1, unroll=True, **settings):
    sampler = sghmc(potential_and_grad, **{**PAPER, **OFF, **settings})

    @jax.jit
    def sample(keys, images):
        start = potential_and_grad(images)
        return base.sample(sampler, keys, images, start, iterations=iterations, unroll=unroll)

    return sample(image_keys(key, len(images)), images)


@pytest.mark.parametrize(
    ("momentum", "iterations", "shaping"),
    [
        ("new", 1, "clip"),
        ("new", 2, "off"),
        ("new", 5, "both"),
        ("old", 1, "off"),
        ("old", 2, "both"),
        ("old", 5, "clip"),
    ],
)
def test_view_and_share_equal_plain_loops(keys, momentum, iterations, shaping):
    images, key = jax.random.normal(next(keys), (3, 2, 2, 1)), next(keys)
    shape = {
        "off": OFF,
        "clip": {"clip": 1.5, "normalize_gradient": False},
        "both": {"clip": 1.5, "normalize_gradient": True},
    }[shaping]
    settings = {"step_size": 0.2, "friction": 0.3, "noise": 0.6}
    view, info = run(
        key, images, quartic, momentum=momentum, iterations=iterations, **settings, **shape
    )
    draws = [base.standard_normal(image_keys(key, 3), images, j) for j in range(iterations + 1)]
    for i in range(3):

        def gradient(position):
            g = np.asarray(quartic(jnp.asarray(position)[None])[1][0])
            if shape["clip"] is not None:
                g = np.clip(g, -1.5, 1.5)
            if shape["normalize_gradient"]:
                g = g / np.sqrt(np.mean(g**2))
            return g

        expected, noise_alone = reference.sghmc(
            images[i], gradient, [d[i] for d in draws], momentum=momentum, **settings
        )
        np.testing.assert_allclose(view[i], expected, rtol=1e-10)
        # The recursion is linear, but the gradients were taken along the full trajectory: what
        # remains when the same noise runs without them is their part.
        share = np.linalg.norm(expected - noise_alone) / np.linalg.norm(expected - images[i])
        np.testing.assert_allclose(info.gradient_share[i], min(share, 1), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(info.acceptance_rate, 1)


@every_row(
    ("momentum", "iterations", "known", "calls"),
    [
        ("new", 1, True, 0),
        ("new", 1, False, 1),
        ("new", 3, True, 2),
        ("old", 1, True, 0),
        ("old", 2, True, 0),
        ("old", 4, True, 2),
        ("old", 4, False, 3),
    ],
)
def test_the_potential_is_evaluated_only_where_it_counts(keys, momentum, iterations, known, calls):
    images = jax.random.normal(next(keys), (2, 3))
    sampler = sghmc(lambda x: (jnp.zeros(len(x)), jax.lax.sin(x)), momentum=momentum, **PAPER)

    @jax.jit
    def sample(keys, images):
        start = (jnp.zeros(2), images) if known else None
        return base.sample(sampler, keys, images, start, iterations=iterations)

    program = sample.lower(image_keys(next(keys), 2), images).as_text()
    assert program.count("stablehlo.sine") == calls


def chain(state, steps, stiffness, momentum, key=None, **constants):
    """`steps` iterations of the sampler's step on a spring, positions and momenta of each."""
    noise = constants["noise"]

    def body(state, j):
        random = (
            jax.random.normal(jax.random.fold_in(key, j), state.position.shape)
            if noise
            else jnp.zeros_like(state.position)
        )
        state = step(state, stiffness * state.position, random, momentum=momentum, **constants)
        return state, (state.position[:2], state.momentum[:2])

    return jax.jit(lambda p: jax.lax.scan(body, p, jnp.arange(steps)))(state)


def at(position, momentum):
    zero = jax.tree.map(jnp.zeros_like, position)
    return SGHMCState(position, momentum, zero, zero)


def test_harmonic_oscillator(keys):
    # No friction, no noise: s(t) = s0 cos(w t) + (p0 / w) sin(w t), error of first order in h.
    position, momentum = jax.random.normal(next(keys), (2, 2, 4))
    stiffness, errors = 2.0, []
    for h in (0.02, 0.01):
        constants = {"step_size": h, "friction": 0.0, "noise": 0.0}
        steps = round(2 * np.pi / h)
        _, (path, _) = chain(at(position, momentum), steps, stiffness, "new", **constants)
        t, w = h * np.arange(1, steps + 1)[:, None, None], np.sqrt(stiffness)
        start, speed = np.asarray(position), np.asarray(momentum)
        exact = start * np.cos(w * t) + speed / w * np.sin(w * t)
        errors.append(np.abs(path - exact).max())
    assert errors[1] < 0.03
    np.testing.assert_allclose(errors[0] / errors[1], 2, rtol=0.1)


def linear_step(stiffness, momentum):
    """Matrices of one step of the sampler on a spring: [s, p] -> A [s, p] + B r."""

    def one(sp, r):
        state = step(
            at(sp[None, :1], sp[None, 1:]), stiffness * sp[None, :1], r, momentum=momentum, **PAPER
        )
        return jnp.stack([state.position[0, 0], state.momentum[0, 0]])

    a, b = jax.jit(jax.jacobian(one, argnums=(0, 1)))(np.zeros(2), np.zeros((1, 1)))
    return np.asarray(a), np.asarray(b).reshape(2, 1)


@every_row(("stiffness", "expected"), [(0.1, 4.901), (1.0, 4.904), (10.0, 4.933)])
def test_stationary_variance_solves_the_lyapunov_equation(stiffness, expected):
    a, b = linear_step(stiffness, "new")
    covariance = scipy.linalg.solve_discrete_lyapunov(a, b @ b.T)
    np.testing.assert_allclose(stiffness * covariance[0, 0], expected, atol=6e-4)
    # The matrices written out from (17), (18).
    h, f = PAPER["step_size"], PAPER["friction"]
    np.testing.assert_allclose(a, [[1 - h * h * stiffness, h * (1 - f)], [-h * stiffness, 1 - f]])
    np.testing.assert_allclose(b, [[h * 0.99], [0.99]])


def test_the_sampler_itself_follows_the_linear_theory(keys):
    # From s0 = 0 and p0 = r0 the covariance after j steps is known exactly.
    stiffness, iterations = 10.0, 12
    a, b = linear_step(stiffness, "new")
    covariance = np.diag([0.0, 1.0])
    for _ in range(iterations):
        covariance = a @ covariance @ a.T + b @ b.T
    images = jnp.zeros((400, 100))
    how = {"iterations": iterations, "unroll": False}  # compiles in a fraction of the time
    view, _ = run(next(keys), images, spring(stiffness), **how)
    expected = covariance[0, 0]
    assert abs(np.var(view) - expected) < 4 * expected * np.sqrt(2 / view.size)
    free = np.var(run(next(keys), images, flat, **how)[0])
    assert free > 1.3 * expected  # the test would notice a missing force


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_the_gradients_share_is_computed_in_float32(dtype):
    """In float16 the sum of squares would be infinite, in bfloat16 it would stop growing."""
    whole = jnp.full((1, 1000), 100, dtype)
    assert base.sum_of_squares(whole).dtype == jnp.float32
    np.testing.assert_allclose(base.sum_of_squares(whole), 1e7)
    np.testing.assert_allclose(base.norm_ratio(whole / 4, whole), 0.25)


def test_a_flat_potential_and_a_normalized_gradient_stay_finite(keys):
    images = jax.random.normal(next(keys), (2, 4))
    view, info = run(next(keys), images, flat, iterations=2, normalize_gradient=True)
    assert np.isfinite(view).all()
    np.testing.assert_array_equal(info.gradient_share, 0)


def test_defaults_are_the_published_constants():
    defaults, of_sample, of_step = (
        {
            p.name: p.default
            for p in inspect.signature(f).parameters.values()
            if p.kind is p.KEYWORD_ONLY
        }
        for f in (sghmc, base.sample, step)
    )
    defaults["iterations"] = of_sample["iterations"]
    assert defaults == load_config("nrcc_cifar10").nrcc.sghmc.to_dict()
    assert of_step.items() <= defaults.items()


def test_no_key_is_used_twice(keys):
    images = jax.random.normal(next(keys), (2, 4))
    with jax.debug_key_reuse(True):
        run(next(keys), images, spring(3.0), iterations=3)
    rows = image_keys(next(keys), 1)
    draws = [base.standard_normal(rows, jnp.zeros((1, 5)), j) for j in range(4)]
    assert len(np.unique(draws)) == 20


@functools.partial(jax.jit, static_argnums=0)
def potential_and_slope(name, similarity):
    """Of each similarity, the potential and its derivative."""
    return jax.vmap(jax.value_and_grad(base.POTENTIALS[name]))(similarity)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_potentials(dtype):
    exact = 1e-12 if dtype == jnp.float64 else 1e-6
    # Slopes of (16) and of the authors' code; the floor of the first.
    similarity = np.array([-0.98, -0.5, 0.0, 0.7, 1.0], dtype)
    values, slopes = potential_and_slope("inverse", similarity)
    np.testing.assert_allclose(slopes, -1 / (1 + similarity) ** 2, rtol=exact)
    np.testing.assert_allclose(values, 1 / (1 + similarity), rtol=exact)
    near, slopes = potential_and_slope("inverse", np.array([-0.9901, -0.995, -1.0], dtype))
    np.testing.assert_allclose(slopes, -1e4, rtol=exact)
    assert np.all(np.diff(near) > 0)
    values, _ = potential_and_slope("inverse", np.array([-0.99, -1.0], dtype))
    np.testing.assert_allclose(values, [100, 200], rtol=1e-5)

    values, slopes = potential_and_slope("log_inverse_square", similarity)
    np.testing.assert_allclose(values, np.log(1 / (1 + similarity**2)), atol=exact)
    np.testing.assert_allclose(slopes, -2 * similarity / (1 + similarity**2), atol=exact)


def test_shaping_of_gradients(rng):
    normalize = jax.jit(base.normalize_by_rms)
    gradient = rng.normal(size=(3, 4, 4, 2)) * np.reshape([1e-30, 1.0, 50.0], (3, 1, 1, 1))
    for dtype in (jnp.float64, jnp.float32):
        unit = normalize(gradient.astype(dtype))
        assert unit.dtype == dtype
        unit = np.asarray(unit)
        np.testing.assert_allclose(np.sqrt(np.mean(unit**2, axis=(1, 2, 3))), 1, rtol=1e-5)
        cosine = np.sum(unit * gradient, (1, 2, 3)) / np.linalg.norm(
            gradient.reshape(3, -1), axis=1
        )
        np.testing.assert_allclose(cosine, np.sqrt(32), rtol=1e-5)
    np.testing.assert_array_equal(normalize(np.zeros((1, 3))), 0)


@both_momenta
@pytest.mark.parametrize("iterations", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_a_scan_gives_the_views_of_the_unrolled_loop(keys, momentum, iterations):
    images, key = jax.random.normal(next(keys), (3, 2, 2, 1)), next(keys)
    settings = {"iterations": iterations, "momentum": momentum, "clip": 1.0}
    unrolled, scanned = (run(key, images, quartic, unroll=u, **settings) for u in (True, False))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-12), scanned, unrolled)


@pytest.mark.parametrize("sampler", ["sghmc", "hmc"])
def test_a_new_closure_of_the_same_potential_compiles_nothing(keys, caplog, sampler):
    images, rows = jax.random.normal(next(keys), (2, 3)), image_keys(next(keys), 2)
    settings = {"leapfrog_steps": 2, "step_size": 0.1} if sampler == "hmc" else {}

    def sample(stiffness):
        built = getattr(samplers, sampler)(spring(stiffness), **settings)
        return samplers.sample(built, rows, images, iterations=3)[0]

    first = sample(1.0)
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        second = sample(2.0)
    assert not [record for record in caplog.records if "ompiling" in record.message]
    assert np.abs(first - second).max() > 0
