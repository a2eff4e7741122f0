"""The two views of a batch, and what a term adds to a method."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cluster_jax.methods import base
from tests.data.test_views import OFF, augmentation
from tests.methods import test_moco


def test_each_view_has_its_own_recipe_and_each_image_its_own_key(keys):
    """BYOL's asymmetric augmentation: solarization in view b alone."""
    solarize = {"probability": (0.0, 1.0), "threshold": 0.5}
    made = augmentation(**OFF | {"solarize": solarize, "noise": 0.01})
    image = np.random.default_rng(0).integers(0, 100, (1, 8, 8, 3)).astype(np.uint8)
    batch = {"index": jnp.array([5, 9]), "image": jnp.asarray(np.concatenate([image, 255 - image]))}
    a, b = base.all_views(made, next(keys), batch)
    plain = jax.vmap(made.clean)(batch["image"])
    np.testing.assert_allclose(a, plain, atol=0.4)
    # Dark pixels stay, bright ones are turned: both images come out the same but for the noise.
    np.testing.assert_allclose(b[0], plain[0], atol=0.4)
    np.testing.assert_allclose(b[1], plain[0], atol=0.4)
    for x, y in ((a[0] - plain[0], a[1] - plain[1]), (b[0], b[1])):
        assert np.abs(x - y).max() > 0.01


class _Nothing(NamedTuple):
    """The state of a term that has none."""


def test_a_term_starts_from_a_key_of_its_own(keys):
    """Else its head would repeat the numbers with which the network starts."""
    seen = []

    def init(key, *images):
        seen.append(jax.random.key_data(key))
        return {}, _Nothing()

    made = test_moco.build("simclr")._replace(init=init)
    base.with_term(made, base.Term(init, None)).init(next(keys), None)
    assert len(seen) == 2
    assert not np.array_equal(*seen)
