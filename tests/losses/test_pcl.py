"""PCL's contrast with prototypes and its concentrations against loops, and on several devices."""

import jax
import numpy as np
import pytest

from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.losses.pcl import concentrations, prototype_contrast
from tests import reference

pytestmark = pytest.mark.usefixtures("x64")

ASSIGNED = np.array([2, 0, 2, 4, 1], np.int32)  # cluster 3 is empty
PHI = np.array([0.2, 0.5, 0.1, 1.3, 0.7])


def draw(keys, *shape):
    return np.asarray(jax.random.normal(next(keys), shape))


def in_loops(z, c, assigned, phi):
    total = 0.0
    for x, own in zip(z, assigned, strict=True):
        logits = [np.dot(x, y) / scale for y, scale in zip(c, phi, strict=True)]
        total += reference.log_sum_exp(logits) - logits[own]
    return total / len(z)


def test_value_and_gradient_are_the_closed_form(keys):
    # dL/dz = sum_k p_k c_k / phi_k - c_s / phi_s, over n rows.
    z, c = 3 * draw(keys, 5, 3), reference.unit(draw(keys, 5, 3))
    value, (of_z, of_c, of_phi) = reference.value_and_grad(prototype_contrast, argnums=(0, 1, 3))(
        z, c, ASSIGNED, PHI
    )
    u = reference.unit(z)
    np.testing.assert_allclose(value, in_loops(u, c, ASSIGNED, PHI), rtol=1e-12)
    scaled, free = c / PHI[:, None], np.zeros_like(z)
    for i, k in enumerate(ASSIGNED):
        free[i] = (reference.softmax_row(u[i], scaled, 1.0) @ scaled - scaled[k]) / 5
    np.testing.assert_allclose(of_z, reference.through_unit(z, free), atol=1e-12)
    np.testing.assert_array_equal(of_c, 0)
    np.testing.assert_array_equal(of_phi, 0)


def test_concentrations_equal_loops(keys):
    """Of 12 clusters one is empty, one has a single row, one has equal rows."""
    rows, assigned = 5 * draw(keys, 60, 3), np.arange(60) % 10
    rows[assigned == 9], assigned[0] = rows[9], 11
    c, found = reference.unit(draw(keys, 12, 3)), {}
    c[9] = reference.unit(rows)[9]
    for k in range(10):
        distances = [np.sqrt(sum((x - c[k]) ** 2)) for x in reference.unit(rows)[assigned == k]]
        if sum(distances) > 0:
            found[k] = np.mean(distances) / np.log(len(distances) + 10)
    assert len(found) == 9
    phi = sorted(found.get(k, max(found.values())) for k in range(12))
    # Percentiles 10 and 90 of 12 values are at the places 1.1 and 9.9 of the sorted ones.
    low, high = 0.9 * phi[1] + 0.1 * phi[2], 0.1 * phi[9] + 0.9 * phi[10]
    clipped = [min(max(found.get(k, high), low), high) for k in range(12)]
    want = np.array(clipped) * 0.3 / np.mean(clipped)
    np.testing.assert_allclose(concentrations(rows, c, assigned, mean=0.3), want, rtol=1e-12)
    assert len(set(want.round(9))) > 6


def test_concentrations_of_copies_are_those_of_singletons_whatever_is_rounded():
    """The prototype of equal rows differs from them by rounding."""
    x = np.random.default_rng(0).normal(size=(300, 64)).astype(np.float32)
    rows = np.concatenate([x, x[:60]])
    found = kmeans(rows, 100, metric="spherical", n_init=1)
    phi = concentrations(rows, found.centers, found.labels)
    assert 0.1 < phi.min() < phi.max() < 0.3
