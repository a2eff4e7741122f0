"""Pixels of image files: opening without Pillow's limits, values beyond 8 bits, transparency."""

import contextlib
import io
import struct
import threading
import types
import zlib
from collections.abc import Mapping
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, TiffImagePlugin, UnidentifiedImageError

from cluster_jax.core.names import counted

# Largest image that is decoded in full (0.8 GB as RGB); a JPEG counts as it is decoded, at 1/8.
MAX_PIXELS = 2**28
# Of images with more pixels one is decoded at a time, which bounds memory.
_LARGE = 2**25
_large = threading.RLock()

# Formats that Pillow only identifies, or that a program of the system would have to interpret.
NOT_DECODED = ("BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF")
# Place of the number of bits in a PNG, and its chunks of texts.
_PNG_BITS = 24
_PNG_TEXTS = (b"tEXt", b"zTXt", b"iTXt", b"iCCP")

# Raw mode of 16-bit colors, of which Pillow keeps the high byte -> that of the low byte.
_LOW_BYTE = {
    f"{mode};16{order}": f"{mode};16{other}"
    for mode in ("RGB", "RGBA")
    for order, other in ("LB", "BL", "NB")  # N: of the processor, little-endian
}
# All that 16 bits hold.
USUAL = {"16-bit": (0.0, 65535.0), "16-bit color": (0.0, 65535.0)}
# Tags of a TIFF: whether 0 is white; the values that are black and white.
_PHOTOMETRIC, _S_MIN, _S_MAX = 262, 340, 341
# Further ones: sides, place of the strips, and what a narrowed file keeps.
_WIDTH, _HEIGHT, _OFFSETS, _LENGTHS, _KEPT = 256, 257, 273, 279, (_PHOTOMETRIC, 274, _S_MIN, _S_MAX)
# Bits, kind of number, compression (1: none) and samples of a pixel, and their defaults; and the
# types of NumPy by kind and bits.
_PIXEL = ((258, (1,)), (339, (1,)), (259, 1), (277, 1))
_WIDE = {(1, 64): "u8", (2, 64): "i8", (3, 16): "f2", (3, 64): "f8"}
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")

# Bytes at a place of a file -> what the file is, for what is named like an image and is none.
_OTHER_KINDS = (
    (0, b"%PDF", "a PDF"),
    (0, b"PK\3\4", "a zip archive or a document"),
    (0, b"\x1f\x8b", "a compressed file"),
    (0, b"Rar!", "a rar archive"),
    (0, b"\xff\x0a", "a JPEG XL image, which Pillow does not read"),
    (4, b"JXL ", "a JPEG XL image, which Pillow does not read"),
    (0, b"version https://git-lfs", "a placeholder of Git LFS: git lfs pull"),
    (0, b"\0\5\x16\7", "a resource fork of macOS, without the photo"),
    (0, b"RIFF", "a video or sound"),
    (4, b"ftypavi", "a damaged AVIF image"),
    (4, b"ftyp", "a video"),  # After those of images.
)

# Kind of values, see `Deep` -> the values that become black and white.
Ranges = Mapping[str, tuple[float, float]]
NO_RANGES: Ranges = types.MappingProxyType({})


class Deep(NamedTuple):
    """The values of an image with more than 8 bits.

    Attributes:
        values: `[height, width]`, or `[height, width, 3]`.
        kind: "16-bit", "signed 16-bit", "16-bit color", "32-bit" or "float".
        stated: the values that are black and white by what the file says, or None.
        is_white_zero: whether the lowest value is white and the highest one black.
    """

    values: NDArray
    kind: str
    stated: tuple[float, float] | None
    is_white_zero: bool = False

    def range(self, ranges: Ranges) -> tuple[float, float]:
        """Returns the values that become black and white.

        They are the stated ones; 0 and 1 for floats in between; those of `ranges`; or else all that
        the type of integers holds.
        """
        if self.stated is not None:
            return self.stated
        if self.is_fraction():
            return 0.0, 1.0
        return ranges.get(self.kind) or USUAL.get(self.kind) or self.extremes()

    def is_fraction(self) -> bool:
        """Returns whether the values are floats in [0, 1]."""
        low, high = self.extremes()
        return self.kind == "float" and low >= 0 and high <= 1

    def extremes(self) -> tuple[float, float]:
        """Returns the lowest finite value, or 0 if that is lower, and the highest."""
        values = self.values
        if values.dtype.kind == "f":
            values = values[np.isfinite(values)]
        return (min(0.0, float(values.min())), float(values.max())) if values.size else (0.0, 1.0)


def opened(stream: BinaryIO) -> ImageFile.ImageFile:
    """Opens the image in a file of any format that Pillow reads; a PNG is loaded.

    Unlike `Image.open`, it refuses neither large images nor long texts in a PNG. The limits of
    Pillow, which the rest of the process may rely on, stay as they are.

    Raises:
        Exception: Pillow raises errors of many types on damaged bytes.
    """
    image = identified(stream)
    if image.format == "PNG":  # Texts may follow the pixels.
        check_size(image)
        try:
            load(image)
        except ValueError as error:
            image = _again_without_texts(stream, error)
    return image


def load(image: ImageFile.ImageFile) -> None:
    """Decodes an opened image, which may be larger than Pillow's limit."""
    try:
        image.load()
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        # The decoder of TIFF asks once more.
        with _large:
            limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
            try:
                image.load()
            finally:
                Image.MAX_IMAGE_PIXELS = limit


def identified(stream: BinaryIO) -> ImageFile.ImageFile:
    """Opens the image in a file, of which only the header is read, see `opened`.

    Raises:
        Exception: Pillow raises errors of many types on damaged bytes.
    """
    prefix = stream.read(16)
    Image.init()
    # Formats without a signature come last.
    for name in sorted(Image.ID, key=lambda name: Image.OPEN[name][1] is None):
        factory, accept = Image.OPEN[name]
        # What a format raises for another one.
        with contextlib.suppress(SyntaxError, IndexError, TypeError, struct.error):
            if name not in NOT_DECODED and (accept is None or accept(prefix) is True):
                stream.seek(0)
                try:
                    return factory(stream, "")
                except ValueError as error:
                    return _again_without_texts(stream, error)
    if prefix[:4] in _TIFF and (narrow := _float32(stream)) is not None:
        return identified(narrow)
    raise UnidentifiedImageError("not an image")


def _tags(stream: BinaryIO) -> TiffImagePlugin.ImageFileDirectory_v2:
    """Reads the tags of the first page of a TIFF.

    Raises:
        Exception: Pillow raises errors of many types on damaged bytes.
    """
    stream.seek(0)
    header = stream.read(16)
    tags = TiffImagePlugin.ImageFileDirectory_v2(header[: 16 if 43 in header[2:4] else 8])
    stream.seek(tags.next)
    tags.load(stream)
    return tags


def _float32(stream: BinaryIO) -> BinaryIO | None:
    """Converts a gray TIFF of 64 bits or of float16, which Pillow does not read, to float32.

    None: it is none, or is compressed or has tiles.
    """
    try:
        tags = _tags(stream)
        (bits,), (kind,), *others = (tags.get(tag, default) for tag, default in _PIXEL)
        if (kind, bits) not in _WIDE or others != [1, 1]:
            return None
        content = b""
        for start, length in zip(tags[_OFFSETS], tags[_LENGTHS], strict=True):
            stream.seek(start)
            content += stream.read(length)
        values = np.frombuffer(content, ("<" if tags.prefix == b"II" else ">") + _WIDE[kind, bits])
        image = Image.fromarray(values.reshape(tags[_HEIGHT], tags[_WIDTH]).astype(np.float32))
    except (KeyError, TypeError, ValueError, struct.error, SyntaxError):
        return None
    narrow = io.BytesIO()
    image.save(narrow, "TIFF", tiffinfo={tag: tags[tag] for tag in _KEPT if tag in tags})
    narrow.seek(0)
    return narrow


def _again_without_texts(stream: BinaryIO, error: ValueError) -> ImageFile.ImageFile:
    """Opens a PNG whose texts are longer than Pillow allows; raises any other error."""
    if "MAX_TEXT" not in str(error):
        raise error
    stream.seek(0)
    return identified(io.BytesIO(_without_texts(stream.read())))


def _without_texts(data: bytes) -> bytes:
    """Removes the texts and the color profile from a PNG."""
    kept, start = [data[:8]], 8
    while start + 12 <= len(data):
        end = start + 12 + int.from_bytes(data[start : start + 4], "big")
        if data[start + 4 : start + 8] not in _PNG_TEXTS:
            kept.append(data[start:end])
        start = end
    return b"".join(kept)


def reason(error: Exception, data: bytes) -> str:
    """Explains in one line why the bytes of a file cannot be decoded."""
    if not isinstance(error, UnidentifiedImageError):
        return " ".join(f"{type(error).__name__}: {error}".split())
    if not data:
        return "empty file"
    if data.lstrip()[:1] == b"<":
        return "a web page or other text with tags"
    if data[4:8] == b"ftyp" and data[8:12] in (b"heic", b"heix", b"mif1", b"hevc", b"msf1"):
        is_read = "HEIF" in Image.OPEN
        return "a damaged HEIC photo" if is_read else "a HEIC photo: pip install pillow-heif"
    if not data.strip(b"\0"):
        return "nothing but zeros, as a copy that was cut off"
    for start, signature, kind in _OTHER_KINDS:
        if data.startswith(signature, start):
            return kind
    if data[:4] in _TIFF:
        return (
            f"a TIFF that Pillow does not read{_described(data)}: save it as gray or RGB of 8 bits"
        )
    return "not an image"


def _described(data: bytes) -> str:
    """Describes the pixels of a TIFF, in parentheses; "" if its tags are damaged."""
    try:
        tags = _tags(io.BytesIO(data))
        (bits, *_), (kind, *_), _, channels = (tags.get(tag, default) for tag, default in _PIXEL)
        number = {3: "-bit floats", 5: "-bit complex numbers"}.get(kind, " bits")
        return f" ({counted(channels, 'channel')} of {bits}{number})"
    except Exception:  # As above.
        return ""


def check_size(image: Image.Image) -> None:
    """Raises a `ValueError` if an image has too many pixels to decode it."""
    if image.width * image.height > MAX_PIXELS:
        raise ValueError(
            f"{image.width:,} x {image.height:,} pixels; at most {MAX_PIXELS / 1e6:.0f} million "
            "are decoded, unless they are a JPEG"
        )


def one_large_at_a_time(image: Image.Image) -> contextlib.AbstractContextManager:
    """Returns a lock for the decoding of a large image; nothing for a smaller one."""
    return _large if image.width * image.height > _LARGE else contextlib.nullcontext()


def may_be_deep(image: ImageFile.ImageFile, file: BinaryIO) -> bool:
    """Returns whether an identified image, of the opened `file`, may have more than 8 bits."""
    if image.mode == "F" or image.mode.startswith("I"):
        return True
    if image.format == "PNG":
        file.seek(_PNG_BITS)
        return file.read(1) == b"\x10"
    return image.format == "TIFF" and _bits(image) == {16}


def _bits(image: ImageFile.ImageFile) -> set[int]:
    """Reads the bits of the channels of a TIFF."""
    return set(image.tag_v2.get(258, ()))  # type: ignore[attr-defined]


def deep(image: ImageFile.ImageFile, data: bytes) -> Deep | None:
    """Reads the values of a loaded image that has more than 8 bits; None for one of 8.

    Args:
        image: the image.
        data: bytes of its file, from which 16-bit colors are read once more: Pillow drops their low
            bytes.
    """
    if image.mode.startswith("I;16"):
        values, kind = np.asarray(image), "16-bit"
    elif image.mode in ("I", "F"):
        values, kind = np.asarray(image), "float"
        if image.mode == "I":
            # Pillow has one mode for both.
            kind = "signed 16-bit" if image.format == "TIFF" and _bits(image) == {16} else "32-bit"
    elif image.format == "PNG" and data[_PNG_BITS : _PNG_BITS + 2] == b"\x10\x04":
        values, kind = _gray_beside_alpha(data), "16-bit"
    elif (low := _low_bytes(image, data)) is not None:
        high = np.asarray(image)[..., :3]
        values, kind = high.astype(np.uint16) << 8 | low, "16-bit color"
    else:
        return None
    # Pillow inverts those of 8 bits alone.
    tags = image.tag_v2 if image.format == "TIFF" else {}  # type: ignore[attr-defined]
    return Deep(values, kind, _stated(image, data, values), tags.get(_PHOTOMETRIC) == 0)


def _gray_beside_alpha(data: bytes) -> NDArray:
    """Reads the gray values of a 16-bit PNG with gray and alpha, uint16 `[height, width]`.

    Pillow drops the low bytes. Four bytes a pixel are the same as four channels of 8 bits.
    """
    data = _without_texts(data)
    header = data[12:_PNG_BITS] + bytes([8, 6]) + data[_PNG_BITS + 2 : 29]
    again = data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:]
    pairs = np.asarray(Image.OPEN["PNG"][0](io.BytesIO(again), "")).astype(np.uint16)
    return pairs[..., 0] << 8 | pairs[..., 1]


def _low_bytes(image: ImageFile.ImageFile, data: bytes) -> NDArray | None:
    """Reads the low bytes of 16-bit colors, uint8 `[height, width, 3]`; None for other images."""
    if image.mode not in ("RGB", "RGBA"):
        return None
    if image.format == "PNG" and data[_PNG_BITS] == 16:
        data = _without_texts(data)
    elif image.format != "TIFF" or _bits(image) != {16}:
        return None
    again = Image.OPEN[image.format][0](io.BytesIO(data), "")
    tiles = []
    for tile in again.tile:
        mode, *others = (tile.args,) if isinstance(tile.args, str) else tile.args or ("",)
        if mode not in _LOW_BYTE:  # One channel after the other.
            return None
        args = _LOW_BYTE[mode] if not others else (_LOW_BYTE[mode], *others)
        tiles.append(tile._replace(args=args))
    again.tile = tiles
    return np.asarray(again)[..., :3]


def _stated(image: ImageFile.ImageFile, data: bytes, values: NDArray) -> tuple[float, float] | None:
    """Returns the values that are black and white by what the file says, or None."""
    if image.format in ("PPM", "JPEG2000") and values.dtype.kind != "f":
        return 0.0, 65535.0  # Pillow has scaled them.
    if image.format == "TIFF":
        tags = (image.tag_v2.get(tag) for tag in (_S_MIN, _S_MAX))  # type: ignore[attr-defined]
        low, high = (np.ravel(tag).astype(float).tolist() if tag else [] for tag in tags)
        if high and max(high) > (black := min(low, default=0.0)):
            return black, max(high)
    if image.format == "PNG" and (at := data.find(b"sBIT", 8, data.find(b"IDAT"))) > 0:
        length = int.from_bytes(data[at - 4 : at], "big")
        white = 2.0 ** max(data[at + 4 : at + 4 + length]) - 1
        # Values that were scaled up to 16 bits, as the format demands, exceed it.
        return 0.0, white if values.max() <= white else 65535.0
    return None


def scaled(image: Deep, ranges: Ranges) -> NDArray:
    """Scales the values to uint8, from black to white; values that are no numbers are black."""
    low, high = image.range(ranges)
    factor = 255 / (high - low) if high > low else 0.0
    values = (image.values.astype(np.float32) - np.float32(low)) * np.float32(factor)
    values = 255 - values if image.is_white_zero else values
    return np.rint(np.clip(np.nan_to_num(values), 0, 255)).astype(np.uint8)


def opaque(image: Image.Image) -> Image.Image:
    """Removes transparency: the ground is white or black, from which the image differs more.

    White where it is dark: the mean gray level of its pixels, by their opacity, is below the
    middle. So neither black icons nor white ones vanish.
    """
    if not image.has_transparency_data:
        return image
    image = image.convert("RGBA")
    alpha = np.asarray(image.getchannel("A"), np.float32)
    if alpha.min() == 255:
        return image.convert("RGB")
    light = np.asarray(image.convert("RGB").convert("L"), np.float32)
    ground = "black" if (light * alpha).sum() > 127.5 * alpha.sum() else "white"
    return Image.alpha_composite(Image.new("RGBA", image.size, ground), image)
