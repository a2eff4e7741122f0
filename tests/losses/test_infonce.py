"""InfoNCE against loops, closed forms, limits, and its own value on several devices."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax.losses.infonce import info_nce, info_nce_views
from tests import reference

pytestmark = pytest.mark.usefixtures("x64")


def draw(keys, *shape):
    return jax.random.normal(next(keys), shape)


def stacked(a, b, tau):
    """NRCC (1)-(3) of rows taken as free vectors: nothing is normalised on the way."""
    n = len(a)
    rows = jnp.concatenate([a, b])
    partner = jnp.concatenate([n + jnp.arange(n), jnp.arange(n)])
    return info_nce(
        rows,
        rows,
        partner,
        temperature=tau,
        positive_in_denominator=False,
        excluded=jnp.eye(2 * n, dtype=bool),
    )


@pytest.mark.parametrize("positive_in_denominator", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_value_equals_loops_for_separate_anchors_and_candidates(
    keys, positive_in_denominator, masked
):
    x, y = reference.unit(draw(keys, 4, 3)), reference.unit(draw(keys, 7, 3))
    positives = np.array([6, 0, 3, 3], np.int32)
    # Two masked entries are positives: those still attract.
    excluded = np.array(jax.random.bernoulli(next(keys), 0.3, (4, 7))) if masked else None
    if masked:
        excluded[0, 6] = excluded[2, 3] = True
    got = info_nce(
        x,
        y,
        positives,
        temperature=0.3,
        positive_in_denominator=positive_in_denominator,
        excluded=excluded,
    )
    want = reference.info_nce(x, y, positives, 0.3, positive_in_denominator, excluded)
    np.testing.assert_allclose(got, want, rtol=1e-13)


@pytest.mark.parametrize("positive_in_denominator", [True, False])
def test_views_equal_loops(keys, positive_in_denominator):
    a, b = draw(keys, 5, 3), 2 * draw(keys, 5, 3)
    got = info_nce_views(
        a, b, temperature=0.4, positive_in_denominator=positive_in_denominator, axis=None
    )
    want = reference.two_views(reference.unit(a), reference.unit(b), 0.4, positive_in_denominator)
    np.testing.assert_allclose(got, want, rtol=1e-13)


@pytest.mark.parametrize("tau", [1.0, 0.5, 0.1])
def test_gradient_is_the_closed_form(keys, tau):
    a, b = reference.unit(draw(keys, 6, 4)), reference.unit(draw(keys, 6, 4))
    free = reference.two_views_gradient(a, b, tau)
    np.testing.assert_allclose(jax.grad(stacked)(a, b, tau), free, atol=1e-8)

    raw = np.asarray(3 * draw(keys, 6, 4))
    views = functools.partial(
        info_nce_views, temperature=tau, positive_in_denominator=False, axis=None
    )
    closed = reference.through_unit(raw, reference.two_views_gradient(reference.unit(raw), b, tau))
    np.testing.assert_allclose(jax.grad(views)(raw, b), closed, atol=1e-8)


def test_the_printed_gradient_7_is_not_the_gradient_of_the_loss(keys):
    a, b = reference.unit(draw(keys, 6, 4)), reference.unit(draw(keys, 6, 4))
    errors = []
    for tau in (1.0, 0.5, 0.1):
        printed = reference.two_views_gradient(a, b, tau, printed=True)
        errors.append(np.abs(jax.grad(stacked)(a, b, tau) - printed).max())
    assert errors[0] > 1e-3
    assert errors[1] > 4 * errors[0]
    assert errors[2] > 4 * errors[1]


@pytest.mark.parametrize("positive_in_denominator", [True, False])
def test_directional_differences(keys, positive_in_denominator):
    a, b = draw(keys, 5, 3), draw(keys, 5, 3)
    da, db = draw(keys, 5, 3), draw(keys, 5, 3)

    def along(t):
        return info_nce_views(
            a + t * da,
            b + t * db,
            temperature=0.2,
            positive_in_denominator=positive_in_denominator,
            axis=None,
        )

    h = 1e-5
    np.testing.assert_allclose(jax.grad(along)(0.0), (along(h) - along(-h)) / (2 * h), rtol=1e-7)


@pytest.mark.parametrize("n", [2, 5])
@pytest.mark.parametrize("tau", [1.0, 0.01])
def test_collinear_embeddings_leave_the_number_of_candidates(n, tau):
    # Every cosine is one: the loss is the log of the number of terms, 2n - 1 with the positive.
    a = jnp.outer(jnp.arange(1.0, n + 1), jnp.array([1.0, -2.0, 0.5]))
    with_positive, without = (
        info_nce_views(a, 3 * a, temperature=tau, positive_in_denominator=p, axis=None)
        for p in (True, False)
    )
    np.testing.assert_allclose(with_positive, math.log(2 * n - 1), atol=1e-12)
    np.testing.assert_allclose(without, math.log(2 * n - 2), atol=1e-12)


def test_one_image_alone():
    # SimCLR's loss of a single pair is zero: the positive is the only candidate.
    a, b = jnp.array([[1.0, 2.0]]), jnp.array([[-1.0, 1.0]])
    loss = info_nce_views(a, b, temperature=0.5, positive_in_denominator=True, axis=None)
    np.testing.assert_allclose(loss, 0, atol=1e-14)
    with pytest.raises(ValueError, match="at least 2"):
        info_nce_views(a, b, temperature=0.5, positive_in_denominator=False, axis=None)


def test_two_modalities_are_the_same_function_both_ways(keys):
    # Kernel-InfoNCE Theorem 4.2: cross-entropy of the rows, then of the columns, of one matrix.
    a, b = reference.unit(draw(keys, 4, 3)), reference.unit(draw(keys, 4, 3))
    both = functools.partial(info_nce, temperature=0.2, positive_in_denominator=True)
    logits = a @ b.T / 0.2
    index = jnp.arange(4)
    for anchors, candidates, matrix in ((a, b, logits), (b, a, logits.T)):
        chance = np.exp(matrix) / np.exp(matrix).sum(1, keepdims=True)
        want = -np.log(np.diag(chance)).mean()
        np.testing.assert_allclose(both(anchors, candidates, index), want, rtol=1e-12)
    assert abs(both(a, b, index) - both(b, a, index)) > 1e-3


@pytest.mark.parametrize("positive_in_denominator", [True, False])
@pytest.mark.parametrize("case", ["duplicates", "zeros", "two", "opposite"])
def test_extremes_stay_finite_in_float32(keys, positive_in_denominator, case):
    a, b = (draw(keys, 4, 3).astype(jnp.float32) for _ in range(2))
    if case == "duplicates":
        a, b = a.at[1].set(a[0]), b.at[0].set(a[0])
    elif case == "zeros":
        a, b = a.at[2].set(0), b.at[2].set(0)
    elif case == "two":
        a, b = a[:2], b[:2]
    else:
        b = -a
    loss = functools.partial(
        info_nce_views,
        temperature=0.01,
        positive_in_denominator=positive_in_denominator,
        axis=None,
    )
    value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(a, b)
    assert value.dtype == jnp.float32
    for array in (value, *gradients):
        assert np.isfinite(array).all()


def test_bfloat16_is_computed_in_float32(keys):
    a, b = (draw(keys, 6, 8).astype(jnp.bfloat16) for _ in range(2))
    loss = functools.partial(
        info_nce_views, temperature=0.1, positive_in_denominator=True, axis=None
    )
    got = loss(a, b)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, loss(a.astype(jnp.float64), b.astype(jnp.float64)), rtol=1e-5)


@pytest.mark.parametrize("positive_in_denominator", [True, False])
def test_four_devices_give_the_value_and_gradient_of_one(keys, positive_in_denominator):
    params, x, y = draw(keys, 6, 3), draw(keys, 8, 6), draw(keys, 8, 6)

    def loss(w, x, y, axis):
        return info_nce_views(
            x @ w,
            jnp.tanh(y @ w),
            temperature=0.1,
            positive_in_denominator=positive_in_denominator,
            axis=axis,
        )

    value, gradient = jax.value_and_grad(functools.partial(loss, axis=None))(params, x, y)
    many = reference.on_devices(loss, params, (x, y), 4)
    np.testing.assert_allclose(many[0], value, rtol=1e-12)
    np.testing.assert_allclose(many[1], gradient, rtol=1e-10, atol=1e-12)
