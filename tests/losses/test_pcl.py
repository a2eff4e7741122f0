"""PCL's concentrations against loops; `test_reference.py` has its contrast with prototypes."""

import jax
import numpy as np
import pytest

from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.losses.pcl import concentrations
from tests import reference

pytestmark = pytest.mark.usefixtures("x64")


def draw(keys, *shape):
    return np.asarray(jax.random.normal(next(keys), shape))


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
