"""Rows of length one, means of clusters and distances to them."""

import numpy as np
import pandas as pd
import pytest

from cluster_jax.core import arrays
from cluster_jax.core.checks import InputError
from tests.rows import every_row


@pytest.fixture
def rows():
    return np.random.default_rng(3).normal(size=(50, 7)).astype(np.float32)


def test_rows_have_length_one(rows):
    rows[4] = 0
    unit = arrays.normalize_rows(rows)
    assert unit.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(np.delete(unit, 4, 0), axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(unit[1] * np.linalg.norm(rows[1]), rows[1], rtol=1e-6)
    assert not unit[4].any()


@every_row(("dtype", "scale"), [("float32", 1e30), ("float32", 1e-30), ("float64", 1e-200)])
def test_squares_outside_the_range_of_the_dtype(rows, dtype, scale):
    rows = rows.astype(dtype)
    expected = arrays.normalize_rows(rows)
    rows[::2] *= np.asarray(scale, dtype)
    np.testing.assert_allclose(arrays.normalize_rows(rows), expected, rtol=1e-6)


def test_means_of_clusters(rows):
    labels = np.arange(50) % 3 * 2  # 0, 2, 4: nothing has the labels 1 and 3
    means = arrays.cluster_means(rows, labels)
    assert means.shape == (5, 7)
    for label in (0, 2, 4):
        expected = rows[labels == label].astype(np.float64).mean(axis=0)
        np.testing.assert_allclose(means[label], expected, rtol=1e-12)
    assert not means[[1, 3]].any()


def test_distances(rows, monkeypatch):
    """To the means of other rows, and block by block."""
    labels, member_labels = np.arange(20) % 2, np.arange(30) % 2
    x, members = rows[:20], rows[20:]
    means = arrays.cluster_means(members, member_labels)
    distances = arrays.distances_to_centers(x, means, labels)
    for i in range(20):
        mean = members[member_labels == labels[i]].astype(np.float64).mean(axis=0)
        assert distances[i] == pytest.approx(np.sqrt(((x[i] - mean) ** 2).sum()))
    monkeypatch.setattr(arrays, "_BLOCK", 7 * 3)
    blocks = arrays.distances_to_centers(x, means, labels)
    assert (blocks == distances).all()


def test_vectors_in_the_cells_of_a_table_are_told_by_the_column(rows):
    frame = pd.DataFrame({"place": np.arange(50), "emb": list(rows)})
    for table in (frame, frame["emb"], frame[["emb"]]):
        with pytest.raises(InputError, match=r"vectors in the column emb: pass np.stack\(X\['emb'"):
            arrays.numeric(table, "X")
