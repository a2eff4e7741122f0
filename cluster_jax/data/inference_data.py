"""Data for inference: new images or features, in the shape of the training data."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from etils import epath
from numpy.typing import ArrayLike

from cluster_jax.data import arrays, features, folder
from cluster_jax.data.images import (
    DataConfig,
    Dataset,
    decode,
    in_memory,
    readable,
    select,
    with_channels,
)


def load(
    source: str | os.PathLike | ArrayLike,
    config: DataConfig,
    shape: Sequence[int],
    share: Callable[[int], range] | None = None,
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
        share: number of images -> those to load, of which files are decoded; None: all.

    Raises:
        ValueError: the file is missing or unreadable, or the images differ in size from the
            training images.
    """
    path = os.fspath(source) if isinstance(source, str | os.PathLike) else None
    is_features, (height, width, *_) = len(shape) == 2, shape
    side = height if height == width and not is_features else None
    # All new images, whatever the training left out.
    new: dict[str, Any] = {"limit": None, "max_corrupt_fraction": 1.0, "crop": "square"}
    new |= {} if share is None else {"cache_mb": 0}
    config = dataclasses.replace(config, dir=path, image_size=side, **new)
    if not isinstance(source, str | os.PathLike):
        dataset = (features if is_features else arrays).from_array(source, config)
    elif is_features:
        dataset = features.load(config, with_labels=False)
    else:
        dataset = _load_path(str(path), config)
    if is_features:
        if (columns := dataset.shape[1]) != width:
            like = f"{width} columns like those of the training"
            raise ValueError(f"features must have {like}; got {columns}")
    else:
        dataset = with_channels(dataset, shape[2])
        if dataset.shape != tuple(shape):
            must = f"images must be {height} x {width} (height x width) like the training images"
            raise ValueError(f"{must}; got {dataset.shape[0]} x {dataset.shape[1]}")
    if share is not None:
        dataset = select(dataset, np.array(share(dataset.size)))
    return readable(dataset)._replace(labels=None, label_names=None)


def _load_path(path: str, config: DataConfig) -> Dataset:
    file = epath.Path(path).expanduser()
    if not file.exists():
        raise ValueError(f"images must be an existing file or folder; got {path}")
    if file.is_dir():
        return folder.load(config)
    if file.suffix in (".npy", ".npz"):
        return arrays.load(config)
    try:
        image = decode(file.read_bytes(), config.resize, folder.CHANNELS)
    except Exception as error:  # Pillow raises errors of many types on damaged bytes.
        kinds = "an image file, a folder, .npy or .npz"
        raise ValueError(f"images must be {kinds}; got {path}, which cannot be read") from error
    return in_memory("folder", image[None], config, sources=(file.name,))
