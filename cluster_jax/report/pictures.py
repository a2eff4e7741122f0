"""Whole pictures of image files, and whether two of them show the same content."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import uniform_filter

from cluster_jax.data import decode
from cluster_jax.data.images import Dataset

# Longest side at which pictures are compared, in pixels, and the side of a window of it.
SIDE, WINDOW = 512, 11
# Pictures show the same if in every window the mean square of the difference of their gray values
# is below this part of the sum of their variances and `_NOISE`, that of the errors of a JPEG in an
# even area; and if their colors, over twice the window, differ by less than `_COLOR`.
ALIKE, _NOISE, _COLOR = 0.25, 400.0, 12.0
_GRAY = np.array([0.299, 0.587, 0.114], np.float32)


class Picture(NamedTuple):
    """A whole picture, upright.

    Attributes:
        image: its pixels, RGB, scaled down so that no side is longer than `SIDE`.
        size: width and height in pixels before it was scaled down.
        several: whether the file has further pages or frames.
    """

    image: Image.Image
    size: tuple[int, int]
    several: bool


def read(dataset: Dataset, i: int) -> Picture | None:
    """Returns the whole picture of image i of a data set; None if its file cannot be read.

    Images that are not files are as the data set has them, scaled and cropped.
    """
    if dataset.load is None:
        image = as_image(dataset.fetch(np.array([i]))[0])
        return Picture(_small(image.convert("RGB")), image.size, False)
    try:
        with decode.opened(dataset.load(i), 2 * SIDE) as (file, size):
            # An MPO's second image is a gain map.
            several = file.format != "MPO" and getattr(file, "n_frames", 1) > 1
            return Picture(_small(decode.to_8_bit(file, "RGB")), size, several)
    except Exception:  # Pillow raises errors of many types on damaged bytes.
        return None


def as_image(values: NDArray) -> Image.Image:
    """Returns an image of a data set, uint8 `[h, w, 1 or 3]`, as one of Pillow's."""
    return Image.fromarray(values[..., 0] if values.shape[-1] == 1 else values)


def _small(image: Image.Image) -> Image.Image:
    """Returns an image scaled down so that no side is longer than `SIDE`; a small one stays."""
    factor = SIDE / max(image.size)
    size = [max(1, round(side * factor)) for side in image.size]
    if factor >= 1:
        return image
    return image.resize(size, Image.Resampling.BILINEAR)


def show_same(a: Picture, b: Picture) -> bool:
    """Returns whether two pictures show the same content at any size and quality.

    They are compared window by window, so that a small local difference, such as another line of
    text or clock hand, counts. A cropped, recolored or multi-page picture never shows the same.
    """
    if a.several or b.several:
        return False
    width, height = a.size
    other_width, other_height = b.size
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
    """Returns the variance of gray values float32 `[h, w]` in the window around each pixel."""
    return uniform_filter(values * values, WINDOW) - uniform_filter(values, WINDOW) ** 2
