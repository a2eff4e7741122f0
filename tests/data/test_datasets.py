"""Loading by name: digits, TFDS, bad values; statistics of the channels."""

import json
import re
import types

import numpy as np
import pytest
from sklearn.datasets import load_digits

from cluster_jax.core.config import parse_section
from cluster_jax.data import datasets, images, tfds_source

BASE = {
    "dir": None,
    "split": None,
    "label": "label",
    "image_size": None,
    "interpolation": "bicubic",
    "cache_mb": 100.0,
    "max_corrupt_fraction": 0.0,
    "limit": None,
}


def test_digits_are_exact():
    dataset = datasets.load(datasets.DataConfig(name="digits", **BASE))
    pixels, labels = load_digits(return_X_y=True)
    assert (dataset.size, dataset.shape) == (1797, (8, 8, 1))
    assert dataset.images.dtype == np.uint8
    np.testing.assert_array_equal(dataset.labels, labels)
    np.testing.assert_array_equal(
        dataset.images.reshape(1797, 64), np.floor(pixels * 255 / 16 + 0.5)
    )
    assert dataset.label_names == tuple("0123456789")


def test_digits_subset_and_canvas():
    whole = datasets.load(datasets.DataConfig(name="digits", **BASE))
    some = datasets.load(
        datasets.DataConfig(name="digits", **BASE | {"limit": 100, "image_size": 12})
    )
    assert some.shape == (12, 12, 1)
    np.testing.assert_array_equal(some.labels, whole.labels[images.subset(1797, 100)])


def test_classes_are_chosen_and_numbered_anew():
    whole = datasets.load(datasets.DataConfig(name="digits", **BASE))
    some = datasets.load(datasets.DataConfig(name="digits", **BASE, classes=(7, 1, 4)))
    assert some.label_names == ("7", "1", "4")
    rows = np.flatnonzero(np.isin(whole.labels, (7, 1, 4)))
    np.testing.assert_array_equal(np.array([7, 1, 4])[some.labels], whole.labels[rows])
    np.testing.assert_array_equal(some.images, whole.images[rows])


@pytest.mark.parametrize(("classes", "got"), [((1, 12), "[12]"), ((1, 1), "[1, 1]"), ((), "[]")])
def test_bad_classes(classes, got):
    wanted = f"data.classes must be different classes of digits that have images; got {got}"
    with pytest.raises(ValueError, match=f"^{re.escape(wanted)}$"):
        datasets.load(datasets.DataConfig(name="digits", **BASE, classes=classes))


def test_classes_of_a_set_without_labels(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 8, 8), np.uint8))
    config = datasets.DataConfig(
        name="arrays", **BASE | {"dir": tmp_path / "x.npy"}, classes=(0, 1)
    )
    with pytest.raises(ValueError, match=r"classes must be None for arrays, which has no labels"):
        datasets.load(config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_size": 0}, "data.image_size must be at least 1; got 0"),
        ({"limit": -3}, "data.limit must be at least 1; got -3"),
        (
            {"max_corrupt_fraction": 1.5},
            "data.max_corrupt_fraction must be between 0 and 1; got 1.5",
        ),
        (
            {"max_corrupt_fraction": float("nan")},
            "data.max_corrupt_fraction must be between 0 and 1; got nan",
        ),
        ({"cache_mb": -1.0}, "data.cache_mb must be at least 0; got -1.0"),
    ],
)
def test_bad_values(change, message):
    with pytest.raises(ValueError, match=message):
        parse_section(
            datasets.DataConfig,
            "data",
            {"name": "digits", "crop": "square", "classes": None, **BASE, **change},
        )


def test_statistics_are_those_of_all_pixels(rng, tmp_path):
    pixels = rng.integers(0, 256, (30, 4, 5, 3), dtype=np.uint8) // np.array([1, 2, 3], np.uint8)
    np.save(tmp_path / "x.npy", pixels)
    for cache_mb in (1.0, 0.0):
        dataset = datasets.load(
            datasets.DataConfig(
                name="arrays", **BASE | {"dir": tmp_path / "x.npy", "cache_mb": cache_mb}
            )
        )
        mean, std = datasets.channel_statistics(dataset)
        np.testing.assert_allclose(mean, (pixels / 255).mean((0, 1, 2)), rtol=1e-12)
        np.testing.assert_allclose(std, (pixels / 255).std((0, 1, 2)), rtol=1e-12)


def test_statistics_read_few_images_spread_evenly(monkeypatch, tmp_path, rng):
    monkeypatch.setattr(datasets, "STATISTICS_IMAGES", 4)
    pixels = rng.integers(0, 256, (11, 2, 2), dtype=np.uint8)
    np.save(tmp_path / "x.npy", pixels)
    dataset = datasets.load(
        datasets.DataConfig(name="arrays", **BASE | {"dir": tmp_path / "x.npy"})
    )
    mean, _ = datasets.channel_statistics(dataset)
    np.testing.assert_allclose(mean, (pixels[[0, 2, 5, 8]] / 255).mean(), rtol=1e-12)


def test_constant_channel_can_be_divided_by(tmp_path):
    np.save(tmp_path / "x.npy", np.full((3, 2, 2), 77, np.uint8))
    dataset = datasets.load(
        datasets.DataConfig(name="arrays", **BASE | {"dir": tmp_path / "x.npy"})
    )
    np.testing.assert_allclose(datasets.channel_statistics(dataset), [[77 / 255], [1 / 255]])


def test_tfds_set_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="got 'cifar100'") as caught:
        datasets.load(
            datasets.DataConfig(name="cifar100", **BASE | {"dir": tmp_path, "split": "train"})
        )
    text = str(caught.value)
    assert "this package's extra tfds" in text
    assert f"tfds build cifar100 --file_format=array_record --data_dir={tmp_path}" in text
    assert "\n" not in text


def test_tfds_set_prepared_as_tfrecord(real_data, tmp_path):
    stored = real_data / "tfds" / "cifar10" / "3.0.2"
    version = tmp_path / "cifar10" / "3.0.2"
    version.mkdir(parents=True)
    (version / "features.json").write_text((stored / "features.json").read_text())
    info = json.loads((stored / "dataset_info.json").read_text()) | {"fileFormat": "tfrecord"}
    (version / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(
        ValueError,
        match=r"must be prepared as array_record; got tfrecord.*--file_format=array_record",
    ):
        datasets.load(
            datasets.DataConfig(name="cifar10", **BASE | {"dir": tmp_path, "split": "train"})
        )


@pytest.fixture
def cifar(real_data):
    return BASE | {"dir": str(real_data / "tfds"), "split": "train"}


def test_cifar10(cifar):
    dataset = datasets.load(
        datasets.DataConfig(name="cifar10", **cifar | {"split": "train+test", "limit": 300})
    )
    assert (dataset.size, dataset.shape) == (300, (32, 32, 3))
    assert dataset.label_names[7] == "horse"
    assert len(dataset.label_names) == 10
    assert np.bincount(dataset.labels, minlength=10).min() > 10
    assert dataset.images.shape == (300, 32, 32, 3)
    assert dataset.images.std() > 50


def test_cifar10_first_image_and_streaming(cifar):
    streamed = datasets.load(
        datasets.DataConfig(
            name="cifar10:3.0.2", **cifar | {"split": "train[:50]", "cache_mb": 0.0}
        )
    )
    resident = datasets.load(datasets.DataConfig(name="cifar10", **cifar | {"split": "train[:50]"}))
    assert resident.labels[0] == 7
    assert streamed.images is None
    np.testing.assert_array_equal(streamed.labels, resident.labels)
    index = np.array([49, 0, 7])
    np.testing.assert_array_equal(streamed.fetch(index), resident.images[index])


def test_streamed_subset_is_the_resident_one(cifar):
    some = cifar | {"split": "train[:50]", "limit": 20}
    resident = datasets.load(datasets.DataConfig(name="cifar10", **some))
    streamed = datasets.load(datasets.DataConfig(name="cifar10", **some | {"cache_mb": 0.0}))
    np.testing.assert_array_equal(streamed.fetch(np.arange(20)), resident.images)
    np.testing.assert_array_equal(streamed.labels, resident.labels)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (None, "data.split must be a split of cifar10, test, train; got none"),
        ("valid", "from the splits of cifar10, test, train; got 'valid'"),
        ("train[:x]", "must select from the splits"),
    ],
)
def test_cifar10_split_that_is_not_there(cifar, split, message):
    with pytest.raises(ValueError, match=message.replace("[", r"\[")) as caught:
        datasets.load(datasets.DataConfig(name="cifar10", **cifar | {"split": split}))
    assert "\n" not in str(caught.value)


class _Classes:
    names = ("round", "square")


def test_another_feature_can_hold_the_classes(monkeypatch):
    """CIFAR-20 is CIFAR-100 with its coarse labels."""
    image = types.SimpleNamespace(shape=(2, 2, 1))
    features = {"image": image, "label": object(), "coarse_label": _Classes()}
    builder = types.SimpleNamespace(info=types.SimpleNamespace(features=features))
    picture = np.zeros((2, 2, 1), np.uint8)
    source = [{"image": picture, "label": 9 - i, "coarse_label": i % 2} for i in range(4)]
    monkeypatch.setattr(tfds_source, "_open", lambda *_: (builder, source))
    monkeypatch.setattr(tfds_source, "decode", lambda image, **_: image)
    for megabytes in (100.0, 0.0):
        some = BASE | {"cache_mb": megabytes}
        fine = datasets.load(datasets.DataConfig(name="cifar100", **some))
        coarse = datasets.load(
            datasets.DataConfig(name="cifar100", **some | {"label": "coarse_label"})
        )
        np.testing.assert_array_equal(coarse.labels, [0, 1, 0, 1])
        assert coarse.label_names == ("round", "square")
        np.testing.assert_array_equal(fine.labels, [3, 2, 1, 0])
        with pytest.raises(
            ValueError,
            match=r"data.label must be a feature of cifar100, coarse_label, .*; got 'shape'",
        ):
            datasets.load(datasets.DataConfig(name="cifar100", **some | {"label": "shape"}))
