"""NRCC's regularizer against loops, closed forms, the paper's own gradients, and on devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import logsumexp

from cluster_jax.losses.nrcc import nrcc, nrcc_views
from tests import reference
from tests.rows import every_row

pytestmark = pytest.mark.usefixtures("x64")

own_view = pytest.mark.parametrize("include_own_view", [True, False])


def draw(keys, *shape):
    return jax.random.normal(next(keys), shape)


def units(keys, count, *shape):
    return [reference.unit(draw(keys, *shape)) for _ in range(count)]


@own_view
def test_value_equals_loops(keys, include_own_view):
    a, y, c = (scale * draw(keys, 5, 3) for scale in (1.0, 2.0, 0.5))
    got = nrcc(a, y, c, temperature=0.3, include_own_view=include_own_view, axis=None)
    want = reference.nrcc(*map(reference.unit, (a, y, c)), 0.3, include_own_view)
    np.testing.assert_allclose(got, want, rtol=1e-12)


@own_view
def test_views_are_the_mean_of_both_directions(keys, include_own_view):
    a, b, pa, pb, c = (draw(keys, 5, 3) for _ in range(5))
    got = nrcc_views(a, b, pa, pb, c, temperature=0.3, include_own_view=include_own_view, axis=None)
    ua, ub, upa, upb, uc = map(reference.unit, (a, b, pa, pb, c))
    want = reference.nrcc(ua, upb, uc, 0.3, include_own_view)
    want += reference.nrcc(ub, upa, uc, 0.3, include_own_view)
    np.testing.assert_allclose(got, want / 2, rtol=1e-12)


@own_view
@every_row("tau", [1.0, 0.5, 0.1])
def test_gradient_is_the_closed_form(keys, include_own_view, tau):
    b, c, pa, pb = units(keys, 4, 6, 4)
    a = np.asarray(2 * draw(keys, 6, 4))

    def total(a):
        return nrcc_views(
            a, b, pa, pb, c, temperature=tau, include_own_view=include_own_view, axis=None
        )

    free = reference.nrcc_gradient(reference.unit(a), pb, c, tau, include_own_view)
    np.testing.assert_allclose(jax.grad(total)(a), reference.through_unit(a, free), atol=1e-8)


@pytest.mark.parametrize("tau", [1.0, 0.5, 0.1])
def test_printed_5_opposes_the_papers_own_gradient(keys, tau):
    a, b, c = units(keys, 3, 8, 4)
    stated = reference.through_unit(a, reference.nrcc_gradient_printed(a, b, c, tau))

    def printed(a):
        u = a / jnp.linalg.norm(a, axis=1, keepdims=True)
        up = logsumexp(u @ b.T / tau, 1) + logsumexp(b @ u.T / tau, 1)
        return jnp.mean(up - logsumexp(u @ c.T / tau, 1)) / 2

    def ours(a):
        return nrcc_views(a, b, a, b, c, temperature=tau, include_own_view=True, axis=None)

    def cosine(gradient):
        return np.sum(gradient * stated) / np.linalg.norm(gradient) / np.linalg.norm(stated)

    assert cosine(jax.grad(printed)(a)) < -0.9
    assert cosine(jax.grad(ours)(a)) > 0.9


def test_it_pulls_to_the_positive_and_carries_no_gradient_into_the_sampled_view(keys):
    # A view moved toward its own positive lowers the value; the printed sign would raise it.
    a, b, c = units(keys, 3, 6, 4)

    def value(a, c):
        return nrcc(a, b, c, temperature=0.1, include_own_view=False, axis=None)

    assert value(a + 0.1 * b, c) < value(a, c) < value(a - 0.1 * b, c)
    np.testing.assert_array_equal(jax.grad(value, argnums=1)(a, c), 0)


def test_the_same_rows_on_both_sides_cancel(keys):
    # With c = y and the own view included numerator and denominator are the same sum.
    a, y = units(keys, 2, 5, 3)
    value = functools.partial(nrcc, temperature=0.2, axis=None)
    np.testing.assert_allclose(value(a, y, y, include_own_view=True), 0, atol=1e-13)
    # Collinear rows: n terms against n, or n - 1 against n.
    ones = np.ones((5, 3))
    np.testing.assert_allclose(
        value(ones, ones, ones, include_own_view=False), np.log(4 / 5), atol=1e-12
    )


@own_view
@every_row("case", ["duplicates", "zeros", "two", "opposite"])
def test_extremes_stay_finite_in_float32(keys, include_own_view, case):
    a, b, c = (draw(keys, 4, 3).astype(jnp.float32) for _ in range(3))
    if case == "duplicates":
        a, b, c = a.at[1].set(a[0]), b.at[0].set(a[0]), c.at[3].set(a[0])
    elif case == "zeros":
        a, b, c = a.at[2].set(0), b.at[1].set(0), c.at[0].set(0)
    elif case == "two":
        a, b, c = a[:2], b[:2], c[:2]
    else:
        b, c = -a, -a

    def loss(a, b):
        return nrcc_views(
            a, b, a, b, c, temperature=0.01, include_own_view=include_own_view, axis=None
        )

    value, gradients = reference.value_and_grad(loss, argnums=(0, 1))(a, b)
    assert value.dtype == jnp.float32
    for array in (value, *gradients):
        assert np.isfinite(array).all()


def test_one_image_alone_needs_its_own_view():
    row = jnp.ones((1, 3))
    assert nrcc(row, row, row, temperature=1.0, include_own_view=True, axis=None) == 0
    with pytest.raises(ValueError, match=r"images of a batch .* must be at least 2; got 1"):
        nrcc(row, row, row, temperature=1.0, include_own_view=False, axis=None)
