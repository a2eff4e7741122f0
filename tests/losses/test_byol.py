"""BYOL's loss against loops and its closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax.losses.byol import byol, byol_views
from tests import reference
from tests.rows import every_row

pytestmark = pytest.mark.usefixtures("x64")


def draw(keys, *shape):
    return jax.random.normal(next(keys), shape)


def test_value_equals_loops(keys):
    q, t = draw(keys, 5, 3), 4 * draw(keys, 5, 3)
    np.testing.assert_allclose(byol(q, t), reference.byol(q, t), rtol=1e-13)


def test_views_cross_the_pairs(keys):
    qa, qb, ta, tb = (draw(keys, 5, 3) for _ in range(4))
    want = (reference.byol(qa, tb) + reference.byol(qb, ta)) / 2
    np.testing.assert_allclose(byol_views((qa, qb), (ta, tb)), want, rtol=1e-13)


def test_gradient_is_the_closed_form_and_stops_at_the_targets(keys):
    qa, qb, ta, tb = (2 * draw(keys, 5, 3) for _ in range(4))
    (ga, gb), targets = jax.grad(byol_views, argnums=(0, 1))((qa, qb), (ta, tb))
    # d/du of 1/(2n) sum (2 - 2 <u, t>) is -t / n.
    np.testing.assert_allclose(ga, reference.through_unit(qa, -reference.unit(tb) / 5), atol=1e-12)
    np.testing.assert_allclose(gb, reference.through_unit(qb, -reference.unit(ta) / 5), atol=1e-12)
    for target in targets:
        np.testing.assert_array_equal(target, 0)


@every_row(("factor", "want"), [(3.0, 0.0), (-0.5, 4.0), (0.0, 2.0)])
def test_aligned_opposite_and_zero_rows(keys, factor, want):
    t = draw(keys, 4, 3).astype(jnp.float32)
    value, gradient = reference.value_and_grad(byol)(factor * t, t)
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, want, atol=1e-6)
    np.testing.assert_allclose(gradient, 0, atol=1e-5)
