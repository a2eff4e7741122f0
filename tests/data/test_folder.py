"""Folders of images: layouts, files that cannot be read, resident and streamed."""

import numpy as np
import pytest
from PIL import Image

from cluster_jax.core.checks import InputError
from cluster_jax.data import datasets, images, pixels, raw, scan


def load(path, **changes):
    arguments = {
        "image_size": None,
        "interpolation": "bicubic",
        "cache_mb": 1.0,
        "max_corrupt_fraction": 0.0,
        "limit": None,
        "labels": "folders",
    } | changes
    return datasets.load(
        datasets.DataConfig(name="folder", dir=str(path), split=None, label="label", **arguments)
    )


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
    for name in ("clip.MOV", "a/clip.mov", "a/raw.dng", "README"):
        (tmp_path / name).write_bytes(b"other")
    monkeypatch.setattr(raw, "can_read", lambda: False)
    dataset = load(tmp_path)
    assert dataset.ignored == (("", 1), (".dng", 1), (".mov", 2))
    assert dataset.notes == (f"ignored files: {scan.describe_ignored(dataset.ignored)}",)
    assert scan.describe_ignored(dataset.ignored) == (
        "1 without suffix, 1 .dng (to read raw photos: pip install rawpy), 2 .mov"
    )


def test_heic_without_the_package_that_reads_it(tmp_path, write, monkeypatch):
    write("1.png")
    (tmp_path / "2.HEIC").write_bytes(b"other")
    monkeypatch.setattr(scan, "HEIC", ())
    monkeypatch.setattr(scan, "suffixes", lambda: (".png",))
    text = "1 .heic (to read HEIC: pip install pillow-heif)"
    assert scan.describe_ignored(load(tmp_path).ignored) == text
    (tmp_path / "1.png").unlink()
    with pytest.raises(ValueError, match=r"no image file in .*; other files: 1 \.heic \(to read"):
        load(tmp_path)


def test_hidden_and_other_files_do_not_count(tmp_path, write):
    for name in ("a/1.png", "b/2.png", ".hidden/3.png", "a/._1.png"):
        write(name)
    (tmp_path / "notes.txt").write_text("not an image")
    (tmp_path / "folder.jpg").mkdir()
    assert load(tmp_path).sources == ("a/1.png", "b/2.png")
    assert load(tmp_path).label_names == ("a", "b")


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
        match=r"data\.max_corrupt_fraction = 0\.24 of all; got 2 of 8: a/text\.jpg .*\(repair or",
    ):
        load(tmp_path, cache_mb=cache_mb, max_corrupt_fraction=0.24).fetch(np.arange(8))


def test_a_streamed_set_decodes_no_image(tmp_path, write, monkeypatch):
    for i in range(4):
        write(f"{'ab'[i % 2]}/{i}.png")

    def read(path):
        raise AssertionError(path)

    monkeypatch.setattr(images, "decode", read)
    dataset = load(tmp_path, cache_mb=0.0, image_size=8)
    assert dataset.sources == ("a/0.png", "a/2.png", "b/1.png", "b/3.png")
    assert (dataset.size, dataset.labels.tolist()) == (4, [0, 0, 1, 1])


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


def test_truncated_file_is_listed(tmp_path, write):
    write("1.png", 40, 40)
    write("2.png", 40, 40)
    whole = (tmp_path / "2.png").read_bytes()
    (tmp_path / "2.png").write_bytes(whole[: len(whole) // 2])
    for cache_mb in (1.0, 0.0):
        dataset = images.readable(load(tmp_path, max_corrupt_fraction=0.5, cache_mb=cache_mb))
        assert [path for path, _ in dataset.skipped] == ["2.png"]
        assert dataset.sources == ("1.png",)


def test_an_image_deleted_during_a_run(tmp_path, write):
    write("1.png", 4, 4)
    write("2.png", 4, 4)
    streamed = load(tmp_path, cache_mb=0.0)
    (tmp_path / "2.png").unlink()
    with pytest.raises(InputError, match=r"2\.png must stay there .* deleted or moved .*put it"):
        streamed.fetch(np.array([0, 1]))


@RESIDENT
def test_a_broken_link_is_unreadable(tmp_path, write, cache_mb):
    write("1.png")
    (tmp_path / "2.png").symlink_to(tmp_path / "absent.png")
    dataset = images.readable(load(tmp_path, max_corrupt_fraction=0.5, cache_mb=cache_mb))
    assert [path for path, _ in dataset.skipped] == ["2.png"]


@RESIDENT
def test_an_image_of_too_many_pixels_is_unreadable(tmp_path, write, monkeypatch, cache_mb):
    write("1.png", 4, 4)
    write("2.png", 40, 40)
    monkeypatch.setattr(pixels, "MAX_PIXELS", 100)
    dataset = load(tmp_path, image_size=4, max_corrupt_fraction=0.5, cache_mb=cache_mb)
    dataset = images.readable(dataset)
    ((path, reason),) = dataset.skipped
    assert path == "2.png"
    assert reason.startswith("ValueError: 40 x 40 pixels; at most")


@RESIDENT
def test_resident_set_is_decoded_once(tmp_path, write, monkeypatch, cache_mb):
    for i in range(5):
        write(f"{i}.png")
    count = []
    original = images.decode
    monkeypatch.setattr(
        "cluster_jax.data.images.decode", lambda *a: count.append(1) or original(*a)
    )
    load(tmp_path, cache_mb=cache_mb, image_size=4)
    assert len(count) == (5 if cache_mb else 0)


@RESIDENT
def test_sizes_must_agree_without_a_canvas(tmp_path, write, cache_mb):
    write("1.png", 6, 8)
    write("2.png", 8, 6)
    with pytest.raises(ValueError, match=r"got 2.png of 8 x 6 and 6 x 8 before .*data.image_size"):
        load(tmp_path, cache_mb=cache_mb).fetch(np.arange(2))
    assert load(tmp_path, image_size=4, cache_mb=cache_mb).shape == (4, 4, 3)


@RESIDENT
def test_orientation_counts_for_the_size(tmp_path, write, cache_mb):
    write("1.png", 6, 8)
    pixels = write("2.png", 8, 6)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    Image.fromarray(pixels).save(tmp_path / "2.png", exif=exif)
    dataset = load(tmp_path, cache_mb=cache_mb)
    assert dataset.shape == (6, 8, 3)
    np.testing.assert_array_equal(dataset.fetch(np.array([1]))[0], np.rot90(pixels, -1))


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
        datasets.load(
            datasets.DataConfig(
                name="folder",
                dir=None,
                split=None,
                label="label",
                image_size=None,
                interpolation="bicubic",
                cache_mb=1,
                max_corrupt_fraction=0,
                limit=None,
            )
        )
    with pytest.raises(ValueError, match=r"must be an existing folder of images; got .*absent"):
        load(tmp_path / "absent")
    with pytest.raises(ValueError, match=r"such as jpg, png, .*got no image file in"):
        load(tmp_path)
    (tmp_path / "1.jpg").write_text("text")
    with pytest.raises(
        ValueError, match=r"must be readable; got 1 file .* 1\.jpg \(not an image\)"
    ):
        load(tmp_path, max_corrupt_fraction=1.0)
    with pytest.raises(ValueError, match=r"must be a folder of images; got the file .*1\.jpg"):
        load(tmp_path / "1.jpg")


def test_real_photographs_of_many_sizes(real_data):
    dataset = load(real_data / "images" / "imagenet_native", image_size=32)
    assert (dataset.size, dataset.shape, dataset.skipped) == (14, (32, 32, 3), ())
    assert len(dataset.label_names) == 14
    assert dataset.images.std() > 30


def test_a_link_to_a_folder_above_is_not_followed_around(tmp_path, write):
    write("a/1.png")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    assert load(tmp_path).sources == ("a/1.png",)
