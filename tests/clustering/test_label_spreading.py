"""Label spreading over nearest rows."""

import numpy as np

from cluster_jax.clustering.label_spreading import label_spreading
from tests.rows import every_row


def edges(rows, count):
    """How often one of two rows is among the nearest of the other, float `[n, n]`."""
    distances = np.linalg.norm(rows[:, None] - rows[None], axis=-1)
    np.fill_diagonal(distances, np.inf)
    near = np.argsort(distances, axis=1)[:, :count]
    return sum(np.eye(len(rows))[column] for column in near.T)


def fixed_point(values, adjacency):
    """F = 0.9 S F + 0.1 values, solved."""
    symmetric = adjacency + adjacency.T
    degree = symmetric.sum(axis=1)
    normalized = symmetric / np.sqrt(degree[:, None] * degree[None])
    return np.linalg.solve(np.eye(len(values)) - 0.9 * normalized, 0.1 * values)


def test_values_of_the_fixed_point():
    rng = np.random.default_rng(0)
    rows, values = rng.normal(size=(60, 3)), rng.normal(size=(60, 4)).astype(np.float32)
    expected = fixed_point(values, edges(rows, 10))
    result = label_spreading(values, rows, None)
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, expected, atol=2e-4)


def test_other_neighbors_count_up_to_ten_and_where_there_are_some():
    rng = np.random.default_rng(1)
    rows, values = rng.normal(size=(60, 3)), rng.normal(size=(60, 4))
    others = np.stack([rng.permutation(np.delete(np.arange(60), i))[:12] for i in range(60)])
    others[::3, 2:] = -1
    others[1] = -1
    adjacency = edges(rows, 10)
    for row, columns in enumerate(others[:, :10]):
        for column in columns[columns >= 0]:
            adjacency[row, column] += 1
    result = label_spreading(values, rows, others)
    np.testing.assert_allclose(result, fixed_point(values, adjacency), atol=2e-4)


@every_row(("classes", "rows"), [(2, 2), (2, 4), (5, 2), (5, 4), (3, 1)])
def test_neighbors_are_of_one_class_where_classes_are_small(classes, rows):
    group = np.repeat(np.arange(classes), rows)
    x = np.eye(classes)[group] + np.random.default_rng(0).normal(size=(len(group), classes)) / 50
    result = label_spreading(x, x, None)
    np.testing.assert_array_equal(result.argmax(axis=1), group)
    assert np.sort(result, axis=1)[:, -2].max() < 0.1


def test_rows_without_room_for_neighbors_keep_their_values():
    values = np.array([[1.0, 0.0], [0.0, 1.0], [0.4, 0.6]])
    result = label_spreading(values, values, None)
    np.testing.assert_array_equal(result, values)
