"""Decoding of single images against the pixels that were written, and the threads around it."""

import hashlib
import io
import struct
import sys
import threading
import time
import types

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageCms, ImageOps

from cluster_jax.core.checks import InputError
from cluster_jax.data import decode as decoding
from cluster_jax.data import folder, images
from cluster_jax.data.decode import Resize
from tests.data import dng
from tests.data.test_folder import load
from tests.rows import every_row

rawpy = pytest.importorskip("rawpy")
SQUARES = {"image_size": 32, "interpolation": "bilinear"}


def encoded(image: Image.Image, form: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def decode(image: Image.Image, form: str = "PNG", channels: int = 3, **options) -> np.ndarray:
    out = decoding.decode(encoded(image, form, **options), None, channels)
    assert out.dtype == np.uint8
    return out


def test_rgb_is_exact_and_gray_is_its_luma(rng):
    pixels = rng.integers(0, 256, (5, 7, 3), dtype=np.uint8)
    np.testing.assert_array_equal(decode(Image.fromarray(pixels)), pixels)
    luma = pixels @ np.array([0.299, 0.587, 0.114])
    grayscale = decode(Image.fromarray(pixels), channels=1)
    assert grayscale.shape == (5, 7, 1)
    assert np.abs(grayscale[..., 0] - luma).max() <= 0.51  # rounding, in fixed point


def test_transparent_color_of_a_palette_is_white(rng):
    index = rng.integers(0, 4, (5, 7), dtype=np.uint8)
    image = Image.fromarray(index)
    colors = rng.integers(0, 200, (4, 3), dtype=np.uint8)
    image.putpalette(colors.tobytes())
    colors[2] = 255
    np.testing.assert_array_equal(decode(image, transparency=2), colors[index])


@pytest.mark.parametrize(("values", "ground"), [((0, 100), 255), ((150, 256), 0)])
def test_transparency_shows_the_ground_that_differs_more(rng, values, ground):
    pixels = rng.integers(*values, (5, 7, 4), dtype=np.uint8)
    pixels[..., 3] = rng.integers(0, 256, (5, 7))
    share = pixels[..., 3:] / 255
    expected = share * pixels[..., :3] + (1 - share) * ground
    assert np.abs(decode(Image.fromarray(pixels)) - expected).max() <= 1  # Pillow's fixed point


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32])
def test_values_beyond_8_bits_are_scaled_by_the_picture_itself(rng, dtype):
    values = (3000 + 900 * rng.random((50, 70))).astype(dtype)
    values[0, :2] = 0, 60_000  # a dead pixel and a hot one
    low, high = np.percentile(values, (0.1, 99.9))
    expected = np.clip((values - low) / (high - low), 0, 1) * 255
    out = decode(Image.fromarray(values), "TIFF", channels=1)[..., 0]
    assert np.abs(out - expected).max() <= 0.51
    assert np.abs(decoding.decode(values, None, 1)[..., 0] - expected).max() <= 0.51


def test_few_and_no_numbers_beyond_8_bits():
    values = np.zeros((50, 70), np.float32)
    assert not decode(Image.fromarray(values), "TIFF").any()
    values[0, :3] = 7, np.nan, np.inf  # a star: less than the percentiles see
    out = decode(Image.fromarray(values), "TIFF", channels=1)[..., 0]
    assert out[0, :4].tolist() == [255, 0, 255, 0]
    assert not decode(Image.fromarray(np.full((4, 4), np.nan, np.float32)), "TIFF").any()


def test_large_images_wait_for_each_other(monkeypatch):
    """However many threads decode, and whatever the format is, memory has a bound."""
    forms = [encoded(Image.new("1", (40, 30))), encoded(photo(30, 40), "JPEG")]
    forms += [encoded(photo(30, 40), "TIFF"), encoded(photo(10, 10))]
    monkeypatch.setattr(decoding, "_LARGE", 1199)
    loading, most, lock, load_all = [0], [0], threading.Lock(), decoding.to_8_bit

    def watched(file, mode):
        is_large = file.width == 40
        with lock:
            loading[0] += is_large
            most[0] = max(most[0], loading[0])
        time.sleep(0.02)
        image = load_all(file, mode)
        with lock:
            loading[0] -= is_large
        return image

    monkeypatch.setattr(decoding, "to_8_bit", watched)
    data = forms * 3
    shapes = images.map_indices(lambda i: decoding.decode(data[i], None, 3).shape, np.arange(12))
    assert shapes == [(30, 40, 3), (30, 40, 3), (30, 40, 3), (10, 10, 3)] * 3
    assert most[0] == 1


def test_memory_of_large_images_goes_back_to_the_system():
    """The C library keeps blocks of up to 32 MB for the thread that has freed them."""
    data = encoded(Image.new("L", (6_000, 6_000)), compress_level=1)
    Image.core.reset_stats()
    with decoding.opened(data) as image:
        image.file.load()
    assert Image.core.get_stats()["allocated_blocks"] <= 2


def test_files_that_differ_in_the_middle_have_different_contents(tmp_path, rng):
    values = rng.integers(0, 256, (300, 300, 3), dtype=np.uint8)
    for name, middle in (("a", 0), ("b", 255), ("c", 0)):
        values[150, 150] = middle
        Image.fromarray(values).save(tmp_path / f"{name}.bmp")
    a, b, c = load(tmp_path, cache_mb=0.0).facts(np.arange(3))
    for digest in ("digest", "file"):
        assert (a[digest] != b[digest]).any()
        np.testing.assert_array_equal(a[digest], c[digest])
    digest = hashlib.sha256((tmp_path / "b.bmp").read_bytes()).digest()
    assert (b["file"].tobytes(), b["file"].shape) == (digest, (32,))
    assert b["digest"].tobytes() != digest


@every_row(
    ("orientation", "turn"),
    [
        (1, lambda x: x),
        (2, lambda x: x[:, ::-1]),
        (3, lambda x: x[::-1, ::-1]),
        (4, lambda x: x[::-1]),
        (5, lambda x: x.swapaxes(0, 1)),
        (6, lambda x: np.rot90(x, -1)),
        (7, lambda x: np.rot90(x.swapaxes(0, 1), 2)),
        (8, lambda x: np.rot90(x)),
    ],
)
def test_exif_orientation(rng, orientation, turn):
    pixels = rng.integers(0, 256, (5, 7, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    np.testing.assert_array_equal(decode(Image.fromarray(pixels), exif=exif), turn(pixels))


def test_fit_keeps_the_aspect_and_the_center():
    # A ramp along the long side: of 30 columns at half size, the central 10 are columns 10 to 19.
    ramp = np.tile(np.arange(30, dtype=np.uint8) * 8, (20, 1))
    out = decoding.decode(ramp, Resize(10, "bicubic"), 1)[..., 0].astype(float)
    assert out.shape == (10, 10)
    expected = 8 * (2 * (np.arange(10) + 2.5) + 0.5)  # halved, from the middle of column 2 on
    assert np.abs(out - expected).max() <= 1
    assert np.abs(out - out[:1]).max() == 0
    np.testing.assert_allclose(np.diff(out[0]), 16, atol=1)


def test_order_is_the_same_in_every_version():
    # Ranks of raw words: NumPy promises these, but not those of Generator.permutation.
    words = np.random.Philox(np.random.SeedSequence((5, 2))).random_raw(6)
    out = images.order(6, 5, 2)
    assert out.dtype == np.int32
    assert out.tolist() == sorted(range(6), key=lambda i: int(words[i]))


def photo(height, width):
    """A smooth image with some noise."""
    y, x = np.mgrid[:height, :width] * (10 / height)
    pixels = 128 + 80 * np.stack([np.sin(x), np.cos(y), np.sin(x + y)], -1)
    pixels += np.random.default_rng(0).normal(0, 5, pixels.shape)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


@pytest.mark.parametrize(("short", "decoded"), [(399, 399), (400, 200), (1600, 200)])
def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size(monkeypatch, short, decoded):
    """To at least twice the side of the square, here 100; the result is nearly the same."""
    data = encoded(photo(short, short + 100), "JPEG", quality=95)
    sizes = []

    def fit(image, *options, fit=ImageOps.fit):
        sizes.append(min(image.size))
        return fit(image, *options)

    monkeypatch.setattr(ImageOps, "fit", fit)
    resize = decoding.Resize(100, "bicubic")
    with Image.open(io.BytesIO(data)) as file:
        full = decoding.decode(file, resize, 3).astype(int)
    out = decoding.decode(data, resize, 3)
    assert sizes == [short, decoded]
    error = np.abs(out - full)
    assert error.max() <= 8
    assert error.mean() <= 1


@pytest.mark.parametrize("form", ["AVIF", "HEIF"])
def test_formats_of_phones(form):
    if form == "HEIF":
        pytest.importorskip("pillow_heif")
    image = photo(120, 160)
    out = decode(image, form, quality=95)
    assert np.abs(out - np.asarray(image).astype(int)).mean() < 4


def test_a_damaged_tag_of_exif_loses_no_image(rng):
    exif = Image.Exif()
    exif[0x0112], exif[282] = 6, 72.0  # the orientation; a resolution, whose tag is made unknown
    raw = exif.tobytes().replace(b"\x01\x1a\x00\x05", b"\x01\x4e\x00\x05")
    pixels = rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", exif=raw)
    with Image.open(io.BytesIO(file.getvalue())) as image, pytest.raises(struct.error):
        ImageOps.exif_transpose(image)
    assert decoding.decode(file.getvalue(), None, 3).shape == (30, 20, 3)


def test_a_line_of_pixels_is_cropped_before_it_is_scaled():
    row = np.arange(4000, dtype=np.uint16).astype(np.uint8)[None]
    found = decoding.decode(row, Resize(32, "bicubic"), 1)
    assert set(found.ravel().tolist()) == {207, 208}  # columns 1,999 and 2,000


@every_row(
    ("data", "said"),
    [
        (b"\0\0\0\x18ftypmp42", "a video, or a photo that needs pip install pillow-heif"),
        (b"", "empty file"),
        (b"other", "not an image"),
        # A program of the system would interpret it.
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
    ],
)
def test_what_is_named_like_an_image(data, said):
    with pytest.raises(Exception, match="not an image") as caught:
        decoding.decode(data, None, 3)
    assert decoding.reason(caught.value, data) == said


def picture(seed=0, size=(96, 64)):
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (4, 6, 3), dtype=np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)


@every_row("name", ["IMG_1.DNG", "img_1.nef", "a.ARW"])
def test_the_preview_is_the_image(tmp_path, name):
    dng.write(tmp_path / name, picture())
    picture().save(tmp_path / "other.png")
    made = load(tmp_path, **SQUARES)
    assert set(made.sources) == {name, "other.png"}
    first, second = made.images.astype(int)
    assert np.abs(first - second).mean() < 3
    facts = made.facts(np.arange(2))
    assert (facts["width"].tolist(), facts["height"].tolist()) == ([96, 96], [64, 64])


def test_a_raw_photo_is_upright(tmp_path):
    dng.write(tmp_path / "1.dng", picture(), orientation=6)
    picture().transpose(Image.Transpose.ROTATE_270).save(tmp_path / "2.png")
    first, second = load(tmp_path, **SQUARES).images.astype(int)
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
        made = Image.open(io.BytesIO(decoding.preview(b"")))
        np.testing.assert_array_equal(np.asarray(made), np.rot90(values, turned))


def test_a_raw_photo_and_an_image_of_one_name_are_one_photo(tmp_path):
    names = ("IMG_1.jpg", "IMG_1.CR2", "img_2.JPG", "IMG_2.nef", "sub/IMG_3.heic", "IMG_4.dng")
    for name in (*names, "sub/IMG_3.dng", "sub/IMG_4.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    found = folder.find(str(tmp_path))
    assert set(found.names) == {"IMG_1.jpg", "img_2.JPG", "IMG_4.dng", *found.names[-2:]}
    assert found.names[-2:] == ("sub/IMG_3.heic", "sub/IMG_4.jpg")
    assert found.ignored == (("raw beside an image of the same name", 3),)


def test_without_the_package_that_reads_them(tmp_path, monkeypatch):
    monkeypatch.setattr(decoding, "can_read_raw", lambda: False)
    for name in ("1.jpg", "1.dng", "2.dng", "3.NEF"):
        (tmp_path / name).write_bytes(b"x")
    found = folder.find(str(tmp_path))
    assert found.names == ("1.jpg",)
    assert folder.describe_ignored(found.ignored) == (
        "1 .dng (to read raw photos: pip install rawpy), "
        "1 .nef (to read raw photos: pip install rawpy), 1 raw beside an image of the same name"
    )
    with pytest.raises(InputError, match=r"1 \.nef \(to read raw photos: pip install rawpy\)"):
        folder.find("\n".join([str(tmp_path / "3.NEF"), str(tmp_path / "2.dng")]))


def test_what_has_no_preview_is_listed_with_the_reason(tmp_path):
    picture().save(tmp_path / "0.png")
    dng.write(tmp_path / "1.dng", picture(), preview=False)
    (tmp_path / "2.cr2").write_bytes(b"other")
    (tmp_path / "3.cr3").write_bytes(b"")
    made = load(tmp_path, max_corrupt_fraction=0.9)
    assert made.sources == ("0.png",)
    reasons = dict(made.skipped)
    said = "a raw photo without a preview: export it as JPEG"
    assert reasons == dict.fromkeys(("1.dng", "2.cr2", "3.cr3"), said)


def _exif(orientation=None, **dates):
    exif = Image.Exif()
    if orientation is not None:
        exif[ExifTags.Base.Orientation] = orientation
    for name, date in dates.items():
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base[name]] = date
    return exif


def _facts(folder):
    dataset = load(folder, image_size=4)
    facts = dataset.facts(np.arange(dataset.size)).tolist()
    return {name: values[:4] for name, values in zip(dataset.sources, facts, strict=True)}


@every_row("suffix", ["jpg", "png", "tif", "webp", "avif", "heic"])
@every_row("orientation", [None, *range(1, 9)])
def test_size_is_that_of_the_upright_picture(tmp_path, suffix, orientation):
    Image.new("RGB", (20, 10), "red").save(tmp_path / f"a.{suffix}", exif=_exif(orientation))
    width, height, size, taken = _facts(tmp_path)[f"a.{suffix}"]
    data = (tmp_path / f"a.{suffix}").read_bytes()
    shape = decoding.decode(data, None, 3).shape
    assert (height, width) == shape[:2]
    assert sorted(shape[:2]) == [10, 20]
    assert (size, taken) == (len(data), b"")


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
        "original.jpg": b"2023-07-14T18:02:11",
        "scan.jpg": b"1999-12-31T23:59:59",
        **dict.fromkeys(("none.jpg", "unset.jpg", "blank.jpg", "changed.jpg"), b""),
    }


def test_damaged_and_lost_files_have_zeros(tmp_path, write):
    for name in ("a.png", "b.png", "c.png"):
        write(name)
    dataset = load(tmp_path, image_size=4, cache_mb=0.0)
    (tmp_path / "a.png").write_bytes(b"no image")
    (tmp_path / "b.png").unlink()
    facts = dataset.facts(np.arange(3))
    assert facts["width"].tolist() == [0, 0, 8]
    assert facts["height"].tolist() == [0, 0, 6]
    assert facts["bytes"].tolist()[:2] == [8, 0]
    assert facts["taken"].tolist() == [b"", b"", b""]


def _digest(data: bytes) -> bytes:
    """Of what a file shows; it is the same whether the file was decoded before, and how large."""
    with decoding.opened(data) as (file, _):
        found = decoding.digest(data, file)
    with decoding.opened(data, 16) as (file, _):
        decoding.to_8_bit(file, "RGB")
        assert decoding.digest(data, file) == found
    return found


def _with_segment(data: bytes, marker: int, content: bytes) -> bytes:
    """A JPEG with a further segment behind its first two bytes, as programs for photos write it."""
    size = (len(content) + 2).to_bytes(2, "big")
    return data[:2] + bytes([0xFF, marker]) + size + content + data[2:]


def _tagged(**tags) -> bytes:
    exif = Image.Exif()
    for name, value in tags.items():
        exif[ExifTags.Base[name]] = value
    exif.get_ifd(ExifTags.IFD.GPSInfo)[1] = "N"
    return exif.tobytes()


def test_metadata_leaves_what_a_jpeg_shows(rng):
    image = Image.fromarray(rng.integers(0, 256, (90, 120, 3), dtype=np.uint8))
    data = encoded(image, "JPEG", quality=80)
    wanted = _digest(data)
    xmp = b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta xmlns:x='adobe:ns:meta/'/>"
    tagged = _with_segment(data, 0xE1, b"Exif\0\0" + _tagged(ImageDescription="Ann", Rating=4))
    tagged = _with_segment(tagged, 0xFE, b"a comment")
    tagged = _with_segment(tagged, 0xED, b"Photoshop 3.0\0" + bytes(40))
    for other in (tagged, _with_segment(data, 0xE1, xmp), data + b"a film", data + data):
        assert other != data
        assert _digest(other) == wanted
    turned = _with_segment(data, 0xE1, b"Exif\0\0" + _tagged(Orientation=6))
    better = encoded(image, "JPEG", quality=81)
    assert _is_turned(wanted, _digest(turned), 6)
    assert decoding.same_photo(_digest(better)) != decoding.same_photo(wanted)


def _is_turned(upright: bytes, turned: bytes, orientation: int) -> bool:
    """Whether two digests are of one photo, of which one is turned by its tag."""
    is_same = decoding.same_photo(upright) == decoding.same_photo(turned)
    return is_same and (upright[-1], turned[-1]) == (1, orientation)


@pytest.mark.parametrize("form", ["PNG", "TIFF", "WEBP"])
def test_metadata_leaves_what_an_image_shows(rng, form):
    """A tag that turns the image is another digest of the same photo, also of a TIFF."""
    options = {"lossless": True} if form == "WEBP" else {}
    values = rng.integers(0, 256, (40, 30, 3), dtype=np.uint8)
    data = encoded(Image.fromarray(values), form, **options)
    tagged = encoded(Image.fromarray(values), form, exif=_tagged(ImageDescription="Bo"), **options)
    assert tagged != data
    assert _digest(tagged) == _digest(data)
    for turn in (3, 5, 6, 8):
        exif = _tagged(Orientation=turn)
        turned = encoded(Image.fromarray(values), form, exif=exif, **options)
        assert _is_turned(_digest(data), _digest(turned), turn)
    values[7, 7, 0] ^= 1
    assert _digest(encoded(Image.fromarray(values), form, **options)) != _digest(data)


def test_all_pages_of_a_file_count():
    pages = [Image.new("L", (20, 20), level) for level in (10, 20, 30)]
    two = [encoded(pages[0], "TIFF", save_all=True, append_images=[pages[i]]) for i in (1, 2)]
    assert _digest(two[0]) != _digest(two[1])


def _profile(primaries, gamma: float) -> bytes:
    """An ICC profile of three primaries, XYZ under D50, and a gamma."""

    def xyz(values) -> bytes:
        return b"".join(struct.pack(">i", round(value * 65536)) for value in values)

    of_xyz = [b"XYZ \0\0\0\0" + xyz(primary) for primary in primaries]
    curve = b"curv\0\0\0\0" + struct.pack(">IHH", 1, round(gamma * 256), 0)
    tags = {
        b"desc": b"desc\0\0\0\0" + struct.pack(">I", 5) + b"wide\0" + bytes(79),
        b"wtpt": b"XYZ \0\0\0\0" + xyz(D50),
        **dict(zip((b"rXYZ", b"gXYZ", b"bXYZ"), of_xyz, strict=True)),
        **dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), curve),
    }
    start, table, content = 132 + 12 * len(tags), struct.pack(">I", len(tags)), b""
    for name, value in tags.items():
        table += name + struct.pack(">II", start + len(content), len(value))
        content += value + bytes(-len(value) % 4)
    size = start + len(content)
    head = struct.pack(">I4sI4s4s4s", size, b"", 0x02100000, b"mntr", b"RGB ", b"XYZ ") + bytes(12)
    head += b"acsp" + bytes(28) + xyz(D50)
    return head.ljust(128, b"\0") + table + content


D50 = (0.9642, 1.0, 0.8249)
# Display P3 under D50, and the primaries of sRGB.
P3 = ((0.51512, 0.2412, -0.00105), (0.29198, 0.69225, 0.04189), (0.1571, 0.06657, 0.78407))
SRGB = ((0.43607, 0.22249, 0.01392), (0.38515, 0.71687, 0.09708), (0.14307, 0.06061, 0.7141))


def test_colors_become_those_of_srgb():
    """By hand: to XYZ by one set of primaries, and back by those of sRGB and its curve."""
    levels = np.array([[60, 120, 90], [200, 180, 150], [30, 30, 200], [128, 128, 128]], np.uint8)
    linear = (levels / 255) ** 2.2
    linear = np.clip(linear @ np.array(P3) @ np.linalg.inv(SRGB), 0, 1)
    wanted = 255 * np.where(linear < 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    pixels = np.repeat(levels[None], 8, axis=0).repeat(8, axis=1)
    profile = _profile(P3, 2.2)
    for form, options in (("PNG", {}), ("JPEG", {"quality": 100, "subsampling": 0})):
        found = decode(Image.fromarray(pixels), form, icc_profile=profile, **options)
        assert np.abs(found[4, 4::8] - wanted).max() < 4
        assert np.abs(levels - wanted).max() > 15
        assert (
            np.abs(
                decode(Image.fromarray(pixels), form, **options)[4, 4::8] - levels.astype(int)
            ).max()
            < 4
        )
    # A damaged one, and one of sRGB, change nothing; but another one changes what is shown.
    data = encoded(Image.fromarray(pixels))
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for other in (profile[:40], b"", srgb):
        found = decode(Image.fromarray(pixels), icc_profile=other)
        np.testing.assert_array_equal(found, pixels)
        assert _digest(encoded(Image.fromarray(pixels), icc_profile=other)) == _digest(data)
    assert _digest(encoded(Image.fromarray(pixels), icc_profile=profile)) != _digest(data)


def test_gray_and_cmyk_pictures_keep_their_brightness():
    """A profile of other channels is not applied."""
    gray = np.tile(np.arange(0, 256, 16, dtype=np.uint8), (16, 1))
    found = decode(Image.fromarray(gray), icc_profile=_profile(P3, 2.2), channels=1)[..., 0]
    np.testing.assert_array_equal(found, gray)
    cmyk = Image.fromarray(np.stack([gray] * 4, axis=2), "CMYK")
    with_profile = decode(cmyk, "TIFF", icc_profile=_profile(P3, 2.2))
    np.testing.assert_array_equal(with_profile, decode(cmyk, "TIFF"))
