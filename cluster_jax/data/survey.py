"""A first look at the files of a folder: scales of values beyond 8 bits, and several pages."""

import io
import os
from collections.abc import Callable, Sequence
from typing import BinaryIO, NamedTuple

import numpy as np

from cluster_jax.core.names import counted
from cluster_jax.data import images, pixels, raw

# Suffixes of files that hold one image of 8 bits, and are not looked at.
_PLAIN = (
    ".jpg",
    ".jpeg",
    ".jpe",
    ".jfif",
    ".bmp",
    ".heic",
    ".heif",
    ".hif",
    ".avif",
    ".tga",
    *raw.SUFFIXES,
)
# Headers that are read in a bucket or a tar, and images that are decoded to find the scale of their
# kind.
_MOST_REMOTE, _MOST_DEEP = 1_000, 1_000


class Survey(NamedTuple):
    """What the headers of files say.

    Attributes:
        ranges: black and white of values beyond 8 bits, by their kind.
        several: number of files with several pages or frames, of which the first is read.
    """

    ranges: dict[str, tuple[float, float]]
    several: int


def look(files: Sequence[str], open: Callable[[int], BinaryIO], is_local: bool) -> Survey:
    """Reads the headers of all files that may have more than 8 bits or several pages.

    The range of a kind of values is that of all images of this kind together, so that they keep
    their order of brightness: from their lowest value, at most 0, to their highest one. At most
    1,000 images are decoded for it; in a bucket, a tar or Parquet, the headers of at most 1,000
    files are read.

    Args:
        files: their names.
        open: index -> the file, opened to read its bytes.
        is_local: whether the files are on a disk, each one alone.
    """
    rows = [
        i
        for i, file in enumerate(files)
        if os.path.splitext(file)[1].lower() not in (*_PLAIN, *raw.SUFFIXES)
    ]
    if not is_local:
        rows = np.array(rows, int)[images.subset(len(rows), _MOST_REMOTE)].tolist()

    def header(i: int) -> tuple[bool, bool]:
        try:
            with open(i) as file:
                image = pixels.identified(file)
                several = image.format != "MPO" and getattr(image, "n_frames", 1) > 1
                return pixels.may_be_deep(image, file), several
        except Exception:  # Pillow raises errors of many types on damaged bytes.
            return False, False

    headers = list(images.map_threaded(header, rows, "reading headers"))
    deep = [i for i, (is_deep, _) in zip(rows, headers, strict=True) if is_deep]
    chosen = np.array(deep, int)[images.subset(len(deep), _MOST_DEEP)].tolist()

    def extremes(i: int) -> tuple[str, float, float] | None:
        try:
            with open(i) as file:
                data = file.read()
            image = pixels.opened(io.BytesIO(data))
            pixels.check_size(image)
            with pixels.one_large_at_a_time(image):
                pixels.load(image)
                content = pixels.deep(image, data)
        except Exception:  # As above.
            return None
        if content is None or content.stated is not None or content.is_fraction():
            return None
        return content.kind, *content.extremes()

    ranges: dict[str, tuple[float, float]] = {}
    for kind, low, high in filter(None, images.map_threaded(extremes, chosen, "reading scales")):
        before = ranges.get(kind, (low, high))
        ranges[kind] = min(low, before[0]), max(high, before[1])
    return Survey(ranges, sum(several for _, several in headers))


def describe(survey: Survey) -> list[str]:
    """Describes the scales and the pages to the user, in sentences."""
    texts = [
        f"{kind} images: {low:g} is black and {high:g}, their highest value, is white"
        for kind, (low, high) in sorted(survey.ranges.items())
        if (low, high) != pixels.USUAL.get(kind)
    ]
    if survey.several:
        files = counted(survey.several, "file has", "files have")
        texts.append(f"{files} several pages or frames, of which the first is taken")
    return texts
