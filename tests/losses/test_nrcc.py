"""NRCC's regularizer against the paper's own gradients; `test_reference.py` has its values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import logsumexp

from cluster_jax.losses.nrcc import nrcc, nrcc_views
from tests import reference

pytestmark = pytest.mark.usefixtures("x64")


def draw(keys, *shape):
    return jax.random.normal(next(keys), shape)


def units(keys, count, *shape):
    return [reference.unit(draw(keys, *shape)) for _ in range(count)]


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
