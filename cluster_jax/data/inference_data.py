"""New images for a network that was trained on others: brought to the size that it knows."""

import os

import numpy as np
from etils import epath
from numpy.typing import ArrayLike
from PIL import Image

from cluster_jax.data import arrays, folder
from cluster_jax.data.images import Dataset, decode, in_memory


def load(
    source: str | os.PathLike | ArrayLike, *, shape: tuple[int, int, int], cache_mb: float
) -> Dataset:
    """Images as uint8 `[H, W, C]`, fitted like the training images where those are square.

    Files are made gray or RGB as the training images were; those of a folder that cannot be read
    are left out and listed in `Dataset.skipped`. An array must have the right channels itself.
    Labels and class folders are ignored.

    Args:
        source: a folder, an image file, a `.npy` or `.npz` file, or an array `[N, H, W(, C)]`.
        shape: `[H, W, C]` of the training images.
        cache_mb: sets up to this size, in 10^6 bytes, are decoded into memory.

    Raises:
        ValueError: nothing there, nothing readable, or images that cannot be made to fit.
    """
    height, width, channels = shape
    common = {"image_size": height if height == width else None, "cache_mb": cache_mb}
    if not isinstance(source, str | os.PathLike):
        found = arrays.in_hand(source, **common)
    else:
        path = epath.Path(source).expanduser()
        if not path.exists():
            raise ValueError(f"there is no file or folder {path}; give images that are there")
        if path.is_dir():
            found = folder.load(dir=path, max_corrupt_fraction=1.0, limit=None, **common)
        elif path.suffix in (".npy", ".npz"):
            found = arrays.load(dir=path, limit=None, **common)
        else:
            found = _file(path, **common)
        if found.sources is not None and channels == 1:
            found = _gray(found)
    if found.shape[2] != channels:
        raise ValueError(
            f"the images have {_channels(found.shape[2])}, the run was trained on "
            f"{_channels(channels)}; convert them"
        )
    if found.shape != shape:
        raise ValueError(
            f"the images are {found.shape[0]} x {found.shape[1]}, the run was trained on "
            f"{height} x {width} (height x width); bring them to that size"
        )
    return found._replace(labels=None, label_names=None)


def _file(path: epath.Path, *, image_size: int | None, cache_mb: float) -> Dataset:
    try:
        image = decode(path.read_bytes(), image_size, folder.CHANNELS)
    except Exception as error:  # Pillow raises nearly anything on damaged bytes
        raise ValueError(
            f"{path} cannot be read as an image; give an image file, a folder, .npy or .npz"
        ) from error
    made = in_memory("folder", image[None], None, None, cache_mb)
    return made._replace(sources=(path.name,))


def _gray(dataset: Dataset) -> Dataset:
    """The same images in gray; a file that is gray itself comes back as it is."""

    def grayscale(images: np.ndarray) -> np.ndarray:
        return np.stack([np.asarray(Image.fromarray(x).convert("L")) for x in images])[..., None]

    shape = (*dataset.shape[:2], 1)
    images = None if dataset.images is None else grayscale(dataset.images)
    fetch = (lambda i: grayscale(dataset.fetch(i))) if images is None else images.__getitem__
    return dataset._replace(shape=shape, images=images, fetch=fetch)


def _channels(count: int) -> str:
    return "1 channel (gray)" if count == 1 else f"{count} channels"
