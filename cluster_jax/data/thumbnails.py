"""Thumbnails of images as the bytes of files, in which a run stores them."""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 132  # pixels of the longest side
_LOSSLESS_SIDE = 32  # An image up to this side, such as a digit, is stored as it is.
_QUALITY = 92


def small(image: NDArray, side: int = SIDE) -> NDArray:
    """Returns an image, uint8 `[h, w, c]`, scaled down so that no side is longer than `side`."""
    if max(image.shape[:2]) <= side:
        return image
    scaled = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    scaled.thumbnail((side, side), Image.Resampling.LANCZOS)
    return np.asarray(scaled).reshape(scaled.height, scaled.width, image.shape[2])


def encode(image: NDArray) -> bytes:
    """Returns the thumbnail of an image, uint8 `[h, w, 1 or 3]`, as the file of a PNG or JPEG."""
    image = small(image)
    is_lossless = max(image.shape[:2]) <= _LOSSLESS_SIDE
    file = io.BytesIO()
    pixels = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    if is_lossless:
        pixels.save(file, "PNG", compress_level=1)
    else:
        pixels.save(file, "JPEG", quality=_QUALITY, subsampling=0)
    return file.getvalue()


def decode(file: bytes) -> NDArray:
    """Returns the thumbnail, uint8 `[h, w, 1 or 3]`, from what `encode` has returned."""
    with Image.open(io.BytesIO(file)) as image:
        return np.asarray(image).reshape(image.height, image.width, -1)
