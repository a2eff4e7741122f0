"""Thumbnails of images, embedded in a page as data URIs."""

import base64
import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cluster_jax.data import thumbnails as data

MAX_LOSSLESS_SIDE = 32  # pixels
FETCH_BATCH_SIZE = 256  # images


def thumbnails(
    fetch_images: Callable[[NDArray], NDArray], indices: NDArray, max_side: int
) -> list[NDArray]:
    """Returns images, shrunk so that no side is longer than `max_side`.

    Args:
        fetch_images: indices -> uint8 `[b, height, width, 1 or 3]`.
        indices: int `[n]`, fetched at most `FETCH_BATCH_SIZE` at a time.
        max_side: in pixels; a larger image is scaled down.

    Returns:
        `n` arrays, uint8 `[height, width]` or `[height, width, 3]`.
    """
    small = []
    for start in range(0, len(indices), FETCH_BATCH_SIZE):
        images = fetch_images(indices[start : start + FETCH_BATCH_SIZE])
        scaled = [data.small(image, max_side) for image in images]
        small += [image[..., 0] if image.shape[2] == 1 else image for image in scaled]
    return small


def sprite(images: Sequence[NDArray]) -> dict[str, Any]:
    """Returns one image of many, side by side, which takes far less space than separate files.

    Args:
        images: uint8 `[height, width]` or `[height, width, 3]`, at least one, all of one shape.

    Returns:
        "uri" of the sprite, its numbers of "columns" and "rows", and "width" and "height" of one
        image.
    """
    height, width, *channels = images[0].shape
    columns = math.ceil(math.sqrt(len(images)))
    rows = math.ceil(len(images) / columns)
    tiles = np.zeros((rows * columns, height, width, *channels), np.uint8)
    tiles[: len(images)] = images
    grid = tiles.reshape(rows, columns, height, width, *channels).swapaxes(1, 2)
    kind = "webp"
    options = dict[str, Any](quality=80)
    if not channels and max(height, width) <= MAX_LOSSLESS_SIDE:
        kind = "png"
        options = {"optimize": True}
    buffer = io.BytesIO()
    sheet = Image.fromarray(grid.reshape(rows * height, columns * width, *channels))
    sheet.save(buffer, kind, **options)
    uri = f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
    return {"uri": uri, "columns": columns, "rows": rows, "width": width, "height": height}


def uri(image: NDArray) -> str:
    """Returns a small image, uint8 `[height, width, 1 or 3]`, as a data URI."""
    return sprite([image[..., 0] if image.shape[2] == 1 else image])["uri"]
