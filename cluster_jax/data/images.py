"""The section `data` of a config, the type `Dataset`, and decoding of images in threads."""

import dataclasses
import functools
import hashlib
import io
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, Literal, NamedTuple, cast, get_args

import numpy as np
from PIL import ExifTags, Image, ImageFile

from cluster_jax.core import buckets, logs
from cluster_jax.core.checks import AtLeastOne, Count, CountOrZero, Fraction, NonNegative
from cluster_jax.data import pixels

# Interpolation of a resize, by the names in timm's model configs.
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
INTERPOLATIONS = {name: Image.Resampling[name.upper()] for name in get_args(Interpolation)}

# The turn or reflection for each orientation of EXIF but 1, the upright one.
_TURNED = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_QUARTER_TURNS = (5, 6, 7, 8)
# The long side in units of the short one, above which it is cropped before a resize.
_LONGEST = 64

# Bytes at either end of a file that enter the digest of its content.
_END = 2**16
# Largest number of decoded images that wait to be consumed, which bounds memory.
CHUNK = 1024
# More threads read, of which most wait for a bucket, than decode, which takes memory.
decoding = threading.BoundedSemaphore(min(32, (os.cpu_count() or 1) + 4))


class Resize(NamedTuple):
    """The square that images are resized and cropped to.

    Attributes:
        side: side of the square in pixels.
        interpolation: one of `INTERPOLATIONS`.
    """

    side: int
    interpolation: str


# Files of `data/classes`.
ClassList = Literal[
    "imagenet_10", "imagenet_dogs", "imagenet_50", "imagenet_100", "imagenet_200", "tiny_imagenet"
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Section `data`: the data set and its preprocessing.

    Attributes:
        name: "digits", "folder", "arrays", "features" or the name of a prepared TFDS set.
        dir: location of the data: folder, file, or TFDS's data directory; unused by digits. Of
            "folder" also a zip, tar or Parquet file, a folder of tars or Parquet files, `@LIST`, or
            several folders and files, one a line; see `scan.find`.
        split: TFDS split, "train" or "train+test"; ignored by other sources.
        label: feature of a TFDS set that holds the classes, "label" or for example CIFAR-100's
            "coarse_label"; likewise of Parquet and tars, see `packed.index`; other sources ignore
            it. A set without this feature has no labels.
        labels: labels of a folder or of arrays, for scores only: "folders", the first-level
            subfolders, if there are at least two and every image lies in one; or a file, see
            `datasets.with_labels_of`; None: none. Those of an `.npz`, tars and Parquet are taken
            unless it is a file, or there are such folders in the tars.
        image_size: side of a square: the short side is scaled to it (antialiased) and the center
            cropped; None to keep the size, which all images must share.
        interpolation: method of scaling, one of `INTERPOLATIONS`.
        limit: number of images of a fixed random subset (independent of seed and machine, in the
            order of the set), or None for all.
        cache_mb: sets up to this size, in 10^6 bytes of uint8 (of float32 for features), are
            decoded into `Dataset.images`; images of a larger set are decoded by every `fetch`.
        max_corrupt_fraction: largest fraction, 0 to 1, of a folder's files that may be unreadable.
        crop: what random crops are taken from: "square", the square of `image_size`, on the device;
            or "host", the whole image, see `host_crops`; the set is then streamed.
        classes: classes whose images are taken, by their numbers in the set, and numbered anew in
            this order; or a list of WordNet IDs, which the names of the classes begin with; None:
            all. `limit` counts the images before.
        tail: images of the largest class for one of the smallest, at least 1: a long tail of the
            training images, see `datasets.with_tail`; None: all images.
        exclude: globs of names, or of paths in the folder, of files and folders that are left out.
        include_all: whether files and folders are taken too that are left out as hidden, or as no
            photos of the user's, see `scan.NO_PHOTOS`.
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
    crop: Literal["square", "host"] = "square"
    classes: tuple[CountOrZero, ...] | ClassList | None = None
    tail: AtLeastOne | None = None
    labels: str | None = None
    exclude: tuple[str, ...] = ()
    include_all: bool = False

    @property
    def resize(self) -> Resize | None:
        """The square that images are resized to, if any."""
        return None if self.image_size is None else Resize(self.image_size, self.interpolation)

    def fits(self, count: int, shape: tuple[int, ...]) -> bool:
        """Returns whether `count` uint8 images of `shape` are cached."""
        return self.crop == "square" and count * int(np.prod(shape)) <= self.cache_mb * 1e6


class HostCrops(NamedTuple):
    """Random crops that the host takes from whole images, see `host_crops`.

    Attributes:
        size: side of the crops in pixels, to which they are resized.
        scale, ratio: as in the section `augment.crop`.
        interpolation: one of `INTERPOLATIONS`.
    """

    size: int
    scale: tuple[float, float]
    ratio: tuple[float, float]
    interpolation: str


Decoder = Callable[[bytes], np.ndarray]
Reader = Callable[[int, Decoder], np.ndarray]


class Dataset(NamedTuple):
    """A set of images of one size, or of feature vectors of images.

    An item of features is float32 `[v, d]` in place of uint8 `[H, W, C]`: the features of the image
    itself, of its augmented views, and of its nearest neighbors.

    Attributes:
        name: `data.name`.
        size: number of images N.
        shape: (H, W, C) of every image; C is 1 or 3.
        images: uint8 `[N, H, W, C]` if cached in memory, else None.
        fetch: indices int `[b]` -> uint8 `[b, H, W, C]`; decodes in threads when streaming.
        labels: int32 `[N]`, true classes for the evaluation, or None.
        label_names: name of each label, or None.
        sources: file of each image relative to the folder, or None.
        open: index -> the file of an image, opened to read its bytes; None: images are no files.
        skipped: (path, reason) of every file that could not be read and has no row, and of folders
            that could not be read, whose paths end on "/".
        unreadable: indices int `[b]` -> why the file of each cannot be read, None for a readable
            one; `fetch` has the next readable image in its place. None: all images are readable.
        read: (index, decoder of the bytes of a file) -> image, of a streamed set; else None.
        crops: random crops that training batches have in place of images, or None.
        ranges: black and white of values beyond 8 bits, by their kind, see `pixels.Deep`.
        ignored: (suffix or other kind, number) of the files of a folder that are left out.
        notes: sentences for the user: what is ignored, scaled, and read in part.
        partial_labels: int32 `[N]`, class labels for training, -1 for unlabeled images; None
            except in novel class discovery.
        neighbors: number of neighbors, whose features are the last rows of each item.
        nearest: int64 `[N, neighbors]`, indices of the neighbors, the most similar first; None
            without neighbors, or before the images are embedded.
        features_of: the images, if the run itself embeds them; else None.
        block_of: int32 `[N]`, ascending, the block of consecutive records that each image of a
            streamed set is stored in; None: it is read by itself.
        read_ahead: indices int `[n]` -> None: begins to read the blocks of images, from which
            `read` and `fetch` then take them, each once; None without blocks.
    """

    name: str
    size: int
    shape: tuple[int, ...]
    images: np.ndarray | None
    fetch: Callable[[np.ndarray], np.ndarray]
    labels: np.ndarray | None = None
    label_names: tuple[str, ...] | None = None
    sources: tuple[str, ...] | None = None
    open: Callable[[int], BinaryIO] | None = None
    skipped: tuple[tuple[str, str], ...] = ()
    unreadable: Callable[[np.ndarray], list[str | None]] | None = None
    read: Reader | None = None
    crops: HostCrops | None = None
    ranges: pixels.Ranges = pixels.NO_RANGES
    ignored: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    partial_labels: np.ndarray | None = None
    neighbors: int = 0
    nearest: np.ndarray | None = None
    features_of: "Dataset | None" = None
    block_of: np.ndarray | None = None
    read_ahead: Callable[[np.ndarray], None] | None = None

    @property
    def shown(self) -> "Dataset | None":
        """The images to show: this set, or the images that it has the features of, or None."""
        return self if self.has_images else self.features_of

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of an item of a training batch: `shape`, or `[2, size, size, C]` for `crops`."""
        if self.crops is None:
            return self.shape
        return (2, self.crops.size, self.crops.size, self.shape[-1])

    @property
    def has_images(self) -> bool:
        """Whether the items are images and not features."""
        return len(self.shape) == 3


def with_channels(dataset: Dataset, channels: int) -> Dataset:
    """Gives a data set 1 or 3 channels: a gray channel is repeated, colors become their luma."""
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
    """Makes a data set from one uint8 array `[N, H, W, C]`, on the device if it `fits`.

    `fields` has further fields of the data set, such as its labels.
    """
    count, *shape = images.shape
    cached = images if config.fits(count, tuple(shape)) else None
    return Dataset(name, count, tuple(shape), cached, images.__getitem__, **fields)


# The fields of a data set that have an entry for each image.
_COLUMNS = ("images", "labels", "sources", "partial_labels", "block_of")
# Those that are functions of indices.
_FUNCTIONS = ("fetch", "unreadable", "read", "open", "read_ahead")


def select(dataset: Dataset, indices: np.ndarray) -> Dataset:
    """Selects the images with the given indices, int `[n]`, in their order.

    Images that are read in blocks are read by themselves if less than half of them are selected.
    """
    if 2 * len(indices) < dataset.size:
        dataset = dataset._replace(block_of=None, read_ahead=None)

    def of_rows(function: Callable[..., Any] | None) -> Any:
        if function is None:
            return None
        return lambda positions, *more: function(indices[np.asarray(positions)], *more)

    functions = {name: of_rows(getattr(dataset, name)) for name in _FUNCTIONS}
    columns = {name: _take(getattr(dataset, name), indices) for name in _COLUMNS}
    images = None if dataset.features_of is None else select(dataset.features_of, indices)
    return dataset._replace(
        size=len(indices), nearest=None, features_of=images, **functions, **columns
    )


def _take(column: Any, indices: np.ndarray) -> Any:
    """Takes the entries of a column of a data set: an array, a tuple, or None."""
    if isinstance(column, tuple):
        return tuple(column[i] for i in indices)
    return None if column is None else column[indices]


def without(dataset: Dataset, unreadable: np.ndarray) -> Dataset:
    """Removes the unreadable files, bool `[N]`, from a data set, which lists them as skipped."""
    indices = np.flatnonzero(unreadable)
    if dataset.unreadable is None or not len(indices):
        return dataset._replace(unreadable=None)
    reasons, sources = dataset.unreadable(indices), dataset.sources or ()
    skipped = tuple((sources[i], str(why)) for i, why in zip(indices, reasons, strict=True))
    rest = select(dataset, np.flatnonzero(~unreadable))
    return rest._replace(skipped=(*dataset.skipped, *skipped), unreadable=None)


def readable(dataset: Dataset) -> Dataset:
    """Removes the unreadable files from a data set; decodes all images not read before."""
    if dataset.unreadable is None:
        return dataset
    reasons = dataset.unreadable(np.arange(dataset.size))
    return without(dataset, np.array([reason is not None for reason in reasons]))


def contents(dataset: Dataset) -> np.ndarray:
    """Hashes the files of a data set, uint8 `[n, 16]`; a new name does not change the hash.

    They are of the size and of both ends: pictures that differ, differ there. A file that cannot be
    opened has zeros.
    """

    def digest(i: int) -> bytes:
        assert dataset.open is not None
        try:
            with dataset.open(i) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(0)
                ends = file.read(_END)
                file.seek(max(size - _END, 0))
                ends += file.read(_END)
        except OSError:
            return bytes(16)
        return hashlib.blake2b(ends, digest_size=16, salt=size.to_bytes(16)).digest()

    digests = map_indices(digest, np.arange(dataset.size))
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 16)


def decode(
    data: bytes, resize: Resize | None, channels: int, ranges: pixels.Ranges = pixels.NO_RANGES
) -> np.ndarray:
    """Decodes one image to uint8 `[H, W, channels]`.

    EXIF orientation is applied; what is transparent becomes white or black, see `pixels.opaque`;
    values of more than 8 bits are scaled, see `pixels.Deep`; an animation gives its first frame. A
    JPEG is decoded at 1/2, 1/4 or 1/8 of its size as long as its sides stay at least twice that of
    the square.

    Args:
        data: bytes of an image file.
        resize: the square to resize and crop to, or None for the native size.
        channels: 1 (gray) or 3 (RGB).
        ranges: black and white of values beyond 8 bits, by their kind.

    Returns:
        uint8 `[H, W, channels]`.

    Raises:
        Exception: Pillow raises errors of many types on damaged bytes.
    """
    with pixels.opened(io.BytesIO(data)) as file:
        if resize is not None:
            # Photos of 4 megapixels take 0.4 of the time; cosine of features 0.997 to 1.000.
            file.draft(None, (2 * resize.side, 2 * resize.side))
        with pixels.one_large_at_a_time(file):
            image = to_8_bit(file, data, "RGB" if channels == 3 else "L", ranges)
            image = image if resize is None else resize_and_crop(image, resize)
            return np.asarray(image).reshape(image.height, image.width, channels)


def orientation(image: Image.Image) -> int:
    """Reads the orientation of an image from its EXIF tag, 1 for upright.

    `ImageOps.exif_transpose` also writes the EXIF block anew, and fails where a tag that nobody
    needs is damaged.
    """
    try:
        # The `getexif` of a PNG without a block before its pixels would decode them.
        return Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1)
    except Exception:  # Pillow raises errors of many types on damaged bytes.
        return 1


def upright_size(file: ImageFile.ImageFile) -> tuple[int, int]:
    """Returns width and height of an opened image once it is upright; decodes no pixels.

    An EXIF block that follows the pixels of a PNG counts if they have been loaded.
    """
    # Pillow turns a TIFF by itself, and gives its size accordingly.
    if file.format == "TIFF":
        return file.size
    is_turned = orientation(file) in _QUARTER_TURNS
    return (file.height, file.width) if is_turned else file.size


def upright(image: Image.Image, orientation: int) -> Image.Image:
    """Turns or reflects an image as an orientation of EXIF says."""
    return image.transpose(_TURNED[orientation]) if orientation in _TURNED else image


def to_8_bit(
    file: ImageFile.ImageFile, data: bytes, mode: str, ranges: pixels.Ranges = pixels.NO_RANGES
) -> Image.Image:
    """Converts the image of a file to 8 bits, upright and in `mode`, "RGB" or "L".

    Args:
        file: the opened image.
        data: bytes of the file.
        mode: of the result.
        ranges: see `decode`.
    """
    pixels.check_size(file)
    pixels.load(file)  # The EXIF block of a PNG may follow its pixels.
    turn, image, deep = orientation(file), cast(Image.Image, file), pixels.deep(file, data)
    if deep is not None:
        image = Image.fromarray(pixels.scaled(deep, ranges))
        if "A" in file.getbands():
            image.putalpha(file.getchannel("A"))
    image = pixels.opaque(image)
    return upright(image if image.mode == mode else image.convert(mode), turn)


def resize_and_crop(image: Image.Image, resize: Resize) -> Image.Image:
    """Resizes the short side, antialiased, then crops the central square.

    The aspect ratio is kept to the nearest pixel.
    """
    short, new = min(image.size), resize.side
    if max(image.size) > _LONGEST * short:  # A line of pixels would be scaled to gigabytes.
        width, height = (min(side, _LONGEST * short) for side in image.size)
        left, top = (image.width - width) // 2, (image.height - height) // 2
        image = image.crop((left, top, left + width, top + height))
    if short != new:
        width, height = (max(new, round(side * new / short)) for side in image.size)
        image = image.resize((width, height), INTERPOLATIONS[resize.interpolation])
    left, top = (image.width - new) // 2, (image.height - new) // 2
    return image.crop((left, top, left + new, top + new))


def resize_and_crop_all(images: np.ndarray, resize: Resize | None) -> np.ndarray:
    """Applies `resize_and_crop` to each uint8 image `[N, H, W, C]`; a no-op at equal size."""
    count, height, width, channels = images.shape
    if resize is None or height == width == resize.side:
        return images
    shape = (resize.side, resize.side, channels)
    resized = np.empty((count, *shape), np.uint8)
    for i, values in enumerate(images):
        image = Image.fromarray(values[..., 0] if channels == 1 else values)
        resized[i] = np.asarray(resize_and_crop(image, resize)).reshape(shape)
    return resized


def computed_ahead(
    function: Callable[[Any], Any], items: Iterable, depth: int, threads: int | None = None
) -> Generator:
    """Yields `function` of each item, in order; threads compute at most `depth` items ahead."""
    remaining = iter(items)
    pending: deque = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for item in itertools.islice(remaining, depth):
            pending.append(pool.submit(function, item))
        while pending:
            result = pending.popleft().result()
            for item in itertools.islice(remaining, 1):
                pending.append(pool.submit(function, item))
            yield result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def map_threaded(
    function: Callable[[Any], Any],
    items: Iterable,
    task: str,
    unit: str = "image",
    count: int | None = None,
) -> Iterator:
    """Yields `function` of each item, in order, by threads; a progress bar if it takes over 2 s.

    `count` is the number of items where they have no length; the calling thread iterates them.
    """
    results = computed_ahead(function, items, CHUNK, buckets.REQUESTS)
    total = len(cast(Sequence, items)) if count is None else count
    return iter(
        logs.progress_bar(results, desc=task, total=total, unit=unit, delay=2.0, leave=False)
    )


@functools.cache
def _pool() -> ThreadPoolExecutor:
    """Returns the threads that read streamed images; they live until the process ends."""
    return ThreadPoolExecutor(buckets.REQUESTS)


def map_indices(function: Callable[[int], Any], indices: np.ndarray) -> list:
    """Computes `function` of each index, in threads, in order."""
    return list(_pool().map(function, np.asarray(indices).tolist()))


def fetcher(
    read: Reader, resize: Resize | None, channels: int, ranges: pixels.Ranges = pixels.NO_RANGES
) -> Callable[[np.ndarray], np.ndarray]:
    """Makes the `fetch` of a streamed set with the function `Dataset.read`; see `decode`."""
    square = functools.partial(decode, resize=resize, channels=channels, ranges=ranges)
    return lambda indices: np.stack(map_indices(lambda i: read(i, square), indices))


def order(count: int, *entropy: int) -> np.ndarray:
    """Draws a permutation of `range(count)`, int32, as a pure function of the seeds `entropy`.

    It sorts raw words of the Philox generator, which are the same in every version of NumPy, unlike
    `Generator.permutation`.
    """
    words = np.random.Philox(np.random.SeedSequence(entropy)).random_raw(count)
    return np.argsort(words, kind="stable").astype(np.int32)


def subset(count: int, limit: int | None) -> np.ndarray:
    """Draws a fixed random subset of at most `limit` out of `count`: ascending indices, int32."""
    if limit is None or limit >= count:
        return np.arange(count, dtype=np.int32)
    return np.sort(order(count, 0)[:limit])


def limited(limit: int | None, *columns: Any) -> tuple:
    """Cuts columns of a data set, arrays, tuples or None, down to the same random subset."""
    count = len(columns[0])
    if limit is None or limit >= count:
        return columns
    return tuple(_take(column, subset(count, limit)) for column in columns)
