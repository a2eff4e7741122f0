"""Images in tars, as WebDataset has them, and in Parquet files, as `datasets` writes them."""

import dataclasses
import gc
import io
import json
import os
import tarfile

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from cluster_jax.core.checks import InputError
from cluster_jax.data import datasets, packed, scan
from tests import toy
from tests.rows import every_row

COUNT = 6


CONFIG = datasets.DataConfig(
    "folder", None, None, "label", image_size=None, interpolation="bicubic", limit=None,
    cache_mb=1.0, max_corrupt_fraction=0.0,
)  # fmt: skip


def load(path, **changes):
    return datasets.load(dataclasses.replace(CONFIG, dir=str(path), **changes))


def jpeg(i):
    """32 x 32 pixels as the bytes of a JPEG; of the first images all have brightness 40 i."""
    file, rng = io.BytesIO(), np.random.default_rng(i)
    pixels = rng.integers(0, 60, (32, 32, 3)) * (i >= COUNT) + 40 * i % 256
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG")
    return file.getvalue()


def samples(rows=range(COUNT)):
    """Member -> content: an image and its class for each row."""
    made = {}
    for i in rows:
        made |= {f"{i:06}.jpg": jpeg(i), f"{i:06}.cls": str(i % 2).encode()}
    return made


def write_tar(path, members, **options):
    """A tar of members, a mapping or pairs, of which some may have the same name."""
    with tarfile.open(path, "w", **options) as archive:
        for name, data in members.items() if isinstance(members, dict) else members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


def write_parquet(path, rows=range(COUNT), names=True, labels=True, groups=2, **columns):
    """The columns that `datasets` writes for images and the names of their classes."""
    images = [{"bytes": jpeg(i), "path": f"x/{i}.jpg" if names else None} for i in rows]
    columns = {"image": images, **({"label": [i % 2 for i in rows]} if labels else {}), **columns}
    table = pa.table(columns)
    classes = {"label": {"names": ["even", "odd"], "_type": "ClassLabel"}, "image": {}}
    about = {"huggingface": json.dumps({"info": {"features": classes}})}
    parquet.write_table(table.replace_schema_metadata(about), path, row_group_size=groups)
    return path


def training(folder, kind, count=40):
    """The config of a training that streams two shards, which it writes."""
    folder.mkdir()
    for part, rows in enumerate((range(count // 2), range(count // 2, count))):
        path = folder / f"shard-{part}.{kind}"
        write_tar(path, samples(rows)) if kind == "tar" else write_parquet(path, rows)
    data = {"name": "folder", "image_size": 8, "cache_mb": 0.0}
    return toy.config(folder, data=data)


def brightness(dataset):
    return dataset.fetch(np.arange(dataset.size)).mean(axis=(1, 2, 3)).round(-1).tolist()


@every_row("cache_mb", [1.0, 0.0])
@every_row("kind", ["tar", "parquet"])
def test_a_folder_of_shards(tmp_path, kind, cache_mb):
    for part, rows in enumerate((range(3), range(3, COUNT))):
        (tmp_path / "data").mkdir(exist_ok=True)
        path = tmp_path / "data" / f"shard-{part:06}.{kind}"
        write_tar(path, samples(rows)) if kind == "tar" else write_parquet(path, rows)
    (tmp_path / "README.md").write_text("about")
    dataset = load(tmp_path, cache_mb=cache_mb)
    members = ["000002.jpg", "000003.jpg"] if kind == "tar" else ["2-2.jpg", "0-3.jpg"]
    names = [f"data/shard-00000{i}.{kind}/{member}" for i, member in enumerate(members)]
    assert list(dataset.sources[2:4]) == names
    assert brightness(dataset) == [40.0 * i for i in range(COUNT)]
    assert (dataset.labels == np.arange(COUNT) % 2).all()
    assert dataset.label_names == (("0", "1") if kind == "tar" else ("even", "odd"))
    assert dataset.ignored == ((".md", 1),)
    assert dataset.open(4).read() == jpeg(4)
    assert packed.is_packed(tmp_path, dataset.sources)
    both = "\n".join(map(str, sorted((tmp_path / "data").iterdir())))
    assert load(both).sources == tuple(name.removeprefix("data/") for name in dataset.sources)
    new = datasets.load_new(path, CONFIG, (32, 32, 3))
    assert (new.sources[0].split("/")[0], new.size) == (path.name, 3)


def test_folders_in_a_tar_are_classes_where_folders_are(tmp_path):
    for part in range(2):
        members = [(f"{folder}/{i}.jpg", jpeg(i)) for folder in ("cat", "dog") for i in range(2)]
        write_tar(tmp_path / f"{part}.tar", members)
    dataset = load(tmp_path, labels="folders")
    assert (dataset.label_names, dataset.labels.tolist()) == (("cat", "dog"), [0, 0, 1, 1] * 2)
    path = write_tar(tmp_path / "1.tar", samples())
    assert load(path, labels="folders").label_names == ("0", "1")
    (tmp_path / "labels.txt").write_text("7\n" * COUNT)
    assert load(path, labels=f"{tmp_path}/labels.txt").label_names == ("7",)


def test_images_come_before_shards(tmp_path, write):
    write("1.png")
    write_tar(tmp_path / "backup.tar", samples())
    found = scan.find(str(tmp_path))
    assert found.names == ("1.png",)
    assert scan.describe_ignored(found.ignored) == "1 .tar (unpack them, or give one alone)"
    assert len(scan.find(str(tmp_path / "backup.tar")).names) == COUNT


def test_links_to_shards_and_what_only_looks_like_one(tmp_path):
    """In the cache of Hugging Face all files are links."""
    folder = tmp_path / "snapshot"
    (folder / "a.tar").mkdir(parents=True)
    (folder / "1.parquet").symlink_to(write_parquet(tmp_path / "blob"))
    (folder / "gone.tar").symlink_to(tmp_path / "gone")
    os.mkfifo(folder / "2.tar")
    assert load(folder).size == COUNT
    (folder / "a.tar" / "1.jpg").write_bytes(jpeg(1))
    dataset = load(folder)
    assert dataset.sources == ("a.tar/1.jpg",)
    assert not packed.is_packed(folder, dataset.sources)


def test_members_of_a_tar(tmp_path):
    """Long names, several images of a sample, classes in JSON, what is left out."""
    long = f"./{'a' * 120}/{'b' * 120}.left.JPG"
    members = [(long, jpeg(1)), (long.replace("left.JPG", "right.png"), jpeg(2))]
    members += [(long.replace("left.JPG", "json"), b'{"label": "cat"}')]
    members += [
        ("x/._1.jpg", b""),
        ("x/../../2.jpg", b""),
        ("x/3.txt", b"a cat"),
        ("4.jpg", jpeg(3)),
    ]
    members += [
        ("4.cls", b"dog\n"),
        ("4.json", b'{"text": 1}'),
        ("x/3.json", b"{"),
        ("old/5.jpg", jpeg(4)),
    ]
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        path = write_tar(tmp_path / "a.tar", members, format=form)
        found = scan.find(str(path), ["old/*"], label="label")
        assert [name.rsplit("/")[-1][-8:] for name in found.names] == [
            "4.jpg",
            "left.JPG",
            "ight.png",
        ]
        assert [found.classes[name] for name in found.names] == ["dog", "cat", "cat"]
        assert found.open(found.names[0]).read() == jpeg(3)
        kinds = {
            ".txt": 1,
            "excluded": 1,
            "that lead out of the archive": 1,
            "with a dot before the name": 1,
        }
        assert dict(found.ignored) == kinds
        assert not scan.find(str(path), label="label").classes  # 5.jpg has none.
        dataset = load(path, exclude=("old/*",))
        assert (dataset.label_names, dataset.labels.tolist()) == (("cat", "dog"), [1, 0, 0])


def test_rows_of_parquet(tmp_path):
    """Without names, with other columns; an image of which only the path is there."""
    path = tmp_path / "a.parquet"
    others = {"sound": [{"bytes": b"", "path": None}] * COUNT, "fine": ["a", "b"] * 3}
    write_parquet(path, names=False, labels=False, **others)
    dataset = load(path, label="fine")
    assert dataset.sources == tuple(f"a.parquet/{i}" for i in range(COUNT))
    assert brightness(dataset) == [40.0 * i for i in range(COUNT)]
    assert (dataset.label_names, dataset.labels.tolist()) == (("a", "b"), [0, 1] * 3)
    write_parquet(path, labels=False, label=[-1] * COUNT)
    assert load(path).labels is None
    images = [{"bytes": jpeg(1), "path": None}, {"bytes": None, "path": "/home/1.jpg"}]
    parquet.write_table(pa.table({"img": images}), path)
    dataset = load(path, max_corrupt_fraction=0.5)
    assert (dataset.size, dataset.labels) == (1, None)
    assert dataset.skipped == (
        ("a.parquet/1-1.jpg", "ValueError: no bytes, at most the path of a file elsewhere"),
    )


@every_row("where", ["memory", "disk", "nowhere"])
def test_a_row_group_is_read_once_for_its_images(tmp_path, monkeypatch, where):
    """Unless there is room for all of them neither in memory nor on the disk."""
    groups, opened, temporary = 3, [], tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(packed.tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(packed, "_KEPT", 2**28 if where == "memory" else 0)
    free = packed.shutil.disk_usage(tmp_path)._replace(free=0 if where == "nowhere" else 2**30)
    monkeypatch.setattr(packed.shutil, "disk_usage", lambda path: free)
    write_parquet(tmp_path / "a.parquet", groups=COUNT // groups)
    found = scan.find(str(tmp_path))
    files = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else None
    make = packed.buckets.opened
    monkeypatch.setattr(packed.buckets, "opened", lambda *of: opened.append(of) or make(*of))
    for name in found.names * 2:
        assert found.open(name).read() == jpeg(int(name[-5]))
    assert len(opened) == (2 * groups if where == "nowhere" else groups)
    assert not [*temporary.iterdir()]
    if files is not None:
        del found
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == files - (where == "disk")


NEGATIVE = tarfile.TarInfo("1.jpg")
NEGATIVE.size = -1024
NEGATIVE = NEGATIVE.tobuf(tarfile.GNU_FORMAT) + bytes(2048)  # would be read for ever
MANY = [("1.jpg", jpeg(1)), ("2.jpg", jpeg(2))]


@every_row(
    ("make", "said"),
    [
        (lambda path: cut(write_tar(path, MANY), 1500), r"whole tar; got unexpected end of data: "),
        (lambda path: cut(write_tar(path, MANY), 512 + 1024), r"whole tar; got its end missing: "),
        (lambda path: path.write_bytes(b"no tar" * 200), r"whole tar; got .*: copy it again"),
        (lambda path: path.write_bytes(b""), r"whole tar; got empty file: copy it again"),
        (lambda path: write_tar(path, [*MANY, MANY[0]]), r"one member of a name; got two 1\.jpg"),
        (
            lambda path: write_tar(path, [("1.txt", b"a"), ("2.txt", b"b"), ("1.cls", b"3")]),
            r"hold images, such as jpg or png; got 2 \.txt",
        ),
        (lambda path: path.write_bytes(NEGATIVE), r"whole tar; got .*: copy it again"),
        (lambda path: write_tar(path, []), r"hold images, such as jpg or png; got nothing"),
    ],
)
def test_a_bad_tar(tmp_path, make, said):
    write_tar(tmp_path / "1.tar", MANY)
    make(tmp_path / "2.tar")
    with pytest.raises(InputError, match=rf"2\.tar must .*{said}"):
        load(tmp_path)


def cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


@every_row(
    ("make", "said"),
    [
        (
            lambda path: parquet.write_table(pa.table({"text": ["a"], "v": [[0.5]]}), path),
            r"must have a column of images, a struct of bytes and path .*; got text, v",
        ),
        (
            lambda path: parquet.write_table(parquet.read_table(write_parquet(path))[:0], path),
            r"must hold images; got no row",
        ),
        (
            lambda path: cut(write_parquet(path), 3000),
            r"must be a whole Parquet file; got only its first [\d,]+ bytes: write",
        ),
        (lambda path: path.write_bytes(b""), r"must be a whole Parquet file; got 0 bytes$"),
    ],
)
def test_a_bad_parquet_file(tmp_path, make, said):
    make(tmp_path / "1.parquet")
    with pytest.raises(InputError, match=rf"1\.parquet {said}"):
        load(tmp_path)


def test_a_tar_that_changes_during_a_run(tmp_path):
    path = write_tar(tmp_path / "1.tar", MANY)
    dataset = load(tmp_path, cache_mb=0.0, max_corrupt_fraction=0.5)
    cut(path, 1500)
    assert dataset.unreadable(np.arange(2))[1] == "ValueError: 1.tar has become shorter"
    path.unlink()
    with pytest.raises(InputError, match="must stay there during a run; got it deleted or moved"):
        dataset.fetch(np.array([0]))
