"""Small pictures as parts of a page."""

import base64
import io
import math
from collections.abc import Callable

import numpy as np
from PIL import Image

LOSSLESS_SIDE = 32  # pixels
READ_AT_ONCE = 256  # images


def pictures(read: Callable[[np.ndarray], np.ndarray], rows: np.ndarray, side: int) -> list:
    """Images number `rows` as uint8 arrays `[h, w]` or `[h, w, 3]`, no side longer than `side`."""
    small = []
    for start in range(0, len(rows), READ_AT_ONCE):
        images = np.asarray(read(rows[start : start + READ_AT_ONCE]))
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
            raise ValueError(
                f"thumbnails must be uint8 [images, height, width, 1 or 3], "
                f"got {images.dtype} {list(images.shape)}"
            )
        for image in images[..., 0] if images.shape[3] == 1 else images:
            if max(image.shape[:2]) > side:
                picture = Image.fromarray(image)
                picture.thumbnail((side, side), Image.Resampling.LANCZOS)
                image = np.asarray(picture)
            small.append(image)
    return small


def data_uri(image: np.ndarray, lossless: bool) -> str:
    """A uint8 array as a PNG (`lossless`) or a JPEG that is part of the page."""
    buffer = io.BytesIO()
    if lossless:
        Image.fromarray(image).save(buffer, "PNG", optimize=True)
    else:
        Image.fromarray(image).save(buffer, "JPEG", quality=82, subsampling=0)
    kind = "png" if lossless else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def is_lossless(image: np.ndarray) -> bool:
    """Whether a PNG of this picture stays small: few pixels, one channel."""
    return image.ndim == 2 and max(image.shape) <= LOSSLESS_SIDE


def sprite(images: list[np.ndarray]) -> dict:
    """Equal-sized pictures side by side in one: far smaller than a file header for each."""
    height, width = images[0].shape[:2]
    columns = math.ceil(math.sqrt(len(images)))
    sheet = np.zeros((math.ceil(len(images) / columns) * height, columns * width), np.uint8)
    if images[0].ndim == 3:
        sheet = np.repeat(sheet[..., None], 3, axis=2)
    for i, image in enumerate(images):
        y, x = i // columns * height, i % columns * width
        sheet[y : y + height, x : x + width] = image
    uri = data_uri(sheet, is_lossless(images[0]))
    return {"uri": uri, "columns": columns, "width": width, "height": height}
