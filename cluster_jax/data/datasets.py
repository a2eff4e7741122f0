"""Loading of data sets: digits, a folder of images, a file of images or features, or TFDS."""

import dataclasses
import warnings

import numpy as np
from numpy.typing import ArrayLike

from cluster_jax.core import checks
from cluster_jax.data import arrays, features, folder, tfds_source
from cluster_jax.data.images import (
    INTERPOLATIONS,
    Dataset,
    Resize,
    in_memory,
    resize_and_crop_all,
    subset,
)

STATISTICS_IMAGES = 10_000  # the standard error of a mean over 10,000 images is about 0.1 %
STATISTICS_CHUNK = 256


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Section `data`: the data set and its preprocessing.

    Attributes:
        name: "digits", "folder", "arrays", "features" or the name of a prepared TFDS set.
        dir: location of the data: folder, file, or TFDS's data directory; unused by digits.
        split: TFDS split, "train" or "train+test"; ignored by other sources.
        label: feature of a TFDS set that holds the classes, "label" or for example CIFAR-100's
            "coarse_label"; other sources ignore it. A set without this feature has no labels.
        image_size: side of a square: the short side is scaled to it (antialiased) and the center
            cropped; None to keep the size, which all images must share.
        interpolation: method of scaling, one of `images.INTERPOLATIONS`.
        limit: number of images of a fixed random subset (independent of seed and machine, in the
            order of the set), or None for all.
        cache_mb: sets up to this size, in 10^6 bytes of uint8, are decoded into
            `Dataset.images`; images of a larger set are decoded by every `fetch`.
        max_corrupt_fraction: largest fraction, 0 to 1, of a folder's files that may be unreadable.
    """

    name: str
    dir: str | None
    split: str | None
    label: str
    image_size: int | None
    interpolation: str
    limit: int | None
    cache_mb: float
    max_corrupt_fraction: float

    def __post_init__(self) -> None:
        for key, count in (("image_size", self.image_size), ("limit", self.limit)):
            if count is not None:
                checks.whole(f"data.{key}", count, 1)
        checks.one_of("data.interpolation", self.interpolation, tuple(INTERPOLATIONS))
        checks.at_least("data.cache_mb", self.cache_mb, 0)
        checks.between("data.max_corrupt_fraction", self.max_corrupt_fraction, 0, 1)

    @property
    def resize(self) -> Resize | None:
        """The square that images are resized to, if any."""
        return None if self.image_size is None else Resize(self.image_size, self.interpolation)


def load(config: DataConfig) -> Dataset:
    """The data set of a config: uint8 images of one size or features, in memory or streamed.

    Raises:
        ValueError: the data are missing or have the wrong format.
    """
    resize, cache_mb, limit = config.resize, config.cache_mb, config.limit
    if config.name == "digits":
        return _digits(resize, cache_mb, limit)
    if config.name == "folder":
        return folder.load(
            dir=config.dir,
            resize=resize,
            cache_mb=cache_mb,
            max_corrupt_fraction=config.max_corrupt_fraction,
            limit=limit,
        )
    if config.name == "arrays":
        dataset = arrays.load(dir=config.dir, resize=resize, cache_mb=cache_mb, limit=limit)
    elif config.name == "features":
        dataset = features.load(dir=config.dir, cache_mb=cache_mb, limit=limit)
    else:
        dataset = tfds_source.load(
            name=config.name,
            dir=config.dir,
            split=config.split,
            label=config.label,
            resize=resize,
            cache_mb=cache_mb,
            limit=limit,
        )
    return _encode_labels(dataset)


def from_array(config: DataConfig, X: ArrayLike) -> Dataset:
    """A data set from an array of images, or of features if `data.name` is "features".

    Raises:
        ValueError: the array has an unsupported shape or dtype.
    """
    if config.name == "features":
        return features.from_array(X, cache_mb=config.cache_mb)
    return arrays.from_array(X, resize=config.resize, cache_mb=config.cache_mb)


def _encode_labels(dataset: Dataset) -> Dataset:
    """Encodes labels as 0, 1, ...; drops them if all are -1, as in TFDS's unlabeled splits."""
    labels, names = dataset.labels, dataset.label_names
    if labels is None or (labels == -1).all():
        return dataset._replace(labels=None, label_names=None)
    if labels.min() < 0:
        raise ValueError(
            f"labels must be at least 0 for all images or absent; got {(labels < 0).sum()} of "
            f"{len(labels)} below 0"
        )
    if names is not None and labels.max() < len(names):
        return dataset
    classes, codes = np.unique(labels, return_inverse=True)
    return dataset._replace(
        labels=codes.astype(np.int32), label_names=tuple(str(label) for label in classes)
    )


def channel_statistics(dataset: Dataset) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel over all pixels, on the scale [0, 1].

    At most 10,000 evenly spaced images are read. The standard deviation of a constant channel is
    set to one gray level, because images are divided by it.

    Returns:
        Mean and standard deviation, C floats each.
    """
    count = min(dataset.size, STATISTICS_IMAGES)
    rows = np.arange(count) * dataset.size // count
    total = squares = np.zeros(dataset.shape[-1], np.int64)
    for start in range(0, count, STATISTICS_CHUNK):
        pixels = dataset.fetch(rows[start : start + STATISTICS_CHUNK]).astype(np.int64)
        total = total + pixels.sum((0, 1, 2))
        squares = squares + (pixels * pixels).sum((0, 1, 2))
    n = count * dataset.shape[0] * dataset.shape[1]
    mean = total / n
    variance = squares / n - mean * mean
    std = np.where(n * squares == total * total, 1, np.sqrt(np.maximum(variance, 0)))
    return tuple((mean / 255).tolist()), tuple((std / 255).tolist())


def _digits(resize: Resize | None, cache_mb: float, limit: int | None) -> Dataset:
    """scikit-learn's 1797 digits, 8 x 8, with values 0 to 16 scaled to 0 to 255 and rounded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from sklearn.datasets import load_digits
    images, labels = load_digits(return_X_y=True)
    images = np.rint(images.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    rows = subset(len(images), limit)
    return in_memory(
        "digits",
        resize_and_crop_all(images[rows], resize),
        labels[rows].astype(np.int32),
        tuple("0123456789"),
        cache_mb,
    )
