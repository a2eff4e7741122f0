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
def test_value_equals_loops_and_the_gradient_the_closed_form(keys, off_diagonal):
    # dL/da_i = 1/s_i (g - mean g - u_i mean(g u_i)), g = sum_j (dL/dC_ij) v_j / n.
    a, b = draw(keys, 6, 4), draw(keys, 6, 4)
    loss = functools.partial(barlow_twins, off_diagonal=off_diagonal)
    value, (of_a, of_b) = reference.value_and_grad(loss, argnums=(0, 1))(a, b)
    constants = off_diagonal, EPSILON
    np.testing.assert_allclose(value, reference.barlow(a, b, *constants), rtol=1e-12)
    np.testing.assert_allclose(of_a, reference.barlow_gradient(a, b, *constants), atol=1e-8)
    np.testing.assert_allclose(of_b, reference.barlow_gradient(b, a, *constants), atol=1e-8)
