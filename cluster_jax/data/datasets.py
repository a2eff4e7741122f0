"""Loading of data sets: digits, a folder of images, a file of images or features, or TFDS."""

import importlib.resources
import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from cluster_jax.core.checks import InputError
from cluster_jax.data import arrays, features, folder, tfds_source
from cluster_jax.data.images import (
    DataConfig,
    Dataset,
    in_memory,
    resize_and_crop_all,
    select,
    subset,
)

STATISTICS_IMAGES = 10_000  # the standard error of a mean over 10,000 images is about 0.1 %
STATISTICS_CHUNK = 256


def load(config: DataConfig) -> Dataset:
    """The data set of a config: uint8 images of one size or features, in memory or streamed.

    Raises:
        ValueError: the data are missing or have the wrong format.
    """
    return with_classes(_load_all(config), config.classes)


def _load_all(config: DataConfig) -> Dataset:
    """The data set with all its classes."""
    if config.name == "digits":
        return _digits(config)
    sources = {"folder": folder, "arrays": arrays, "features": features}
    return _encode_labels(sources.get(config.name, tfds_source).load(config))


def with_classes(dataset: Dataset, classes: Sequence[int] | str | None) -> Dataset:
    """The images of some classes, see `DataConfig`, which are numbered anew in the order given.

    Raises:
        InputError: the set has no labels, or a class has no images or is given twice.
    """
    labels = dataset.labels
    if classes is None:
        return dataset
    if labels is None:
        raise InputError(f"data.classes must be None for {dataset.name}, which has no labels")
    if isinstance(classes, str):
        classes = _listed(dataset, classes)
    numbers = np.full(int(labels.max()) + 1, -1, np.int32)
    absent = sorted(set(classes) - set(np.unique(labels).tolist()))
    if not classes or absent or len(set(classes)) < len(classes):
        raise InputError(
            f"data.classes must be different classes of {dataset.name} that have images; got "
            f"{absent or list(classes)}"
        )
    numbers[list(classes)] = np.arange(len(classes))
    chosen = select(dataset, np.flatnonzero(numbers[labels] >= 0))
    names = dataset.label_names
    return chosen._replace(
        labels=numbers[chosen.labels],
        label_names=None if names is None else tuple(names[k] for k in classes),
    )


def _listed(dataset: Dataset, name: str) -> list[int]:
    """Numbers of the classes in a file of `data/classes`."""
    file = importlib.resources.files("cluster_jax.data") / "classes" / f"{name}.txt"
    wanted = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    numbers = {text.split("_")[0]: k for k, text in enumerate(dataset.label_names or ())}
    absent = [wnid for wnid in wanted if wnid not in numbers]
    if absent:
        raise InputError(
            f"names of classes must begin with the {len(wanted)} WordNet IDs of data.classes = "
            f"{name}; got none for {len(absent)} of them, such as {absent[0]}"
        )
    return [numbers[wnid] for wnid in wanted]


def from_array(config: DataConfig, X: ArrayLike) -> Dataset:
    """A data set from an array of images, or of features if `data.name` is "features".

    Raises:
        ValueError: the array has an unsupported shape or dtype.
    """
    source = features if config.name == "features" else arrays
    return with_classes(source.from_array(X, config), config.classes)


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
