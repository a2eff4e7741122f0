"""Raw photos: their previews, and raw photos beside images of the same name."""

import io
import sys
import types
import zipfile

import numpy as np
import pytest
from PIL import Image

from cluster_jax.core.checks import InputError
from cluster_jax.data import photo_facts, raw, scan
from cluster_jax.data.datasets import DataConfig, load
from tests.data import dng
from tests.rows import every_row

rawpy = pytest.importorskip("rawpy")


def folder(path, max_corrupt_fraction=0.0):
    return load(
        DataConfig(
            "folder", str(path), None, "label", 32, "bilinear", None, 1, max_corrupt_fraction
        )
    )


def picture(seed=0, size=(96, 64)):
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (4, 6, 3), dtype=np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)


@every_row("name", ["IMG_1.DNG", "img_1.nef", "a.ARW"])
def test_the_preview_is_the_image(tmp_path, name):
    dng.write(tmp_path / name, picture())
    picture().save(tmp_path / "other.png")
    made = folder(tmp_path)
    assert set(made.sources) == {name, "other.png"}
    first, second = made.images.astype(int)
    assert np.abs(first - second).mean() < 3
    facts = photo_facts.read(made)
    assert (facts.width.tolist(), facts.height.tolist()) == ([96, 96], [64, 64])


def test_a_raw_photo_is_upright(tmp_path):
    dng.write(tmp_path / "1.dng", picture(), orientation=6)
    picture().transpose(Image.Transpose.ROTATE_270).save(tmp_path / "2.png")
    first, second = folder(tmp_path).images.astype(int)
    assert np.abs(first - second).mean() < 3


def test_a_preview_without_compression_is_upright(monkeypatch, tmp_path):
    """Old cameras have such previews; the file says how the camera was held."""
    values = np.asarray(picture())
    for flip, turned in ((0, 0), (3, 2), (5, 1), (6, 3)):
        thumb = types.SimpleNamespace(format=rawpy.ThumbFormat.BITMAP, data=values)
        photo = types.SimpleNamespace(
            extract_thumb=lambda thumb=thumb: thumb, sizes=types.SimpleNamespace(flip=flip)
        )
        photo = type("Photo", (), {"__enter__": lambda _, p=photo: p, "__exit__": lambda *_: None})
        monkeypatch.setattr(sys.modules["rawpy"], "imread", lambda _, p=photo: p())
        made = Image.open(raw.preview(io.BytesIO()))
        np.testing.assert_array_equal(np.asarray(made), np.rot90(values, turned))


def test_a_raw_photo_and_an_image_of_one_name_are_one_photo(tmp_path):
    names = ("IMG_1.jpg", "IMG_1.CR2", "img_2.JPG", "IMG_2.nef", "sub/IMG_3.heic", "IMG_4.dng")
    for name in (*names, "sub/IMG_3.dng", "sub/IMG_4.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    found = scan.find(str(tmp_path))
    assert set(found.names) == {"IMG_1.jpg", "img_2.JPG", "IMG_4.dng", *found.names[-2:]}
    assert found.names[-2:] == ("sub/IMG_3.heic", "sub/IMG_4.jpg")
    assert found.ignored == (("raw beside an image of the same name", 3),)


def test_without_the_package_that_reads_them(tmp_path, monkeypatch):
    monkeypatch.setattr(raw, "can_read", lambda: False)
    for name in ("1.jpg", "1.dng", "2.dng", "3.NEF"):
        (tmp_path / name).write_bytes(b"x")
    found = scan.find(str(tmp_path))
    assert found.names == ("1.jpg",)
    assert scan.describe_ignored(found.ignored) == (
        "1 .dng (to read raw photos: pip install rawpy), "
        "1 .nef (to read raw photos: pip install rawpy), 1 raw beside an image of the same name"
    )
    with pytest.raises(InputError, match=r"1 \.nef \(to read raw photos: pip install rawpy\)"):
        scan.find("\n".join([str(tmp_path / "3.NEF"), str(tmp_path / "2.dng")]))


def test_in_a_zip(tmp_path):
    dng.write(tmp_path / "1.dng", picture())
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(tmp_path / "1.dng", "x/1.dng")
        archive.writestr("x/2.dng", b"other")
        archive.writestr("x/2.jpg", b"other")
    found = scan.find(str(tmp_path / "a.zip"))
    assert found.names == ("x/1.dng", "x/2.jpg")
    with found.open("x/1.dng") as file:
        assert Image.open(file).size == (96, 64)


def test_what_has_no_preview_is_listed_with_the_reason(tmp_path):
    picture().save(tmp_path / "0.png")
    dng.write(tmp_path / "1.dng", picture(), preview=False)
    (tmp_path / "2.cr2").write_bytes(b"other")
    (tmp_path / "3.cr3").write_bytes(b"")
    made = folder(tmp_path, max_corrupt_fraction=0.9)
    assert made.sources == ("0.png",)
    reasons = dict(made.skipped)
    assert reasons["1.dng"].endswith("without a preview (No thumbnail in file): export it as JPEG")
    assert reasons["2.cr2"].endswith("export it as JPEG")
    assert "3.cr3" in reasons
