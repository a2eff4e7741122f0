"""CC's contrast of clusters and its entropy against loops, closed forms, and on several devices."""

import functools
import math

import jax
import numpy as np
import pytest

from cluster_jax.losses.cc import cluster_contrast, entropy_deficit
from tests import reference

pytestmark = pytest.mark.usefixtures("x64")


def draw(keys, *shape):
    return np.asarray(jax.random.normal(next(keys), shape))


def shares(keys, *shape):
    return np.asarray(jax.nn.softmax(draw(keys, *shape)))


@pytest.mark.parametrize("tau", [1.0, 0.3])
def test_cluster_contrast_and_its_gradient(keys, tau):
    """The closed form of NT-Xent, of unit columns, through their normalization."""
    a, b = shares(keys, 6, 4), shares(keys, 6, 4)
    loss = functools.partial(cluster_contrast, temperature=tau)
    value, gradients = reference.value_and_grad(loss, argnums=(0, 1))(a, b)
    x, y = reference.unit(a.T), reference.unit(b.T)
    np.testing.assert_allclose(value, reference.two_views(x, y, tau, True), rtol=1e-12)
    for gradient, p, own, other in zip(gradients, (a, b), (x, y), (y, x), strict=True):
        free = reference.two_views_gradient(own, other, tau, positive_in_denominator=True)
        np.testing.assert_allclose(gradient, reference.through_unit(p.T, free).T, atol=1e-12)


def test_entropy_deficit_and_its_gradient(keys):
    p = shares(keys, 6, 4)
    value, gradient = reference.value_and_grad(entropy_deficit)(p)
    mean = [sum(p[:, k]) / 6 for k in range(4)]
    np.testing.assert_allclose(value, math.log(4) + sum(m * math.log(m) for m in mean), rtol=1e-12)
    # d/dp_ik = (1 + log mean_k) / n.
    np.testing.assert_allclose(gradient, np.tile((1 + np.log(mean)) / 6, (6, 1)), rtol=1e-12)
