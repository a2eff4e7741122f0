"""Loading by name: digits, TFDS, bad values; statistics of the channels."""

import dataclasses
import json
import pathlib
import re
import threading
import types
import typing
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from sklearn.datasets import load_digits

from cluster_jax.cli import flags
from cluster_jax.core.checks import InputError
from cluster_jax.core.config import load_config, parse_section
from cluster_jax.data import batches, datasets, decode, images, tfds
from cluster_jax.data.images import ClassList
from cluster_jax.runs.config import config_json, parse_config
from tests.faults.gcs_server import CUT, Server, every
from tests.rows import every_row

ROOT = pathlib.Path(__file__).resolve().parents[2]

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


@pytest.mark.parametrize(
    ("classes", "images_each", "kept"),  # CIFAR-10-LT and CIFAR-20-LT of NRCC and NCC
    [(10, 5000, 20_431), (20, 2500, 19_954)],
)
def test_a_long_tail_falls_geometrically_in_the_order_of_classes(classes, images_each, kept):
    labels = np.tile(np.arange(classes, dtype=np.int32), images_each)
    whole = datasets.Dataset("toy", len(labels), (1, 1, 1), images=labels, fetch=None)
    some = datasets.with_tail(whole._replace(labels=labels), 10.0)
    sizes = np.bincount(some.labels)
    assert (some.size, sizes.sum(), sizes.max(), sizes.min()) == (
        kept, kept, images_each, images_each // 10,
    )  # fmt: skip
    assert (np.diff(sizes) < 0).all()
    np.testing.assert_allclose(sizes[1:] / sizes[:-1], 0.1 ** (1 / (classes - 1)), rtol=4e-3)
    np.testing.assert_array_equal(some.images, some.labels)


def test_a_long_tail_of_unequal_classes_in_their_order():
    config = datasets.DataConfig(name="digits", **BASE, tail=20.0)
    whole = datasets.load(dataclasses.replace(config, tail=None))
    some = datasets.load(config)
    assert np.bincount(some.labels).tolist() == [174, 124, 89, 64, 45, 32, 23, 16, 12, 8]
    np.testing.assert_array_equal(some.images, datasets.load(config).images)
    rows = [np.flatnonzero((whole.images == x).all((1, 2, 3)))[0] for x in some.images[:50]]
    assert (np.diff(rows) > 0).all()


def test_a_long_tail_of_a_set_without_labels(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 8, 8), np.uint8))
    config = datasets.DataConfig(name="arrays", **BASE | {"dir": tmp_path / "x.npy"}, tail=10.0)
    with pytest.raises(ValueError, match=r"data.tail must be None for arrays, which has no labels"):
        datasets.load(config)


@every_row(("classes", "got"), [((1, 12), "[12]"), ((1, 1), "[1, 1]"), ((), "[]")])
def test_bad_classes(classes, got):
    wanted = f"data.classes must be different classes of digits that have images; got {got}"
    with pytest.raises(ValueError, match=f"^{re.escape(wanted)}$"):
        datasets.load(datasets.DataConfig(name="digits", **BASE, classes=classes))


CLASS_LISTS = {
    "imagenet_10": 10, "imagenet_dogs": 15, "imagenet_50": 50, "imagenet_100": 100,
    "imagenet_200": 200, "tiny_imagenet": 200,
}  # fmt: skip


@every_row("name", CLASS_LISTS)
def test_lists_of_classes_have_a_source_and_as_many_classes_as_their_set(name):
    file = ROOT / "cluster_jax" / "data" / "classes" / f"{name}.txt"
    source, *wnids = file.read_text().splitlines()
    assert re.match(r"# .* 20\d\d, .*: https://github.com/\S+, commit [0-9a-f]{40}, ", source)
    assert len(set(wnids)) == len(wnids) == CLASS_LISTS[name]
    assert wnids == sorted(wnids)
    assert all(re.fullmatch(r"n\d{8}", wnid) for wnid in wnids)
    assert set(typing.get_args(ClassList)) == set(CLASS_LISTS)


def test_a_list_of_classes_by_its_flag():
    config, _ = flags.read_config("nrcc_imagenet", ["--config.data.classes=imagenet_dogs"])
    assert parse_config(config_json(config)).data.classes == "imagenet_dogs"
    config.data.classes = "imagenet_cats"
    with pytest.raises(InputError, match=r"data.classes must be .*imagenet_dogs.*'imagenet_cats'"):
        parse_config(config_json(config))


def test_real_images_of_the_classes_in_a_list(real_data, tmp_path):
    """Folders of the ten classes, one with a name beside its ID, and of one that is in no list."""
    kinds = sorted((real_data / "images" / "tiny_imagenet10").iterdir())
    file = ROOT / "cluster_jax" / "data" / "classes" / "imagenet_10.txt"
    wnids = file.read_text().splitlines()[1:]
    names = [f"{wnids[0]}_penguin", *wnids[1:], "n01440764"]
    for wnid, kind in zip(names, [*kinds, kinds[0]], strict=True):
        (tmp_path / wnid).mkdir()
        for photo in sorted(kind.iterdir())[:3]:
            (tmp_path / wnid / photo.name).symlink_to(photo)
    section = {"name": "folder", **BASE, "dir": str(tmp_path), "image_size": 96}
    for cache_mb in (0, 100):
        config = datasets.DataConfig(
            **section | {"cache_mb": cache_mb}, classes="imagenet_10", labels="folders"
        )
        dataset = datasets.load(config)
        assert (dataset.size, dataset.shape) == (30, (96, 96, 3))
        assert [name[:9] for name in dataset.label_names] == wnids
        assert np.bincount(dataset.labels).tolist() == [3] * 10
        assert not any("n01440764" in source for source in dataset.sources)
        assert dataset.fetch(np.arange(30)).std() > 30
    with pytest.raises(InputError, match=r"got none for 14 of them, such as n02086646"):
        datasets.load(datasets.DataConfig(**section, labels="folders", classes="imagenet_dogs"))


def test_classes_of_a_set_without_labels(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 8, 8), np.uint8))
    config = datasets.DataConfig(
        name="arrays", **BASE | {"dir": tmp_path / "x.npy"}, classes=(0, 1)
    )
    with pytest.raises(ValueError, match=r"classes must be None for arrays, which has no labels"):
        datasets.load(config)


@every_row(
    ("change", "message"),
    [
        ({"image_size": 0}, "data.image_size must be at least 1; got 0"),
        ({"limit": -3}, "data.limit must be at least 1; got -3"),
        ({"tail": 0.5}, "data.tail must be at least 1; got 0.5"),
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
        parse_section(datasets.DataConfig, "data", {**load_config("base").data, **BASE, **change})


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


def test_a_streamed_set_is_read_in_blocks(cifar, monkeypatch):
    """Each block by one request for the labels and one a pass; a small part image by image."""
    spans, reader = [], tfds._reader

    def counting(file):
        opened = reader(file)
        return types.SimpleNamespace(read=lambda *span: spans.append(span) or opened.read(*span))

    monkeypatch.setattr(tfds, "_reader", counting)
    some = cifar | {"split": "train[24800:25600]"}  # of both files
    expected = [(24800, 25000), (0, 256), (256, 512), (512, 600)]
    resident = datasets.load(datasets.DataConfig(name="cifar10", **some))
    assert sorted(spans) == sorted(expected)
    spans.clear()
    streamed = datasets.load(datasets.DataConfig(name="cifar10", **some | {"cache_mb": 0.0}))
    assert sorted(spans) == sorted(expected)
    np.testing.assert_array_equal(streamed.labels, resident.labels)
    assert np.bincount(streamed.block_of).tolist() == [200, 256, 256, 88]
    for passes, batch in ((2, 64), (3, 800)):
        found = batches.evaluation(streamed, batch_size=batch, process=0, processes=1)
        pixels = np.concatenate([images for images, _, _ in found])
        np.testing.assert_array_equal(pixels[:800], resident.images)
        assert sorted(spans) == sorted(passes * expected)
    few = datasets.load(
        datasets.DataConfig(name="cifar10", **some | {"cache_mb": 0.0, "limit": 300})
    )
    assert few.read_ahead is None
    assert images.select(streamed, np.arange(300)).block_of is None
    assert len(spans) == 12


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
        some = cifar | {"split": "train[:1000]", "cache_mb": 0.0}
        here = datasets.load(datasets.DataConfig(name="cifar10", **some))
        there = datasets.load(
            datasets.DataConfig(name="cifar10", **some | {"dir": "gs://bucket/tfds"})
        )
        asked: list[object] = []
        server.faults.append(asked.append)
        made = [
            list(
                batches.stream(
                    dataset, seed=0, batch_size=100, labeled=None, start=0, stop=10, process=0,
                    processes=1, prefetch=2,
                )
            )
            for dataset in (here, there)
        ]  # fmt: skip
        for ours, theirs in zip(*made, strict=True):
            np.testing.assert_array_equal(ours["image"], theirs["image"])
        assert 4 <= len(asked) < 40  # of 1,000 images
    finally:
        server.close()


@every_row(
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
    blocks = tfds.Blocks([types.SimpleNamespace(filename="", skip=0, take=4)])
    monkeypatch.setattr(blocks, "read_ahead", lambda records: None)
    monkeypatch.setattr(tfds, "_open", lambda *_: (builder, source, blocks))
    monkeypatch.setattr(decode, "decode", lambda image, **_: image)
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


def test_processes_share_the_reading_of_labels(monkeypatch):
    """Threads in place of three processes: each reads a third, and all have the labels of all."""
    rank, barrier, handed, reads = threading.local(), threading.Barrier(3), {}, []

    def gather(part):
        handed[rank.number] = part
        barrier.wait()
        found = np.stack([handed[i] for i in range(3)])
        barrier.wait()
        return found

    monkeypatch.setattr(jax, "process_count", lambda: 3)
    monkeypatch.setattr(jax, "process_index", lambda: rank.number)
    monkeypatch.setattr(tfds.multihost_utils, "process_allgather", gather)
    monkeypatch.setattr(tfds, "_TOGETHER", 2)

    def read(row):
        reads.append(row)
        return row * row

    def labels(number):
        rank.number = number
        return tfds._labels(read, iter, 10, "toy", together=True)

    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(labels, range(3)):
            np.testing.assert_array_equal(found, np.arange(10) ** 2)
    assert len(reads) == 12  # in thirds of four
    rank.number = 1
    np.testing.assert_array_equal(
        tfds._labels(read, iter, 10, "toy", together=False), np.arange(10) ** 2
    )
