"""Loading of data sets: digits, a folder of images, a file of images or features, or TFDS."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cluster_jax.core import checks
from cluster_jax.core.arrays import check_unmasked
from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted
from cluster_jax.data import arrays, decode, features, folder, images, tables, tfds
from cluster_jax.data.images import DataConfig, Dataset, ItemReader

# A folder or file of images, several of them, an array, or any sequence of images.
Images = str | os.PathLike | Sequence[Any] | ArrayLike

STATISTICS_IMAGES = 10_000  # the standard error of a mean over 10,000 images is about 0.1 %
STATISTICS_CHUNK = 256

# Values of `data.name` that are no TFDS set, so that there is no `data.split`.
OWN_SOURCES = ("digits", "folder", "arrays", "features")


def load(
    config: DataConfig,
    X: ArrayLike | None = None,
    kept: tfds.Labels | None = None,
    known: np.ndarray | None = None,
) -> Dataset:
    """Loads the data set of a config: uint8 images of one size or features, in memory or streamed.

    Labels of the result are int32, 0 to the number of classes - 1; None if there are none, or if
    all are -1.

    Args:
        config: the section `data`.
        X: images, one array or a sequence, or features if `data.name` is "features", in place of a
            file. All of them are taken, whatever `data.limit` is; `data.classes` counts.
        kept: see `tfds.load`.
        known: facts about files of a folder, see `ItemReader`.

    Raises:
        ValueError: the data are missing, cannot be read or have the wrong format; or some labels
            are below 0, or the labels do not fit the images or `label_names`.
    """
    where = "files" if X is not None or config.dir is None else os.fspath(config.dir)
    try:
        if config.name == "features":
            dataset = features.load(config, X)
        elif is_sequence(X):
            dataset = _sequence(config, X)
        elif config.name == "arrays" or X is not None:
            dataset = _arrays(config, X)
        elif config.name == "digits":
            dataset = _digits(config)
        elif config.name == "folder":
            dataset = folder.load(config, known)
        else:
            dataset = tfds.load(config, kept)
        if config.labels not in (None, "folders"):
            with checks.named({"features and labels": "images and data.labels"}):
                table = tables.read_labels(config.labels, dataset.size, dataset.sources)
            dataset = dataset._replace(labels=table.codes, label_names=table.names)
        if config.limit is not None and config.limit < dataset.size and X is None:
            dataset = images.select(dataset, images.subset(dataset.size, config.limit))
        dataset = _encode_labels(with_classes(dataset, config.classes))
        if dataset.has_images:
            return images.resident(dataset, config)
        return dataset
    except OSError as error:
        what = folder.shown(where) if config.name == "folder" else where
        raise InputError(f"{what} must be readable; got an error: {error}") from error


def load_new(
    source: Images,
    config: DataConfig,
    shape: Sequence[int],
) -> Dataset:
    """Loads new images for a trained network: uint8 `[H, W, C]`, shaped as the training images.

    They are resized and cropped if the training images are square, and converted to gray or RGB
    like them. Unreadable files of a folder are omitted and listed in `Dataset.skipped`. Labels and
    class folders are ignored.

    Args:
        source: a folder, an image file, several of both (one a line, or a list), a `.npy` or `.npz`
            file, an array `[N, H, W(, C)]` or a sequence of images; for a run on features a file of
            features or an array `[N, d]`.
        config: section `data` of the training: interpolation, and the size of a set that is decoded
            into memory.
        shape: `[H, W, C]` of the training images, or `[1 + m, d]` of features.

    Raises:
        ValueError: the file is missing or unreadable, or the images or features have another size
            than those of the training.
    """
    path, X = located(source)
    name = "folder"
    if len(shape) == 2:
        name = "features"
    elif path is not None and "\n" not in path and path.endswith((".npy", ".npz")):
        name = "arrays"
    config = dataclasses.replace(
        config,
        name=name,
        dir=path,
        image_size=shape[0] if len(shape) == 3 and shape[0] == shape[1] else None,
        # All new images, whatever the training left out.
        labels=None,
        classes=None,
        limit=None,
        max_corrupt_fraction=1.0,
    )
    with checks.named({"data.dir": "images"}):
        dataset = load(config, X)
    if len(shape) == 2 and dataset.shape[1] != shape[1]:
        like = f"{counted(shape[1], 'column')} like those of the training"
        raise InputError(f"features must have {like}; got {dataset.shape[1]}")
    if len(shape) == 3:
        dataset = images.with_channels(dataset, shape[2])
        if dataset.shape != tuple(shape):
            must = f"images must be {shape[0]} x {shape[1]} (height x width) like the training"
            got = f"{dataset.shape[0]} x {dataset.shape[1]}"
            raise InputError(f"{must} images; got {got}")
    return images.readable(dataset)._replace(labels=None, label_names=None)


def located(images: Any) -> tuple[str | None, Any]:
    """Returns images as `data.dir`, a path or several, one a line, and None; others after a None.

    Others are arrays of numbers, sequences whose items are not all paths, and empty lists.
    """
    if isinstance(images, str | os.PathLike):
        images = [images]
    # A Series of pandas, or an array, of paths.
    kind = getattr(getattr(images, "dtype", None), "kind", "")
    if getattr(images, "ndim", 0) == 1 and kind in ("O", "U", "T"):
        images = images.tolist()
    is_list = isinstance(images, list | tuple) and bool(images)
    if is_list and all(isinstance(x, str | os.PathLike) for x in images):
        return "\n".join(map(os.fspath, images)), None
    return None, images


def is_sequence(images: Any) -> bool:
    """Returns whether images are a sequence whose items are images, and not one array or a path.

    A list of nested lists of numbers, or of arrays that all have one shape, is one array, and so is
    an empty list. None is no sequence.

    Raises:
        InputError: the images have no length, or cannot be indexed, as a stream.
    """
    if images is None or isinstance(images, str | os.PathLike) or hasattr(images, "__array__"):
        return False
    is_ordered = hasattr(images, "__len__") and hasattr(images, "__getitem__")
    if isinstance(images, Mapping) or not is_ordered:
        must = "images must be a folder, an array or a sequence with a length"
        raise InputError(f"{must}; got a {type(images).__name__}: give a list of images")
    # Nested lists of numbers, and a list of arrays of one shape, are one array.
    if not isinstance(images, list | tuple):
        return True
    shapes = {getattr(image, "shape", None) for image in images}
    is_nested = not images or isinstance(images[0], int | float | list)
    return not is_nested and (None in shapes or len(shapes) > 1)


def _sequence(config: DataConfig, X: Any) -> Dataset:
    """Loads a sequence of images: paths, bytes, PIL images or arrays, see `decode.of_sample`.

    It is indexed from several threads, an image at a time, and never as a whole. Images are named
    by their numbers; those that cannot be read have no row.

    Raises:
        InputError: the sequence is empty, an item is of a type that is no image, or too many items
            cannot be read.
    """
    if not len(X):
        raise InputError("images must not be empty; got a sequence of length 0")
    names = [str(i) for i in range(len(X))]
    reader = ItemReader(lambda i: decode.of_sample(X[i]), names, config, "X")
    return images.load("arrays", reader)


def warn(notes: Sequence[str], skipped: Sequence[tuple[str, str]] = ()) -> None:
    """Warns the caller's caller of each note, and in one warning of all files without a row.

    The last warning has the number of these files, and their names up to 200 characters.

    Args:
        notes: `Dataset.notes`.
        skipped: `Dataset.skipped`. Folders in it are left out, because the notes name them.
    """
    files = [name for name, _ in skipped if not name.endswith("/")]  # Notes name the folders.
    if files:
        without = f"no row for {counted(len(files), 'file')} that could not be read"
        notes = [*notes, f"{without}: {checks.short(', '.join(files), 200)}"]
    for text in notes:
        checks.warn(text, 3)


def _arrays(config: DataConfig, X: ArrayLike | None = None) -> Dataset:
    """Loads images `[N, H, W]` or `[N, H, W, C]`: uint8, or floats in [0, 1] (times 255, rounded).

    They are `X`, or in the file `data.dir`, a `.npy` or `.npz`. A `.npz` file holds images under
    `images` or `x`, or as its only array, and optional int labels `[N]` under `labels` or `y`.

    Raises:
        InputError: missing file, no images in it, or images or labels of an unsupported dtype,
            shape or range.
    """
    others: dict[str, np.ndarray] = {}
    if X is None:
        where = config.dir or ""
        pixels, others, _ = arrays.read_arrays(where, ("images", "x"))
    else:
        where = "X"
        for part in (X, *X) if isinstance(X, list | tuple) else (X,):
            check_unmasked(part, "images")
        pixels = np.asarray(X)
    _check_images(pixels, f"images in {where}")
    labels = arrays.labels_in(others, len(pixels), where)
    if pixels.dtype != np.uint8:
        pixels = np.rint(pixels * np.float32(255)).astype(np.uint8)
    pixels = pixels[..., None] if pixels.ndim == 3 else pixels
    return images.in_memory("arrays", pixels, config, labels=labels)


def _check_images(pixels: np.ndarray, name: str) -> None:
    """Raises an `InputError` unless an array holds images that `_arrays` accepts.

    An array `[H, W, 3 or 4]`, which looks like one color image, is refused. `name` is that of the
    array in messages.
    """
    shape = " x ".join(map(str, pixels.shape))
    dtype = pixels.dtype
    is_one = pixels.ndim == 3 and pixels.shape[-1] in (3, 4) and min(pixels.shape[:2]) > 4
    is_gray = pixels.ndim == 3 and not is_one
    if not pixels.size or not (is_gray or (pixels.ndim == 4 and pixels.shape[-1] in (1, 3))):
        must = f"{name} must have shape [N x H x W], or [N x H x W x C] with C = 1 or 3"
        hint = "X[None] is an array of one image" if pixels.ndim < 4 else "X[..., :3] has no alpha"
        raise InputError(f"{must}; got [{shape}] ({hint})")
    if dtype == np.uint8:
        return
    got = str(dtype)
    if dtype.kind == "f":
        low, high = pixels.min(), pixels.max()  # NaN if any value is
        if low >= 0 and high <= 1:
            return
        got = f"{dtype} from {low:g} to {high:g}"
    raise InputError(f"{name} must be uint8 or floats in [0, 1]; got {got}")


def with_classes(dataset: Dataset, classes: Sequence[int] | None) -> Dataset:
    """Selects the images of some classes, see `DataConfig`, and renumbers these in the given order.

    The classes are labels as they are in the set, and label i of the result is `classes[i]`. Images
    keep their order. If `classes` is None, the set is returned unchanged.

    Raises:
        InputError: the set has no labels; or `classes` is empty, repeats a class, or has one
            without images.
    """
    if classes is None:
        return dataset
    labels = dataset.labels
    if labels is None or (labels == -1).all():
        raise InputError(f"data.classes must be None for {dataset.name}, which has no labels")
    there = set(np.unique(labels).tolist())
    if not classes or not set(classes) <= there or len(set(classes)) < len(classes):
        must = f"data.classes must be different classes of {dataset.name} that have images"
        raise InputError(f"{must}; got {list(classes)}")
    chosen = images.select(dataset, np.flatnonzero(np.isin(labels, classes)))
    assert chosen.labels is not None
    order = np.argsort(classes)
    numbers = order[np.searchsorted(classes, chosen.labels, sorter=order)]
    names = dataset.label_names
    label_names = tuple(str(k) if names is None else names[k] for k in classes)
    return chosen._replace(labels=numbers.astype(np.int32), label_names=label_names)


def _encode_labels(dataset: Dataset) -> Dataset:
    """Makes labels int32, and names them; drops them if all are -1, as in TFDS's unlabeled splits.

    Labels without names are numbered 0, 1, ... in ascending order, and their old numbers become the
    names. Labels with names stay: they are the indices of the names.

    Raises:
        InputError: some labels are below 0, or a label has no name.
    """
    labels = dataset.labels
    names = dataset.label_names
    if labels is None or (labels == -1).all():
        return dataset._replace(labels=None, label_names=None)
    if labels.min() < 0:
        invalid = f"{(labels < 0).sum()} of {len(labels)} below 0"
        raise InputError(f"labels must be at least 0 for all images or absent; got {invalid}")
    if names is None:
        classes, labels = np.unique(labels, return_inverse=True)
        names = tuple(map(str, classes))
    elif labels.max() >= len(names):
        must = f"label_names of {dataset.name} must name each of the labels 0 to {labels.max()}"
        raise InputError(f"{must}; got {counted(len(names), 'name')}")
    return dataset._replace(labels=labels.astype(np.int32), label_names=names)


def channel_statistics(dataset: Dataset) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Computes mean and standard deviation of each channel over all pixels, on the scale [0, 1].

    The set must be of images. At most 10,000 evenly spaced images are read. The standard deviation
    of a constant channel is set to one gray level, because images are divided by it.

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
    """Loads scikit-learn's 1797 digits, 8 x 8; values 0 to 16 become 0 to 255, rounded."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    pixels = np.rint(pixels.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    names = tuple("0123456789")
    return images.in_memory("digits", pixels, config, labels=labels, label_names=names)
