"""The type `Dataset`; decoding and resizing of images in threads."""

import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps
from tqdm import tqdm

try:
    import pillow_heif
except ImportError:  # the extra "heic"
    HEIC: tuple[str, ...] = ()
else:
    pillow_heif.register_heif_opener()
    HEIC = (".heic", ".heif")

# Suffixes of the image files that can be read.
EXTENSIONS = (
    ".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".avif", *HEIC
)  # fmt: skip

# Interpolation of a resize, by the names in timm's model configs.
INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}

# Largest number of decoded images that wait to be consumed, which bounds memory.
CHUNK = 1024


class Resize(NamedTuple):
    """The square that images are resized and cropped to.

    Attributes:
        side: side of the square in pixels.
        interpolation: one of `INTERPOLATIONS`.
    """

    side: int
    interpolation: str


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
        skipped: (path, reason) of every file that could not be read.
        ignored: (suffix, number) of the files of a folder that are not of `EXTENSIONS`.
        known: int32 `[N]`, class labels for training, -1 for unlabeled images; None except in novel
            class discovery.
        neighbors: number of neighbors, whose features are the last rows of each item.
        nearest: int64 `[N, neighbors]`, indices of the neighbors, the most similar first; None
            without neighbors, or before the images are embedded.
        features_of: the images, if the run itself embeds them; else None.
    """

    name: str
    size: int
    shape: tuple[int, ...]
    images: np.ndarray | None
    fetch: Callable[[np.ndarray], np.ndarray]
    labels: np.ndarray | None
    label_names: tuple[str, ...] | None
    sources: tuple[str, ...] | None
    skipped: tuple[tuple[str, str], ...]
    ignored: tuple[tuple[str, int], ...] = ()
    known: np.ndarray | None = None
    neighbors: int = 0
    nearest: np.ndarray | None = None
    features_of: "Dataset | None" = None

    @property
    def shown(self) -> "Dataset | None":
        """The images to show: this set, or the images that it has the features of, or None."""
        return self if self.has_images else self.features_of

    @property
    def has_images(self) -> bool:
        """Whether the items are images and not features."""
        return len(self.shape) == 3


def to_rgb(dataset: Dataset) -> Dataset:
    """The data set with three channels; a gray channel is repeated."""
    height, width, channels = dataset.shape
    if channels == 3:
        return dataset
    images = None if dataset.images is None else np.repeat(dataset.images, 3, axis=-1)

    def fetch(indices: np.ndarray) -> np.ndarray:
        return np.repeat(dataset.fetch(indices), 3, axis=-1) if images is None else images[indices]

    return dataset._replace(shape=(height, width, 3), images=images, fetch=fetch)


def fits(count: int, shape: tuple[int, int, int], cache_mb: float) -> bool:
    """Whether `count` uint8 images of `shape` take at most `cache_mb` megabytes (10^6 bytes)."""
    return count * int(np.prod(shape)) <= cache_mb * 1e6


def in_memory(
    name: str,
    images: np.ndarray,
    labels: np.ndarray | None,
    label_names: tuple[str, ...] | None,
    cache_mb: float,
) -> Dataset:
    """A data set from one uint8 array `[N, H, W, C]`; streamed if larger than `cache_mb`."""
    shape = images.shape[1:]
    cached = images if fits(len(images), shape, cache_mb) else None
    fetch = images.__getitem__
    return Dataset(name, len(images), shape, cached, fetch, labels, label_names, None, ())


def select(dataset: Dataset, indices: np.ndarray) -> Dataset:
    """The subset of a data set with the given indices, int `[n]`, in their order."""

    def take(values: Any) -> Any:
        if isinstance(values, tuple):
            return tuple(values[i] for i in indices)
        return None if values is None else values[indices]

    return dataset._replace(
        size=len(indices),
        images=take(dataset.images),
        fetch=lambda positions: dataset.fetch(indices[np.asarray(positions)]),
        labels=take(dataset.labels),
        sources=take(dataset.sources),
        known=take(dataset.known),
        nearest=None,
        features_of=None if dataset.features_of is None else select(dataset.features_of, indices),
    )


def decode(data: bytes, resize: Resize | None, channels: int) -> np.ndarray:
    """One encoded image as uint8 `[H, W, channels]`.

    EXIF orientation is applied; transparent pixels are blended with white; 16-bit values are
    divided by 257 and rounded; an animation gives its first frame. A JPEG is decoded at 1/2, 1/4 or
    1/8 of its size as long as its sides stay at least twice that of the square.

    Args:
        data: bytes of an image file.
        resize: the square to resize and crop to, or None for the native size.
        channels: 1 (gray) or 3 (RGB).

    Returns:
        uint8 `[H, W, channels]`.

    Raises:
        Exception: Pillow raises errors of many types on damaged bytes.
    """
    with Image.open(io.BytesIO(data)) as file:
        if resize is not None:
            # Photos of 4 megapixels take 0.4 of the time; cosine of features 0.997 to 1.000.
            file.draft(None, (2 * resize.side, 2 * resize.side))
        image = to_8_bit(ImageOps.exif_transpose(file), "RGB" if channels == 3 else "L")
        image = image if resize is None else resize_and_crop(image, resize)
        return np.asarray(image).reshape(image.height, image.width, channels)


def to_8_bit(image: Image.Image, mode: str) -> Image.Image:
    """`image` converted to `mode`, "RGB" or "L".

    Raises:
        ValueError: a floating-point image outside [0, 1], or integers beyond 16 bits.
    """
    if image.mode.startswith("I") or image.mode == "F":
        # Pillow's own conversion clips at 255: nearly all of a 16-bit image would be white.
        values = np.asarray(image, np.float64)
        top = 1.0 if image.mode == "F" else 65535.0
        low, high = values.min(), values.max()
        if not (low >= 0 and high <= top):
            raise ValueError(
                f"values of mode {image.mode} must be 0 to {top:g}; got {low:g} to {high:g}"
            )
        image = Image.fromarray(np.rint(values * (255 / top)).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert(mode)


def resize_and_crop(image: Image.Image, resize: Resize) -> Image.Image:
    """Resizes the short side, antialiased, then crops the central square.

    The aspect ratio is kept to the nearest pixel.
    """
    short, new = min(image.size), resize.side
    if short != new:
        width, height = (max(new, round(side * new / short)) for side in image.size)
        image = image.resize((width, height), INTERPOLATIONS[resize.interpolation])
    left, top = (image.width - new) // 2, (image.height - new) // 2
    return image.crop((left, top, left + new, top + new))


def resize_and_crop_all(images: np.ndarray, resize: Resize | None) -> np.ndarray:
    """`resize_and_crop` of each image of a uint8 array `[N, H, W, C]`; a no-op at equal size."""
    count, height, width, channels = images.shape
    if resize is None or height == width == resize.side:
        return images
    shape = (resize.side, resize.side, channels)
    resized = np.empty((count, *shape), np.uint8)
    for i, pixels in enumerate(images):
        image = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
        resized[i] = np.asarray(resize_and_crop(image, resize)).reshape(shape)
    return resized


def map_threaded(function: Callable[[Any], Any], items: Sequence, task: str) -> Iterator:
    """`function` of each item, in threads, in order; a progress bar if it takes over 2 s."""
    with (
        ThreadPoolExecutor() as pool,
        tqdm(total=len(items), desc=task, unit="image", delay=2.0, leave=False) as bar,
    ):
        remaining = iter(items)
        while chunk := list(itertools.islice(remaining, CHUNK)):
            for result in pool.map(function, chunk):
                bar.update()
                yield result


def fetcher(read: Callable[[int], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """The `fetch` of a streamed set: calls `read` for every index in a thread pool and stacks.

    The threads live until the process ends.
    """
    pool = ThreadPoolExecutor()
    return lambda indices: np.stack(list(pool.map(read, np.asarray(indices).tolist())))


def order(count: int, *entropy: int) -> np.ndarray:
    """A random permutation of `range(count)`, int32, as a pure function of the seeds `entropy`.

    It sorts raw words of the Philox generator, which are the same in every version of NumPy, unlike
    `Generator.permutation`.
    """
    words = np.random.Philox(np.random.SeedSequence(entropy)).random_raw(count)
    return np.argsort(words, kind="stable").astype(np.int32)


def subset(count: int, limit: int | None) -> np.ndarray:
    """Ascending indices of a fixed random subset of at most `limit` out of `count`, int32."""
    if limit is None or limit >= count:
        return np.arange(count, dtype=np.int32)
    return np.sort(order(count, 0)[:limit])
