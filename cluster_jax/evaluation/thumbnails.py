"""Thumbnails of images, embedded in a page as data URIs."""

import base64
import io
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

MAX_LOSSLESS_SIDE = 32  # pixels
FETCH_BATCH_SIZE = 256  # images


class Sprite(NamedTuple):
    """Equal-sized images in one: a data URI, images per row, and their size in pixels."""

    uri: str
    columns: int
    width: int
    height: int


def thumbnails(
    fetch_images: Callable[[NDArray], NDArray], indices: NDArray, max_side: int
) -> list[NDArray]:
    """Images with no side longer than `max_side`.

    Args:
        fetch_images: indices -> uint8 `[b, height, width, 1 or 3]`.
        indices: int `[n]`, fetched at most `FETCH_BATCH_SIZE` at a time.
        max_side: in pixels; a larger image is scaled down.

    Returns:
        `n` arrays, uint8 `[height, width]` or `[height, width, 3]`.

    Raises:
        ValueError: the fetched images have another shape or dtype.
    """
    small = []
    for start in range(0, len(indices), FETCH_BATCH_SIZE):
        images = np.asarray(fetch_images(indices[start : start + FETCH_BATCH_SIZE]))
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
            raise ValueError(
                "fetch_images must return uint8 [b, height, width, 1 or 3]; "
                f"got {images.dtype} {list(images.shape)}"
            )
        for image in images[..., 0] if images.shape[3] == 1 else images:
            if max(image.shape[:2]) > max_side:
                scaled = Image.fromarray(image)
                scaled.thumbnail((max_side, max_side), Image.Resampling.LANCZOS)
                image = np.asarray(scaled)
            small.append(image)
    return small


def is_lossless(image: NDArray) -> bool:
    """Whether an image is small enough for a PNG: few pixels, one channel."""
    return image.ndim == 2 and max(image.shape) <= MAX_LOSSLESS_SIDE


def data_uri(image: NDArray, lossless: bool) -> str:
    """An image as a data URI.

    Args:
        image: uint8 `[height, width]` or `[height, width, 3]`.
        lossless: PNG instead of WebP.
    """
    buffer = io.BytesIO()
    if lossless:
        Image.fromarray(image).save(buffer, "PNG", optimize=True)
    else:
        Image.fromarray(image).save(buffer, "WEBP", quality=80)
    kind = "png" if lossless else "webp"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def sprite(images: Sequence[NDArray]) -> Sprite:
    """Images side by side in one, which takes far less space than separate files.

    Args:
        images: uint8 arrays of one shape.
    """
    height, width = images[0].shape[:2]
    columns = math.ceil(math.sqrt(len(images)))
    rows = math.ceil(len(images) / columns)
    sheet = np.zeros((rows * height, columns * width, *images[0].shape[2:]), np.uint8)
    for i, image in enumerate(images):
        y, x = i // columns * height, i % columns * width
        sheet[y : y + height, x : x + width] = image
    return Sprite(data_uri(sheet, is_lossless(images[0])), columns, width, height)
