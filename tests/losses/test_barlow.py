"""Barlow Twins against loops, its closed form, limits, and on several devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax.losses.barlow import EPSILON, barlow_twins
from tests import reference
from tests.rows import every_row

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


def test_limits(keys):
    a = draw(keys, 40, 3)
    white = np.linalg.solve(np.linalg.cholesky(np.cov(a.T, bias=True)), (a - a.mean(0)).T).T
    loss = functools.partial(barlow_twins, off_diagonal=0.5, axis=None)
    # Uncorrelated features, the same in both views: nothing to gain.
    np.testing.assert_allclose(loss(white, white), 0, atol=1e-9)
    # Opposite views: every diagonal entry is -1.
    np.testing.assert_allclose(loss(white, -white), 3 * 4, rtol=1e-4)
    # One feature three times: 6 entries of 1 off the diagonal.
    same = np.repeat(white[:, :1], 3, axis=1)
    np.testing.assert_allclose(loss(same, same), 0.5 * 6, rtol=1e-4)


@every_row("case", ["duplicates", "constant", "zeros", "one image"])
def test_extremes_stay_finite_in_float32(keys, case):
    a, b = (draw(keys, 4, 3).astype(np.float32) for _ in range(2))
    if case == "duplicates":
        a[:], b[:] = a[0], b[0]
    elif case == "constant":
        a[:, 1] = 0.1
    elif case == "zeros":
        a[:] = b[:] = 0
    else:
        a, b = a[:1], b[:1]
    loss = functools.partial(barlow_twins, off_diagonal=0.005, axis=None)
    value, gradients = reference.value_and_grad(loss, argnums=(0, 1))(a, b)
    assert value.dtype == jnp.float32
    for array in (value, *gradients):
        assert np.isfinite(array).all()
        # The raised variance bounds 1 / s at 316.
        assert np.abs(array).max() < 1e4


def test_the_weight_must_not_be_negative():
    x = jnp.ones((2, 2))
    with pytest.raises(ValueError, match=r"^off_diagonal must be at least 0; got -0\.1"):
        barlow_twins(x, x, off_diagonal=-0.1, axis=None)
