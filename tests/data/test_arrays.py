"""Array files: every accepted form, and one sentence for every other."""

import dataclasses

import numpy as np
import pytest

from cluster_jax.data import datasets
from tests import toy
from tests.rows import every_row


def load(path, **changes):
    return datasets.load(dataclasses.replace(toy.DATA, dir=str(path), **changes))


@pytest.fixture
def color(rng):
    return rng.integers(0, 256, (9, 5, 6, 3), dtype=np.uint8)


def test_uint8_as_it_is(tmp_path, color):
    np.save(tmp_path / "x.npy", color)
    dataset = load(tmp_path / "x.npy")
    np.testing.assert_array_equal(dataset.images, color)
    assert (dataset.size, dataset.shape, dataset.labels) == (9, (5, 6, 3), None)
    assert dataset.sources is None


def test_floats_are_scaled_and_rounded_and_gray_gets_a_channel(tmp_path, color):
    for dtype in (np.float16, np.float32, np.float64):
        np.save(tmp_path / "x.npy", (color / 255).astype(dtype))
        np.testing.assert_array_equal(load(tmp_path / "x.npy").images, color)
    np.save(tmp_path / "x.npy", np.array([[[0.0, 0.9, 100.6, 255.0]]]) / 255)
    assert load(tmp_path / "x.npy").images.ravel().tolist() == [0, 1, 101, 255]
    np.save(tmp_path / "x.npy", color[..., 0])
    np.testing.assert_array_equal(load(tmp_path / "x.npy").images, color[..., :1])


@every_row(("x", "y"), [("images", "labels"), ("x", "y"), ("anything", "y")])
def test_archive_keys(tmp_path, color, x, y):
    labels = np.arange(9) * 3 % 5
    np.savez(tmp_path / "x.npz", **{x: color, y: labels})
    dataset = load(tmp_path / "x.npz")
    np.testing.assert_array_equal(dataset.images, color)
    np.testing.assert_array_equal(dataset.labels, labels)
    assert dataset.labels.dtype == np.int32


def test_labels_are_numbered_from_zero(tmp_path, color):
    given = np.resize([7, 2**40, 3], len(color))
    np.savez(tmp_path / "x.npz", images=color, labels=given)
    dataset = load(tmp_path / "x.npz")
    assert dataset.label_names == ("3", "7", str(2**40))
    np.testing.assert_array_equal(dataset.labels, np.resize([1, 2, 0], len(color)))


@every_row("classes", [(1, 3), (3,), (2, 1)])
def test_classes_are_the_labels_of_the_file(tmp_path, color, classes):
    """Not their numbers in ascending order, which depend on the other labels."""
    labels = np.resize([1, 2, 3], len(color))
    np.savez(tmp_path / "x.npz", images=color, labels=labels)
    dataset = load(tmp_path / "x.npz", classes=classes)
    assert set(np.array(classes)[dataset.labels]) == set(classes)
    np.testing.assert_array_equal(dataset.images, color[np.isin(labels, classes)])


def test_negative_labels(tmp_path, color):
    np.savez(tmp_path / "x.npz", images=color, labels=np.full(len(color), -1))
    assert load(tmp_path / "x.npz").labels is None
    np.savez(tmp_path / "x.npz", images=color, labels=np.arange(len(color)) - 1)
    with pytest.raises(ValueError, match=r"labels must be at least 0 .*; got 1 of .* below 0$"):
        load(tmp_path / "x.npz")


GOOD = np.full((4, 5, 6, 3), 0.5)


@every_row(
    ("array", "message"),
    [
        (
            np.where(np.arange(3) == 1, np.nan, GOOD),
            "got float64 from nan to nan",
        ),
        (GOOD * 255, r"floats in \[0, 1\]; got float64 from 127\.5 to 127\.5"),
        (GOOD[0, 0], r"shape \[N x H x W\], or .* with C = 1 or 3; got \[6 x 3\]"),
        (GOOD[..., :2], r"C = 1 or 3; got \[4 x 5 x 6 x 2\]"),
        (GOOD[:0], r"C = 1 or 3; got \[0 x 5 x 6 x 3\]"),
        (GOOD[0], r"got \[5 x 6 x 3\] \(X\[None\] is an array of one image"),
        (np.ones((4, 5, 6), np.int64), r"must be uint8 or floats in \[0, 1\]; got int64"),
    ],
)
def test_bad_images(tmp_path, array, message):
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(ValueError, match=message) as caught:
        load(tmp_path / "x.npy")
    assert "\n" not in str(caught.value)


@every_row("labels", [np.zeros(3, int), np.zeros(4), np.zeros((4, 1), int)])
def test_bad_labels(tmp_path, labels):
    np.savez(tmp_path / "x.npz", images=GOOD, labels=labels)
    with pytest.raises(ValueError, match=r"labels in .*must be integers of shape \(4,\)"):
        load(tmp_path / "x.npz")


def test_bad_files(tmp_path):
    """Others are those of every table, see test_tables."""
    with pytest.raises(ValueError, match=r"must be a file of type \.npy, \.npz; got \.png"):
        load(tmp_path / "x.png")
    np.savez(tmp_path / "two.npz", a=GOOD, b=GOOD)
    with pytest.raises(ValueError, match="must hold an array 'images' or 'x'; got a, b"):
        load(tmp_path / "two.npz")
