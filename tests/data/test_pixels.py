"""Values beyond 8 bits, transparency, long texts, sizes: what odd but legitimate files hold."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageDraw, PngImagePlugin

from cluster_jax.data import images, pixels
from cluster_jax.report import pictures
from tests.data.test_folder import load
from tests.rows import every_row


def png(values, color, *chunks):
    """A PNG of uint16 values, which Pillow does not write in color."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    height, width = values.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", width, height, 16, color, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def tiff(path, values, **tags):
    Image.fromarray(values).save(path, tiffinfo=tags and {int(k[1:]): v for k, v in tags.items()})


def fetched(folder):
    dataset = load(folder, image_size=None)
    return dict(zip(dataset.sources, dataset.images[..., 0], strict=True)), dataset


def test_dark_images_of_16_bits_share_the_scale_of_the_brightest(tmp_path, rng):
    values = rng.integers(0, 90, (2, 5, 7)).astype(np.uint16)
    values[0, 0, 0], values[1] = 120, values[1] // 2
    for i, image in enumerate(values):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    for cache_mb in (1.0, 0.0):
        dataset = load(tmp_path, cache_mb=cache_mb)
        out = dataset.fetch(np.arange(2))[..., 0]
        np.testing.assert_array_equal(out, np.rint(values * (255 / 120)))
        assert dataset.ranges == {"16-bit": (0, 120)}
        assert dataset.notes == (
            "16-bit images: 0 is black and 120, their highest value, is white",
        )
    alone = images.decode((tmp_path / "1.png").read_bytes(), None, 1, dataset.ranges)
    np.testing.assert_array_equal(alone[..., 0], np.rint(values[1] * (255 / 120)))


def test_dark_images_with_long_texts_share_the_scale(tmp_path):
    info = PngImagePlugin.PngInfo()
    info.add_text("microscope", "x" * 1_200_000, zip=True)
    values = np.full((5, 7), 120, np.uint16)
    Image.fromarray(values).save(tmp_path / "a.png", pnginfo=info)
    assert load(tmp_path).ranges == {"16-bit": (0, 120)}


def test_dark_colors_of_16_bits(tmp_path, rng):
    values = rng.integers(0, 100, (5, 7, 4)).astype(np.uint16)
    values[0, 0, 0] = 100
    values[..., 3] = 65535
    (tmp_path / "rgb.png").write_bytes(png(values[..., :3], 2))
    (tmp_path / "rgba.png").write_bytes(png(values, 6))
    dataset = load(tmp_path)
    assert dataset.ranges == {"16-bit color": (0, 100)}
    for image in dataset.images:
        assert np.abs(image - values[..., :3] * 2.55).max() <= 0.51


@pytest.mark.parametrize(("high", "white"), [(900, 1023), (50_000, 65535)])
def test_significant_bits_of_a_png(tmp_path, high, white):
    """Those of values that were not scaled up to 16 bits, as the format demands."""
    values = np.linspace(0, high, 35).reshape(5, 7).astype(np.uint16)
    (tmp_path / "a.png").write_bytes(png(values, 0, (b"sBIT", b"\x0a")))
    found, dataset = fetched(tmp_path)
    assert dataset.notes == ()
    np.testing.assert_array_equal(found["a.png"], np.rint(values * np.float32(255 / white)))


def test_black_and_white_as_a_tiff_says(tmp_path, rng):
    counts = rng.integers(100, 400, (5, 7)).astype(np.uint16)
    tiff(tmp_path / "counts.tif", counts, _340=100, _341=500)
    assert not load(tmp_path).notes
    out = fetched(tmp_path)[0]["counts.tif"]
    assert np.abs(out - (counts - 100.0) * (255 / 400)).max() <= 0.51


def test_floats_and_signed_integers(tmp_path, rng):
    share = rng.random((5, 7)).astype(np.float32)
    wide = (share * 700 - 200).astype(np.float32)
    wide[0, 0] = np.nan
    Image.fromarray(share).save(tmp_path / "share.tif")
    Image.fromarray(wide).save(tmp_path / "wide.tif")
    Image.fromarray((share * 2**30).astype(np.int32)).save(tmp_path / "wide32.tif")
    found, dataset = fetched(tmp_path)
    assert sorted(dataset.ranges) == ["32-bit", "float"]
    assert np.abs(found["share.tif"] - share * 255).max() <= 0.51
    low, high = np.nanmin(wide), np.nanmax(wide)
    assert found["wide.tif"][0, 0] == 0
    assert np.abs(found["wide.tif"] - (wide - low) / (high - low) * 255)[1:].max() <= 0.51
    assert found["wide32.tif"].max() == 255


def test_icons_of_either_color_stay_visible():
    for color in ("white", "black"):
        icon = Image.new("RGBA", (40, 40), (255, 255, 255, 0))
        ImageDraw.Draw(icon).ellipse([8, 8, 32, 32], fill=color)
        stream = io.BytesIO()
        icon.save(stream, "PNG")
        assert images.decode(stream.getvalue(), None, 3).std() > 100


@every_row("kind", ["compressed", "plain", "after the pixels"])
def test_a_png_with_a_long_text(kind):
    picture, info = Image.new("RGB", (8, 6), (200, 100, 50)), PngImagePlugin.PngInfo()
    if kind == "plain":
        info.add_itxt("workflow", "x" * 1_200_000)
    else:
        info.add_text("workflow", "x" * 1_200_000, zip=True)
    stream = io.BytesIO()
    picture.save(stream, "PNG", pnginfo=info)
    data = stream.getvalue()
    if kind == "after the pixels":
        start = data.index(b"zTXt") - 4
        end = start + 12 + int.from_bytes(data[start : start + 4], "big")
        data = data[:start] + data[end:-12] + data[start:end] + data[-12:]
    np.testing.assert_array_equal(images.decode(data, None, 3), np.asarray(picture))


def test_pictures_above_the_limits_of_pillow(monkeypatch):
    picture = Image.new("RGB", (400, 300), (200, 100, 50))
    for form in ("PNG", "JPEG", "TIFF"):
        stream = io.BytesIO()
        picture.save(stream, form)
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000)
        out = images.decode(stream.getvalue(), images.Resize(20, "bicubic"), 3)
        assert np.abs(out.astype(int) - (200, 100, 50)).max() <= 2
        # A JPEG of any size is decoded at a fraction of it.
        monkeypatch.setattr(pixels, "MAX_PIXELS", 30_000)
        if form == "JPEG":
            images.decode(stream.getvalue(), images.Resize(20, "bicubic"), 3)
        else:
            with pytest.raises(ValueError, match="400 x 300 pixels; at most"):
                images.decode(stream.getvalue(), images.Resize(20, "bicubic"), 3)
        monkeypatch.undo()


def test_pages_and_frames_are_counted(tmp_path):
    pages = [Image.new("RGB", (8, 6), color) for color in ("red", "green", "blue")]
    for name in ("scan.tif", "moving.gif", "moving.webp"):
        pages[0].save(tmp_path / name, save_all=True, append_images=pages[1:])
    pages[0].save(tmp_path / "gain_map.jpg", "MPO", save_all=True, append_images=pages[1:2])
    pages[0].save(tmp_path / "one.gif")
    dataset = load(tmp_path)
    text = "3 files have several pages or frames, of which the first is taken"
    assert dataset.notes == (text,)
    assert (np.abs(dataset.images - np.array([255, 0, 0])) <= 3).all()


@every_row(
    ("data", "said"),
    [
        (b"%PDF-1.7\n", "a PDF"),
        (b"PK\3\4" + bytes(30), "a zip archive or a document"),
        (b"\0\0\0\x18ftypmp42" + bytes(30), "a video"),
        (b"\0\0\0\x18ftypavif" + bytes(30), "a damaged AVIF image"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "a JPEG XL image, which Pillow does not read"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a placeholder of Git LFS: git lfs pull"),
        (bytes(4000), "nothing but zeros, as a copy that was cut off"),
        (b"\0\5\x16\7\0\2\0\0Mac OS X", "a resource fork of macOS, without the photo"),
        (b"other", "not an image"),
    ],
)
def test_what_is_named_like_an_image(data, said):
    with pytest.raises(Exception, match="not an image") as caught:
        images.decode(data, None, 3)
    assert pixels.reason(caught.value, data) == said


def test_heic_by_another_name_needs_its_package(monkeypatch):
    data = b"\0\0\0\x18ftypheic" + bytes(40)
    known = {name: opening for name, opening in Image.OPEN.items() if name != "HEIF"}
    monkeypatch.setattr(Image, "OPEN", known)
    monkeypatch.setattr(Image, "ID", [name for name in Image.ID if name != "HEIF"])
    with pytest.raises(OSError) as caught:  # noqa: PT011
        images.decode(data, None, 3)
    assert pixels.reason(caught.value, data) == "a HEIC photo: pip install pillow-heif"
    monkeypatch.setitem(Image.OPEN, "HEIF", None)
    assert pixels.reason(caught.value, data) == "a damaged HEIC photo"
    assert pixels.reason(caught.value, b"II*\0").startswith("a TIFF that Pillow does not read:")


def test_a_program_of_the_system_interprets_no_file(tmp_path):
    with pytest.raises(OSError, match="not an image"):
        images.decode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", None, 3)


def test_gray_of_16_bits_beside_alpha(tmp_path):
    """Pillow drops the low bytes, which alone differ here."""
    gray = (np.arange(48, dtype=np.uint16).reshape(6, 8)) + 300
    data = png(np.stack([gray, np.full_like(gray, 65535)], -1), 4)
    image = pixels.opened(io.BytesIO(data))
    found = pixels.deep(image, data)
    assert found.kind == "16-bit"
    np.testing.assert_array_equal(found.values, gray)
    (tmp_path / "1.png").write_bytes(data)
    made, dataset = fetched(tmp_path)
    assert dataset.ranges == {"16-bit": (0, 347)}
    np.testing.assert_allclose(made["1.png"], gray * (255 / 347), atol=0.51)
    half = png(np.stack([gray, np.full_like(gray, 0)], -1), 4)
    (tmp_path / "1.png").write_bytes(half)
    assert len(np.unique(fetched(tmp_path)[0]["1.png"])) == 1  # Nothing of it is visible.


def float64(values, order="<", strips=1, **tags):
    """A TIFF of float64, in `strips` of equal height."""
    height, width = values.shape
    content = values.astype(f"{order}f8").tobytes()
    at = 8 + 2 + 12 * (10 + len(tags)) + 4
    length = len(content) // strips
    ranges = [[at + 8 * strips + i * length for i in range(strips)], [length] * strips]
    entries = {
        256: (4, [width]), 257: (4, [height]), 258: (3, [64]), 259: (3, [1]), 262: (3, [1]),
        273: (4, ranges[0]), 277: (3, [1]), 278: (4, [height // strips]), 279: (4, ranges[1]),
        339: (3, [3]), **{int(key[1:]): value for key, value in tags.items()},
    }  # fmt: skip
    head = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}I", 8)
    head += struct.pack(f"{order}H", len(entries))
    far = b""
    for tag, (kind, value) in sorted(entries.items()):
        packed = struct.pack(f"{order}{len(value)}{'HIf'[(3, 4, 11).index(kind)]}", *value)
        if len(packed) > 4:
            packed, far = struct.pack(f"{order}I", at + len(far)), far + packed
        head += struct.pack(f"{order}HHI", tag, kind, len(value)) + packed.ljust(4, b"\0")
    return (head + struct.pack("<I", 0) + far).ljust(at + 8 * strips, b"\0") + content


@every_row(("order", "strips"), [("<", 1), (">", 1), ("<", 3)])
def test_a_tiff_of_float64(tmp_path, order, strips):
    values = np.arange(48).reshape(6, 8) * 20.5
    (tmp_path / "1.tif").write_bytes(float64(values, order, strips))
    made, dataset = fetched(tmp_path)
    assert dataset.ranges == {"float": (0, values.max())}
    np.testing.assert_allclose(made["1.tif"], values * 255 / values.max(), atol=0.51)
    data = float64(values, order, strips, _341=(11, [2000.0]), _274=(3, [3]))
    (tmp_path / "1.tif").write_bytes(data)
    expected = np.rot90(values, 2) * 255 / 2000
    np.testing.assert_allclose(fetched(tmp_path)[0]["1.tif"], expected, atol=0.51)


@every_row("dtype", [np.uint16, np.float32, np.float64])
def test_a_tiff_in_which_zero_is_white_is_a_negative(tmp_path, rng, dtype):
    """And no copy of one of the same numbers in which zero is black."""
    values = rng.integers(0, 200, (5, 7)).astype(dtype)
    values[0, :2] = 0, 200
    for name, zero in (("white.tif", 0), ("black.tif", 1)):
        if dtype == np.float64:
            (tmp_path / name).write_bytes(float64(values, _262=(3, [zero])))
        else:
            tiff(tmp_path / name, values, _262=zero)
    found, dataset = fetched(tmp_path)
    assert np.abs(found["black.tif"] - values * (255 / 200)).max() <= 0.51
    assert np.abs(found["white.tif"] - (200 - values) * (255 / 200)).max() <= 0.51
    assert pictures.digest(dataset, 0) != pictures.digest(dataset, 1)


def test_tiffs_of_other_numbers_that_pillow_does_not_read():
    values = np.arange(48).reshape(6, 8)
    for kind, number, dtype in ((1, 64, "<u8"), (2, 64, "<i8"), (3, 16, "<f2")):
        data = float64(values, _258=(3, [number]), _339=(3, [kind]))
        start = data.index(values.astype("<f8").tobytes())
        content = values.astype(dtype).tobytes().ljust(8 * values.size, b"\0")
        data = data[:start] + content
        if number == 16:  # The strip is as long as its values.
            data = data.replace(
                struct.pack("<HHII", 279, 4, 1, 384), struct.pack("<HHII", 279, 4, 1, 96)
            )
        image = pixels.opened(io.BytesIO(data))
        np.testing.assert_array_equal(pixels.deep(image, data).values, values)


def test_a_tiff_of_float64_that_is_not_read_says_what_to_do():
    data = float64(np.ones((6, 8)), _259=(3, [8]))
    with pytest.raises(Exception, match="not an image") as caught:
        pixels.opened(io.BytesIO(data))
    assert "(1 channel of 64-bit floats): save it as gray" in pixels.reason(caught.value, data)
    for cut in (4, 6, *range(8, 200, 7)):
        with pytest.raises(Exception, match=r".+"):
            pixels.load(pixels.opened(io.BytesIO(float64(np.ones((6, 8)))[:cut])))
