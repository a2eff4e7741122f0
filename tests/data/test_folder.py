"""Folders of images: layouts, files that cannot be read, resident and streamed."""

import contextlib
import dataclasses
import os
import socket
import threading
import unicodedata
import warnings
import zipfile

import numpy as np
import pytest

from cluster_jax.core.checks import InputError
from cluster_jax.core.names import composed, natural
from cluster_jax.data import datasets, decode, folder, images
from tests import toy
from tests.rows import every_row


def load(path, **changes):
    config = dataclasses.replace(toy.DATA, name="folder", dir=str(path), labels="folders")
    return datasets.load(dataclasses.replace(config, **changes))


RESIDENT = pytest.mark.parametrize("cache_mb", [1.0, 0.0])


@RESIDENT
def test_class_folders(tmp_path, write, cache_mb):
    wanted = {n: write(n) for n in ("b/2.png", "a/x/1.PNG", "b/1.bmp", "a/3.png", "c/0.tiff")}
    dataset = load(tmp_path, cache_mb=cache_mb)
    assert dataset.sources == ("a/3.png", "a/x/1.PNG", "b/1.bmp", "b/2.png", "c/0.tiff")
    assert dataset.label_names == ("a", "b", "c")
    assert dataset.labels.dtype == np.int32
    assert dataset.labels.tolist() == [0, 0, 1, 1, 2]
    assert (dataset.size, dataset.shape, dataset.skipped) == (5, (6, 8, 3), ())
    assert (dataset.images is None) == (cache_mb == 0)
    got = dataset.fetch(np.array([4, 1, 1]))
    assert got.dtype == np.uint8
    for image, index in zip(got, [4, 1, 1], strict=True):
        np.testing.assert_array_equal(image, wanted[dataset.sources[index]])


@pytest.mark.parametrize(
    "names",
    [("1.png", "2.png"), ("1.png", "a/2.png", "b/3.png"), ("a/1.png", "a/b/2.png", "a/c/3.png")],
)
def test_no_labels_unless_every_image_is_in_one_of_several_folders(tmp_path, write, names):
    for name in names:
        write(name)
    dataset = load(tmp_path)
    assert dataset.sources == names
    assert dataset.labels is None
    assert dataset.label_names is None


def test_other_files_are_counted_by_suffix(tmp_path, write, monkeypatch):
    write("a/1.png")
    for name in ("clip.MOV", "a/clip.mov", "a/raw.dng", "old.rar", "README"):
        (tmp_path / name).write_bytes(b"other")
    monkeypatch.setattr(decode, "can_read_raw", lambda: False)
    dataset = load(tmp_path)
    assert dataset.ignored == (("", 1), (".dng", 1), (".mov", 2), (".rar", 1))
    assert dataset.notes == (f"ignored files: {folder.describe_ignored(dataset.ignored)}",)
    assert folder.describe_ignored(dataset.ignored) == (
        "1 without suffix (images need one, such as .jpg), "
        "1 .dng (to read raw photos: pip install rawpy), 1 .rar (unpack them), 2 .mov"
    )


@RESIDENT
def test_unreadable_files_are_listed(tmp_path, write, cache_mb):
    for i in range(6):
        write(f"{'ab'[i % 2]}/{i}.png")
    (tmp_path / "a" / "text.jpg").write_text("this is text")
    (tmp_path / "b" / "empty.jpg").write_bytes(b"")
    dataset = images.readable(load(tmp_path, cache_mb=cache_mb, max_corrupt_fraction=0.25))
    assert dataset.skipped == (("a/text.jpg", "not an image"), ("b/empty.jpg", "empty file"))
    assert dataset.size == 6
    assert dataset.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert dataset.fetch(np.arange(6)).shape == (6, 6, 8, 3)
    with pytest.raises(
        ValueError,
        match=r"data\.max_corrupt_fraction = 0\.24 of them; got 2 .*: a/text\.jpg .*save them",
    ):
        load(tmp_path, cache_mb=cache_mb, max_corrupt_fraction=0.24).fetch(np.arange(8))


def test_the_next_image_stands_in_for_an_unreadable_file(tmp_path, write, caplog):
    pixels = [write(f"{i}.png") for i in range(5)]
    for i in (1, 2, 4):
        (tmp_path / f"{i}.png").write_text("no image")
    streamed = load(tmp_path, cache_mb=0.0, max_corrupt_fraction=0.6)
    assert (streamed.size, streamed.skipped) == (5, ())
    for batch in ([4, 1, 2, 0], [0, 1, 2, 3, 4], [2], [4, 4]):  # in whatever order
        wanted = [pixels[{1: 3, 2: 3, 4: 0}.get(i, i)] for i in batch]
        np.testing.assert_array_equal(streamed.fetch(np.array(batch)), wanted)
    assert [r.getMessage() for r in caplog.records].count(
        "1.png cannot be read (not an image)"
    ) == 1
    reasons = [None, "not an image", "not an image", None, "not an image"]
    assert streamed.unreadable(np.arange(5)) == reasons
    some = images.select(
        load(tmp_path, cache_mb=0.0, max_corrupt_fraction=1.0), np.array([0, 1, 3])
    )
    assert some.unreadable(np.array([2, 1])) == [None, "not an image"]
    left = images.without(streamed, np.array([reason is not None for reason in reasons]))
    assert left.sources == ("0.png", "3.png")
    assert [name for name, _ in left.skipped] == ["1.png", "2.png", "4.png"]


def test_a_file_that_threads_read_at_once_is_told_once(tmp_path, write, caplog, monkeypatch):
    """As the last photo of an update, with whose copies a batch is filled up."""
    write("1.png")
    (tmp_path / "2.png").write_text("no image")
    streamed = load(tmp_path, cache_mb=0.0, max_corrupt_fraction=0.5)
    opened, together = decode.opened, threading.Barrier(4, timeout=5)

    def slow(*arguments):
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait()
        return opened(*arguments)

    monkeypatch.setattr(decode, "opened", slow)
    assert len(streamed.fetch(np.full(4, 1))) == 4
    said = [record.getMessage() for record in caplog.records]
    assert said == ["2.png cannot be read (not an image)"]


def test_what_opens_and_cannot_be_decoded_is_unreadable(tmp_path, write):
    """Also after its sides were read from its header."""
    write("1.png", 40, 40)
    write("2.png", 40, 40)
    content = (tmp_path / "2.png").read_bytes()
    (tmp_path / "2.png").write_bytes(content[: len(content) // 2])
    streamed = load(tmp_path, image_size=4, cache_mb=0.0, max_corrupt_fraction=0.5)
    assert streamed.facts(np.arange(2))["width"].tolist() == [40, 0]
    (known, reason) = streamed.unreadable(np.arange(2))
    assert known is None
    assert reason.startswith("image file is truncated")


def test_an_image_deleted_during_a_run(tmp_path, write):
    write("1.png", 4, 4)
    write("2.png", 4, 4)
    streamed = load(tmp_path, cache_mb=0.0)
    (tmp_path / "2.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"2\.png"):
        streamed.fetch(np.array([0, 1]))


@RESIDENT
def test_an_image_of_too_many_pixels_is_unreadable(tmp_path, write, monkeypatch, cache_mb):
    write("1.png", 4, 4)
    write("2.png", 40, 40)
    monkeypatch.setattr(decode, "MAX_PIXELS", 100)
    dataset = load(tmp_path, image_size=4, max_corrupt_fraction=0.5, cache_mb=cache_mb)
    dataset = images.readable(dataset)
    ((path, reason),) = dataset.skipped
    assert path == "2.png"
    assert reason.startswith("40 x 40 pixels; at most")


@RESIDENT
def test_sizes_must_agree_without_a_canvas(tmp_path, write, cache_mb):
    write("1.png", 6, 8)
    write("2.png", 8, 6)
    with pytest.raises(ValueError, match=r"got 2.png of 8 x 6 and 6 x 8 before .*data.image_size"):
        load(tmp_path, cache_mb=cache_mb).fetch(np.arange(2))
    assert load(tmp_path, image_size=4, cache_mb=cache_mb).shape == (4, 4, 3)


def test_streamed_equals_resident_on_a_canvas(tmp_path, write):
    for i in range(7):
        write(f"{i}.png", 9 + i, 14 - i)
    resident = load(tmp_path, image_size=5)
    streamed = load(tmp_path, image_size=5, cache_mb=0.0)
    every = np.arange(7)
    np.testing.assert_array_equal(resident.images, streamed.fetch(every))
    np.testing.assert_array_equal(resident.fetch(every), streamed.fetch(every))


def test_limit_is_a_fixed_subset_with_its_labels(tmp_path, write):
    for i in range(20):
        write(f"{'ab'[i % 2]}/{i:02}.png")
    whole, some = load(tmp_path), load(tmp_path, limit=7)
    chosen = [whole.sources.index(s) for s in some.sources]
    assert len(chosen) == 7
    assert chosen == images.subset(20, 7).tolist()
    np.testing.assert_array_equal(some.labels, whole.labels[chosen])
    np.testing.assert_array_equal(some.images, whole.images[chosen])


def test_nothing_to_read(tmp_path):
    with pytest.raises(ValueError, match=r"data\.dir must be a folder of images; got none"):
        load("", dir=None)
    with pytest.raises(ValueError, match=r"must be an existing folder of images; got .*absent"):
        load(tmp_path / "absent")
    with pytest.raises(ValueError, match=r"such as jpg, png, .*got no image file in"):
        load(tmp_path)
    (tmp_path / "1.jpg").write_text("text")
    with pytest.raises(
        ValueError,
        match=r"must be readable; got 1 of 1 that cannot be read: 1\.jpg \(not an image\)",
    ):
        load(tmp_path, max_corrupt_fraction=1.0)
    with pytest.raises(ValueError, match=r"must be readable; .*1\.jpg \(not"):
        load(tmp_path / "1.jpg", max_corrupt_fraction=1.0)
    (tmp_path / "a.tar").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"must be readable; .*a\.tar \(not an image\)"):
        load(tmp_path / "a.tar")
    with pytest.raises(
        ValueError, match="must be a file or folder of this machine; got an address"
    ):
        load("gs://bucket/photos")


def put(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"content")


def names(root, **options):
    return list(folder.find(str(root), **options).names)


def test_numbers_in_names_are_numbers(tmp_path):
    put(tmp_path, "img_10.jpg", "img_2.jpg", "img_02.jpg", "9/b.jpg", "10/a.jpg", "Img_3.jpg")
    expected = ["9/b.jpg", "10/a.jpg", "Img_3.jpg", "img_02.jpg", "img_2.jpg", "img_10.jpg"]
    assert names(tmp_path) == expected
    assert sorted(["7" * 200, "a", "1", ""], key=natural) == ["", "1", "7" * 200, "a"]


@every_row(
    ("place", "kind"),
    [
        ("@eaDir/a.jpg", "in @eaDir"),
        ("$RECYCLE.BIN", "in $RECYCLE.BIN"),
        (".git/objects", "with a dot before the name"),
        ("Android/data/app", "in Android/data"),
        ("data/appdata_ocx1/preview", "in appdata_ocx1"),
        ("CaptureOne/Cache/Thumbnails", "in CaptureOne/Cache"),
        ("A.photoslibrary/resources/derivatives", "in A.photoslibrary/resources"),
        ("Takeout/Google Fotos/Papierkorb", "in Google Fotos/Papierkorb"),
        ("me/AppData/Local/Temp", "in AppData/Local"),
    ],
)
def test_folders_without_photos_are_counted(tmp_path, place, kind):
    put(tmp_path, "1.jpg", f"{place}/thumb.jpg", f"{place}/more/2.jpg")
    found = folder.find(str(tmp_path))
    assert found.names == ("1.jpg",)
    assert found.ignored == ((kind, 2),)


def test_a_library_of_photos_keeps_its_originals(tmp_path):
    put(tmp_path, "A.photoslibrary/originals/0/1.jpg", "A.photoslibrary/resources/1.jpg")
    assert names(tmp_path) == ["A.photoslibrary/originals/0/1.jpg"]
    put(tmp_path, "android/media/wa.jpg", "eaDir/1.jpg")  # names that only look alike
    assert len(names(tmp_path)) == 3


def test_excluded_by_the_user(tmp_path):
    put(tmp_path, "1.jpg", "2_small.jpg", "web/3.jpg", "a/web/4.jpg", "a/old/5.jpg")
    found = folder.find(str(tmp_path), ["*_small.*", "web", "a/ol*", "nosuch*"])
    assert (found.names, found.ignored) == (("1.jpg",), (("excluded", 4),))


def test_accents_may_be_apart_as_an_old_mac_writes_them(tmp_path, write):
    for name in ("Zürich 1.png", "Köln/2.png"):
        write(unicodedata.normalize("NFD", name))
    dataset = load(tmp_path, exclude=("Zürich*",))
    assert [composed(name) for name in dataset.sources] == ["Köln/2.png"]
    (tmp_path / "labels.csv").write_text("image,label\nKöln/2.png,a\nZürich 1.png,b\n")
    whole = load(tmp_path, labels=str(tmp_path / "labels.csv"))
    assert dict(zip(whole.sources, whole.labels.tolist(), strict=True)) == {
        unicodedata.normalize("NFD", "Köln/2.png"): 0,
        unicodedata.normalize("NFD", "Zürich 1.png"): 1,
    }


def test_links_to_files_are_files_and_links_to_folders_are_counted(tmp_path, write):
    write("a/1.png")
    write("other/2.png")
    (tmp_path / "a" / "2.png").symlink_to(tmp_path / "other" / "2.png")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "a" / "3.png").symlink_to("nowhere")
    (tmp_path / "a" / "4.png").symlink_to("4.png")
    dataset = load(tmp_path / "a")
    assert dataset.sources == ("1.png", "2.png")
    assert dataset.ignored == (("links to folders, broken links, pipes or devices", 3),)


def test_pipes_and_sockets_are_no_images(tmp_path):
    put(tmp_path, "1.jpg")
    os.mkfifo(tmp_path / "2.jpg")
    os.symlink(tmp_path / "2.jpg", tmp_path / "3.jpg")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(tmp_path)  # Paths of sockets are short.
        server.bind("4.jpg")
        os.chdir(here)
    found = folder.find(str(tmp_path))
    kind = "links to folders, broken links, pipes or devices"
    assert (found.names, found.ignored) == (("1.jpg",), ((kind, 3),))


def test_a_folder_that_cannot_be_read(tmp_path, write, monkeypatch):
    write("1.png")
    write("lost+found/3.png")
    scandir = os.scandir

    def refuse(path):
        if os.path.basename(path) == "lost+found":
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    dataset = load(tmp_path)
    assert dataset.sources == ("1.png",)
    assert dataset.skipped == (("lost+found/", "Permission denied"),)
    assert dataset.notes == ("folders that cannot be read: lost+found/ (Permission denied)",)
    with pytest.raises(InputError, match=r"found must be a folder that can be read; got Perm"):
        load(tmp_path / "lost+found")


def test_several_folders_and_files(tmp_path, write):
    for name in ("a/1.png", "a/2.png", "b/c/3.png", "b/4.png", "d.png"):
        write(name)
    chosen = "\n".join(str(tmp_path / name) for name in ("b", "a", "a/1.png", "d.png", "b/c"))
    dataset = load(chosen)
    assert dataset.sources == ("a/1.png", "a/2.png", "b/4.png", "b/c/3.png", "d.png")
    assert str(folder.root(chosen)) == str(tmp_path)
    assert folder.shown(chosen) == f"{tmp_path / 'b'} and 4 more"
    with pytest.raises(InputError, match=r"must be an existing folder of images; got .*nosuch"):
        load(f"{tmp_path}/a\n{tmp_path}/nosuch")


def test_a_folder_and_a_link_to_it_are_one(tmp_path, write):
    for name in ("a/1.png", "a/sub/2.png", "b/3.png"):
        write(name)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "into").symlink_to(tmp_path / "a" / "sub")
    (tmp_path / "again").symlink_to(tmp_path / "b")
    (tmp_path / "b2").symlink_to(tmp_path / "b")

    def names(*given):
        return folder.find("\n".join(str(tmp_path / name) for name in given)).names

    assert names("a", "link", "into") == ("a/1.png", "a/sub/2.png")
    assert names("link", "a") == ("a/1.png", "a/sub/2.png")
    assert names("again", "b2", "a/sub") == ("a/sub/2.png", "again/3.png")


def test_a_zip_is_read_in_place(tmp_path, write):
    pictures = {name: write(name) for name in ("t/10.png", "t/2.png", "__MACOSX/t/._2.png")}
    with zipfile.ZipFile(tmp_path / "p.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in (*pictures, "t/.hidden.png"):
            archive.write(tmp_path / name if name in pictures else tmp_path / "t/2.png", name)
        archive.writestr("notes.txt", "x")
    for cache_mb in (1.0, 0.0):
        dataset = load(tmp_path / "p.zip", cache_mb=cache_mb)
        assert dataset.sources == ("t/2.png", "t/10.png")
        assert (dataset.fetch([1])[0] == pictures["t/10.png"]).all()
        kinds = [(".txt", 1), ("in __MACOSX", 1), ("with a dot before the name", 1)]
        assert sorted(dataset.ignored) == kinds
    assert datasets.load_new(tmp_path / "p.zip", toy.DATA, (6, 6, 3)).size == 2
    (tmp_path / "bad.zip").write_bytes(b"PK no zip")
    with pytest.raises(InputError, match=r"bad\.zip must be a zip archive; got File is not a zip"):
        load(tmp_path / "bad.zip")
    # Beside others it would be taken for an image, as any file that is named.
    for first, second in (("p.zip", "bad.zip"), ("p.zip", "t"), ("t", "p.zip")):
        with pytest.raises(InputError, match=r"or a \.zip alone; got .*/p\.zip and 1 more: unpack"):
            folder.find(f"{tmp_path / first}\n{tmp_path / second}")


def test_files_of_one_name_in_a_zip_are_all_there(tmp_path, write):
    pictures = [write(f"{i}.png") for i in range(4)]
    names = ["t/a.png", "t/a.png", "t/a_2.png", "t/a.png"]
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as archive:
        for i, name in enumerate(names):
            with warnings.catch_warnings(action="ignore"):  # Python's, that a name repeats
                archive.write(tmp_path / f"{i}.png", name)
    dataset = load(tmp_path / "p.zip")
    assert dataset.sources == ("t/a.png", "t/a_2.png", "t/a_3.png", "t/a_4.png")
    for row, i in enumerate((0, 2, 1, 3)):
        np.testing.assert_array_equal(dataset.fetch([row])[0], pictures[i])


def test_a_zip_that_unpacks_to_much_and_leads_outside(tmp_path, write, monkeypatch):
    write("1.png")
    monkeypatch.setattr(folder, "_MOST_UNPACKED", 1_000)
    with zipfile.ZipFile(tmp_path / "p.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(tmp_path / "1.png", "1.png")
        archive.write(tmp_path / "1.png", "a/../../2.png")
        archive.writestr(zipfile.ZipInfo("/3.png"), b"x")
        archive.writestr("bomb.jpg", bytes(1_001))
        archive.writestr("inner.zip", b"PK")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.write(tmp_path / "1.png", "1.png")
    dataset = load(tmp_path / "p.zip", max_corrupt_fraction=0.5)
    assert dataset.sources == ("1.png",)
    assert dataset.skipped == (("bomb.jpg", "1,001 bytes once unpacked; at most 1,000 are read"),)
    assert dataset.ignored == ((".zip", 1), (folder._OUTSIDE, 2))
    packed = (tmp_path / "p.zip").read_bytes()
    (tmp_path / "p.zip").write_bytes(packed.replace(b"PNG", b"GNP"))
    with pytest.raises(OSError, match=r"1\.png in .*p\.zip is damaged \(Bad CRC-32"):
        folder.reader(str(tmp_path / "p.zip"))("1.png")
