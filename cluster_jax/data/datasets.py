"""Data sets by name: digits, a folder of images, an array file, or a prepared TFDS set."""

import warnings

import numpy as np

from cluster_jax.data import arrays, folder, tfds_source
from cluster_jax.data.images import Dataset, in_memory, resize_and_crop_all, subset

STATISTICS_IMAGES = 10_000  # a mean over 10,000 images is known to about 0.1 %
STATISTICS_CHUNK = 256


def load(
    *,
    name: str,
    dir: str | None,
    split: str | None,
    label: str,
    image_size: int | None,
    cache_mb: float,
    max_corrupt_fraction: float,
    limit: int | None,
) -> Dataset:
    """The images of a set as uint8 of one size, in memory or streamed.

    Args:
        name: "digits", "folder", "arrays" or the name of a prepared TFDS set.
        dir: where the data lie: folder, file, or TFDS's data directory; unused by digits.
        split: TFDS split, "train" or "train+test"; the others have none and ignore it.
        label: feature of a TFDS set that holds the classes, "label" or for example CIFAR-100's
            "coarse_label"; the others ignore it. A set without it has no labels.
        image_size: None to keep the size that all images share; or the side of a square: the short
            side is scaled to it (bicubic, antialiased) and the center cut out.
        cache_mb: sets up to this size, in 10^6 bytes of uint8, are decoded into
            `Dataset.images`; larger ones are decoded by every `fetch`.
        max_corrupt_fraction: largest share, 0 to 1, of a folder's files that may be unreadable.
        limit: number of images of a fixed random subset (no seed: it is the same everywhere,
            in the order of the set), or None for all.

    Raises:
        ValueError: a bad value, or data that are missing or of another kind.
    """
    _check(image_size, cache_mb, max_corrupt_fraction, limit)
    common = {"image_size": image_size, "cache_mb": cache_mb, "limit": limit}
    if name == "digits":
        return _digits(image_size, cache_mb, limit)
    if name == "folder":
        return folder.load(dir=dir, max_corrupt_fraction=max_corrupt_fraction, **common)
    if name == "arrays":
        return _numbered(arrays.load(dir=dir, **common))
    return _numbered(tfds_source.load(name=name, dir=dir, split=split, label=label, **common))


def _numbered(dataset: Dataset) -> Dataset:
    """Labels as 0, 1, ... with their names; all -1, TFDS's mark of a test split, is no labels."""
    labels, names = dataset.labels, dataset.label_names
    if labels is None or (labels == -1).all():
        return dataset._replace(labels=None, label_names=None)
    if labels.min() < 0:
        raise ValueError(
            f"{(labels < 0).sum()} of {len(labels)} labels are negative; label all images or none"
        )
    if names is not None and labels.max() < len(names):
        return dataset
    found, numbers = np.unique(labels, return_inverse=True)
    return dataset._replace(
        labels=numbers.astype(np.int32), label_names=tuple(str(label) for label in found)
    )


def channel_statistics(dataset: Dataset) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel over all pixels, on the scale [0, 1].

    At most 10,000 evenly spaced images are read. A constant channel gets the standard
    deviation of one gray level, so that it can be divided by.

    Returns:
        Mean and standard deviation, C floats each.
    """
    count = min(dataset.size, STATISTICS_IMAGES)
    chosen = np.arange(count) * dataset.size // count
    total = squares = np.zeros(dataset.shape[-1], np.int64)
    for start in range(0, count, STATISTICS_CHUNK):
        pixels = dataset.fetch(chosen[start : start + STATISTICS_CHUNK]).astype(np.int64)
        total = total + pixels.sum((0, 1, 2))
        squares = squares + (pixels * pixels).sum((0, 1, 2))
    n = count * dataset.shape[0] * dataset.shape[1]
    mean = total / n
    variance = squares / n - mean * mean
    std = np.where(n * squares == total * total, 1, np.sqrt(np.maximum(variance, 0)))
    return tuple((mean / 255).tolist()), tuple((std / 255).tolist())


def _digits(image_size: int | None, cache_mb: float, limit: int | None) -> Dataset:
    """scikit-learn's 1797 digits, 8 x 8, its values 0 to 16 scaled to 0 to 255 and rounded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from sklearn.datasets import load_digits
    images, labels = load_digits(return_X_y=True)
    images = np.rint(images.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    chosen = subset(len(images), limit)
    return in_memory(
        "digits",
        resize_and_crop_all(images[chosen], image_size),
        labels[chosen].astype(np.int32),
        tuple("0123456789"),
        cache_mb,
    )


def _check(
    image_size: int | None, cache_mb: float, max_corrupt_fraction: float, limit: int | None
) -> None:
    if image_size is not None and image_size < 1:
        raise ValueError(
            f"data.image_size = {image_size}; expected a positive number of pixels, or None"
        )
    if not cache_mb >= 0:
        raise ValueError(f"data.cache_mb = {cache_mb}; expected 0 or more megabytes")
    if not 0 <= max_corrupt_fraction <= 1:
        raise ValueError(
            f"data.max_corrupt_fraction = {max_corrupt_fraction}; expected a share from 0 to 1"
        )
    if limit is not None and limit < 1:
        raise ValueError(f"data.limit = {limit}; expected a positive number of images, or None")
