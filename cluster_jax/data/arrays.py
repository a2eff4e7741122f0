"""Images from a `.npy` or `.npz` file."""

import numpy as np
from numpy.typing import ArrayLike

from cluster_jax.data.images import DataConfig, Dataset, in_memory, resize_and_crop_all, subset
from cluster_jax.data.tables import check_labels, one_array, read_arrays


def load(config: DataConfig) -> Dataset:
    """Images `[N, H, W]` or `[N, H, W, C]` of uint8, or of floats in [0, 1] (times 255, rounded).

    The file `data.dir` is a `.npy` or `.npz`, local or in a bucket. A `.npz` file holds images
    under `images` or `x`, or as its only array, and optional int labels `[N]` under `labels` or
    `y`.

    Raises:
        ValueError: missing file, no images in it, or images or labels of an unsupported dtype,
            shape or range.
    """
    path = config.dir
    images, others = read_arrays(path, ("images", "x"))
    images = _check_images(images, f"images in {path}")
    labels = check_labels(others, len(images), path)
    indices = subset(len(images), config.limit)
    if len(indices) < len(images):
        images, labels = images[indices], None if labels is None else labels[indices]
    images = resize_and_crop_all(to_uint8(images), config.resize)
    return in_memory("arrays", images, config, labels=labels)


def from_array(X: ArrayLike, config: DataConfig) -> Dataset:
    """A data set from an array of images, of the shapes and dtypes that `load` reads from a file.

    Raises:
        ValueError: not an array of images.
    """
    images = one_array(X, "images of different shapes: stack images of one shape")
    pixels = to_uint8(_check_images(images, "images in X"))
    return in_memory("arrays", resize_and_crop_all(pixels, config.resize), config)


def to_uint8(images: np.ndarray) -> np.ndarray:
    """Images of uint8, or of floats in [0, 1], as uint8 `[N, H, W, C]`."""
    if images.dtype != np.uint8:
        pixels = np.empty(images.shape, np.uint8)
        for i, image in enumerate(images):  # one by one, to avoid a float64 copy of the whole set
            pixels[i] = np.rint(image.astype(np.float64) * 255)
        images = pixels
    return images[..., None] if images.ndim == 3 else images


def _check_images(images: np.ndarray, name: str) -> np.ndarray:
    shape, dtype = " x ".join(map(str, images.shape)), images.dtype
    if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[-1] not in (1, 3)):
        must = f"{name} must have shape [N x H x W], or [N x H x W x C] with C = 1 or 3"
        raise ValueError(f"{must}; got [{shape}]")
    if not images.size:
        raise ValueError(f"{name} must not be empty; got shape [{shape}]")
    if dtype == np.uint8:
        return images
    wanted = "must be uint8 or floats in [0, 1]"
    if not np.issubdtype(dtype, np.floating):
        raise ValueError(f"{name} {wanted}; got {dtype}")
    low, high = images.min(), images.max()  # NaN if any value is
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ValueError(f"{name} must be finite; got NaN or infinity")
    if low < 0 or high > 1:
        raise ValueError(f"{name} {wanted}; got {dtype} from {low:g} to {high:g}")
    return images
