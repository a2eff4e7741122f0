"""What a set of images is, how one image is decoded, and threads that do it."""

import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps
from tqdm import tqdm

# Images whose futures are open at once in a pass over a set: bounds the memory of the pass.
CHUNK = 1024


class Dataset(NamedTuple):
    """A set of images of one size.

    Attributes:
        name: as given to `load`.
        size: number of images N.
        shape: (H, W, C) of every image; C is 1 or 3.
        images: uint8 `[N, H, W, C]` when resident in memory, else None.
        fetch: indices int `[b]` -> uint8 `[b, H, W, C]`; decodes in threads when streaming.
        labels: int32 `[N]` for scoring, or None.
        label_names: name of each label, or None.
        sources: file of each image relative to the folder, or None.
        skipped: (path, reason) of every file that could not be read.
        known: int32 `[N]`, the class of each image whose class a training may use, -1 for all
            others; None where a training may use none. Only novel class discovery has it.
    """

    name: str
    size: int
    shape: tuple[int, int, int]
    images: np.ndarray | None
    fetch: Callable[[np.ndarray], np.ndarray]
    labels: np.ndarray | None
    label_names: tuple[str, ...] | None
    sources: tuple[str, ...] | None
    skipped: tuple[tuple[str, str], ...]
    known: np.ndarray | None = None


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
    """A set from one uint8 array `[N, H, W, C]`; too large a one stays on the host."""
    shape = images.shape[1:]
    resident = images if fits(len(images), shape, cache_mb) else None
    fetch = images.__getitem__
    return Dataset(name, len(images), shape, resident, fetch, labels, label_names, None, ())


def select(dataset: Dataset, chosen: np.ndarray) -> Dataset:
    """The images of a set with the indices `chosen`, int `[n]`, in that order."""

    def at(values: Any) -> Any:
        if isinstance(values, tuple):
            return tuple(values[i] for i in chosen)
        return None if values is None else values[chosen]

    return dataset._replace(
        size=len(chosen),
        images=at(dataset.images),
        fetch=lambda index: dataset.fetch(chosen[np.asarray(index)]),
        labels=at(dataset.labels),
        sources=at(dataset.sources),
        known=at(dataset.known),
    )


def decode(data: bytes, image_size: int | None, channels: int) -> np.ndarray:
    """One encoded image as uint8 `[H, W, channels]`.

    EXIF orientation is applied; transparency is laid over white; 16-bit values are divided by
    257 and rounded; of an animation the first frame counts.

    Args:
        data: bytes of an image file.
        image_size: side of the square to fit into (`fit`), or None for the native size.
        channels: 1 (gray) or 3 (RGB).

    Returns:
        uint8 `[H, W, channels]`.

    Raises:
        Exception: whatever Pillow raises on damaged bytes, which is nearly anything.
    """
    with Image.open(io.BytesIO(data)) as image:
        image = eight_bit(ImageOps.exif_transpose(image), "RGB" if channels == 3 else "L")
        image = image if image_size is None else fit(image, image_size)
        return np.asarray(image).reshape(image.height, image.width, channels)


def eight_bit(image: Image.Image, mode: str) -> Image.Image:
    """`image` in `mode`, "RGB" or "L", whatever its mode was.

    Raises:
        ValueError: a floating-point image outside [0, 1], or integers beyond 16 bits.
    """
    if image.mode.startswith("I") or image.mode == "F":
        # Pillow's own conversion clips at 255: nearly all of a 16-bit image would be white.
        values = np.asarray(image, np.float64)
        top = 1.0 if image.mode == "F" else 65535.0
        low, high = values.min(), values.max()
        if not (low >= 0 and high <= top):
            raise ValueError(f"mode {image.mode} with values {low:g} to {high:g}, not 0 to {top:g}")
        image = Image.fromarray(np.rint(values * (255 / top)).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert(mode)


def fit(image: Image.Image, image_size: int) -> Image.Image:
    """The short side scaled to `image_size`, then the central `image_size` x `image_size`.

    Bicubic over a support that grows with the reduction (antialiased), aspect ratio kept to
    the nearest pixel.
    """
    short = min(image.size)
    if short != image_size:
        width, height = (max(image_size, round(side * image_size / short)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    left, top = (image.width - image_size) // 2, (image.height - image_size) // 2
    return image.crop((left, top, left + image_size, top + image_size))


def fit_array(images: np.ndarray, image_size: int | None) -> np.ndarray:
    """`fit` for every image of a uint8 array `[N, H, W, C]`; the array itself if it fits."""
    count, height, width, channels = images.shape
    if image_size is None or (height, width) == (image_size, image_size):
        return images
    out = np.empty((count, image_size, image_size, channels), np.uint8)
    for i, image in enumerate(images):
        picture = Image.fromarray(image[..., 0] if channels == 1 else image)
        out[i] = np.asarray(fit(picture, image_size)).reshape(image_size, image_size, channels)
    return out


def each(function: Callable[[Any], Any], items: Sequence, what: str) -> Iterator:
    """`function` of each item, in threads, in order; a progress bar if it takes over 2 s."""
    with (
        ThreadPoolExecutor() as pool,
        tqdm(total=len(items), desc=what, unit="image", delay=2.0, leave=False) as bar,
    ):
        remaining = iter(items)
        while chunk := list(itertools.islice(remaining, CHUNK)):
            for result in pool.map(function, chunk):
                bar.update()
                yield result


def fetcher(read: Callable[[int], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """`fetch` of a streamed set: `read` of every index in a pool of threads, stacked."""
    pool = ThreadPoolExecutor()
    return lambda indices: np.stack(list(pool.map(read, np.asarray(indices).tolist())))


def order(count: int, *entropy: int) -> np.ndarray:
    """A permutation of `range(count)`, int32, as a pure function of the integers `entropy`.

    The ranks of raw Philox words: unlike `Generator.permutation` they are the same in every
    version of NumPy.
    """
    words = np.random.Philox(np.random.SeedSequence(entropy)).random_raw(count)
    return np.argsort(words, kind="stable").astype(np.int32)


def subset(count: int, limit: int | None) -> np.ndarray:
    """Indices of a fixed random subset of `limit` out of `count`, ascending; all if fewer."""
    if limit is None or limit >= count:
        return np.arange(count, dtype=np.int32)
    return np.sort(order(count, 0)[:limit])
