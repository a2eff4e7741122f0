"""Decodes one image: of a file, or in memory; to 8 bits, upright, as a square.

It is the only place that decodes, and bounds the memory of what all threads decode together.
"""

import contextlib
import datetime
import functools
import hashlib
import importlib.util
import io
import os
import pathlib
import struct
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageCms, ImageFile, ImageOps, UnidentifiedImageError

from cluster_jax.core.arrays import check_unmasked
from cluster_jax.core.checks import InputError

try:
    import pillow_heif
except ImportError:  # the extra "heic"
    HEIC: tuple[str, ...] = ()
else:
    pillow_heif.register_heif_opener()
    HEIC = (".heic", ".heif", ".hif")

RAW = (".cr2", ".cr3", ".nef", ".arw", ".dng", ".raf", ".orf", ".rw2", ".pef", ".srw")
# Quarter turns to the left by LibRaw's number of how the camera was held.
_TURNS = {3: 2, 5: 1, 6: 3}

# Interpolation of a resize, by the names in timm's model configs.
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
INTERPOLATIONS = {name: Image.Resampling[name.upper()] for name in get_args(Interpolation)}

# Pixels of the largest image that is decoded (0.8 GB as RGB; a JPEG counts as it is decoded, at
# 1/8).
MAX_PIXELS = 2**28
# Bytes of a block of Pillow's images. Of smaller ones, as Pillow has them, a thread keeps for
# itself what it has freed: 32 threads would hold the memory of 32 large images.
Image.core.set_block_size(2**26)
# Percentiles of a picture's values beyond 8 bits that become black and white.
_BLACK_WHITE = (0.1, 99.9)
# Formats that are decoded, by Pillow's names (of HEIC: pillow-heif's); JPEG's reader has MPO too.
FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "DIB", "GIF", "AVIF", "HEIF", "PPM", "JPEG2000")
# Channels of an ICC profile -> the mode of an image that has them.
_CHANNELS = {b"RGB ": "RGB", b"GRAY": "L", b"CMYK": "CMYK"}
# An image of more pixels is decoded alone.
_LARGE = 2**24
_large = threading.Lock()
_in_memory = threading.Lock()

# The turn or reflection for each orientation of EXIF but 1, the upright one.
_TURNED = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_QUARTER_TURNS = (5, 6, 7, 8)
# Dates of EXIF: of the exposure, and of a scan. That of the last change says nothing of the taking.
_DATES = (ExifTags.Base.DateTimeOriginal, ExifTags.Base.DateTimeDigitized)
# Entries of a mapping that may be its image.
_ENTRIES = ("image", "img", "bytes", "path", "jpg", "jpeg", "png", "webp", "pil")


# An image: the bytes of a file, or an image in memory.
Item = bytes | Image.Image | NDArray


class Resize(NamedTuple):
    """The square that images are resized and cropped to.

    Attributes:
        side: side of the square in pixels.
        interpolation: one of `INTERPOLATIONS`.
    """

    side: int
    interpolation: str


class Opened(NamedTuple):
    """An image whose pixels are not decoded yet, and its upright width and height."""

    file: Image.Image
    size: tuple[int, int]


@contextlib.contextmanager
def opened(item: Item, side: int | None = None) -> Iterator[Opened]:
    """Opens an image; of images with more than 2^24 pixels one is open at a time, others wait.

    So a thread must not open a second image inside the first.

    Args:
        item: the image; of an array, see `_of_array`.
        side: the bytes of a JPEG are decoded at 1/2, 1/4 or 1/8 of its size as long as its sides
            stay at least this; None: in full, unless `draft` of the file is called.

    Yields:
        The image, of which only the header is read.

    Raises:
        Exception: the bytes are no image of one of `FORMATS` or damaged, for which Pillow raises
            errors of many types; or an array is no image (ValueError).
    """
    image = _image(item)
    size = image.size
    if side is not None and isinstance(item, bytes):
        image.draft(None, (side, side))
    is_large = image.width * image.height > _LARGE
    with _large if is_large else contextlib.nullcontext():
        # Pillow turns a TIFF by itself, and gives its size accordingly.
        is_turned = image.format != "TIFF" and orientation(image) in _QUARTER_TURNS
        yield Opened(image, size[::-1] if is_turned else size)


def _image(item: Item) -> Image.Image:
    """Returns an item as an image; of a file only the header is read. Errors: see `opened`."""
    if isinstance(item, bytes):
        return identified(io.BytesIO(item))
    if not isinstance(item, Image.Image):
        return _of_array(item)
    # Its file may be shared with another image, or the image itself with another thread: both are
    # read once, in one thread at a time, with all that Pillow reads when it is first asked.
    with _in_memory:
        if item.width * item.height <= MAX_PIXELS:
            item.load()
        taken(item)
    return item


def identified(stream: BinaryIO) -> ImageFile.ImageFile:
    """Opens the image in a file of one of `FORMATS`; only the header is read.

    Unlike `Image.open` it takes the header of a JPEG of any size, which is decoded smaller. The
    limits of Pillow, which the rest of the process may rely on, stay as they are.

    Raises:
        UnidentifiedImageError: the file is of no such format, or its header is damaged.
        Exception: Pillow raises errors of further types on damaged bytes.
    """
    prefix = stream.read(16)
    Image.init()
    for name in filter(Image.OPEN.__contains__, FORMATS):
        factory, accept = Image.OPEN[name]
        # What a format raises for another one.
        with contextlib.suppress(SyntaxError, IndexError, TypeError, struct.error):
            if accept is None or accept(prefix) is True:
                stream.seek(0)
                return factory(stream, "")
    raise UnidentifiedImageError("not an image")


def decode(item: Item, resize: Resize | None, channels: int) -> NDArray:
    """Decodes one image to uint8 `[H, W, channels]`.

    EXIF orientation is applied; what is transparent becomes white or black, see `opaque`; values of
    more than 8 bits are scaled, see `scaled`; an animation gives its first frame. A JPEG is decoded
    at 1/2, 1/4 or 1/8 of its size as long as its sides stay at least twice that of the square.

    Args:
        item: the image.
        resize: the square to resize and crop to, or None for the native size.
        channels: 1 (gray) or 3 (RGB).

    Raises:
        Exception: the image has too many pixels, see `to_8_bit`, or as of `opened`.
    """
    # Photos of 4 megapixels take 0.4 of the time; cosine of features 0.997 to 1.000.
    with opened(item, None if resize is None else 2 * resize.side) as (file, _):
        return square(file, resize, channels)


def square(file: Image.Image, resize: Resize | None, channels: int) -> NDArray:
    """Decodes an opened image, see `decode`."""
    image = to_8_bit(file, "RGB" if channels == 3 else "L")
    if resize is not None:  # The central square, of which the short side is all.
        sides = resize.side, resize.side
        image = ImageOps.fit(image, sides, INTERPOLATIONS[resize.interpolation])
    return np.asarray(image).reshape(image.height, image.width, channels)


def orientation(image: Image.Image) -> int:
    """Returns the EXIF orientation of an image, usually 1 to 8; 1 is upright.

    If the EXIF block has no orientation, Pillow takes that of the XMP block. The result is 1 if the
    image has no orientation, or one that cannot be read. `ImageOps.exif_transpose` is not used: it
    writes the EXIF block anew, and fails where any other tag is damaged.
    """
    try:
        # The `getexif` of a PNG without a block before its pixels would decode them.
        return Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1)
    except Exception:  # Pillow raises errors of many types on damaged bytes.
        return 1


def to_8_bit(file: Image.Image, mode: str) -> Image.Image:
    """Converts an opened image to 8 bits of sRGB, upright and in `mode`, "RGB" or "L".

    Raises:
        ValueError: the image has more than 2^28 pixels; of a JPEG, at the size at which it is
            decoded.
        Exception: Pillow raises errors of many types on damaged bytes.
    """
    _load(file)
    turn = orientation(file)
    image = file
    if file.mode == "F" or file.mode.startswith("I"):
        image = Image.fromarray(scaled(np.asarray(file)))
    image = in_srgb(opaque(image), file.info.get("icc_profile"))
    image = image if image.mode == mode else image.convert(mode)
    return image.transpose(_TURNED[turn]) if turn in _TURNED else image


def _load(file: Image.Image) -> None:
    """Decodes the pixels of an opened image; for the errors see `to_8_bit`."""
    if file.width * file.height > MAX_PIXELS:
        most = f"at most {MAX_PIXELS / 1e6:.0f} million are decoded, unless they are a JPEG"
        raise ValueError(f"{file.width:,} x {file.height:,} pixels; {most}")
    file.load()


def in_srgb(image: Image.Image, profile: bytes | None) -> Image.Image:
    """Returns an image in the colors of sRGB, as all programs that follow its profile show it.

    An image without a profile stays as it is, and so does one whose profile is damaged or is one of
    other channels.

    Args:
        image: an image of 8 bits.
        profile: its ICC profile; None without one.
    """
    is_color = image.mode in ("RGB", "RGBA", "P")
    transform = None if profile is None else _to_srgb(profile, "RGB" if is_color else image.mode)
    if transform is None:
        return image
    return transform.apply(image.convert("RGB") if is_color else image)


@functools.lru_cache(64)
def _to_srgb(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    """Returns the conversion of images of a mode from a profile to sRGB.

    The result is None if the profile is sRGB itself, damaged, or of other channels.
    """
    if _CHANNELS.get(profile[16:20]) != mode:
        return None
    try:
        known = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if "sRGB" in ImageCms.getProfileDescription(known):
            return None
        return ImageCms.buildTransform(known, ImageCms.createProfile("sRGB"), mode, "RGB")
    except (ImageCms.PyCMSError, OSError):
        return None


def scaled(values: NDArray) -> NDArray:
    """Returns the values of an image as uint8, scaled by the percentiles of the image itself.

    The 0.1 percentile becomes 0 and the 99.9 percentile 255; values beyond them are clipped. If the
    two percentiles are equal, the minimum and the maximum take their place; if these are equal too,
    finite values become 0. The percentiles are those of the finite values. NaN and minus infinity
    become 0. Infinity becomes 255, or 0 where the finite values are all equal.
    """
    numbers = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    if not numbers.size:
        return np.zeros(values.shape, np.uint8)
    low, high = np.percentile(numbers, _BLACK_WHITE).tolist()
    if low == high:
        low, high = float(numbers.min()), float(numbers.max())
    factor = 255 / (high - low) if high > low else 0.0
    with np.errstate(invalid="ignore"):  # infinity times 0
        levels = (values.astype(np.float32) - np.float32(low)) * np.float32(factor)
    return np.rint(np.clip(np.nan_to_num(levels), 0, 255)).astype(np.uint8)


def opaque(image: Image.Image) -> Image.Image:
    """Removes transparency: the ground is white or black, from which the image differs more.

    The ground is white for a dark image: one whose mean gray level, weighted by opacity, is at most
    127.5. So neither black icons nor white ones vanish. The result may still be of the mode RGBA.
    An image without transparency is returned as it is.
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


def _of_array(values: Any) -> Image.Image:
    """Makes an image of an array `[H, W]`, `[H, W, C]` or, as of torch, `[C, H, W]`.

    C is 1, 3 or 4, in front 1 or 3. uint8 and floats that are all in [0, 1] are levels; other
    numbers are scaled, see `scaled`.

    Raises:
        ValueError: the array has another shape or dtype, or is empty.
    """
    values = np.asarray(values)
    if values.ndim == 3 and values.shape[2] not in (1, 3, 4) and values.shape[0] in (1, 3):
        values = np.moveaxis(values, 0, 2)
    is_image = values.ndim == 2 or (values.ndim == 3 and values.shape[2] in (1, 3, 4))
    if not is_image or not values.size or values.dtype.kind not in "uif":
        shape = " x ".join(map(str, values.shape))
        raise ValueError(f"an array of {values.dtype} and shape [{shape}], which is no image")
    if values.dtype.kind == "f" and values.min() >= 0 and values.max() <= 1:
        values = np.rint(values.astype(np.float64) * 255).astype(np.uint8)
    elif values.dtype != np.uint8:
        values = scaled(values)
    gray = values[..., 0] if values.shape[2:] == (1,) else values
    return Image.fromarray(np.ascontiguousarray(gray))


def digest(item: Item, file: Image.Image) -> bytes:
    """Hashes what an image shows, whatever else is written into its file, in 32 bytes.

    The last byte is the EXIF orientation. The others, by which `same_photo` knows a photo, are of
    SHA-256 of the pixels as they are stored: they stay if a program adds a title, a face or a place
    to a file, and if it turns the photo by its tag.

    A JPEG is not decoded for it: all segments count but those of metadata. Of other images the
    pixels count, with all that says how they are shown; of both the profile of colors other than
    those of sRGB. A file of several pages or frames, of which only the first is decoded, counts
    with all its bytes.

    Args:
        item: the image.
        file: the same image as `opened` yields it; it is decoded here unless it is a JPEG.

    Raises:
        Exception: as of `to_8_bit`.
    """
    profile = file.info.get("icc_profile") or b""
    colors = profile if _to_srgb(profile, _CHANNELS.get(profile[16:20], "")) else b""
    turn = orientation(file)
    if isinstance(item, bytes) and file.format in ("JPEG", "MPO"):
        shown = [b"1 ", colors, *_without_metadata(item)]
    elif isinstance(item, bytes) and getattr(file, "n_frames", 1) > 1:
        shown, turn = [item], 1
    else:
        _load(file)
        pixels: Image.Image = file
        if isinstance(item, bytes) and file.format == "TIFF":  # Pillow has turned its pixels.
            turn = orientation(_image(item))
            back = {6: 8, 8: 6}.get(turn, turn)
            pixels = file.transpose(_TURNED[back]) if turn in _TURNED else file
        about = f"{file.mode} {pixels.size} 1 {file.info.get('transparency')} "
        shown = [about.encode(), colors, bytes(file.getpalette() or ()), pixels.tobytes()]
    return hashlib.sha256(b"".join(shown)).digest()[:-1] + bytes([turn % 256])


def same_photo(digest: bytes) -> bytes:
    """Returns the part of a `digest` that a photo keeps if it is turned by its tag.

    Example:
        >>> same_photo(b"pixels" + bytes([1])) == same_photo(b"pixels" + bytes([6]))
        True
    """
    return digest[:-1]


def _without_metadata(data: bytes) -> list[bytes]:
    """Returns the parts of a JPEG's bytes that say what it shows; all of them if it is damaged.

    They are all segments but comments and those of programs, of which Adobe's says how colors are
    coded. What follows the end of the image, such as the film of a motion photo, is left out.
    """
    parts = list[bytes]()
    place = 2
    while data[place : place + 1] == b"\xff":
        marker = data[place + 1 : place + 2]
        if marker == b"\xff":  # Bytes that fill a gap.
            place += 1
            continue
        if marker == b"\xda":  # From here on, the bytes ff d9 are the end of the image alone.
            end = data.find(b"\xff\xd9", place)
            return [*parts, data[place : len(data) if end < 0 else end]]
        end = place + 2 + int.from_bytes(data[place + 2 : place + 4], "big")
        segment = data[place:end]
        is_of_program = b"\xe0" <= marker <= b"\xef" or marker == b"\xfe"
        if not is_of_program or marker == b"\xee":
            parts.append(segment)
        place = end
    return [data]


def taken(image: Image.Image) -> str:
    """Reads the date of taking from EXIF, as `2023-07-14T18:02:11`; "" if it is not known."""
    try:
        dates = Image.Image.getexif(image).get_ifd(ExifTags.IFD.Exif)
        date = next(filter(None, map(dates.get, _DATES)))
        return datetime.datetime.strptime(date[:19], "%Y:%m:%d %H:%M:%S").isoformat()
    except Exception:  # As above.
        return ""


def is_raw(name: str) -> bool:
    """Returns whether a name has the suffix of a raw photo, one of `RAW` in any case."""
    return os.path.splitext(name)[1].lower() in RAW


def can_read_raw() -> bool:
    """Returns whether the extra `raw` is installed, which reads the previews of raw photos."""
    return importlib.util.find_spec("rawpy") is not None


def preview(data: bytes) -> bytes:
    """Extracts the largest preview from the bytes of a raw photo, as the file of a JPEG or a BMP.

    Raises:
        OSError: the file is damaged, or has no preview.
        ImportError: the extra `raw` is not installed, see `can_read_raw`.
    """
    import rawpy

    try:
        with rawpy.imread(io.BytesIO(data)) as photo:
            thumbnail = photo.extract_thumb()
            flip = photo.sizes.flip
    except rawpy.LibRawError as error:
        raise OSError("a raw photo without a preview: export it as JPEG") from error
    if thumbnail.format == rawpy.ThumbFormat.JPEG:
        return bytes(thumbnail.data)
    file = io.BytesIO()
    Image.fromarray(np.rot90(thumbnail.data, _TURNS.get(flip, 0))).save(file, "BMP")
    return file.getvalue()


def reason(error: Exception, data: bytes) -> str:
    """Explains in one line why the bytes of a file cannot be decoded.

    Args:
        error: what decoding them has raised.
        data: the bytes, which tell a video and an empty file from other files that are no image.
    """
    if not isinstance(error, UnidentifiedImageError):
        # What these say stands alone; others may say as little as a key.
        said = (isinstance(error, OSError) and error.strerror) or str(error)
        is_clear = isinstance(error, (OSError, ValueError)) and said
        return " ".join((said if is_clear else f"{type(error).__name__}: {error}").split())
    if data[4:8] == b"ftyp":
        return "a video, or a photo that needs pip install pillow-heif"
    return "not an image" if data else "empty file"


def of_sample(sample: Any) -> Item:
    """Returns the image of an item of a sequence, not yet decoded: bytes, a PIL image or an array.

    A path is read; the bytes of a raw photo are those of its preview. Of a tuple the image is the
    first entry (torchvision). Of a dict it is the first of the entries `image`, `img`, `bytes`,
    `path` (Hugging Face), `jpg`, `jpeg`, `png`, `webp` and `pil` (WebDataset) that is not None; it
    may itself be a tuple or a dict.

    Raises:
        ValueError: a dict has none of these entries; the image counts as unreadable.
        InputError: the item is of another type, or an array with masked entries.
        OSError: the file cannot be read.
        ImportError: the file is a raw photo, see `preview`.
    """
    if isinstance(sample, tuple) and sample:
        return of_sample(sample[0])
    if isinstance(sample, dict):
        found = [sample[name] for name in _ENTRIES if sample.get(name) is not None]
        if not found:
            raise ValueError(f"a mapping of {', '.join(map(str, sample))}, without an image")
        return of_sample(found[0])
    if isinstance(sample, str | os.PathLike):
        data = pathlib.Path(sample).expanduser().read_bytes()
        return preview(data) if is_raw(os.fspath(sample)) else data
    if isinstance(sample, bytes | bytearray | memoryview):
        return bytes(sample)
    if isinstance(sample, Image.Image):
        return sample
    if hasattr(sample, "__array__"):
        check_unmasked(sample, "an image")
        return np.asarray(sample)
    kind = type(sample).__name__
    raise InputError(f"an image must be a path, bytes, a PIL image or an array; got {kind}")
