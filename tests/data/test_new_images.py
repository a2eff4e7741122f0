"""New images come in the size and channels of the training images, or with one sentence."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from cluster_jax.data import datasets, images
from tests import toy
from tests.rows import every_row


def _load(source, shape=(8, 8, 3), cache_mb=10.0):
    config = dataclasses.replace(toy.DATA, cache_mb=cache_mb)
    return datasets.load_new(source, config, shape)


@pytest.fixture(scope="module")
def color():
    return toy.images(6, seed=3, channels=3)[0]


@pytest.fixture(scope="module")
def grayscale():
    return toy.images(6, seed=4)[0]


@pytest.mark.parametrize("cache_mb", [10.0, 0.0])
def test_files_get_the_channels_of_the_training_images(tmp_path, color, grayscale, cache_mb):
    toy.save(tmp_path / "c", color)
    toy.save(tmp_path / "g", grayscale)
    everything = np.arange(6)
    found = _load(tmp_path / "c", cache_mb=cache_mb)
    assert (found.fetch(everything) == color).all()
    found = _load(tmp_path / "g", cache_mb=cache_mb)
    assert (found.fetch(everything) == grayscale.repeat(3, axis=3)).all()
    found = _load(tmp_path / "g", (8, 8, 1), cache_mb)
    assert (found.fetch(everything) == grayscale).all()
    assert (found.images is None) == (cache_mb == 0)
    found = _load(tmp_path / "c", (8, 8, 1), cache_mb)
    luma = color @ np.array([0.299, 0.587, 0.114])
    assert np.abs(found.fetch(everything)[..., 0] - luma).max() <= 0.51
    assert found.sources == tuple(f"{i:02}.png" for i in range(6))


def test_an_array_of_another_size_is_resized(tmp_path):
    for height, width in ((4, 4), (30, 40)):
        np.save(tmp_path / "x.npy", np.zeros((2, height, width, 3), np.uint8))
        for source in (np.zeros((2, height, width, 3), np.uint8), tmp_path / "x.npy"):
            assert _load(source).shape == (8, 8, 3)


def test_class_folders_and_labels_are_ignored(tmp_path, color):
    for name in ("a", "b"):
        toy.save(tmp_path / name, color[:2])
    assert _load(tmp_path).labels is None
    np.savez(tmp_path / "x.npz", images=color, labels=np.arange(6))
    found = _load(tmp_path / "x.npz")
    assert found.labels is found.label_names is None
    assert (found.images == color).all()


def test_other_training_images_ask_for_their_own_size():
    assert _load(np.zeros((2, 6, 9, 3), np.uint8), (6, 9, 3)).shape == (6, 9, 3)
    with pytest.raises(ValueError, match=r"must be 6 x 9 .*; got 9 x 6"):
        _load(np.zeros((2, 9, 6, 3), np.uint8), (6, 9, 3))


class Lazy:
    """A sequence that is never read as a whole."""

    def __init__(self, items):
        self._items, self.asked = items, []

    def __len__(self):
        return len(self._items)

    def __getitem__(self, i):
        self.asked.append(i)
        return self._items[i]


def test_items_of_every_kind_are_the_same_image(tmp_path, rng):
    """Paths, bytes, PIL images and arrays, alone or as libraries hand them out."""
    values = rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(values).save(tmp_path / "a.png")
    data, picture = (tmp_path / "a.png").read_bytes(), Image.fromarray(values)
    floats = np.moveaxis(values, 2, 0) / np.float32(255)  # as torchvision's ToTensor
    items = [tmp_path / "a.png", data, picture, values, (picture, 3), floats]
    items += [{"image": picture, "label": 1}, {"bytes": data, "path": None}, {"bytes": None}]
    items[-1]["path"] = str(tmp_path / "a.png")
    items += [{"__key__": "x", "jpg": data, "cls": b"1"}, memoryview(data)]
    found = _load(Lazy(items))
    expected = _load(tmp_path / "a.png").images[0]
    for image in found.images:
        np.testing.assert_array_equal(image, expected)
    facts = found.facts(np.arange(11))
    assert (facts["width"].tolist(), facts["height"].tolist()) == ([30] * 11, [20] * 11)
    assert len({digest.tobytes() for digest in facts["digest"]}) == 1
    assert len({digest.tobytes() for digest in facts["file"]}) == 2  # a file; none
    assert found.sources == tuple(map(str, range(11)))


def test_a_sequence_is_read_an_image_at_a_time(color):
    lazy = Lazy([Image.fromarray(image) for image in color])
    config = dataclasses.replace(toy.DATA, cache_mb=0.0, image_size=8)
    dataset = datasets.load(config, lazy)
    assert lazy.asked == []
    np.testing.assert_array_equal(dataset.fetch(np.array([4, 1])), color[[4, 1]])
    assert sorted(lazy.asked) == [1, 4]
    lazy._items[2] = b"no image"
    left = images.readable(dataset._replace(images=None))
    assert (left.sources, left.skipped) == (("0", "1", "3", "4", "5"), (("2", "not an image"),))


@every_row(
    ("source", "message"),
    [
        # Other arrays are refused like those in files, see test_arrays.
        (np.zeros((2, 8), np.uint8), r"images in X must have shape .*got \[2 x 8\]"),
        ("no/such/folder", "must be an existing folder of images; got no/such/folder"),
        ([], r"must have shape .*got \[0\]"),
        (iter([np.zeros((8, 8))]), "with a length; got a list_iterator: give a list of images"),
        ({"image": [np.zeros((8, 8))]}, "with a length; got a dict: give a list of images"),
        ([Image.new("L", (8, 8)), 7], "path, bytes, a PIL image or an array; got int"),
    ],
)
def test_one_sentence(source, message):
    with pytest.raises(ValueError, match=message) as error:
        _load(source)
    assert "\n" not in str(error.value)


def test_lazily_opened_images_are_decoded_one_at_a_time(tmp_path, rng):
    """Several at once, the same one more than once, and in batches that are filled with copies."""
    values = rng.integers(0, 256, (7, 300, 300, 3), dtype=np.uint8)
    for i, pixels in enumerate(values):
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    for _ in range(5):
        opened = [Image.open(tmp_path / f"{i}.png") for i in range(7)]
        items = [opened[i % 7] for i in range(40)]
        config = dataclasses.replace(toy.DATA, cache_mb=0.0, image_size=300)
        dataset = datasets.load(config, items)
        rows = np.minimum(np.arange(64), 39)
        np.testing.assert_array_equal(dataset.fetch(rows), values[rows % 7])
        assert dataset.unreadable(rows) == [None] * 64
        assert (dataset.facts(rows)["width"] == 300).all()
