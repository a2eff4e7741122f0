"""Facts about the files of images: size of the picture, bytes, and the date of taking."""

import datetime
import os
import re
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from cluster_jax.data import images, pixels
from cluster_jax.data.images import Dataset

# Dates of EXIF: of the exposure, and of a scan. That of the last change says nothing of the taking.
_DATES = (ExifTags.Base.DateTimeOriginal, ExifTags.Base.DateTimeDigitized)
# Bytes at the end of a PNG in which an EXIF block is looked for that follows the pixels.
_TAIL = 2**16


class PhotoFacts(NamedTuple):
    """Facts about the files of n images.

    Attributes:
        width: int32 `[n]`, pixels of the upright picture; 0 where the file has no readable header.
        height: int32 `[n]`, likewise.
        bytes: int64 `[n]`, size of the file; 0 where it cannot be opened.
        taken: date and time at which the picture was taken, by its EXIF block, as
            `2023-07-14T18:02:11`; "" if it is not known.
    """

    width: NDArray
    height: NDArray
    bytes: NDArray
    taken: tuple[str, ...]


def select(facts: PhotoFacts, rows: NDArray) -> PhotoFacts:
    """Selects the facts about some of the files, int `[m]`."""
    taken = tuple(facts.taken[i] for i in rows.tolist())
    return PhotoFacts(facts.width[rows], facts.height[rows], facts.bytes[rows], taken)


def read(dataset: Dataset) -> PhotoFacts | None:
    """Reads the facts about the files of a data set from their headers; None if it has no files.

    A damaged file has zeros and no date.
    """
    opened = dataset.open
    if opened is None:
        return None

    def facts(i: int) -> tuple[int, int, int, str]:
        try:
            with opened(i) as file:
                size = file.seek(0, os.SEEK_END)
                try:
                    return size, *_header(file, size)
                except Exception:  # Pillow raises errors of many types on damaged bytes.
                    return size, 0, 0, ""
        except OSError:
            return 0, 0, 0, ""

    rows = list(images.map_threaded(facts, range(dataset.size), "reading headers"))
    size, width, height, taken = zip(*rows, strict=True) if rows else ((),) * 4
    return PhotoFacts(
        np.array(width, np.int32), np.array(height, np.int32), np.array(size, np.int64), taken
    )


def _header(file: BinaryIO, size: int) -> tuple[int, int, str]:
    """Reads width, height and date of the picture in a file of `size` bytes; decodes no pixels."""
    file.seek(0)
    image = pixels.identified(file)
    if image.format == "PNG" and _has_late_exif(file, size):
        file.seek(0)
        image = pixels.opened(file)
    width, height = images.upright_size(image)
    try:
        dates = Image.Image.getexif(image).get_ifd(ExifTags.IFD.Exif)
    except Exception:  # Pillow raises errors of many types on damaged bytes.
        return width, height, ""
    return width, height, next(filter(None, (_iso(dates.get(tag)) for tag in _DATES)), "")


def _has_late_exif(file: BinaryIO, size: int) -> bool:
    """Returns whether a PNG has an EXIF block in its last bytes, where it may follow the pixels."""
    place = file.tell()
    file.seek(max(0, size - _TAIL))
    tail = file.read()
    file.seek(place)
    return b"eXIf" in tail


def _iso(date: object) -> str:
    """Converts a date of EXIF, `2023:07:14 18:02:11`, to ISO form; "" unless it is a date."""
    digits = re.sub(r"\D", ":", str(date)[:19])  # Some programs write other separators.
    try:
        return datetime.datetime.strptime(digits, "%Y:%m:%d:%H:%M:%S").isoformat()
    except ValueError:
        return ""
