"""Image folders: nested or flat, with or without class folders."""

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np

from cluster_jax.core.checks import InputError
from cluster_jax.core.logs import logger
from cluster_jax.core.names import counted, natural
from cluster_jax.data import images, packed, pixels, scan, survey
from cluster_jax.data.images import DataConfig, Dataset, Decoder

CHANNELS = 3
_LISTED = 3  # unreadable folders that are named


def load(config: DataConfig, ranges: pixels.Ranges = pixels.NO_RANGES) -> Dataset:
    """Loads the images of `data.dir` and all its subfolders, in the order of paths, as RGB.

    With `data.labels` "folders", labels are the first-level subfolders if there are at least two
    and every image lies in one. Else, and without `data.labels`, they are the classes that tars and
    Parquet files hold.

    A cached set is decoded once, and an unreadable file has no row. Of a streamed set only names
    and headers are read here, so that a training starts at once. A file that turns out to be
    unreadable is logged; in a training the next readable image in the order of paths stands in for
    it, whatever was read before, and the evaluation leaves it out, see `Dataset.unreadable`.

    `data.limit` is the number of files of the random subset; unreadable files are not replaced.

    Args:
        config: the section `data`.
        ranges: black and white of values beyond 8 bits, by their kind, as the training of a network
            had them; others are found, see `survey.look`.

    Raises:
        ValueError: the folder is missing or has no image; an `InputError` if too many files are
            unreadable, images differ in size without `data.image_size`, or a file was deleted,
            which for a streamed set `fetch` raises.
    """
    label = config.label if config.labels in (None, "folders") else None
    listing = scan.find(config.dir, config.exclude, config.include_all, label)
    labels, names = _labels(listing) if config.labels == "folders" else (None, None)
    if labels is None:
        labels, names = _classes(listing)
    files, labels = images.limited(config.limit, listing.names, labels)
    size = len(files)
    is_local = "://" not in str(listing.root) and not packed.is_packed(listing.root, files)
    seen = survey.look(files, lambda i: listing.open(files[i]), is_local)
    ranges = {**seen.ranges, **ranges}
    reader = _Reader(listing, files, config, ranges)
    fetch = images.fetcher(reader.read, config.resize, CHANNELS, ranges)
    dataset = Dataset("folder", size, reader.shape, None, fetch, labels, names, files)
    dataset = dataset._replace(
        open=reader.open,
        skipped=listing.unreadable,
        unreadable=reader.unreadable,
        read=reader.read,
        ranges=ranges,
        ignored=listing.ignored,
        notes=tuple(_notes(listing, survey.describe(seen._replace(ranges=ranges)))),
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


def _notes(listing: scan.Files, texts: Sequence[str]) -> Iterator[str]:
    """Yields what a user is told of a folder before its images are read."""
    if listing.ignored:
        yield f"ignored files: {scan.describe_ignored(listing.ignored)}"
    for path, reason in listing.unreadable[:_LISTED]:
        yield f"the folder {path} cannot be read ({reason})"
    if len(listing.unreadable) > _LISTED:
        yield f"{counted(len(listing.unreadable) - _LISTED, 'more folder')} cannot be read"
    yield from texts


class _Reader:
    """Reads the files of a folder and remembers which cannot be read.

    Attributes:
        shape: of all images: the square of the config, or the shape of the first readable image.
        reasons: index -> reason, of the unreadable files that were met.
    """

    def __init__(
        self, listing: scan.Files, files: Sequence[str], config: DataConfig, ranges: pixels.Ranges
    ):
        self._root, self._open, self._files = listing.root, listing.open, files
        self._config, self._ranges = config, ranges
        self._is_read = np.zeros(len(files), bool)
        self.reasons: dict[int, str] = {}
        self.shape: tuple[int, ...] = ()
        side = config.image_size
        self.shape = self.read(0, self._square).shape if side is None else (side, side, CHANNELS)

    def _square(self, data: bytes) -> np.ndarray:
        return images.decode(data, self._config.resize, CHANNELS, self._ranges)

    def open(self, i: int) -> BinaryIO:
        """Opens file i to read its bytes."""
        return self._open(self._files[i])

    def attempt(self, i: int, decode: Decoder | None = None) -> np.ndarray | None:
        """Reads image i; None if it cannot be read, with an entry in `reasons`."""
        path, data = self._root / self._files[i], b""
        try:
            with self.open(i) as file:
                data = file.read()
            with images.decoding:
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
            self.reasons[i] = pixels.reason(error, data)
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
        """Reads image i, or the next readable one, whichever files were read before."""
        for j in itertools.chain(range(i, len(self._files)), range(i)):
            if j not in self.reasons:
                image = self.attempt(j, decode)
                if image is not None:
                    return image
                logger.warning("%s cannot be read (%s)", self._files[j], self.reasons[j])
                self.check()
        raise AssertionError("`check` raises if no file is readable")

    def unreadable(self, indices: np.ndarray) -> list[str | None]:
        """Returns why each file cannot be read, None for readable ones."""
        rest = [i for i in indices.tolist() if not self._is_read[i] and i not in self.reasons]
        images.map_indices(self.attempt, np.array(rest, int))
        return [self.reasons.get(i) for i in indices.tolist()]

    def check(self) -> None:
        """Raises an `InputError` if too many files, or all, turned out to be unreadable."""
        skipped, total = sorted(self.reasons.items()), len(self._files)
        most = self._config.max_corrupt_fraction
        texts = [f"{self._files[i]} ({reason})" for i, reason in skipped[:3]]
        examples = "; ".join([*texts, *(["..."] if len(skipped) > 3 else [])])
        if len(skipped) == total:
            unreadable = f"{counted(total, 'file')} that cannot be read: {examples}"
            raise InputError(
                f"images in {self._root} must be readable; got {unreadable} (save them anew, for "
                "example as JPEG, or give another folder)"
            )
        if len(skipped) > most * total:
            raise InputError(
                f"unreadable files in {self._root} must be at most data.max_corrupt_fraction = "
                f"{most:g} of all; got {len(skipped)} of {total}: {examples} (repair or remove "
                "them, or set data.max_corrupt_fraction higher to leave them out)"
            )


def _labels(listing: scan.Files) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
    """Returns each file's first-level subfolder, int32, and their sorted names, or None twice.

    In tars they are folders of the tar.
    """
    files: Sequence[str] = listing.names
    if packed.is_packed(listing.root, files):
        files = [packed.member(file) for file in files]
    # One string for each name, not for each of a million files.
    tops = {file.split("/", 1)[0] for file in files if "/" in file}
    names = tuple(sorted(tops, key=natural))
    if len(names) < 2 or not all("/" in file for file in files):
        return None, None
    number = {name: i for i, name in enumerate(names)}
    codes = (number[file.split("/", 1)[0]] for file in files)
    return np.fromiter(codes, np.int32, len(files)), names


def _classes(listing: scan.Files) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
    """Returns the classes of images in tars and Parquet files, int32, and names, or None twice."""
    if not listing.classes:
        return None, None
    names = tuple(sorted(set(listing.classes.values()), key=natural))
    number = {name: i for i, name in enumerate(names)}
    codes = (number[listing.classes[name]] for name in listing.names)
    return np.fromiter(codes, np.int32, len(listing.names)), names
