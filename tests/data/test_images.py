"""Decoding of single images against the pixels that were written, and the threads around it."""

import io
import struct
import threading

import numpy as np
import pytest
from PIL import Image, ImageOps

from cluster_jax.data import images
from cluster_jax.data.images import Resize
from tests.rows import every_row

SMALLER = Resize(10, "bicubic")


def encoded(image: Image.Image, form: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def decode(image: Image.Image, form: str = "PNG", channels: int = 3, **options) -> np.ndarray:
    out = images.decode(encoded(image, form, **options), None, channels)
    assert out.dtype == np.uint8
    return out


def test_rgb_is_exact_and_gray_is_its_luma(rng):
    pixels = rng.integers(0, 256, (5, 7, 3), dtype=np.uint8)
    np.testing.assert_array_equal(decode(Image.fromarray(pixels)), pixels)
    luma = pixels @ np.array([0.299, 0.587, 0.114])
    grayscale = decode(Image.fromarray(pixels), channels=1)
    assert grayscale.shape == (5, 7, 1)
    assert np.abs(grayscale[..., 0] - luma).max() <= 0.51  # rounding, in fixed point


def test_gray_file_is_repeated_over_the_channels(rng):
    pixels = rng.integers(0, 256, (5, 7), dtype=np.uint8)
    np.testing.assert_array_equal(decode(Image.fromarray(pixels)), np.stack([pixels] * 3, -1))


def test_palette(rng):
    colors = rng.integers(0, 256, (4, 3), dtype=np.uint8)
    index = rng.integers(0, 4, (5, 7), dtype=np.uint8)
    image = Image.fromarray(index)
    image.putpalette(colors.tobytes())
    np.testing.assert_array_equal(decode(image), colors[index])
    np.testing.assert_array_equal(decode(image, "GIF"), colors[index])


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


def test_cmyk(rng):
    pixels = rng.integers(0, 256, (5, 7, 4), dtype=np.uint8)
    cyan_etc, black = pixels[..., :3] / 255, pixels[..., 3:] / 255
    out = decode(Image.fromarray(pixels, "CMYK"), "TIFF")
    assert np.abs(out - 255 * (1 - cyan_etc) * (1 - black)).max() <= 1


def test_sixteen_bits_are_scaled_not_clipped(rng):
    values = rng.integers(0, 65536, (5, 7), dtype=np.uint16)
    out = decode(Image.fromarray(values))
    np.testing.assert_array_equal(out, np.stack([np.rint(values / 257)] * 3, -1))


def test_floats_of_a_tiff(rng):
    values = rng.random((5, 7)).astype(np.float32)
    out = decode(Image.fromarray(values), "TIFF", channels=1)
    np.testing.assert_array_equal(out[..., 0], np.rint(values.astype(np.float64) * 255))
    values = 300 * values - 100
    out = decode(Image.fromarray(values), "TIFF", channels=1)
    low, high = values.min(), values.max()
    assert np.abs(out[..., 0] - (values - low) / (high - low) * 255).max() <= 0.51


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
    out = np.asarray(images.resize_and_crop(Image.fromarray(ramp), Resize(10, "bicubic"))).astype(
        float
    )
    assert out.shape == (10, 10)
    expected = 8 * (2 * (np.arange(10) + 2.5) + 0.5)  # after halving: columns 2 or 3 to 12
    assert np.abs(out - expected).max() <= 8.5  # at most one output column off center, rounded
    assert np.abs(out - out[:1]).max() == 0
    np.testing.assert_allclose(np.diff(out[0]), 16, atol=1)


def test_fit_averages_what_it_reduces(rng):
    # Without antialiasing a reduction by 16 would pick single pixels of the noise.
    noise = rng.integers(0, 256, (160, 160), dtype=np.uint8)
    out = np.asarray(images.resize_and_crop(Image.fromarray(noise), Resize(10, "bicubic"))).astype(
        float
    )
    assert out.std() < noise.std() / 8


def test_fit_of_the_right_size_changes_nothing(rng):
    pixels = rng.integers(0, 256, (12, 9, 3), dtype=np.uint8)
    out = np.asarray(images.resize_and_crop(Image.fromarray(pixels), Resize(9, "bicubic")))
    np.testing.assert_array_equal(out, pixels[1:10])


def test_resize_and_crop_all_is_fit_of_each(rng):
    for channels in (1, 3):
        array = rng.integers(0, 256, (3, 8, 6, channels), dtype=np.uint8)
        resize = Resize(4, "bilinear")
        out = images.resize_and_crop_all(array, resize)
        assert out.shape == (3, 4, 4, channels)
        for one, image in zip(out, array, strict=True):
            expected = images.decode(encoded(Image.fromarray(image.squeeze())), resize, channels)
            np.testing.assert_array_equal(one, expected)


def test_each_interpolation_is_pillows(rng):
    pixels = rng.integers(0, 256, (16, 16), dtype=np.uint8)
    for name in images.INTERPOLATIONS:
        expected = Image.fromarray(pixels).resize((6, 6), Image.Resampling[name.upper()])
        out = images.resize_and_crop_all(pixels[None, ..., None], Resize(6, name))
        np.testing.assert_array_equal(out[0, ..., 0], expected)


def test_each_keeps_the_order_and_bounds_what_is_in_flight(monkeypatch):
    monkeypatch.setattr(images, "CHUNK", 4)
    begun, lock = [], threading.Lock()

    def double(i):
        with lock:
            begun.append(i)
        return 2 * i

    results = images.map_threaded(double, range(19), "doubling")
    assert [next(results), next(results)] == [0, 2]
    assert len(begun) <= 4 + 2
    assert list(results) == [2 * i for i in range(2, 19)]


def test_order_is_the_same_in_every_version():
    # Ranks of raw words: NumPy promises these, but not those of Generator.permutation.
    words = np.random.Philox(np.random.SeedSequence((5, 2))).random_raw(6)
    out = images.order(6, 5, 2)
    assert out.dtype == np.int32
    assert out.tolist() == sorted(range(6), key=lambda i: int(words[i]))


def test_subset():
    some = images.subset(100, 30)
    assert len(some) == len(set(some.tolist())) == 30
    assert (np.diff(some) > 0).all()
    assert 30 < some.mean() < 70  # spread over the set, not its first images
    np.testing.assert_array_equal(some, images.subset(100, 30))
    np.testing.assert_array_equal(images.subset(5, 30), np.arange(5))
    np.testing.assert_array_equal(images.subset(5, None), np.arange(5))


def photo(height, width):
    """A smooth image with some noise."""
    y, x = np.mgrid[:height, :width] * (10 / height)
    pixels = 128 + 80 * np.stack([np.sin(x), np.cos(y), np.sin(x + y)], -1)
    pixels += np.random.default_rng(0).normal(0, 5, pixels.shape)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


@pytest.mark.parametrize(
    ("short", "decoded"), [(399, 399), (400, 200), (800, 200), (1600, 200), (3100, 388)]
)
def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size(monkeypatch, short, decoded):
    """To at least twice the side of the square, here 100; the result is nearly the same."""
    data = encoded(photo(short, short + 100), "JPEG", quality=95)
    sizes = []

    def resize_and_crop(image, resize, resize_and_crop=images.resize_and_crop):
        sizes.append(min(image.size))
        return resize_and_crop(image, resize)

    monkeypatch.setattr(images, "resize_and_crop", resize_and_crop)
    resize = images.Resize(100, "bicubic")
    with Image.open(io.BytesIO(data)) as file:
        full = np.asarray(resize_and_crop(file.convert("RGB"), resize)).astype(int)
    out = images.decode(data, resize, 3)
    assert sizes == [short, decoded]
    error = np.abs(out - full)
    assert error.max() <= 8
    assert error.mean() <= 1


def test_rotation_of_a_large_jpeg():
    exif = Image.Exif()
    exif[0x0112] = 6
    image = photo(800, 900)
    rotated = image.transpose(Image.Transpose.ROTATE_90)
    resize = images.Resize(100, "bicubic")
    upright = images.decode(encoded(image, "JPEG", quality=95), resize, 3).astype(int)
    out = images.decode(encoded(rotated, "JPEG", quality=95, exif=exif), resize, 3)
    assert np.abs(out - upright).max() <= 8


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
    assert images.decode(file.getvalue(), None, 3).shape == (30, 20, 3)


def test_a_line_of_pixels_is_cropped_before_it_is_scaled(monkeypatch):
    sizes, resize = [], Image.Image.resize

    def watched(self, size, *more):
        sizes.append(size)
        return resize(self, size, *more)

    monkeypatch.setattr(Image.Image, "resize", watched)
    row = Image.fromarray(np.arange(4000, dtype=np.uint16).astype(np.uint8)[None])
    found = images.resize_and_crop(row, images.Resize(32, "bicubic"))
    assert found.size == (32, 32)
    assert sizes == [(64 * 32, 32)]
