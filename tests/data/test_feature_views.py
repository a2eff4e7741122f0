"""Views of features: what is drawn from where, and that each part can be turned off."""

import jax
import jax.numpy as jnp
import numpy as np

from cluster_jax.data import features
from cluster_jax.data.features import FeatureViewsConfig
from tests import toy

DRAWS = 200


def make(neighbors):
    """Views of a set of 7 rows in 4 columns."""
    config = FeatureViewsConfig(neighbors)
    x = np.random.default_rng(0).normal(size=(7, 4))
    dataset = features.with_neighbors(features.load(toy.DATA, x), config.neighbors)
    return features.make_views(config), dataset.fetch(np.arange(7))


def draws(augment, row):
    """Many views of one row, scaled back to length one."""
    keys, row = jax.random.split(jax.random.key(0), DRAWS), jnp.asarray(row)
    return np.asarray(jax.vmap(lambda key: augment.view(key, row))(keys)) / 2


def test_without_changes_a_view_is_the_row_at_root_mean_square_one():
    augment, rows = make(0)
    np.testing.assert_allclose(draws(augment, rows[3]), np.tile(rows[3, 0], (DRAWS, 1)), rtol=1e-6)
    np.testing.assert_allclose(np.square(augment.clean(rows[3])).mean(), 1, rtol=1e-5)


def test_a_step_goes_towards_each_of_the_neighbors():
    augment, rows = make(3)
    own, others = rows[2, 0], rows[2, 1:]
    shares = []
    for view in draws(augment, rows[2]):
        # The view lies on the line to one neighbor: own + t (neighbor - own).
        t = [(view - own) @ (other - own) / np.square(other - own).sum() for other in others]
        misses = [np.abs(own + s * (o - own) - view).max() for s, o in zip(t, others, strict=True)]
        nearest = int(np.argmin(misses))
        assert misses[nearest] < 1e-5
        shares.append((nearest, t[nearest]))
    assert {nearest for nearest, _ in shares} == {0, 1, 2}
    steps = np.array([t for _, t in shares])
    assert -1e-5 <= steps.min() < 0.1
    assert 0.9 < steps.max() <= 1 + 1e-5
