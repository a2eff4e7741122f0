"""Images and keys that do not fit are told in one sentence, by every sampler."""

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
