"""Photos as a camera's sensor recorded them (raw): the preview that is in each file.

The extra `raw` reads it.
"""

import importlib.util
import io
import os
from collections.abc import Collection, Iterator
from typing import BinaryIO

import numpy as np
from PIL import Image

SUFFIXES = (".cr2", ".cr3", ".nef", ".arw", ".dng", ".raf", ".orf", ".rw2", ".pef", ".srw")
# Quarter turns to the left by LibRaw's number of how the camera was held.
_TURNS = {3: 2, 5: 1, 6: 3}


def is_raw(name: str) -> bool:
    """Returns whether a name is that of a raw photo."""
    return os.path.splitext(name)[1].lower() in SUFFIXES


def can_read() -> bool:
    """Returns whether the extra `raw` is installed."""
    return importlib.util.find_spec("rawpy") is not None


def twins(names: Collection[str]) -> Iterator[str]:
    """Yields the raw photos that are there a second time: beside an image of the same name."""
    if raws := [*filter(is_raw, names)]:
        others = {os.path.splitext(name)[0].lower() for name in names if not is_raw(name)}
        yield from (name for name in raws if os.path.splitext(name)[0].lower() in others)


def preview(stream: BinaryIO) -> BinaryIO:
    """Extracts the largest preview in the file of a raw photo, as the file of a JPEG or a BMP.

    Raises:
        OSError: the file is damaged, or has no preview.
    """
    import rawpy

    try:
        with rawpy.imread(stream) as photo:
            thumbnail, flip = photo.extract_thumb(), photo.sizes.flip
    except rawpy.LibRawError as error:
        reason = error.args[0].decode() if isinstance(error.args[0], bytes) else error
        raise OSError(f"a raw photo without a preview ({reason}): export it as JPEG") from error
    if thumbnail.format == rawpy.ThumbFormat.JPEG:
        return io.BytesIO(bytes(thumbnail.data))
    image, file = Image.fromarray(np.rot90(thumbnail.data, _TURNS.get(flip, 0))), io.BytesIO()
    image.save(file, "BMP")
    return file
