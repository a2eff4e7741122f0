"""NCC's prototypes and positive sampling; `test_reference.py` has the values of ProtoCL."""

import jax
import numpy as np
import pytest

from cluster_jax.losses.ncc import positive_samples, prototypes
from tests import reference

pytestmark = pytest.mark.usefixtures("x64")

# Ten images of 7 clusters: 2 and 5 are empty, 6 has one member.
LABELS = np.array([4, 0, 4, 1, 3, 6, 1, 4, 0, 3], np.int32)


def draw(keys, *shape):
    return np.asarray(jax.random.normal(next(keys), shape))


def test_prototypes_equal_loops(keys):
    x = 3 * draw(keys, 10, 4)
    centers, filled = prototypes(x, LABELS, n_clusters=7, axis=None)
    want = reference.prototypes(x, LABELS, 7)
    assert sorted(want) == list(np.flatnonzero(filled)) == [0, 1, 3, 4, 6]
    for k in range(7):
        np.testing.assert_allclose(centers[k], want.get(k, np.zeros(4)), rtol=1e-12)


def test_more_clusters_than_images(keys):
    """The slots are the clusters of the batch: memory does not grow with their number."""
    x = draw(keys, 10, 4)
    far = LABELS * 3001
    centers, filled = prototypes(x, far, n_clusters=25_000, axis=None)
    assert centers.shape == (10, 4)
    np.testing.assert_array_equal(filled, np.arange(10) < 5)
    want = reference.prototypes(x, LABELS, 7)
    np.testing.assert_allclose(centers[:5], [want[k] for k in sorted(want)], rtol=1e-12)


def test_positive_samples_are_normal_around_their_row(keys):
    z = draw(keys, 3, 5)
    sampled = np.stack(
        [
            positive_samples(jax.random.split(key, 3), z, scale=0.3)
            for key in jax.random.split(next(keys), 400)
        ]
    )
    noise = (sampled - z).reshape(-1)
    # Of 6000 draws: standard error 0.3 / sqrt(6000) of the mean, 0.3 / sqrt(12000) of the std.
    assert abs(noise.mean()) < 4 * 0.3 / np.sqrt(6000)
    assert abs(noise.std() - 0.3) < 4 * 0.3 / np.sqrt(12000)
    np.testing.assert_array_equal(positive_samples(jax.random.split(next(keys), 3), z, scale=0), z)


def test_a_sample_depends_on_its_own_key_and_row_alone(keys):
    row_keys, z = jax.random.split(next(keys), 4), draw(keys, 4, 5)
    whole = positive_samples(row_keys, z, scale=0.1)
    some = np.array([3, 1])
    np.testing.assert_array_equal(positive_samples(row_keys[some], z[some], scale=0.1), whole[some])
    noise = whole - z
    assert np.abs(noise[:, None] - noise[None] + np.eye(4)[..., None]).max(-1).min() > 1e-3
