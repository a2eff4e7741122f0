"""Barlow Twins against loops, its closed form, limits, and on several devices."""

import functools

import jax
import numpy as np
import pytest

from cluster_jax.losses.barlow import EPSILON, barlow_twins
from tests import reference

pytestmark = pytest.mark.usefixtures("x64")


def draw(keys, *shape):
    """Columns of different means and sizes."""
    x, means = (np.asarray(jax.random.normal(next(keys), s)) for s in (shape, shape[1:]))
    return x * np.arange(1.0, shape[1] + 1) + means


@pytest.mark.parametrize("off_diagonal", [0.005, 0.7])
def test_value_equals_loops(keys, off_diagonal):
    a, b = draw(keys, 6, 4), draw(keys, 6, 4)
    got = barlow_twins(a, b, off_diagonal=off_diagonal, axis=None)
    np.testing.assert_allclose(got, reference.barlow(a, b, off_diagonal, EPSILON), rtol=1e-12)


def test_gradient_is_the_closed_form_for_both_views(keys):
    # dL/da_i = 1/s_i (g - mean g - u_i mean(g u_i)), g = sum_j (dL/dC_ij) v_j / n.
    a, b = draw(keys, 6, 4), draw(keys, 6, 4)
    loss = functools.partial(barlow_twins, off_diagonal=0.3, axis=None)
    of_a, of_b = jax.grad(loss, argnums=(0, 1))(a, b)
    np.testing.assert_allclose(of_a, reference.barlow_gradient(a, b, 0.3, EPSILON), atol=1e-8)
    np.testing.assert_allclose(of_b, reference.barlow_gradient(b, a, 0.3, EPSILON), atol=1e-8)
