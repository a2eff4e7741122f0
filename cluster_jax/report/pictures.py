"""Whole pictures of image files: whether two show the same, or are the same."""

import hashlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import uniform_filter

from cluster_jax.data import decode
from cluster_jax.data.images import Dataset, map_indices

# Longest side at which pictures are compared, in pixels, and the side of a window of it.
SIDE, WINDOW = 512, 11
# Pictures show the same if in every window the mean square of the difference of their gray values
# is below this part of the sum of their variances and `_NOISE`, that of the errors of a JPEG in an
# even area; and if their colors, over twice the window, differ by less than `_COLOR`.
ALIKE, _NOISE, _COLOR = 0.25, 400.0, 12.0
_GRAY = np.array([0.299, 0.587, 0.114], np.float32)
# Modes whose values RGBA keeps; others are compared as they are.
_KEPT = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX")


class Picture(NamedTuple):
    """A whole picture, upright.

    Attributes:
        image: its pixels, scaled down to at most `SIDE`, RGB.
        size: width and height in pixels.
        several: whether the file has further pages or frames.
    """

    image: Image.Image
    size: tuple[int, int]
    several: bool


def read(dataset: Dataset, indices: NDArray) -> list[Picture | None]:
    """Reads whole pictures, or else those of the data set; None: unreadable."""
    if dataset.load is not None:
        return map_indices(lambda i: _read_whole(dataset, i), indices)
    # Not in the threads of images: `fetch` waits for these.
    return [_as_fetched(values) for values in dataset.fetch(indices)] if len(indices) else []


def _as_fetched(values: NDArray) -> Picture:
    image = Image.fromarray(values[..., 0] if values.shape[-1] == 1 else values)
    return Picture(_small(image.convert("RGB")), image.size, False)


def _read_whole(dataset: Dataset, i: int) -> Picture | None:
    assert dataset.load is not None
    try:
        with decode.opened(dataset.load(i), 2 * SIDE) as (file, size):
            several = _has_several(file)
            return Picture(_small(decode.to_8_bit(file, "RGB")), size, several)
    except Exception:  # Pillow raises errors of many types on damaged bytes.
        return None


def _small(image: Image.Image) -> Image.Image:
    return image if max(image.size) <= SIDE else _resized(image, SIDE / max(image.size))


def _resized(image: Image.Image, factor: float) -> Image.Image:
    size = [max(1, round(side * factor)) for side in image.size]
    return image.resize(size, Image.Resampling.BILINEAR)


def _has_several(file: Image.Image) -> bool:
    """Returns whether a file has several pages or frames; an MPO's second image is a gain map."""
    return file.format != "MPO" and getattr(file, "n_frames", 1) > 1


def alike(a: Picture, b: Picture) -> bool:
    """Returns whether two pictures show the same, at whatever size and quality.

    They do not if the place of a difference is a line of text, a clock, or a face. Of files with
    several pages only the first would be compared: they are not alike.
    """
    if a.several or b.several:
        return False
    (width, height), (other_width, other_height) = a.size, b.size
    ratio = width * other_height / (height * other_width)
    if abs(ratio - 1) > 0.002 + 2 / min(*a.size, *b.size):  # Sides are rounded.
        return False
    small, large = sorted((a.image, b.image), key=lambda image: max(image.size))
    x, y = (
        np.asarray(image.resize(small.size, Image.Resampling.BILINEAR), np.float32)
        for image in (small, large)
    )
    gray, other = x @ _GRAY, y @ _GRAY
    apart = uniform_filter((gray - other) ** 2, WINDOW)
    if (apart > ALIKE * (_variance(gray) + _variance(other) + _NOISE)).any():
        return False
    color = (x - gray[..., None]) - (y - other[..., None])
    return bool(np.abs(uniform_filter(color, (2 * WINDOW, 2 * WINDOW, 1))).max() < _COLOR)


def _variance(values: NDArray) -> NDArray:
    """Computes the variance in the window around each pixel."""
    return uniform_filter(values * values, WINDOW) - uniform_filter(values, WINDOW) ** 2


def digest(dataset: Dataset, i: int) -> bytes | None:
    """Hashes (SHA-256) all values of a picture, upright and with transparency.

    None: it has several pages, or cannot be read.
    """
    assert dataset.load is not None
    try:
        with decode.opened(dataset.load(i)) as (file, _):
            decode.check_size(file)
            return None if _has_several(file) else _digest(file)
    except Exception:  # As above.
        return None


def _digest(file: Image.Image) -> bytes:
    file.load()
    is_kept = file.mode in _KEPT
    image = file.convert("RGBA") if is_kept else file
    values = np.asarray(decode.upright(image, decode.orientation(file)))
    about = f"{'' if is_kept else file.mode} {values.dtype} {values.shape}"
    return hashlib.sha256(about.encode() + np.ascontiguousarray(values).data).digest()
