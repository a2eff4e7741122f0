"""Image folders: nested or flat, with or without class folders."""

import collections
import itertools
import os
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np
from absl import logging
from etils import epath
from PIL import Image

from cluster_jax.core.checks import InputError
from cluster_jax.data import images
from cluster_jax.data.images import DataConfig, Dataset, Decoder

CHANNELS = 3


def load(config: DataConfig) -> Dataset:
    """The images of the folder `data.dir` and all its subfolders, in the order of paths, as RGB.

    Labels are the first-level subfolders if there are at least two and every image lies in one.
    Labels are used for scores only: if the subfolders are not classes, only the scores are
    meaningless.

    A cached set is decoded once, and an unreadable file has no row. Of a streamed set only names
    are read here, so that a training starts at once. A file that turns out to be unreadable is
    logged; in a training the next readable image in the order of paths stands in for it, whatever
    was read before, and the evaluation leaves it out, see `Dataset.unreadable`.

    `data.limit` is the number of files of the random subset; unreadable files are not replaced.

    Raises:
        ValueError: the folder is missing or has no image; an `InputError` if too many files are
            unreadable, images differ in size without `data.image_size`, or a file was deleted,
            which for a streamed set `fetch` raises.
    """
    root, all_files, ignored = find(config.dir)
    labels, names = _labels(all_files)
    files, labels = images.limited(config.limit, tuple(all_files), labels)
    size = len(files)
    reader = _Reader(root, files, config)
    fetch = images.fetcher(reader.read, config.resize, CHANNELS)
    dataset = Dataset("folder", size, reader.shape, None, fetch, labels, names, files)
    dataset = dataset._replace(
        open=reader.open, unreadable=reader.unreadable, read=reader.read, ignored=ignored
    )
    if not config.fits(size, reader.shape):
        return dataset
    pixels, is_unreadable, count = np.empty((size, *reader.shape), np.uint8), [], 0
    for image in images.map_threaded(reader.attempt, range(size), "reading images"):
        is_unreadable.append(image is None)
        if image is not None:
            pixels[count], count = image, count + 1
    reader.check()
    pixels = pixels[:count]
    dataset = images.without(dataset, np.array(is_unreadable))
    return dataset._replace(images=pixels, fetch=pixels.__getitem__, read=None)


class _Reader:
    """Reads the files of a folder and remembers which cannot be read.

    Attributes:
        shape: of all images: the square of the config, or the shape of the first readable image.
        reasons: index -> reason, of the unreadable files that were met.
    """

    def __init__(self, root: epath.Path, files: Sequence[str], config: DataConfig):
        self._root, self._files, self._config = root, files, config
        self._is_read = np.zeros(len(files), bool)
        self.reasons: dict[int, str] = {}
        self.shape: tuple[int, ...] = ()
        side = config.image_size
        self.shape = self.read(0, self._square).shape if side is None else (side, side, CHANNELS)

    def _square(self, data: bytes) -> np.ndarray:
        return images.decode(data, self._config.resize, CHANNELS)

    def open(self, i: int) -> BinaryIO:
        """File i, opened to read its bytes."""
        return (self._root / self._files[i]).open("rb")

    def attempt(self, i: int, decode: Decoder | None = None) -> np.ndarray | None:
        """Image i; None if it cannot be read, with an entry in `reasons`."""
        path = self._root / self._files[i]
        try:
            data = path.read_bytes()
            image = (decode or self._square)(data)
        except MemoryError:
            raise
        # Pillow raises errors of many types on damaged bytes, SyntaxError included.
        except Exception as error:
            # An error of the disk or the network may not occur again.
            is_lasting = isinstance(error, PermissionError) or os.path.islink(path)
            if isinstance(error, OSError) and error.errno and not is_lasting:
                raise InputError(
                    f"{path} must stay there during a run; got it deleted or moved "
                    f"({error.strerror}): put it back, and run the same command again"
                ) from error
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            # Pillow's message names a buffer object in place of the file.
            if isinstance(error, Image.UnidentifiedImageError):
                reason = "not an image" if data else "empty file"
            self.reasons[i] = reason
            return None
        self._is_read[i] = True
        if self.shape and image.ndim == 3 and image.shape != self.shape:
            (h, w, _), (h0, w0, _) = image.shape, self.shape
            raise InputError(
                f"images must have one size; got {self._files[i]} of {h} x {w} and {h0} x {w0} "
                "before (height x width): set data.image_size to resize and crop them"
            )
        return image

    def read(self, i: int, decode: Decoder) -> np.ndarray:
        """Image i, or the next readable one, whichever files were read before."""
        for j in itertools.chain(range(i, len(self._files)), range(i)):
            if j not in self.reasons:
                image = self.attempt(j, decode)
                if image is not None:
                    return image
                logging.warning("%s cannot be read (%s)", self._files[j], self.reasons[j])
                self.check()
        raise AssertionError("`check` raises if no file is readable")

    def unreadable(self, indices: np.ndarray) -> list[str | None]:
        """Why each file cannot be read, None for readable ones."""
        rest = [i for i in indices.tolist() if not self._is_read[i] and i not in self.reasons]
        images.map_indices(self.attempt, np.array(rest, int))
        return [self.reasons.get(i) for i in indices.tolist()]

    def check(self) -> None:
        """Raises an `InputError` if too many files, or all, turned out to be unreadable."""
        skipped, count = sorted(self.reasons.items()), len(self._files)
        most = self._config.max_corrupt_fraction
        texts = [f"{self._files[i]} ({reason})" for i, reason in skipped[:3]]
        examples = "; ".join([*texts, *(["..."] if len(skipped) > 3 else [])])
        if len(skipped) == count:
            found = f"{count} files that cannot be read: {examples}"
            raise InputError(f"images in {self._root} must be readable; got {found}")
        if len(skipped) > most * count:
            raise InputError(
                f"unreadable files in {self._root} must be at most data.max_corrupt_fraction = "
                f"{most:g} of all; got {len(skipped)} of {count}: {examples} (repair or remove "
                "them, or set data.max_corrupt_fraction higher to leave them out)"
            )


def describe_ignored(ignored: Sequence[tuple[str, int]]) -> str:
    """Counts of ignored files by suffix, with the package that reads HEIC photos."""
    counts = ", ".join(f"{count:,} {suffix or 'without suffix'}" for suffix, count in ignored)
    needs_heic = not images.HEIC and any(suffix in (".heic", ".heif") for suffix, _ in ignored)
    return counts + (" (to read HEIC: pip install pillow-heif)" if needs_heic else "")


def find(dir: str | None) -> tuple[epath.Path, list[str], tuple[tuple[str, int], ...]]:
    """Files of a folder and its subfolders, without hidden ones.

    Returns:
        The folder; the sorted relative paths of its images; (suffix, number) of its other files.
    """
    root = epath.Path(dir or "").expanduser()
    if dir and not root.exists():
        raise ValueError(f"data.dir must be an existing folder of images; got {root}")
    if not dir or not root.is_dir():
        found = f"the file {root}" if dir else "none"
        raise ValueError(f"data.dir must be a folder of images; got {found}")
    is_local = "://" not in str(root)
    paths, to_visit, visited = [], [(root, "")], set()
    others: collections.Counter[str] = collections.Counter()
    while to_visit:
        folder, prefix = to_visit.pop()
        # A link to a parent folder would cause an infinite loop.
        real = os.path.realpath(folder)
        if real in visited:
            continue
        visited.add(real)
        # os.scandir knows which entries are folders; `is_dir` of a path asks the disk each time.
        for entry in os.scandir(folder) if is_local else folder.iterdir():
            if entry.name.startswith("."):
                continue
            path, suffix = prefix + entry.name, os.path.splitext(entry.name)[1].lower()
            # The extension is checked first, because each is_dir() on a bucket is a request.
            if suffix in images.EXTENSIONS and not entry.is_dir():
                paths.append(path)
            elif entry.is_dir():
                to_visit.append((root / path, path + "/"))
            else:
                others[suffix] += 1
    ignored = tuple(sorted(others.items()))
    if not paths:
        found = f"; other files: {describe_ignored(ignored)}" if ignored else ""
        must = f"data.dir must hold files of type {', '.join(e[1:] for e in images.EXTENSIONS)}"
        raise ValueError(f"{must}; got no image file in {root} or its subfolders{found}")
    paths.sort()
    return root, paths, ignored


def _labels(files: Sequence[str]) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
    """First-level subfolder of each file as int32, and their sorted names, or None twice."""
    # One string for each name, not for each of a million files.
    names = tuple(sorted({file.split("/", 1)[0] for file in files if "/" in file}))
    if len(names) < 2 or not all("/" in file for file in files):
        return None, None
    number = {name: i for i, name in enumerate(names)}
    codes = (number[file.split("/", 1)[0]] for file in files)
    return np.fromiter(codes, np.int32, len(files)), names
