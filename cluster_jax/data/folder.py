"""Image folders: nested or flat, with or without class folders."""

import collections
import os
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from etils import epath
from PIL import Image

from cluster_jax.core.checks import InputError
from cluster_jax.data.images import (
    EXTENSIONS,
    HEIC,
    Dataset,
    Resize,
    decode,
    fetcher,
    fits,
    map_threaded,
    subset,
)

ORIENTATION = 274  # the EXIF tag
CHANNELS = 3


class _Unreadable(NamedTuple):
    """Result for a file that cannot be read."""

    reason: str


_Shape = tuple[int, int, int]
Result = TypeVar("Result", np.ndarray, _Shape)


def load(
    *,
    dir: str | None,
    resize: Resize | None,
    cache_mb: float,
    max_corrupt_fraction: float,
    limit: int | None,
) -> Dataset:
    """The images of a folder and all its subfolders, in the order of their paths, as RGB.

    Labels are the first-level subfolders if there are at least two and every image lies in one.
    Labels are used for scores only: if the subfolders are not classes, only the scores are
    meaningless. A cached set is decoded once. Of a streamed set only headers are read here; a file
    whose pixels fail to decode later raises an InputError that names it.

    Args:
        dir: path, local or in a bucket.
        resize: the square that each image is resized and cropped to, or None if all have one size.
        cache_mb: sets up to this size are decoded into memory, in 10^6 bytes of uint8.
        max_corrupt_fraction: maximum fraction of unreadable files, 0 to 1.
        limit: number of files of a fixed random subset, or None for all; unreadable files of
            the subset are not replaced.

    Raises:
        ValueError: the folder is missing, has no readable image or too many unreadable files, or
            images differ in size without `resize`.
    """
    root, all_files, ignored = _files(dir)
    labels, names = _labels(all_files)
    indices = subset(len(all_files), limit)
    files = [all_files[i] for i in indices]

    def probe(file: str) -> _Shape | _Unreadable:
        return _attempt(_read_shape, root / file, resize)

    def decode_file(file: str) -> np.ndarray | _Unreadable:
        return _attempt(_decode, root / file, resize)

    shape = (resize.side, resize.side, CHANNELS) if resize else _first_shape(files, probe)
    is_cached = shape is not None and fits(len(files), shape, cache_mb)
    results = list(map_threaded(decode_file if is_cached else probe, files, "reading images"))
    good = [i for i, result in enumerate(results) if not isinstance(result, _Unreadable)]
    skipped = tuple(
        (file, result.reason)
        for file, result in zip(files, results, strict=True)
        if isinstance(result, _Unreadable)
    )
    _check_skipped(root, skipped, len(files), max_corrupt_fraction)
    kept = tuple(files[i] for i in good)
    shapes = [results[i].shape if is_cached else results[i] for i in good]
    _check_one_shape(kept, shapes)
    labels = None if labels is None else labels[indices[good]]

    if is_cached:
        images = np.empty((len(good), *shapes[0]), np.uint8)
        for row, i in enumerate(good):
            images[row], results[i] = results[i], None  # frees each image once it is copied
        fetch: Callable[[np.ndarray], np.ndarray] = images.__getitem__
        return Dataset(
            "folder", len(good), shapes[0], images, fetch, labels, names, kept, skipped, ignored
        )

    def read(i: int) -> np.ndarray:
        image = _attempt(_decode, root / kept[i], resize)
        if isinstance(image, _Unreadable):
            if not (root / kept[i]).exists():
                raise InputError(
                    f"{root / kept[i]} must stay there during a run; got it deleted or moved: put "
                    "it back, and run the same command again"
                )
            raise InputError(
                f"{root / kept[i]} must be a readable image; got a valid header but corrupt data "
                f"({image.reason}): remove or repair it"
            )
        return image

    fetch = fetcher(read)
    return Dataset(
        "folder", len(good), shapes[0], None, fetch, labels, names, kept, skipped, ignored
    )


def describe_ignored(ignored: Sequence[tuple[str, int]]) -> str:
    """Counts of ignored files by suffix, with the package that reads HEIC photos."""
    counts = ", ".join(f"{count:,} {suffix or 'without suffix'}" for suffix, count in ignored)
    needs_heic = not HEIC and any(suffix in (".heic", ".heif") for suffix, _ in ignored)
    return counts + (" (to read HEIC: pip install pillow-heif)" if needs_heic else "")


def _files(dir: str | None) -> tuple[epath.Path, list[str], tuple[tuple[str, int], ...]]:
    """Files of a folder and its subfolders, without hidden ones.

    Returns:
        The folder; the sorted relative paths of its images; (suffix, number) of its other files.
    """
    if not dir:
        raise ValueError("data.dir must be a folder of images; got none")
    root = epath.Path(dir).expanduser()
    if not root.exists():
        raise ValueError(f"data.dir must be an existing folder of images; got {root}")
    if not root.is_dir():
        raise ValueError(f"data.dir must be a folder of images; got the file {root}")
    paths, to_visit, visited = [], [(root, "")], set()
    others: collections.Counter[str] = collections.Counter()
    while to_visit:
        folder, prefix = to_visit.pop()
        # A link to a parent folder would cause an infinite loop.
        real = os.path.realpath(folder)
        if real in visited:
            continue
        visited.add(real)
        for entry in folder.iterdir():
            if entry.name.startswith("."):
                continue
            path = prefix + entry.name
            # The extension is checked first, because each is_dir() on a bucket is a request.
            if entry.name.lower().endswith(EXTENSIONS) and not entry.is_dir():
                paths.append(path)
            elif entry.is_dir():
                to_visit.append((entry, path + "/"))
            else:
                others[entry.suffix.lower()] += 1
    ignored = tuple(sorted(others.items()))
    if not paths:
        found = f"; other files: {describe_ignored(ignored)}" if ignored else ""
        raise ValueError(
            f"data.dir must hold files of type {', '.join(e[1:] for e in EXTENSIONS)}; got no "
            f"image file in {root} or its subfolders{found}"
        )
    return root, sorted(paths), ignored


def _labels(files: Sequence[str]) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
    """First-level subfolder of each file as int32, and their sorted names, or None twice."""
    folders = [file.split("/", 1)[0] for file in files if "/" in file]
    names = tuple(sorted(set(folders)))
    if len(folders) < len(files) or len(names) < 2:
        return None, None
    number = {name: i for i, name in enumerate(names)}
    return np.array([number[folder] for folder in folders], np.int32), names


def _attempt(
    read: Callable[[epath.Path, Resize | None], Result], path: epath.Path, resize: Resize | None
) -> Result | _Unreadable:
    """The result of `read(path, resize)`, or the reason of its failure."""
    try:
        return read(path, resize)
    # Pillow raises errors of many types on damaged bytes, SyntaxError included.
    except Exception as error:
        # Pillow's message names a buffer object in place of the file.
        if isinstance(error, Image.UnidentifiedImageError):
            return _Unreadable("not an image" if path.stat().length else "empty file")
        return _Unreadable(" ".join(f"{type(error).__name__}: {error}".split()))


def _decode(path: epath.Path, resize: Resize | None) -> np.ndarray:
    return decode(path.read_bytes(), resize, CHANNELS)


def _read_shape(path: epath.Path, resize: Resize | None) -> _Shape:
    """Shape of the decoded image, from the header of the file."""
    with path.open("rb") as file, Image.open(file) as image:
        if resize:
            return resize.side, resize.side, CHANNELS
        # The getexif of Pillow's PNG class decodes the whole image, since tags may come last.
        is_rotated = Image.Image.getexif(image).get(ORIENTATION, 1) >= 5
        height, width = (image.width, image.height) if is_rotated else (image.height, image.width)
        return height, width, CHANNELS


def _first_shape(
    files: Iterable[str], probe: Callable[[str], _Shape | _Unreadable]
) -> _Shape | None:
    """Shape of the first readable image; None if no image is readable."""
    shapes = (shape for shape in map(probe, files) if not isinstance(shape, _Unreadable))
    return next(shapes, None)


def _check_skipped(
    root: epath.Path, skipped: Sequence[tuple[str, str]], count: int, max_corrupt_fraction: float
) -> None:
    examples = "; ".join(f"{file} ({reason})" for file, reason in skipped[:3])
    if len(skipped) > 3:
        examples += "; ..."
    if len(skipped) == count:
        raise ValueError(
            f"images in {root} must be readable; got {count} files that cannot be read: {examples}"
        )
    if len(skipped) > max_corrupt_fraction * count:
        raise ValueError(
            f"unreadable files in {root} must be at most data.max_corrupt_fraction = "
            f"{max_corrupt_fraction:g} of all; got {len(skipped)} of {count}: {examples}"
        )


def _check_one_shape(files: Sequence[str], shapes: Sequence[_Shape]) -> None:
    for file, shape in zip(files, shapes, strict=True):
        if shape != shapes[0]:
            (h, w, _), (h0, w0, _) = shape, shapes[0]
            raise ValueError(
                f"images must have one size; got {file} of {h} x {w} and {files[0]} of {h0} x {w0} "
                "(height x width): set data.image_size to resize and crop them"
            )
