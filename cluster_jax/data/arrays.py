"""Images from a `.npy` or `.npz` file."""

import numpy as np
from etils import epath
from numpy.typing import ArrayLike

from cluster_jax.data.images import Dataset, fit_array, in_memory, subset


def load(*, dir: str | None, image_size: int | None, cache_mb: float, limit: int | None) -> Dataset:
    """Images `[N, H, W]` or `[N, H, W, C]` of uint8, or of floats in [0, 1] (times 255, rounded).

    A `.npz` file holds them under `images` or `x`, or as its only array, and int labels `[N]`
    under `labels` or `y` if it has any.

    Args:
        dir: path of the file, local or in a bucket.
        image_size: side of the square that each image is fitted to, or None to keep the size.
        cache_mb: larger sets, in 10^6 bytes of uint8, stay on the host.
        limit: number of images of a fixed random subset, or None for all.

    Raises:
        ValueError: missing file, no images in it, or images or labels of another kind.
    """
    path, images, labels = _read(dir)
    images = _checked(images, f"images in {path}")
    if labels is not None:
        labels = _checked_labels(labels, len(images), path)
    chosen = subset(len(images), limit)
    if len(chosen) < len(images):
        images, labels = images[chosen], None if labels is None else labels[chosen]
    return in_memory("arrays", fit_array(as_bytes(images), image_size), labels, None, cache_mb)


def in_hand(images: ArrayLike, *, image_size: int | None, cache_mb: float) -> Dataset:
    """A set from an array `X` of the caller's, of what `load` takes from a file.

    Raises:
        ValueError: not an array of images.
    """
    try:
        images = np.asarray(images)
    except ValueError as error:
        raise ValueError(
            "X is not one array: its images differ in shape; stack equal ones"
        ) from error
    checked = as_bytes(_checked(images, "images in X"))
    return in_memory("arrays", fit_array(checked, image_size), None, None, cache_mb)


def as_bytes(images: np.ndarray) -> np.ndarray:
    """Checked images as uint8 `[N, H, W, C]`."""
    if images.dtype != np.uint8:
        out = np.empty(images.shape, np.uint8)
        for i, image in enumerate(images):  # one by one: no float64 copy of the whole set
            out[i] = np.rint(image.astype(np.float64) * 255)
        images = out
    return images[..., None] if images.ndim == 3 else images


def _read(dir: str | None) -> tuple[epath.Path, np.ndarray, np.ndarray | None]:
    """Path, images and labels as stored."""
    if not dir:
        raise ValueError("data.name = 'arrays' needs data.dir, the path of a .npy or .npz file")
    path = epath.Path(dir).expanduser()
    if path.suffix not in (".npy", ".npz"):
        raise ValueError(f"{path} does not end in .npy or .npz; data.dir must name such a file")
    if not path.exists() or path.is_dir():
        raise ValueError(f"there is no file {path}; set data.dir to a .npy or .npz file")
    try:
        with path.open("rb") as file:
            stored = np.load(file, allow_pickle=False)
            arrays = dict(stored) if isinstance(stored, np.lib.npyio.NpzFile) else {"x": stored}
    # A damaged archive raises errors of zipfile and zlib as well as of NumPy.
    except Exception as error:
        raise ValueError(
            f"{path} cannot be read as NumPy arrays without pickle ({error}); save it by numpy.save"
        ) from error
    labels = arrays.pop("labels", None)
    labels = arrays.pop("y", None) if labels is None else labels
    for key in ("images", "x", *(arrays if len(arrays) == 1 else ())):
        if key in arrays:
            return path, arrays[key], labels
    raise ValueError(
        f"{path} holds {', '.join(sorted(arrays)) or 'no images'}; name the images 'images' or 'x'"
    )


def _checked(images: np.ndarray, what: str) -> np.ndarray:
    shape = " x ".join(map(str, images.shape))
    if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[-1] not in (1, 3)):
        raise ValueError(
            f"{what} have shape [{shape}], expected N x H x W, or N x H x W x C with "
            "C = 1 or 3; transpose or cut the array"
        )
    if not images.size:
        raise ValueError(f"{what} have shape [{shape}]: there is no image; fill it")
    if images.dtype == np.uint8:
        return images
    if not np.issubdtype(images.dtype, np.floating):
        raise ValueError(
            f"{what} are {images.dtype}, expected uint8 or floats in [0, 1]; convert them"
        )
    low, high = images.min(), images.max()  # NaN if any value is
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ValueError(f"{what} contain NaN or infinity; replace them by values in [0, 1]")
    if low < 0 or high > 1:
        raise ValueError(
            f"{what} are {images.dtype} from {low:g} to {high:g}, expected [0, 1]; "
            "rescale them, or store uint8"
        )
    return images


def _checked_labels(labels: np.ndarray, count: int, path: epath.Path) -> np.ndarray:
    if labels.shape != (count,) or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f"labels in {path} are {labels.dtype} of shape {labels.shape}, expected integers of "
            f"shape ({count},), one per image; correct or remove them"
        )
    bounds = np.iinfo(np.int32)
    if labels.min() < bounds.min or labels.max() > bounds.max:
        raise ValueError(f"labels in {path} do not fit into int32; renumber them")
    return labels.astype(np.int32)
