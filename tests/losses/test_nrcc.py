"""NRCC's regularizer against loops, closed forms, the paper's own gradients, and on devices."""

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
