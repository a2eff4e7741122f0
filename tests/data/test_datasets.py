"""Loading by name: digits, TFDS, bad values; statistics of the channels."""

import dataclasses
import json
import pathlib
import re
import threading
import types

import jax
import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits

from cluster_jax.core.buckets import BucketError
from cluster_jax.data import batches, datasets, decode, images, tfds
from tests import toy
from tests.faults.gcs_server import CUT, Server, every
from tests.rows import every_row

BASE = {**dataclasses.asdict(toy.DATA), "cache_mb": 100.0}


def load(name, values=BASE):
    return datasets.load(datasets.DataConfig(**values | {"name": name}))


def test_digits_are_exact():
    dataset = load("digits")
    pixels, labels = load_digits(return_X_y=True)
    assert (dataset.size, dataset.shape) == (1797, (8, 8, 1))
    assert dataset.images.dtype == np.uint8
    np.testing.assert_array_equal(dataset.labels, labels)
    np.testing.assert_array_equal(
        dataset.images.reshape(1797, 64), np.floor(pixels * 255 / 16 + 0.5)
    )
    assert dataset.label_names == tuple("0123456789")


def test_classes_are_chosen_and_numbered_anew():
    whole = load("digits")
    some = load("digits", BASE | {"classes": (7, 1, 4)})
    assert some.label_names == ("7", "1", "4")
    rows = np.flatnonzero(np.isin(whole.labels, (7, 1, 4)))
    np.testing.assert_array_equal(np.array([7, 1, 4])[some.labels], whole.labels[rows])
    np.testing.assert_array_equal(some.images, whole.images[rows])


@every_row(("classes", "got"), [((1, 12), "[1, 12]"), ((1, 1), "[1, 1]"), ((), "[]")])
def test_bad_classes(classes, got):
    wanted = f"data.classes must be different classes of digits that have images; got {got}"
    with pytest.raises(ValueError, match=f"^{re.escape(wanted)}$"):
        load("digits", BASE | {"classes": classes})


def test_statistics_are_those_of_all_pixels(rng, tmp_path):
    pixels = rng.integers(0, 256, (30, 4, 5, 3), dtype=np.uint8) // np.array([1, 2, 3], np.uint8)
    np.save(tmp_path / "x.npy", pixels)
    for cache_mb in (1.0, 0.0):
        dataset = load("arrays", BASE | {"dir": tmp_path / "x.npy", "cache_mb": cache_mb})
        mean, std = datasets.channel_statistics(dataset)
        np.testing.assert_allclose(mean, (pixels / 255).mean((0, 1, 2)), rtol=1e-12)
        np.testing.assert_allclose(std, (pixels / 255).std((0, 1, 2)), rtol=1e-12)


def test_statistics_read_few_images_spread_evenly(monkeypatch, tmp_path, rng):
    monkeypatch.setattr(datasets, "STATISTICS_IMAGES", 4)
    pixels = rng.integers(0, 256, (11, 2, 2), dtype=np.uint8)
    np.save(tmp_path / "x.npy", pixels)
    dataset = load("arrays", BASE | {"dir": tmp_path / "x.npy"})
    mean, _ = datasets.channel_statistics(dataset)
    np.testing.assert_allclose(mean, (pixels[[0, 2, 5, 8]] / 255).mean(), rtol=1e-12)


def test_constant_channel_can_be_divided_by(tmp_path):
    np.save(tmp_path / "x.npy", np.full((3, 2, 2), 77, np.uint8))
    dataset = load("arrays", BASE | {"dir": tmp_path / "x.npy"})
    np.testing.assert_allclose(datasets.channel_statistics(dataset), [[77 / 255], [1 / 255]])


def test_tfds_set_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="got 'cifar100'") as caught:
        load("cifar100", BASE | {"dir": tmp_path, "split": "train"})
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
        load("cifar10", BASE | {"dir": tmp_path, "split": "train"})


@pytest.fixture
def cifar(real_data):
    return BASE | {"dir": str(real_data / "tfds"), "split": "train"}


def test_cifar10(cifar):
    dataset = load("cifar10", cifar | {"split": "train+test", "limit": 300})
    assert (dataset.size, dataset.shape) == (300, (32, 32, 3))
    assert dataset.label_names[7] == "horse"
    assert len(dataset.label_names) == 10
    assert np.bincount(dataset.labels, minlength=10).min() > 10
    assert dataset.images.shape == (300, 32, 32, 3)
    assert dataset.images.std() > 50


def test_cifar10_first_image_and_streaming(cifar):
    streamed = load("cifar10:3.0.2", cifar | {"split": "train[:50]", "cache_mb": 0.0})
    resident = load("cifar10", cifar | {"split": "train[:50]"})
    assert resident.labels[0] == 7
    assert streamed.images is None
    np.testing.assert_array_equal(streamed.labels, resident.labels)
    index = np.array([49, 0, 7])
    np.testing.assert_array_equal(streamed.fetch(index), resident.images[index])


def test_labels_of_a_streamed_set_are_read_once(cifar, monkeypatch, tmp_path):
    """They are kept in a file by split; what is damaged there is read again."""
    some, file, passes = cifar | {"cache_mb": 0.0}, tmp_path / "labels.npz", []
    chunks = images.chunks
    monkeypatch.setattr(images, "chunks", lambda *x: passes.append(x) or chunks(*x))

    def labels(split, read):
        kept = tfds.Labels(file)
        config = datasets.DataConfig(**some | {"name": "cifar10", "split": split})
        found = datasets.load(config, kept=kept).labels
        assert len(passes) == read
        passes.clear()
        kept.write()
        return found

    first, second = labels("train[:30]", 1), labels("test[:20]", 1)
    np.testing.assert_array_equal(labels("train[:30]", 0), first)
    np.testing.assert_array_equal(labels("test[:20]", 0), second)
    file.write_bytes(file.read_bytes()[:200])
    np.testing.assert_array_equal(labels("train[:30]", 1), first)
    np.testing.assert_array_equal(labels("train[:30]", 0), first)


@pytest.mark.parametrize("rank", [0, 1])
def test_one_of_several_processes_reads_labels_and_sends_them(cifar, monkeypatch, rank):
    sent, passes = [], []
    monkeypatch.setattr(images, "chunks", lambda *x: passes.append(x) or [np.arange(20)])
    of_first = {"labels": np.arange(20, dtype=np.int32) % 10}

    def from_first(arrays):
        sent.append(arrays)
        return of_first if rank else arrays

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: rank)
    monkeypatch.setattr(tfds.hosts, "wait_for_all", lambda name: None)
    monkeypatch.setattr(tfds.hosts, "from_first", from_first)
    found = load("cifar10", cifar | {"split": "train[:20]", "cache_mb": 0.0}).labels
    if rank:
        assert (sent, passes) == ([None], [])
        np.testing.assert_array_equal(found, of_first["labels"])
    else:
        assert len(passes) == 1
        np.testing.assert_array_equal(sent[0]["labels"], found)
        assert found[0] == 7


@every_row(
    ("name", "said"),
    [
        (
            "features.json",
            r"3.0.2 must be a complete set .*; got no features.json: copy or prepare",
        ),
        ("dataset_info.json", r"3.0.2 must be a complete set .* no field named .news.*: copy or"),
    ],
)
def test_a_set_that_is_incomplete_or_of_another_version_is_named(cifar, tmp_path, name, said):
    stored = pathlib.Path(cifar["dir"]) / "cifar10" / "3.0.2"
    folder = tmp_path / "cifar10" / "3.0.2"
    folder.mkdir(parents=True, exist_ok=True)
    for file in stored.glob("*.[jt]*"):
        (folder / file.name).write_bytes(file.read_bytes())
    if name == "features.json":
        (folder / name).unlink()
    else:
        about = {**json.loads((folder / name).read_text()), "news": 1}
        (folder / name).write_text(json.dumps(about))
    with pytest.raises(ValueError, match=said) as caught:
        load("cifar10", cifar | {"dir": str(tmp_path)})
    assert "\n" not in str(caught.value)


def test_a_block_that_failed_is_read_again(monkeypatch):
    """An error of the network may not occur again."""
    asked = []

    class Reader:
        def read(self, first, stop):
            asked.append(first)
            if len(asked) == 1:
                raise OSError("the connection was lost")
            return [b"%d" % i for i in range(first, stop)]

    monkeypatch.setattr(tfds, "_reader", lambda file: Reader())
    blocks = tfds.Blocks([types.SimpleNamespace(filename="x", skip=0, take=300)])
    with pytest.raises(BucketError, match="x cannot be read; got the connection was lost"):
        blocks[7]
    assert (blocks[7], blocks[299], blocks[8]) == (b"7", b"299", b"8")
    assert asked == [0, 0, 256]


class _Source(list):
    decoders = None


class _Features(dict):
    def deserialize_example_np(self, record, decoders):
        return {"image": np.full((2, 2, 1), record, np.uint8), "label": record}


def test_an_error_of_a_bucket_is_no_unreadable_image(monkeypatch):
    """Labels, images in memory and those of a step: none is left out for it."""

    class Blocks(dict):
        of = np.zeros(3, np.int32)
        is_lost = False

        def __missing__(self, i):
            if self.is_lost and i == 2:
                raise BucketError("the connection was lost")
            return i

    features = _Features(image=types.SimpleNamespace(shape=(2, 2, 1)), label=object())
    builder = types.SimpleNamespace(info=types.SimpleNamespace(features=features, full_name="toy"))
    source, blocks = _Source(range(3)), Blocks()
    monkeypatch.setattr(tfds, "_open", lambda *_: (builder, source, blocks))
    streamed = load("toy", BASE | {"cache_mb": 0.0, "max_corrupt_fraction": 1.0})
    assert streamed.fetch(np.arange(3))[:, 0, 0, 0].tolist() == [0, 1, 2]
    blocks.is_lost = True
    for read in (lambda: streamed.fetch(np.arange(3)), lambda: load("toy")):
        with pytest.raises(BucketError, match="the connection was lost"):
            read()
    assert streamed.unreadable(np.arange(3)) == [None] * 3


@every_row("threads", [3, 5])
def test_images_are_decoded_in_as_many_threads_as_the_config_says(threads):
    """The first ones wait for each other, which fewer threads never end."""
    together, names = threading.Barrier(threads, timeout=20), set()

    def item(i):
        names.add(threading.current_thread().name)
        if i < threads:
            together.wait()
        return np.zeros((4, 4), np.uint8)

    config = datasets.DataConfig(**BASE | {"name": "folder", "image_size": 4, "threads": threads})
    reader = images.ItemReader(item, [f"{i}.png" for i in range(20)], config, "memory")
    assert reader.fetch(np.arange(20)).shape == (20, 4, 4, 3)
    assert len(names) == threads
    assert not any(reader.reasons)


@pytest.mark.parametrize("of", [pd.Series, np.array, lambda x: np.array(x, object)])
def test_a_series_of_paths_is_a_sequence_of_paths(of):
    paths = ["a.png", "b/c.jpg"]
    assert datasets.located(of(paths)) == ("a.png\nb/c.jpg", None)
    numbers = np.ones(2)
    assert datasets.located(numbers)[1] is numbers


def test_images_with_a_mask_are_refused():
    pixels = np.zeros((2, 4, 4), np.uint8)
    hidden = np.ma.masked_array(pixels, [np.eye(4), np.eye(4)])
    config = datasets.DataConfig(**BASE | {"name": "arrays"})
    for images_of in (hidden, [hidden[0], hidden[1]]):
        with pytest.raises(ValueError, match="images must have no masked entries"):
            datasets.load(config, images_of)
    with pytest.raises(ValueError, match="an image must have no masked entries"):
        decode.of_sample((hidden[0], 3))
    assert datasets.load(config, np.ma.masked_array(pixels)).size == 2


def test_a_set_in_a_bucket_is_read_by_few_requests(cifar, monkeypatch):
    """By the reader of array_record, from a storage server that loses one request in ten."""
    server = Server("bucket")
    try:
        variables = {**server.environment, "CLOUD_STORAGE_EMULATOR_ENDPOINT": server.url}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        stored = pathlib.Path(cifar["dir"]) / "cifar10" / "3.0.2"
        for file in stored.iterdir():
            server.put("bucket", f"tfds/cifar10/3.0.2/{file.name}", file.read_bytes())
        server.faults.append(every(10, (503, CUT), where="array_record"))
        some = cifar | {"split": "train[:600]", "cache_mb": 0.0}
        here = load("cifar10", some)
        asked: list[object] = []
        server.faults.append(asked.append)
        there = load("cifar10", some | {"dir": "gs://bucket/tfds"})
        np.testing.assert_array_equal(there.labels, here.labels)
        assert np.bincount(there.block_of).tolist() == [256, 256, 88]
        made = [
            [pixels for pixels, _, _ in batches.evaluation(dataset, batch_size=100)]
            for dataset in (here, there, there)
        ]  # fmt: skip
        np.testing.assert_array_equal(made[0], made[1])
        np.testing.assert_array_equal(made[0], made[2])
        batch = batches.stream(
            there, seed=0, batch_size=100, labeled=None, steps=range(6), prefetch=2
        )
        drawn = [part["index"] for part in batch]
        assert len(np.unique(drawn)) == 600
        assert 3 <= len(asked) < 60  # of labels, and images of three passes
    finally:
        server.close()


@every_row(
    ("split", "message"),
    [
        (None, "data.split must select from the splits of cifar10, test, train; got None"),
        ("valid", "from the splits of cifar10, test, train; got 'valid'"),
        ("train[:x]", "must select from the splits"),
    ],
)
def test_cifar10_split_that_is_not_there(cifar, split, message):
    with pytest.raises(ValueError, match=message.replace("[", r"\[")) as caught:
        load("cifar10", cifar | {"split": split})
    assert "\n" not in str(caught.value)


class _Classes:
    names = ("round", "square")


def test_another_feature_can_hold_the_classes(monkeypatch):
    """CIFAR-20 is CIFAR-100 with its coarse labels."""
    image = types.SimpleNamespace(shape=(2, 2, 1))
    features = {"image": image, "label": object(), "coarse_label": _Classes()}
    builder = types.SimpleNamespace(info=types.SimpleNamespace(features=features, full_name="toy"))
    picture = np.zeros((2, 2, 1), np.uint8)
    source = [{"image": picture, "label": 9 - i, "coarse_label": i % 2} for i in range(4)]
    monkeypatch.setattr(tfds, "_open", lambda *_: (builder, source, None))
    for megabytes in (100.0, 0.0):
        some = BASE | {"cache_mb": megabytes}
        fine = load("cifar100", some)
        coarse = load("cifar100", some | {"label": "coarse_label"})
        np.testing.assert_array_equal(coarse.labels, [0, 1, 0, 1])
        assert coarse.label_names == ("round", "square")
        np.testing.assert_array_equal(fine.labels, [3, 2, 1, 0])
        with pytest.raises(
            ValueError,
            match=r"data.label must be a feature of cifar100, coarse_label, .*; got 'shape'",
        ):
            load("cifar100", some | {"label": "shape"})
