"""What every sampler keeps: one view an image in any batch, dtypes, and errors of one sentence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax import samplers
from cluster_jax.core.checks import InputError
from tests.rows import every_row

IMAGES, KEYS = np.ones((4, 2, 2, 3), np.float32), jax.random.split(jax.random.key(0), 4)


def _potential(images):
    return (images**2).reshape(len(images), -1).sum(1) / 2, images


def _sampled(sampler):
    return lambda keys, images: samplers.sample(sampler, keys, images)


SAMPLERS = {
    "sghmc": _sampled(samplers.sghmc(_potential)),
    "hmc": _sampled(samplers.hmc(_potential, leapfrog_steps=1, step_size=0.1)),
    "monte_carlo": samplers.monte_carlo,
}


@every_row("name", SAMPLERS)
@every_row(
    ("keys", "images", "message"),
    [
        (KEYS, (255 * IMAGES).astype(np.uint8), r"images must be float .*; got uint8\[4,2,2,3\]"),
        (KEYS[:0], IMAGES[:0], r"images must be float .*; got float32\[0,2,2,3\]"),
        (KEYS, IMAGES.tolist(), "images must be float .*; got a float"),
        (KEYS[:3], IMAGES, r"keys must be one for each image, \[4\], .*; got \[3\]"),
        (KEYS[0], IMAGES, r"keys must be one for each image, \[4\], .*; got \[\]"),
    ],
)
def test_what_does_not_fit_is_refused(name, keys, images, message):
    with pytest.raises(InputError, match=message):
        SAMPLERS[name](keys, images)


@pytest.mark.parametrize("name", SAMPLERS)
def test_half_precision_and_keys_of_either_kind(name):
    for keys in (KEYS, jax.random.split(jax.random.PRNGKey(0), 4)):
        views, _ = SAMPLERS[name](keys, jnp.asarray(IMAGES, jnp.bfloat16))
        assert views.dtype == jnp.bfloat16
        assert np.isfinite(views.astype(np.float32)).all()


@pytest.mark.parametrize("name", SAMPLERS)
def test_an_image_has_the_same_view_in_any_batch(name):
    images = jax.random.normal(jax.random.key(1), (4, 2, 2, 3))
    picked = np.array([3, 1])
    whole, of_whole = SAMPLERS[name](KEYS, images)
    some, of_some = SAMPLERS[name](KEYS[picked], images[picked])
    np.testing.assert_allclose(some, whole[picked], rtol=1e-5)
    for one, other in zip(of_some, of_whole, strict=True):
        np.testing.assert_allclose(one, other[picked], rtol=1e-5)


def _hmc(**settings):
    return samplers.hmc(_potential, **{"leapfrog_steps": 1, "step_size": 0.1} | settings)


@every_row(
    ("call", "message"),
    [
        (lambda: samplers.sghmc(_potential, momentum="x"), "momentum must be one of 'new', 'old'"),
        (lambda: samplers.sghmc(_potential, step_size=0.0), "step_size must be greater than 0"),
        (lambda: samplers.sghmc(_potential, friction=3), "friction must be between 0 and 1; got 3"),
        (lambda: samplers.sghmc(_potential, noise=-0.1), "noise must be at least 0; got -0.1"),
        (lambda: samplers.sghmc(_potential, clip=0), "clip must be greater than 0; got 0"),
        (lambda: _hmc(leapfrog_steps=0), "leapfrog_steps must be at least 1; got 0"),
        (lambda: _hmc(step_size=-0.1), "step_size must be greater than 0; got -0.1"),
        (lambda: _hmc(clip=0), "clip must be greater than 0; got 0"),
        (lambda: samplers.monte_carlo(KEYS, IMAGES, step_size=-0.1), "step_size must be at least"),
        (
            lambda: samplers.sample(_hmc(), KEYS, IMAGES, iterations=0),
            "iterations must be at least",
        ),
    ],
)
def test_settings_out_of_range_are_named(call, message):
    with pytest.raises(InputError) as error:
        call()
    assert message in str(error.value)
