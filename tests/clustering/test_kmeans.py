"""k-means: a case by hand, restarts, dtypes and bad input."""

import numpy as np
import pytest

from cluster_jax.clustering.kmeans import kmeans


def test_four_points_by_hand():
    points = np.array([[0.0, 0], [0, 2], [10, 0], [10, 4]])
    result = kmeans(points, 2, restarts=5, seed=0)
    left = result.labels[0]
    np.testing.assert_array_equal(result.labels == left, [True, True, False, False])
    np.testing.assert_allclose(result.centers[left], [0, 1])
    np.testing.assert_allclose(result.centers[1 - left], [10, 2])
    assert result.inertia == pytest.approx(2 * 1 + 2 * 4)
    assert result.labels.dtype == np.int32


def test_inertia_belongs_to_labels_and_centers_and_restarts_lower_it():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(600, 2)) * 0.1 + rng.integers(0, 6, (600, 2)) * 3
    runs = [kmeans(points, 30, restarts=r, seed=4) for r in (1, 20)]
    for run in runs:
        apart = ((points[:, None] - run.centers[None]) ** 2).sum(2)
        np.testing.assert_array_equal(apart.argmin(1), run.labels)
        assert run.inertia == pytest.approx(apart.min(1).sum())
    assert runs[1].inertia < runs[0].inertia


def test_seed_decides():
    points = np.random.default_rng(1).normal(size=(300, 5))
    a, b, c = (kmeans(points, 7, restarts=1, seed=s) for s in (3, 3, 4))
    np.testing.assert_array_equal(a.labels, b.labels)
    assert (a.labels != c.labels).any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype_passes_through(dtype):
    points = np.random.default_rng(1).normal(size=(30, 5)).astype(dtype)
    assert kmeans(points, 3, restarts=1, seed=0).centers.dtype == dtype


def test_fewer_distinct_rows_than_clusters():
    result = kmeans(np.repeat([[0.0], [1.0]], 3, axis=0), 4, restarts=2, seed=0)
    assert result.inertia == 0
    assert len(set(result.labels)) == 2


@pytest.mark.parametrize(
    ("points", "k", "restarts", "message"),
    [
        (np.zeros((3, 2)), 0, 1, "1 to 3"),
        (np.zeros((3, 2)), 4, 1, "1 to 3"),
        (np.zeros((3, 2)), 2, 0, "restarts"),
        (np.zeros(3), 1, 1, "2-D"),
        (np.zeros((0, 2)), 1, 1, "non-empty"),
        (np.array([[np.nan]]), 1, 1, "NaN"),
    ],
)
def test_bad_input(points, k, restarts, message):
    with pytest.raises(ValueError, match=message):
        kmeans(points, k, restarts=restarts, seed=0)
