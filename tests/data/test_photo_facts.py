"""Facts about image files: size of the upright picture, bytes, date of taking."""

import io

import numpy as np
import pytest
from PIL import ExifTags, Image, PngImagePlugin

from cluster_jax.data import images, photo_facts
from tests.data.test_folder import load
from tests.rows import every_row


def _exif(orientation=None, **dates):
    exif = Image.Exif()
    if orientation is not None:
        exif[ExifTags.Base.Orientation] = orientation
    for name, date in dates.items():
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base[name]] = date
    return exif


def _facts(folder):
    dataset = load(folder, image_size=4)
    return dict(zip(dataset.sources, zip(*photo_facts.read(dataset), strict=True), strict=True))


@every_row("suffix", ["jpg", "png", "tif", "webp", "avif", "heic"])
@every_row("orientation", [None, *range(1, 9)])
def test_size_is_that_of_the_upright_picture(tmp_path, suffix, orientation):
    Image.new("RGB", (20, 10), "red").save(tmp_path / f"a.{suffix}", exif=_exif(orientation))
    (width, height, size, taken) = _facts(tmp_path)[f"a.{suffix}"]
    data = (tmp_path / f"a.{suffix}").read_bytes()
    shape = images.decode(data, None, 3).shape
    assert (height, width) == shape[:2]
    assert sorted(shape[:2]) == [10, 20]
    assert (size, taken) == (len(data), "")


def test_exif_after_the_pixels_of_a_png(tmp_path):
    stream = io.BytesIO()
    Image.new("RGB", (20, 10)).save(stream, "PNG")
    block = io.BytesIO()
    exif = _exif(6, DateTimeOriginal="2023:07:14 18:02:11").tobytes()
    PngImagePlugin.putchunk(block, b"eXIf", exif.removeprefix(b"Exif\0\0"))
    end = stream.getvalue()[-12:]
    (tmp_path / "a.png").write_bytes(stream.getvalue()[:-12] + block.getvalue() + end)
    assert _facts(tmp_path)["a.png"][:2] == (10, 20)
    assert _facts(tmp_path)["a.png"][3] == "2023-07-14T18:02:11"


@pytest.mark.parametrize("is_packed", [False, True])
def test_png_with_a_long_text(tmp_path, is_packed):
    info = PngImagePlugin.PngInfo()
    info.add_text("workflow", "x" * 1_200_000, zip=is_packed)
    Image.new("RGB", (20, 10)).save(tmp_path / "a.png", pnginfo=info)
    assert _facts(tmp_path)["a.png"][:2] == (20, 10)


def test_date_of_taking(tmp_path):
    picture = Image.new("RGB", (4, 4))
    dates = {
        "original": {"DateTimeOriginal": "2023:07:14 18:02:11", "DateTimeDigitized": "2024:01:01"},
        "scan": {"DateTimeDigitized": "1999:12:31 23:59:59\0"},
        "none": {},
        "unset": {"DateTimeOriginal": "0000:00:00 00:00:00"},
        "blank": {"DateTimeOriginal": "    :  :     :  :  ", "DateTimeDigitized": "x"},
        "changed": {"DateTime": "2020:01:01 00:00:00"},
    }
    for name, given in dates.items():
        picture.save(tmp_path / f"{name}.jpg", exif=_exif(**given))
    assert {name: facts[3] for name, facts in _facts(tmp_path).items()} == {
        "original.jpg": "2023-07-14T18:02:11",
        "scan.jpg": "1999-12-31T23:59:59",
        "none.jpg": "",
        "unset.jpg": "",
        "blank.jpg": "",
        "changed.jpg": "",
    }


def test_damaged_and_lost_files_have_zeros(tmp_path, write):
    for name in ("a.png", "b.png", "c.png"):
        write(name)
    dataset = load(tmp_path, image_size=4, cache_mb=0.0)
    (tmp_path / "a.png").write_bytes(b"no image")
    (tmp_path / "b.png").unlink()
    facts = photo_facts.read(dataset)
    assert facts.width.tolist() == [0, 0, 8]
    assert facts.height.tolist() == [0, 0, 6]
    assert facts.bytes.tolist()[:2] == [8, 0]
    assert facts.taken == ("", "", "")
    assert [column.dtype for column in facts[:3]] == [np.int32, np.int32, np.int64]


def test_rows_follow_a_selection_and_arrays_have_none(tmp_path, write, rng):
    for width in (3, 5, 7):
        write(f"{width}.png", 4, width)
    chosen = images.select(load(tmp_path, image_size=4), np.array([2, 0]))
    assert photo_facts.read(chosen).width.tolist() == [7, 3]
    assert photo_facts.read(chosen._replace(open=None)) is None
