"""CueCo's L2 and L3 against loops, closed forms, extremes, and on several devices."""

import functools

import jax
import numpy as np
import pytest

from cluster_jax.losses.cueco import centroid_contrast, variance_loss
from tests import reference
from tests.rows import every_row

pytestmark = pytest.mark.usefixtures("x64")

ASSIGNED = np.array([2, 0, 2, 4, 1], np.int32)  # cluster 3 is empty, 0, 1 and 4 have one member


def draw(keys, *shape):
    return np.asarray(jax.random.normal(next(keys), shape))


def variance_in_loops(z, c, variances, assigned):
    total = 0.0
    for i, k in enumerate(assigned):
        total += sum((z[i] - c[k]) ** 2) / (2 * variances[k] + 1e-6)
    return total / len(z)


@every_row("tau", [1.0, 0.2, 0.05])
def test_centroid_contrast_and_its_gradient(keys, tau):
    """The own centroid counts once; (4) as printed has it in both terms of the denominator."""
    # dL2/dz = (1/tau)(sum_l w_l c_l - c_own), over n rows.
    z, c = 3 * draw(keys, 5, 3), reference.unit(draw(keys, 5, 3))
    loss = functools.partial(centroid_contrast, temperature=tau)
    value, (of_z, of_c) = reference.value_and_grad(loss, argnums=(0, 1))(z, c, ASSIGNED)
    u = reference.unit(z)
    want = reference.info_nce(u, c, ASSIGNED, tau, True)
    np.testing.assert_allclose(value, want, rtol=1e-12)
    rows = zip(u, ASSIGNED, strict=True)
    free = [(reference.softmax_row(x, c, tau) @ c - c[k]) / tau / 5 for x, k in rows]
    np.testing.assert_allclose(of_z, reference.through_unit(z, free), atol=1e-8)
    np.testing.assert_array_equal(of_c, 0)


def test_variance_loss_and_its_gradient(keys):
    z, c = 3 * draw(keys, 5, 3), reference.unit(draw(keys, 5, 3))
    variances = np.array([0.3, 0.0, 1.4, 0.2, 0.7])
    value, (of_z, of_c, of_v) = reference.value_and_grad(variance_loss, argnums=(0, 1, 2))(
        z, c, variances, ASSIGNED
    )
    u = reference.unit(z)
    np.testing.assert_allclose(value, variance_in_loops(u, c, variances, ASSIGNED), rtol=1e-12)
    # dL3/dz = 2 (z - c) / (2 sigma^2 + epsilon), over n rows.
    scale = 2 * variances[ASSIGNED] + 1e-6
    free = 2 * (u - c[ASSIGNED]) / scale[:, None] / 5
    closed = reference.through_unit(z, free)
    np.testing.assert_allclose(of_z, closed, atol=1e-8, rtol=1e-12)
    np.testing.assert_array_equal(of_c, 0)
    np.testing.assert_array_equal(of_v, 0)
