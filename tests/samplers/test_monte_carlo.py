"""The views that use no gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax.samplers import base
from cluster_jax.samplers.monte_carlo import monte_carlo
from tests.toy import image_keys


@pytest.mark.parametrize("iterations", [1, 5])
def test_a_random_walk_spreads_with_the_root_of_its_length(keys, iterations):
    images = jax.random.normal(next(keys), (100, 20, 20))
    view, info = monte_carlo(
        image_keys(next(keys), 100), images, iterations=iterations, step_size=0.3
    )
    displacement = np.asarray(view - images)
    expected = 0.3 * np.sqrt(iterations)
    assert abs(np.std(displacement) / expected - 1) < 4 / np.sqrt(2 * displacement.size)
    assert abs(np.mean(displacement)) < 4 * expected / np.sqrt(displacement.size)
    # Different images and pixels move independently.
    rows = displacement.reshape(100, -1)
    correlation = np.corrcoef(rows)[np.triu_indices(100, 1)]
    assert np.abs(correlation).max() < 6 / np.sqrt(rows.shape[1])
    np.testing.assert_array_equal(info.gradient_share, 0)
    np.testing.assert_array_equal(info.acceptance_rate, 1)


def test_each_step_of_the_walk_is_a_draw_of_its_own(keys):
    images, row_keys = jnp.zeros((3, 4)), image_keys(next(keys), 3)
    view, _ = monte_carlo(row_keys, images, iterations=3, step_size=0.5)
    expected = sum(0.5 * np.asarray(base.standard_normal(row_keys, images, i)) for i in range(3))
    np.testing.assert_allclose(view, expected, rtol=1e-6)
