"""Features as data: every accepted form, unit rows, neighbors, and one sentence otherwise."""

import dataclasses

import numpy as np
import pytest

from cluster_jax.core.checks import InputError
from cluster_jax.data import datasets, features
from tests import toy
from tests.rows import every_row


def load(path, **changes):
    return datasets.load(dataclasses.replace(toy.DATA, name="features", dir=str(path), **changes))


@pytest.fixture
def rows(rng):
    return rng.normal(size=(12, 5)).astype(np.float32)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_vectors_are_one_view_of_length_one(tmp_path, rows):
    np.save(tmp_path / "x.npy", rows)
    dataset = load(tmp_path / "x.npy")
    assert (dataset.name, dataset.size, dataset.shape) == ("features", 12, (1, 5))
    assert not dataset.has_images
    assert dataset.images.dtype == np.float32
    np.testing.assert_allclose(dataset.images[:, 0], unit(rows), rtol=1e-6)


def test_rows_of_any_size_and_of_zeros(tmp_path):
    np.save(tmp_path / "x.npy", np.array([[3e200, 4e200], [0, 0], [3e-200, 4e-200]]))
    expected = [[0.6, 0.8], [0, 0], [0.6, 0.8]]
    np.testing.assert_allclose(load(tmp_path / "x.npy").images[:, 0], expected, rtol=1e-6)


@every_row(("x", "y"), [("features", "labels"), ("x", "y"), ("anything", "y")])
def test_archive_with_labels_names_and_files(tmp_path, rows, x, y):
    labels, files = np.arange(12) % 3, [f"{i}.jpg" for i in range(12)]
    arrays = {x: rows, y: labels}
    if x == "features":
        arrays |= {"files": files, "label_names": ["a", "b", "c"]}
    np.savez(tmp_path / "x.npz", **arrays)
    dataset = load(tmp_path / "x.npz")
    np.testing.assert_array_equal(dataset.labels, labels)
    assert dataset.sources == (tuple(files) if x == "features" else None)
    assert dataset.label_names == (("a", "b", "c") if x == "features" else ("0", "1", "2"))


def test_large_sets_stay_on_the_host(tmp_path, rows):
    np.save(tmp_path / "x.npy", rows)
    assert load(tmp_path / "x.npy", cache_mb=240e-6).images is not None
    dataset = load(tmp_path / "x.npy", cache_mb=239e-6)
    assert dataset.images is None
    np.testing.assert_allclose(dataset.fetch(np.array([7, 2]))[:, 0], unit(rows[[7, 2]]), rtol=1e-6)


@every_row(
    ("values", "message"),
    [
        (np.zeros(4), r"shape \[N x d\]|rows by columns; got float64 of shape \(4,\)"),
        (np.zeros((4, 0)), r"shape \[N x d\]|rows by columns"),
        (np.array([["a"]]), "must hold real numbers.*; got <U1"),
        (np.ones((2, 2), complex), "must hold real numbers.*; got complex128"),
        (np.array([[1.0, np.nan]]), "must be finite; got NaN or infinity"),
    ],
)
def test_one_sentence_for_other_arrays(tmp_path, values, message):
    np.save(tmp_path / "x.npy", values)
    with pytest.raises(InputError, match=message):
        load(tmp_path / "x.npy")
    with pytest.raises(InputError, match=message):
        features.load(toy.DATA, values)
    with pytest.raises(InputError, match="X must have no masked entries"):
        features.load(toy.DATA, np.ma.masked_array(np.eye(2), np.eye(2)))


def test_neighbors_are_the_most_similar_other_rows():
    angles = np.array([0.0, 0.1, 0.3, 2.0, 2.1, 2.15])
    x = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    dataset = features.with_neighbors(features.load(toy.DATA, x), 2)
    assert (dataset.shape, dataset.neighbors, dataset.images) == ((3, 2), 2, None)
    assert dataset.nearest[[0, 4, 3]].tolist() == [[1, 2], [5, 3], [4, 5]]
    got = dataset.fetch(np.array([0, 4, 3]))
    expected = x[dataset.nearest[[0, 4, 3]]]
    np.testing.assert_allclose(got[:, 1:], expected, atol=1e-6)
    np.testing.assert_allclose(got[:, 0], x[[0, 4, 3]], atol=1e-6)
    assert features.with_neighbors(dataset, 2) is dataset


def test_labeled_rows_have_labeled_neighbors_and_others_others():
    angles = np.array([0.0, 0.1, 0.3, 0.35, 0.5, 0.51])
    x = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    known = np.array([-1, 0, -1, 1, -1, 0], np.int32)
    dataset = features.load(toy.DATA, x)._replace(partial_labels=known)
    nearest = features.with_neighbors(dataset, 2).nearest
    assert nearest.tolist() == [[2, 4], [3, 5], [4, 0], [5, 1], [2, 0], [3, 1]]
    with pytest.raises(InputError, match="must be at most 1 for 2 labeled rows; got 2"):
        features.with_neighbors(dataset._replace(partial_labels=known - (known == 1) * 2), 2)
    with pytest.raises(InputError, match="must be at most 0 for 1 unlabeled rows; got 1"):
        features.with_neighbors(
            dataset._replace(partial_labels=np.arange(6, dtype=np.int32) - 1), 1
        )


def test_a_copy_may_be_a_neighbor_but_not_the_row_itself():
    x = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    dataset = features.with_neighbors(features.load(toy.DATA, x), 1)
    np.testing.assert_allclose(dataset.fetch(np.array([0, 1]))[:, 1], x[:2], atol=1e-7)


def test_fewer_rows_than_neighbors():
    dataset = features.load(toy.DATA, np.eye(3))
    with pytest.raises(InputError, match="must be at most 2 for 3 rows of the data; got 3"):
        features.with_neighbors(dataset, 3)


def test_new_features_have_the_columns_of_the_training(tmp_path, rows):
    np.save(tmp_path / "x.npy", rows)
    for source in (tmp_path / "x.npy", rows):
        dataset = datasets.load_new(source, toy.DATA, (11, 5))
        assert dataset.shape[1] == 5
    with pytest.raises(ValueError, match="features must have 6 columns like those of the training"):
        datasets.load_new(rows, toy.DATA, (1, 6))


@every_row(
    ("arrays", "message"),
    [
        ({"label_names": np.array("a")}, "must name each of the labels 0 to 11; got 1 name"),
        ({"label_names": ["a"]}, "must name each of the labels 0 to 11; got 1 name"),
    ],
)
def test_one_sentence_for_other_names(tmp_path, rows, arrays, message):
    np.savez(tmp_path / "x.npz", features=rows, labels=np.arange(12), **arrays)
    with pytest.raises(InputError, match=message):
        load(tmp_path / "x.npz")


def test_a_folder_must_be_given():
    with pytest.raises(InputError, match=r"data\.dir must be a file of type .*; got none"):
        features.load(toy.DATA)
