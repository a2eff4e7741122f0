"""Data for inference: new images or features, in the shape of the training data."""

import os
from collections.abc import Sequence

import numpy as np
from etils import epath
from numpy.typing import ArrayLike
from PIL import Image

from cluster_jax.data import arrays, features, folder
from cluster_jax.data.datasets import DataConfig
from cluster_jax.data.images import Dataset, Resize, decode, in_memory, to_rgb


def load(
    source: str | os.PathLike | ArrayLike, config: DataConfig, shape: Sequence[int]
) -> Dataset:
    """New images, uint8 `[H, W, C]`, resized and cropped if the training images are square.

    Images are converted to gray or RGB like the training images. Unreadable files of a folder are
    omitted and listed in `Dataset.skipped`. Labels and class folders are ignored.

    Args:
        source: a folder, an image file, a `.npy` or `.npz` file, or an array `[N, H, W(, C)]`; for
            a run on features a `.npy`, `.npz` or `.csv` file or an array `[N, d]` or `[N, v, d]`.
        config: section `data` of the training: interpolation, and the size of a set that is decoded
            into memory.
        shape: `[H, W, C]` of the training images, or `[v, d]` of features.

    Raises:
        ValueError: the file is missing or unreadable, or the images differ in size from the
            training images.
    """
    cache_mb = config.cache_mb
    if len(shape) == 2:
        return _load_features(source, shape[1], cache_mb)
    height, width, channels = shape
    resize = Resize(height, config.interpolation) if height == width else None
    if isinstance(source, str | os.PathLike):
        dataset = _load_path(epath.Path(source).expanduser(), resize, cache_mb)
    else:
        dataset = arrays.from_array(source, resize=resize, cache_mb=cache_mb)
    if dataset.shape[2] != channels:
        dataset = _to_gray(dataset) if channels == 1 else to_rgb(dataset)
    if dataset.shape != tuple(shape):
        raise ValueError(
            f"images must be {height} x {width} (height x width) like the training images; got "
            f"{dataset.shape[0]} x {dataset.shape[1]}"
        )
    return dataset._replace(labels=None, label_names=None)


def _load_features(source: str | os.PathLike | ArrayLike, columns: int, cache_mb: float) -> Dataset:
    if isinstance(source, str | os.PathLike):
        path = os.fspath(source)
        dataset = features.load(dir=path, cache_mb=cache_mb, limit=None, with_labels=False)
    else:
        dataset = features.from_array(source, cache_mb=cache_mb)
    if dataset.shape[1] != columns:
        raise ValueError(
            f"features must have {columns} columns like those of the training; got "
            f"{dataset.shape[1]}"
        )
    return dataset._replace(labels=None, label_names=None)


def _load_path(path: epath.Path, resize: Resize | None, cache_mb: float) -> Dataset:
    if not path.exists():
        raise ValueError(f"images must be an existing file or folder; got {path}")
    if path.is_dir():
        return folder.load(
            dir=str(path),
            resize=resize,
            cache_mb=cache_mb,
            max_corrupt_fraction=1.0,
            limit=None,
        )
    if path.suffix in (".npy", ".npz"):
        return arrays.load(dir=str(path), resize=resize, cache_mb=cache_mb, limit=None)
    try:
        image = decode(path.read_bytes(), resize, folder.CHANNELS)
    except Exception as error:  # Pillow raises errors of many types on damaged bytes.
        raise ValueError(
            f"images must be an image file, a folder, .npy or .npz; got {path}, which cannot be "
            "read"
        ) from error
    dataset = in_memory("folder", image[None], None, None, cache_mb)
    return dataset._replace(sources=(path.name,))


def _to_gray(dataset: Dataset) -> Dataset:
    """The data set in gray; images that were gray files keep their values."""

    def grayscale(images: np.ndarray) -> np.ndarray:
        return np.stack([np.asarray(Image.fromarray(x).convert("L")) for x in images])[..., None]

    shape = (*dataset.shape[:2], 1)
    images = None if dataset.images is None else grayscale(dataset.images)
    fetch = (lambda i: grayscale(dataset.fetch(i))) if images is None else images.__getitem__
    return dataset._replace(shape=shape, images=images, fetch=fetch)
