"""Arrays of a `.npy` or `.npz` file, local or in a bucket. Nothing is ever unpickled."""

from collections.abc import Sequence

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.core import limits
from cluster_jax.core.checks import InputError

# Optional arrays of a file that describe the rows of its main array.
ROW_METADATA = ("labels", "y", "label_names", "files")


def read_archive(
    dir: str | None, names: Sequence[str]
) -> tuple[epath.Path, NDArray, dict[str, NDArray]]:
    """The main array of a file and its other arrays.

    Args:
        dir: path of the file.
        names: names of the main array in a `.npz` file, by priority; else the main array is the
            only array that is not in `ROW_METADATA`.

    Returns:
        The path, the main array, and the other arrays by name.

    Raises:
        ValueError: the file is missing, unreadable, or has no main array.
    """
    if not dir:
        raise ValueError("data.dir must be the path of a .npy or .npz file; got none")
    path = epath.Path(dir).expanduser()
    if path.suffix not in (".npy", ".npz"):
        raise ValueError(f"data.dir must be a .npy or .npz file; got {path}")
    if not path.exists() or path.is_dir():
        raise ValueError(f"data.dir must be an existing .npy or .npz file; got {path}")
    try:
        with path.open("rb") as file:
            limits.check_archive(path, file)
            stored = np.load(file, allow_pickle=False)
            loaded = dict(stored) if isinstance(stored, np.lib.npyio.NpzFile) else {"x": stored}
    except InputError:
        raise
    # A damaged archive raises errors of zipfile, zlib and NumPy.
    except Exception as error:
        raise ValueError(
            f"{path} must hold NumPy arrays without pickled objects; got an error: {error}"
        ) from error
    candidates = [key for key in loaded if key not in ROW_METADATA]
    for key in (*names, *(candidates if len(candidates) == 1 else ())):
        if key in loaded:
            return path, loaded.pop(key), loaded
    raise ValueError(
        f"{path} must hold an array {' or '.join(map(repr, names))}; got "
        f"{', '.join(sorted(candidates)) or 'no arrays'}"
    )


def check_labels(labels: NDArray, count: int, path: epath.Path) -> NDArray:
    """Labels as int32 `[count]`; raises a `ValueError` for another shape or dtype."""
    if labels.shape != (count,) or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f"labels in {path} must be integers of shape ({count},), one per image; got "
            f"{labels.dtype} of shape {labels.shape}"
        )
    bounds = np.iinfo(np.int32)
    if labels.min() < bounds.min or labels.max() > bounds.max:
        raise ValueError(
            f"labels in {path} must be in the range of int32; got {labels.min()} to {labels.max()}"
        )
    return labels.astype(np.int32)
