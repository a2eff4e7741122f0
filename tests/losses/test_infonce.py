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


@pytest.mark.parametrize("positive_in_denominator", [True, False])
def test_views_equal_loops(keys, positive_in_denominator):
    a, b = draw(keys, 5, 3), 2 * draw(keys, 5, 3)
    got = info_nce_views(
        a, b, temperature=0.4, positive_in_denominator=positive_in_denominator, axis=None
    )
    want = reference.two_views(reference.unit(a), reference.unit(b), 0.4, positive_in_denominator)
    np.testing.assert_allclose(got, want, rtol=1e-13)


@every_row("tau", [1.0, 0.5, 0.1])
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


@every_row("tau", [1.0, 0.5, 0.1])
def test_gradient_with_the_positive_in_the_denominator_is_the_closed_form(keys, tau):
    a, b = np.asarray(3 * draw(keys, 6, 4)), np.asarray(draw(keys, 6, 4))
    loss = functools.partial(
        info_nce_views, temperature=tau, positive_in_denominator=True, axis=None
    )
    units = reference.unit(a), reference.unit(b)
    for x, pair, got in zip(
        (a, b), (units, units[::-1]), jax.grad(loss, (0, 1))(a, b), strict=True
    ):
        free = reference.two_views_gradient(*pair, tau, positive_in_denominator=True)
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


def queue_of(keys, length, *shape):
    """Unit rows; behind the filled ones, rows that would count if they were not masked."""
    return jnp.asarray(reference.unit(draw(keys, length, *shape)))


@every_row("filled", [0, 1, 5, 8])
def test_queue_equals_loops(keys, filled):
    x, key, queue = 2 * draw(keys, 4, 3), 3 * draw(keys, 4, 3), queue_of(keys, 8, 3)
    got = info_nce_queue(x, key, queue, jnp.int32(filled), temperature=0.2)
    want = reference.info_nce_queue(reference.unit(x), reference.unit(key), queue, filled, 0.2)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-15)


@every_row("tau", [1.0, 0.2, 0.07])
def test_queue_gradient_is_the_closed_form_and_reaches_the_anchors_alone(keys, tau):
    x, key, queue = 2 * draw(keys, 4, 3), draw(keys, 4, 3), queue_of(keys, 8, 3)
    loss = functools.partial(info_nce_queue, temperature=tau)
    of_x, *constants = jax.grad(loss, argnums=(0, 1, 2))(x, key, queue, jnp.int32(5))
    free = reference.info_nce_queue_gradient(
        reference.unit(x), reference.unit(key), np.asarray(queue), 5, tau
    )
    np.testing.assert_allclose(of_x, reference.through_unit(x, free), atol=1e-8)
    for gradient in constants:
        np.testing.assert_array_equal(gradient, 0)


def test_clip_equals_loops_of_both_directions(keys):
    """Two modalities: another network's vectors of another length, and no negative within one."""
    a, b = 2 * draw(keys, 5, 3), jnp.sinh(draw(keys, 5, 3))
    ua, ub = reference.unit(a), reference.unit(b)
    want = reference.info_nce(ua, ub, range(5), 0.2, True)
    want += reference.info_nce(ub, ua, range(5), 0.2, True)
    np.testing.assert_allclose(clip(a, b, temperature=0.2, axis=None), want / 2, rtol=1e-12)


@pytest.mark.parametrize("tau", [1.0, 0.1])
def test_clip_gradient_is_the_closed_form(keys, tau):
    # dL/da_i = 1/(2 n tau) [-2 b_i + sum_j (p(i->j) + p(j->i)) b_j], and the same for b.
    a, b = np.asarray(2 * draw(keys, 5, 3)), np.asarray(draw(keys, 5, 3))
    gradients = jax.grad(functools.partial(clip, temperature=tau, axis=None), (0, 1))(a, b)
    for x, y, got in ((a, b, gradients[0]), (b, a, gradients[1])):
        u, v = reference.unit(x), reference.unit(y)
        there = np.stack([reference.softmax_row(row, v, tau) for row in u])
        back = np.stack([reference.softmax_row(row, u, tau) for row in v])
        free = ((there + back.T) @ v - 2 * v) / (10 * tau)
        np.testing.assert_allclose(got, reference.through_unit(x, free), atol=1e-8)
