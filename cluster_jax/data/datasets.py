"""Loading of data sets: digits, a folder of images, a file of images or features, or TFDS."""

import warnings

import numpy as np
from numpy.typing import ArrayLike

from cluster_jax.data import arrays, features, folder, tfds_source
from cluster_jax.data.images import DataConfig, Dataset, in_memory, resize_and_crop_all, subset

STATISTICS_IMAGES = 10_000  # the standard error of a mean over 10,000 images is about 0.1 %
STATISTICS_CHUNK = 256


def load(config: DataConfig) -> Dataset:
    """The data set of a config: uint8 images of one size or features, in memory or streamed.

    Raises:
        ValueError: the data are missing or have the wrong format.
    """
    if config.name == "digits":
        return _digits(config)
    sources = {"folder": folder, "arrays": arrays, "features": features}
    return _encode_labels(sources.get(config.name, tfds_source).load(config))


def from_array(config: DataConfig, X: ArrayLike) -> Dataset:
    """A data set from an array of images, or of features if `data.name` is "features".

    Raises:
        ValueError: the array has an unsupported shape or dtype.
    """
    return (features if config.name == "features" else arrays).from_array(X, config)


def _encode_labels(dataset: Dataset) -> Dataset:
    """Encodes labels as 0, 1, ...; drops them if all are -1, as in TFDS's unlabeled splits."""
    labels, names = dataset.labels, dataset.label_names
    if labels is None or (labels == -1).all():
        return dataset._replace(labels=None, label_names=None)
    if labels.min() < 0:
        found = f"{(labels < 0).sum()} of {len(labels)} below 0"
        raise ValueError(f"labels must be at least 0 for all images or absent; got {found}")
    if names is not None and labels.max() < len(names):
        return dataset
    classes, codes = np.unique(labels, return_inverse=True)
    return dataset._replace(labels=codes.astype(np.int32), label_names=tuple(map(str, classes)))


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


def _digits(config: DataConfig) -> Dataset:
    """scikit-learn's 1797 digits, 8 x 8, with values 0 to 16 scaled to 0 to 255 and rounded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from sklearn.datasets import load_digits
    images, labels = load_digits(return_X_y=True)
    images = np.rint(images.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    rows = subset(len(images), config.limit)
    images, labels = resize_and_crop_all(images[rows], config.resize), labels[rows].astype(np.int32)
    return in_memory("digits", images, config, labels=labels, label_names=tuple("0123456789"))
