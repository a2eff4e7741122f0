"""New images come in the size and channels of the training images, or with one sentence."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from cluster_jax.data import datasets
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


def _save(folder, images):
    for i, image in enumerate(images):
        Image.fromarray(image.squeeze()).save(folder / f"{i}.png")
    return folder


@pytest.mark.parametrize("cache_mb", [10.0, 0.0])
def test_files_get_the_channels_of_the_training_images(tmp_path, color, grayscale, cache_mb):
    (tmp_path / "c").mkdir(), (tmp_path / "g").mkdir()
    _save(tmp_path / "c", color), _save(tmp_path / "g", grayscale)
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
    assert found.sources == tuple(f"{i}.png" for i in range(6))


def test_an_array_of_another_size_is_resized_and_said(tmp_path):
    for height, width in ((4, 4), (30, 40)):
        said = f"images of {height} x {width} were resized to the 8 x 8 of the training images"
        with pytest.warns(UserWarning, match=said):
            assert _load(np.zeros((2, height, width, 3), np.uint8)).shape == (8, 8, 3)
        np.save(tmp_path / "x.npy", np.zeros((2, height, width, 3), np.uint8))
        with pytest.warns(UserWarning, match=said):
            assert _load(tmp_path / "x.npy").shape == (8, 8, 3)
    # The training images were resized, too.
    config = dataclasses.replace(toy.DATA, image_size=8)
    assert datasets.load_new(np.zeros((2, 4, 4, 1), np.uint8), config, (8, 8, 1)).size == 2


def test_one_file(tmp_path, color):
    _save(tmp_path, color[:1])
    found = _load(tmp_path / "0.png")
    assert found.sources == ("0.png",)
    assert (found.fetch(np.array([0])) == color[:1]).all()
    assert _load(tmp_path / "0.png", (8, 8, 1)).shape == (8, 8, 1)


def test_unreadable_files_are_listed(tmp_path, color):
    _save(tmp_path, color[:2])
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    (tmp_path / "empty.jpg").touch()
    found = _load(tmp_path)
    assert found.sources == ("0.png", "1.png")
    assert [name for name, _ in found.skipped] == ["broken.jpg", "empty.jpg"]
    with pytest.raises(ValueError, match=r"broken.jpg, which cannot be read"):
        _load(tmp_path / "broken.jpg")


def test_class_folders_and_labels_are_ignored(tmp_path, color):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        _save(tmp_path / name, color[:2])
    assert _load(tmp_path).labels is None
    np.savez(tmp_path / "x.npz", images=color, labels=np.arange(6))
    found = _load(tmp_path / "x.npz")
    assert found.labels is found.label_names is None
    assert (found.images == color).all()


def test_square_training_images_fix_the_size(tmp_path, color):
    Image.fromarray(color[0]).resize((20, 16)).save(tmp_path / "wide.png")
    assert _load(tmp_path).shape == (8, 8, 3)


def test_other_training_images_ask_for_their_own_size():
    assert _load(np.zeros((2, 6, 9, 3), np.uint8), (6, 9, 3)).shape == (6, 9, 3)
    with pytest.raises(ValueError, match=r"must be 6 x 9 .*; got 9 x 6"):
        _load(np.zeros((2, 9, 6, 3), np.uint8), (6, 9, 3))


def test_arrays_are_converted_like_files(grayscale):
    assert (_load(grayscale, (8, 8, 3)).images == np.repeat(grayscale, 3, axis=-1)).all()
    color = np.repeat(grayscale, 3, axis=-1)
    assert (_load(color, (8, 8, 1)).images == grayscale).all()
    assert _load(grayscale, (8, 8, 3)).fetch(np.array([1])).shape == (1, 8, 8, 3)


def test_floats_are_bytes_divided_by_255(grayscale):
    assert (_load(grayscale[..., 0] / 255.0, (8, 8, 1)).images == grayscale).all()


@every_row(
    ("source", "message"),
    [
        # Other arrays are refused like those in files, see test_arrays.
        (np.zeros((2, 8), np.uint8), r"images in X must have shape .*got \[2 x 8\]"),
        ([np.zeros((8, 8, 3)), np.zeros((9, 8, 3))], "must be one array"),
        ("no/such/folder", "must be an existing file or folder; got no/such/folder"),
    ],
)
def test_one_sentence(source, message):
    with pytest.raises(ValueError, match=message) as error:
        _load(source)
    assert "\n" not in str(error.value)
