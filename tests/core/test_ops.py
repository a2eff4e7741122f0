"""Unit vectors, products, masked log-sum-exp."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax.core import ops
from tests import reference
from tests.rows import every_row


def test_unit_equals_loops(keys, x64):
    x = np.array(jax.random.normal(next(keys), (5, 3)))
    x[2] = 0
    np.testing.assert_allclose(ops.l2_normalize(x), reference.unit(x), rtol=1e-14)


def test_unit_passes_the_projected_gradient_and_none_at_zero(keys, x64):
    x, weight = jax.random.normal(next(keys), (2, 5, 3))
    x = x.at[2].set(0)
    gradient = jax.grad(lambda x: jnp.sum(weight * ops.l2_normalize(x)))(x)
    rows = np.array([0, 1, 3, 4])
    want = reference.through_unit(np.asarray(x)[rows], np.asarray(weight)[rows])
    np.testing.assert_allclose(gradient[rows], want, atol=1e-12)
    np.testing.assert_array_equal(gradient[2], 0)


@every_row("scale", [1e-12, 1.0, 1e12])
def test_unit_does_not_depend_on_the_scale(keys, scale):
    x = jax.random.normal(next(keys), (4, 6))
    np.testing.assert_allclose(ops.l2_normalize(scale * x), ops.l2_normalize(x), rtol=1e-5)


def test_products_and_cosine(keys, x64):
    a, b = jax.random.normal(next(keys), (4, 3)), jax.random.normal(next(keys), (5, 3))
    want = [[sum(x * y for x, y in zip(r, s, strict=True)) for s in b] for r in a]
    np.testing.assert_allclose(ops.pairwise_dot(a, b), want, rtol=1e-12)
    ua, ub = reference.unit(a), reference.unit(b)
    np.testing.assert_allclose(
        ops.cosine(3 * a, b[:4]), [x @ y for x, y in zip(ua, ub[:4], strict=True)], rtol=1e-12
    )


def test_products_of_bfloat16_are_summed_in_float32(keys):
    a, b = (jax.random.normal(next(keys), (4, 300), jnp.bfloat16) for _ in range(2))
    got = ops.pairwise_dot(a, b)
    assert got.dtype == jnp.float32
    want = np.asarray(a, np.float64) @ np.asarray(b, np.float64).T
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_logsumexp_over_what_is_kept(keys, x64):
    logits = jax.random.normal(next(keys), (4, 6))
    keep = np.array(jax.random.bernoulli(next(keys), 0.5, (4, 6)))
    keep[:, 0] = True
    want = [np.log(np.sum(np.exp(row[k]))) for row, k in zip(np.asarray(logits), keep, strict=True)]
    np.testing.assert_allclose(ops.logsumexp(logits, keep), want, rtol=1e-13)
    np.testing.assert_allclose(
        ops.logsumexp(logits), np.log(np.sum(np.exp(logits), axis=1)), rtol=1e-13
    )
    gradient = jax.grad(lambda x: jnp.sum(ops.logsumexp(x, keep)))(logits)
    np.testing.assert_array_equal(gradient[~keep], 0)
    np.testing.assert_allclose(gradient.sum(1), 1, rtol=1e-13)


def test_logsumexp_of_nothing_is_minus_infinity_with_zero_gradient():
    logits = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    keep = jnp.array([[False, False], [True, False]])
    np.testing.assert_allclose(ops.logsumexp(logits, keep), [-np.inf, 3.0])
    # No NaN on the way either, so that the search for one with `jax.debug_nans` is not misled.
    with jax.debug_nans(True):
        gradient = jax.grad(lambda x: jnp.sum(ops.logsumexp(x, keep)))(logits)
    np.testing.assert_array_equal(gradient, [[0, 0], [1, 0]])


@pytest.mark.parametrize("height", [-1e4, 1e4])
def test_logsumexp_does_not_overflow(height):
    logits = jnp.full((1, 5), height)
    np.testing.assert_allclose(ops.logsumexp(logits), height + np.log(5), rtol=1e-6)
    keep = jnp.array([[True, True, False, False, False]])
    np.testing.assert_allclose(ops.logsumexp(logits, keep), height + np.log(2), rtol=1e-6)
