"""CueCo's online clusters against loops; empty and singleton clusters; constants; devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax.clustering import online
from tests import reference

pytestmark = pytest.mark.usefixtures("x64")

ASSIGNED = np.array([2, 0, 2, 4, 2, 0, 1], np.int32)  # 3 is empty, 1 and 4 have one member


def draw(rng, *shape):
    return rng.normal(size=shape)


def clusters(rng, count=5, size=3):
    variances = jnp.asarray(np.abs(draw(rng, count)))
    return online.Clusters(jnp.asarray(reference.unit(draw(rng, count, size))), variances)


def test_empty_clusters_keep_their_values(rng):
    before = clusters(rng)
    after = online.update(before, draw(rng, 7, 3), ASSIGNED, centroid_decay=0.5, variance_decay=0.5)
    np.testing.assert_array_equal(after.centroids[3], before.centroids[3])
    np.testing.assert_array_equal(after.variances[3], before.variances[3])
    assert (np.abs(after.variances - before.variances)[[0, 1, 2, 4]] > 1e-6).all()


@pytest.mark.parametrize("beta_1", [0.0, 0.9])
def test_a_cluster_with_one_member_keeps_a_variance(rng, beta_1):
    """About the batch's own mean it would be 0, and L3 divides by it."""
    before, key = clusters(rng, 2), draw(rng, 1, 3)
    after = online.update(
        before, key, np.zeros(1, np.int32), centroid_decay=beta_1, variance_decay=0.0
    )
    distance = sum((reference.unit(key)[0] - np.asarray(before.centroids[0])) ** 2)
    np.testing.assert_allclose(after.variances[0], distance, rtol=1e-12)
    assert distance > 0.1


def test_centroids_stay_unit_and_finite_in_float32(rng):
    state = clusters(rng, 3)
    state = online.Clusters(*(x.astype(jnp.float32) for x in state))
    batch = np.concatenate([-state.centroids[:1], np.zeros((2, 3)), state.centroids[2:]])
    after = online.update(
        state, batch.astype(np.float32), np.array([0, 1, 1, 2], np.int32), centroid_decay=0.5,
        variance_decay=0.5,
    )  # fmt: skip
    assert after.centroids.dtype == after.variances.dtype == jnp.float32
    np.testing.assert_allclose(jnp.linalg.norm(after.centroids, axis=1), 1, rtol=1e-6)
    assert np.isfinite(after.variances).all()


def test_a_cluster_without_rows_starts_with_the_variance_of_all(rng):
    x = np.abs(draw(rng, 10, 3))
    c = np.array([[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]])
    state = online.start(x, c)
    assert set(np.asarray(online.assign(x, state.centroids))) == {0}
    np.testing.assert_allclose(state.variances[1], state.variances[0], rtol=1e-12)
    assert state.variances[1] > 0


def test_constants_for_the_gradient(rng):
    state, c = clusters(rng), draw(rng, 5, 3)

    def total(x):
        moved = online.update(state, x, ASSIGNED, centroid_decay=0.5, variance_decay=0.5)
        started = online.start(x, c)
        leaves = jax.tree.leaves((moved, started.variances))
        return sum(jnp.sum(leaf) for leaf in leaves)

    np.testing.assert_array_equal(jax.grad(total)(draw(rng, 7, 3)), 0)


def test_a_start_with_a_cluster_of_one_row_has_a_variance(rng):
    """Its own is 0, by which the loss of the next row near it would be divided."""
    group = reference.unit(draw(rng, 1, 6))
    rows = reference.unit(group + 0.1 * draw(rng, 20, 6))
    rows = np.concatenate([rows, -rows[:1]])
    started = online.start(rows, np.stack([group[0], -rows[0]]))
    assert started.variances[1] > 1e-3
