"""The section `data` of a config, the type `Dataset`, and decoding of images in threads."""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import math
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from cluster_jax.core import logs
from cluster_jax.core.buckets import BucketError
from cluster_jax.core.checks import Count, CountOrZero, Fraction, InputError, NonNegative
from cluster_jax.core.logs import logger
from cluster_jax.data import decode
from cluster_jax.data.decode import Interpolation, Item, Resize

# Images that are read together, after which a progress bar moves.
CHUNK = 1024
# More threads read, of which some wait for a disk or a bucket, than decode.
THREADS = 32
# What `Dataset.facts` knows of each image. A date is as `2023-07-14T18:02:11`, or "".
FACTS = np.dtype(
    {
        "names": ["width", "height", "bytes", "taken", "digest", "file"],
        "formats": ["i4", "i4", "i8", "S19", ("u1", 32), ("u1", 32)],
    }
)


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Section `data`: the data set and its preprocessing.

    Attributes:
        name: "digits", "folder", "arrays", "features" or the name of a prepared TFDS set.
        dir: location of the data: folder, file, or TFDS's data directory; unused by digits. Of
            "folder" also a zip, or several folders and files, one a line; see `folder.find`.
        split: TFDS split, "train" or "train+test"; ignored by other sources.
        label: feature of a TFDS set that holds the classes, "label" or for example CIFAR-100's
            "coarse_label"; other sources ignore it. A set without this feature has no labels.
        labels: labels of a folder or of arrays, for scores only: "folders", the first-level
            subfolders, if there are at least two and every image lies in one; or a file, see
            `tables.read_labels`; None: none. The labels in an `.npz` of images or features are
            taken unless this is a file.
        image_size: side of a square: the short side is scaled to it (antialiased) and the center
            cropped; None to keep the size, which all images must share.
        interpolation: method of scaling, one of `INTERPOLATIONS`.
        limit: number of images of a fixed random subset (independent of seed and machine, in the
            order of the set), or None for all.
        cache_mb: sets up to this size, in 10^6 bytes of uint8 (of float32 for features), are
            decoded into `Dataset.images`; images of a larger set are decoded by every `fetch`.
        max_corrupt_fraction: largest fraction, 0 to 1, of files or records that may be unreadable.
        classes: classes whose images are taken, by their numbers in the set, and numbered anew in
            this order; None: all. They are taken out of the `limit` images.
        exclude: globs of names, or of paths in the folder, of files and folders that are left out.
        threads: threads that decode images which are not kept in memory.
    """

    name: str
    dir: str | None
    split: str | None
    label: str
    image_size: Count | None
    interpolation: Interpolation
    limit: Count | None
    cache_mb: NonNegative
    max_corrupt_fraction: Fraction
    classes: tuple[CountOrZero, ...] | None = None
    labels: str | None = None
    exclude: tuple[str, ...] = ()
    threads: Count = THREADS

    @property
    def resize(self) -> Resize | None:
        """The square that images are resized to, if any."""
        if self.image_size is None:
            return None
        return Resize(self.image_size, self.interpolation)


class Dataset(NamedTuple):
    """A set of images of one size, or of feature vectors of images.

    An item of features is float32 `[1 + m, d]` in place of uint8 `[H, W, C]`: the features of the
    image itself and of its m nearest neighbors.

    Attributes:
        name: `data.name`.
        size: number of images N.
        shape: (H, W, C) of every image; C is 1 or 3.
        images: uint8 `[N, H, W, C]` if cached in memory, else None.
        fetch: indices int `[b]` -> uint8 `[b, H, W, C]`; decodes in threads when streaming, and
            then raises the errors of `ItemReader.read`.
        labels: int32 `[N]`, true classes for the evaluation, or None.
        label_names: name of each label, or None.
        sources: file of each image relative to the folder, or what else names it, or None.
        load: index -> the whole image, see `decode.Item`; None: items are as `fetch` has them.
        facts: indices int `[b]` -> what is known of the images, `[b]` of `FACTS`: of the upright
            picture its sides in pixels and "digest", what it shows, see `decode.digest`; of its
            file the bytes and their SHA-256, "file", both 0 of an image in memory; and when it was
            taken, see `decode.taken`. Of a file that is no image only the last two are known, and
            of one that cannot be read nothing is. An image that has not been decoded yet is opened
            for its facts. None: without `load`.
        skipped: (path, reason) of every file that could not be read and has no row, and of folders
            that could not be read, whose paths end on "/".
        unreadable: indices int `[b]` -> why the file of each cannot be read, None for a readable
            one; `fetch` has the next readable image in its place. None: all images are readable.
        ignored: (suffix or other kind, number) of the files of a folder that are left out.
        notes: sentences for the user: what is ignored, and cannot be read.
        partial_labels: int32 `[N]`, class labels for training, -1 for unlabeled images; None
            except in novel class discovery.
        neighbors: number of neighbors, whose features are the last rows of each item.
        nearest: int64 `[N, neighbors]`, indices of the neighbors, the most similar first; None
            without neighbors, or before the images are embedded.
        features_of: the images, if the run itself embeds them; else None.
        block_of: int32 `[N]`, ascending, the block of consecutive records that each image of a
            streamed set is read in; None: it is read by itself.
    """

    name: str
    size: int
    shape: tuple[int, ...]
    images: np.ndarray | None
    fetch: Callable[[np.ndarray], np.ndarray]
    labels: np.ndarray | None = None
    label_names: tuple[str, ...] | None = None
    sources: tuple[str, ...] | None = None
    load: Callable[[int], Item] | None = None
    facts: Callable[[np.ndarray], np.ndarray] | None = None
    skipped: tuple[tuple[str, str], ...] = ()
    unreadable: Callable[[np.ndarray], list[str | None]] | None = None
    ignored: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    partial_labels: np.ndarray | None = None
    neighbors: int = 0
    nearest: np.ndarray | None = None
    features_of: "Dataset | None" = None
    block_of: np.ndarray | None = None

    @property
    def shown(self) -> "Dataset | None":
        """The images to show: this set, or the images that it has the features of, or None."""
        return self if self.has_images else self.features_of

    @property
    def has_images(self) -> bool:
        """Whether the items are images and not features."""
        return len(self.shape) == 3


def with_channels(dataset: Dataset, channels: int) -> Dataset:
    """Gives images 1 or 3 channels: a gray channel is repeated, colors become their luma."""
    if dataset.shape[-1] == channels:
        return dataset

    def convert(images: np.ndarray) -> np.ndarray:
        if channels == 3:
            return np.repeat(images, 3, axis=-1)
        return np.stack([np.asarray(Image.fromarray(x).convert("L")) for x in images])[..., None]

    images = None if dataset.images is None else convert(dataset.images)
    fetch = (lambda i: convert(dataset.fetch(i))) if images is None else images.__getitem__
    return dataset._replace(shape=(*dataset.shape[:2], channels), images=images, fetch=fetch)


def in_memory(name: str, images: np.ndarray, config: DataConfig, **fields: Any) -> Dataset:
    """Makes a data set from one uint8 array `[N, H, W, C]`.

    Args:
        name: `Dataset.name`.
        images: the array, C = 1 or 3. If `config.image_size` is set, each image is scaled and its
            center cropped to this size, here and not when it is read.
        config: the section `data`.
        fields: further fields of the data set, such as its labels.
    """
    if (resize := config.resize) and images.shape[1:3] != (resize.side, resize.side):
        channels = images.shape[3]
        images = np.stack([decode.decode(image, resize, channels) for image in images])
    return Dataset(name, len(images), images.shape[1:], images, images.__getitem__, **fields)


# The fields of a data set that have an entry for each image.
_COLUMNS = ("images", "labels", "sources", "partial_labels", "block_of")
# Those that are functions of indices.
_FUNCTIONS = ("fetch", "unreadable", "load", "facts")


def select(dataset: Dataset, indices: np.ndarray) -> Dataset:
    """Selects the images with the given indices, int `[n]`, no mask, in the order of the indices.

    `nearest` of the result is None; `skipped`, `ignored` and `notes` stay.
    """

    def of_rows(function: Callable[[Any], Any] | None) -> Any:
        return function and (lambda positions: function(indices[np.asarray(positions)]))

    def column(values: Any) -> Any:
        if isinstance(values, tuple):
            return tuple(values[i] for i in indices)
        return None if values is None else values[indices]

    functions = {name: of_rows(getattr(dataset, name)) for name in _FUNCTIONS}
    columns = {name: column(getattr(dataset, name)) for name in _COLUMNS}
    images = None if dataset.features_of is None else select(dataset.features_of, indices)
    chosen = dataset._replace(
        size=len(indices), nearest=None, features_of=images, **functions, **columns
    )
    if chosen.images is None:
        return chosen
    return chosen._replace(fetch=chosen.images.__getitem__)


def without(dataset: Dataset, unreadable: np.ndarray) -> Dataset:
    """Removes the unreadable images, bool `[N]`, from a data set, which lists them as skipped.

    `Dataset.unreadable` of the result is None. If it was None before, no image is removed.
    """
    indices = np.flatnonzero(unreadable)
    if dataset.unreadable is None or not len(indices):
        return dataset._replace(unreadable=None)
    reasons = dataset.unreadable(indices)
    names = dataset.sources or range(dataset.size)
    skipped = tuple((str(names[i]), str(why)) for i, why in zip(indices, reasons, strict=True))
    rest = select(dataset, np.flatnonzero(~unreadable))
    return rest._replace(skipped=(*dataset.skipped, *skipped), unreadable=None)


def readable(dataset: Dataset) -> Dataset:
    """Removes the unreadable images from a data set; decodes all images not read before.

    Raises:
        InputError, OSError: see `ItemReader.attempt`.
    """
    if dataset.unreadable is None:
        return dataset
    reasons = dataset.unreadable(np.arange(dataset.size))
    return without(dataset, np.array([reason is not None for reason in reasons]))


class ItemReader:
    """Reads images one by one, and remembers what it learns: which cannot be read, and `FACTS`.

    Attributes:
        size: number of images.
        names: names of the images.
        shape: shape (H, W, C) of all images: the square of the config, or that of the first
            readable image, which the constructor reads in this case.
        reasons: index -> reason, of the unreadable images that were met.

    Args:
        item: index -> the image, or the bytes of its file; threads call it at the same time. If it
            raises an error, the image is unreadable, except for the errors of `attempt`.
        names: names of the images, at least one. The suffix tells a raw photo.
        config: the section `data`.
        where: where the images are, for messages.
        channels: 1 or 3.
        known: `[k]` of `FACTS`: a file with the bytes of one of them is not opened for its facts.

    Raises:
        InputError, OSError: see `read`; only without `data.image_size`.
    """

    def __init__(
        self,
        item: Callable[[int], Item],
        names: Sequence[str],
        config: DataConfig,
        where: str,
        channels: int = 3,
        known: np.ndarray | None = None,
    ):
        self._item = item
        self.names = names
        self.size = len(names)
        self._config = config
        self._where = where
        self._channels = channels
        self.reasons: dict[int, str] = {}
        self._told: set[int] = set()
        self._lock = threading.Lock()
        self._is_read = np.zeros(self.size, bool)
        self._facts = np.zeros(self.size, FACTS)
        known = np.zeros(0, FACTS) if known is None else known
        self._known = {facts["file"].tobytes(): facts for facts in known}
        self.shape: tuple[int, ...] = ()
        side = config.image_size
        self.shape = self.read(0).shape if side is None else (side, side, channels)

    def load(self, i: int) -> Item:
        """Returns the whole image i: the bytes of its file, of a raw photo those of its preview.

        An item in memory is returned as it is. Errors are those of `item` and `decode.preview`.
        """
        return self._shown(i, self._item(i))

    def _shown(self, i: int, item: Item) -> Item:
        """Returns item i, or of a raw photo its preview."""
        if isinstance(item, bytes) and decode.is_raw(self.names[i]):
            return decode.preview(item)
        return item

    def fetch(self, indices: np.ndarray) -> np.ndarray:
        """Decodes images in threads, see `Dataset.fetch`; errors are those of `read`."""
        return np.stack(map_indices(self.read, indices, self._config.threads))

    def facts(self, indices: np.ndarray) -> np.ndarray:
        """Returns what is known of images, see `Dataset.facts`; reads those not decoded before.

        It raises no error for an image that cannot be read.
        """
        indices = np.asarray(indices, int)
        map_indices(self._look, indices[self._facts["width"][indices] == 0])
        return self._facts[indices]

    def _look(self, i: int) -> None:
        """Notes the facts of image i, as far as they can be read."""
        # A library that the sequence is of may raise any error, and Pillow many on damaged bytes.
        with contextlib.suppress(Exception):
            item = self._item(i)
            if self._is_known(i, item):
                return
            shown = self._shown(i, item)
            with decode.opened(shown) as opened:
                self._note(i, shown, opened)

    def _is_known(self, i: int, item: Item) -> bool:
        """Notes the facts about the file of item i, and all if they are known; returns whether."""
        facts = self._facts[i]
        if not isinstance(item, bytes):
            return False
        digest = hashlib.sha256(item).digest()
        if digest in self._known:
            self._facts[i] = self._known[digest]
            return True
        facts["bytes"] = len(item)
        facts["file"] = np.frombuffer(digest, np.uint8)
        return False

    def _note(self, i: int, shown: Item, opened: decode.Opened) -> None:
        """Notes what the opened image i shows."""
        facts = self._facts[i]
        facts["digest"] = np.frombuffer(decode.digest(shown, opened.file), np.uint8)
        facts["taken"] = decode.taken(opened.file).encode()
        facts["width"], facts["height"] = opened.size

    def attempt(self, i: int) -> np.ndarray | None:
        """Returns image i, uint8 `[H, W, C]`; None, with an entry in `reasons`, if unreadable.

        Raises:
            InputError: the image has another shape than `shape`, or the item is of no such type.
            OSError: an error of the system other than a missing permission, such as of a disk or
                for a missing file.
            BucketError: the bucket of the image fails.
            MemoryError: there is too little memory.
        """
        item: Item = b""
        resize = self._config.resize
        try:
            item = self._item(i)
            side = None if resize is None else 2 * resize.side
            shown = self._shown(i, item)
            with decode.opened(shown, side) as opened:
                image = decode.square(opened.file, resize, self._channels)
                if not self._facts[i]["width"] and not self._is_known(i, item):
                    self._note(i, shown, opened)
        except (MemoryError, InputError, BucketError):
            raise
        # Pillow raises errors of many types on damaged bytes, SyntaxError included.
        except Exception as error:
            # An error of the disk or the network may not occur again.
            is_lasting = isinstance(error, PermissionError)
            if isinstance(error, OSError) and error.errno and not is_lasting:
                raise
            self.reasons[i] = decode.reason(error, item if isinstance(item, bytes) else b" ")
            return None
        self._is_read[i] = True
        if self.shape and image.shape != self.shape:
            (h, w, _), (h0, w0, _) = image.shape, self.shape
            got = f"{self.names[i]} of {h} x {w} and {h0} x {w0} before (height x width)"
            to_do = "set data.image_size to resize and crop them"
            raise InputError(f"images must have one size; got {got}: {to_do}")
        return image

    def read(self, i: int) -> np.ndarray:
        """Returns image i, or the next readable one; after the last image comes the first.

        The result does not depend on which images were read before.

        Raises:
            InputError: see `check` and `attempt`.
            OSError, MemoryError: see `attempt`.
        """
        for j in itertools.chain(range(i, self.size), range(i)):
            if j not in self.reasons:
                image = self.attempt(j)
                if image is not None:
                    return image
                self._warn(j)
                self.check()
        raise AssertionError("`check` raises if no image is readable")

    def _warn(self, i: int) -> None:
        """Warns of the unreadable image i, once, though several threads may have met it at once."""
        with self._lock:
            is_told = i in self._told
            self._told.add(i)
        if not is_told:
            logger.warning("%s cannot be read (%s)", self.names[i], self.reasons[i])

    def unreadable(self, indices: np.ndarray) -> list[str | None]:
        """Returns why each image of `indices` int `[b]` cannot be read, None for readable ones.

        Images not read before are decoded; errors are those of `attempt`.
        """
        rest = [i for i in indices.tolist() if not self._is_read[i] and i not in self.reasons]
        map_indices(self.attempt, np.array(rest, int))
        return [self.reasons.get(i) for i in indices.tolist()]

    def check(self) -> None:
        """Raises an `InputError` if too many images, or all, turned out to be unreadable.

        Too many are more than `data.max_corrupt_fraction` of all.
        """
        skipped = sorted(self.reasons.items())
        most = self._config.max_corrupt_fraction
        if len(skipped) < self.size and len(skipped) <= most * self.size:
            return
        examples = "; ".join(f"{self.names[i]} ({reason})" for i, reason in skipped[:3])
        must = f"images in {self._where} must be readable"
        to_do = "save them anew"
        if len(skipped) < self.size:
            must += f", all but data.max_corrupt_fraction = {most:g} of them"
            to_do += ", or set a higher share to leave them out"
        got = f"{len(skipped)} of {self.size} that cannot be read: {examples}"
        raise InputError(f"{must}; got {got}: {to_do}")


def load(name: str, reader: ItemReader, **fields: Any) -> Dataset:
    """Makes a streamed data set of images that are read one by one; nothing is decoded here.

    An image that turns out to be unreadable is logged. In a training the next readable image stands
    in for it, always the same one, and the evaluation leaves it out, see `Dataset.unreadable`.

    Args:
        name: `Dataset.name`.
        reader: reads the images.
        fields: further fields of the data set, such as its labels.
    """
    dataset = Dataset(name, reader.size, reader.shape, None, reader.fetch, **fields)
    of_reader = {name: getattr(reader, name) for name in ("load", "facts", "unreadable")}
    return dataset._replace(sources=tuple(reader.names), **of_reader)


def resident(dataset: Dataset, config: DataConfig) -> Dataset:
    """Returns a set with its images in memory if they fit there, without unreadable ones.

    Images fit if their uint8 pixels take at most `data.cache_mb`. Otherwise the set is streamed:
    its `images` are None, and unreadable ones stay.

    Raises:
        InputError, OSError: see `ItemReader.read`.
    """
    if dataset.size * math.prod(dataset.shape) > config.cache_mb * 1e6:
        return dataset._replace(images=None)
    if dataset.images is not None:
        return dataset
    pixels = np.empty((dataset.size, *dataset.shape), np.uint8)
    for rows in chunks(dataset.size, "reading images"):
        pixels[rows] = dataset.fetch(rows)
    return readable(dataset._replace(images=pixels, fetch=pixels.__getitem__, block_of=None))


def computed_ahead(function: Callable[[Any], Any], items: Iterable, depth: int) -> Generator:
    """Yields `function` of each item, in order; a thread computes at most `depth` items ahead.

    `depth` is at least 1. An error of `function` is raised when its item is reached. Closing the
    generator waits for the item in work.
    """
    pending: deque = deque()
    pool = ThreadPoolExecutor(1)
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > depth:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def chunks(count: int, task: str) -> Iterator[np.ndarray]:
    """Yields the indices of `count` images, 1,024 at a time, with a progress bar after 2 s.

    `task` is what the bar says.
    """
    with logs.progress_bar(total=count, desc=task, unit="image", delay=2.0, leave=False) as bar:
        for start in range(0, count, CHUNK):
            rows = np.arange(start, min(start + CHUNK, count))
            yield rows
            bar.update(len(rows))


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Returns the threads that read streamed images; they live until the process ends."""
    return ThreadPoolExecutor(threads)


def map_indices(
    function: Callable[[int], Any], indices: np.ndarray, threads: int = THREADS
) -> list:
    """Computes `function` of each index int `[b]`, in threads; the results are in order.

    The first error of `function` is raised. `function` must not call `map_indices` itself.
    """
    return list(_pool(threads).map(function, np.asarray(indices).tolist()))


def order(count: int, *entropy: int) -> np.ndarray:
    """Draws a permutation of `range(count)`, int32, as a pure function of the seeds `entropy`.

    The seeds are whole numbers, 0 or more. The permutation sorts raw words of the Philox generator,
    which are the same in every version of NumPy, unlike `Generator.permutation`.
    """
    words = np.random.Philox(np.random.SeedSequence(entropy)).random_raw(count)
    return np.argsort(words, kind="stable").astype(np.int32)


def subset(count: int, limit: int | None) -> np.ndarray:
    """Draws a fixed random subset of at most `limit` out of `count`: ascending indices, int32."""
    if limit is None or limit >= count:
        return np.arange(count, dtype=np.int32)
    return np.sort(order(count, 0)[:limit])
