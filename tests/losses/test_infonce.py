"""InfoNCE against loops, closed forms, limits, and its own value on several devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax.losses.infonce import clip, info_nce, info_nce_queue, info_nce_views
from tests import reference
from tests.rows import every_row

pytestmark = pytest.mark.usefixtures("x64")


def draw(keys, *shape):
    return jax.random.normal(next(keys), shape)


def stacked(a, b, tau):
    """NRCC (1)-(3) of rows taken as free vectors: nothing is normalized on the way."""
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


@every_row("positive_in_denominator", [True, False])
@every_row("masked", [True, False])
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


@every_row("own", [True, False])
@every_row("tau", [1.0, 0.1])
def test_views_equal_loops_and_their_gradient_the_closed_form(keys, own, tau):
    a, b = np.asarray(3 * draw(keys, 6, 4)), np.asarray(draw(keys, 6, 4))
    loss = functools.partial(info_nce_views, temperature=tau, positive_in_denominator=own)
    value, gradients = reference.value_and_grad(loss, argnums=(0, 1))(a, b)
    units = reference.unit(a), reference.unit(b)
    np.testing.assert_allclose(value, reference.two_views(*units, tau, own), rtol=1e-13)
    for x, pair, got in zip((a, b), (units, units[::-1]), gradients, strict=True):
        free = reference.two_views_gradient(*pair, tau, positive_in_denominator=own)
        np.testing.assert_allclose(got, reference.through_unit(x, free), atol=1e-8)


def test_the_printed_gradient_7_is_not_the_gradient_of_the_loss(keys):
    a, b = reference.unit(draw(keys, 6, 4)), reference.unit(draw(keys, 6, 4))
    errors = []
    for tau in (1.0, 0.5, 0.1):
        printed = reference.two_views_gradient(a, b, tau, printed=True)
        errors.append(np.abs(jax.grad(stacked)(a, b, tau) - printed).max())
    assert errors[0] > 1e-3
    assert errors[1] > 4 * errors[0]
    assert errors[2] > 4 * errors[1]


@every_row("filled", [0, 1, 5, 8])
@every_row("tau", [1.0, 0.07])
def test_the_queue_equals_loops_and_its_gradient_the_closed_form(keys, filled, tau):
    """Behind the filled rows are some that would count if they were not masked."""
    x, key, queue = 2 * draw(keys, 4, 3), 3 * draw(keys, 4, 3), reference.unit(draw(keys, 8, 3))
    loss = functools.partial(info_nce_queue, temperature=tau)
    value, (of_x, *constants) = reference.value_and_grad(loss, argnums=(0, 1, 2))(
        x, key, queue, jnp.int32(filled)
    )
    known = reference.unit(x), reference.unit(key), queue, filled, tau
    np.testing.assert_allclose(value, reference.info_nce_queue(*known), rtol=1e-12, atol=1e-15)
    free = reference.info_nce_queue_gradient(*known)
    np.testing.assert_allclose(of_x, reference.through_unit(x, free), atol=1e-8)
    for gradient in constants:
        np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("tau", [1.0, 0.1])
def test_clip_equals_loops_of_both_directions_and_its_gradient_the_closed_form(keys, tau):
    """Two modalities: another network's vectors of another length, and no negative within one."""
    # dL/da_i = 1/(2 n tau) [-2 b_i + sum_j (p(i->j) + p(j->i)) b_j], and the same for b.
    a, b = np.asarray(2 * draw(keys, 5, 3)), np.sinh(np.asarray(draw(keys, 5, 3)))
    loss = functools.partial(clip, temperature=tau)
    value, gradients = reference.value_and_grad(loss, argnums=(0, 1))(a, b)
    ua, ub = reference.unit(a), reference.unit(b)
    want = reference.info_nce(ua, ub, range(5), tau, True)
    want += reference.info_nce(ub, ua, range(5), tau, True)
    np.testing.assert_allclose(value, want / 2, rtol=1e-12)
    for x, u, v, got in ((a, ua, ub, gradients[0]), (b, ub, ua, gradients[1])):
        there = np.stack([reference.softmax_row(row, v, tau) for row in u])
        back = np.stack([reference.softmax_row(row, u, tau) for row in v])
        free = ((there + back.T) @ v - 2 * v) / (10 * tau)
        np.testing.assert_allclose(got, reference.through_unit(x, free), atol=1e-8)
