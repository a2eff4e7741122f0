"""Real sets with labels: those of scikit-learn, and files of features or images."""

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets

BUNDLED = ("iris", "wine", "breast_cancer", "digits")
# Rows of a file, at most: the first ones.
_ROWS = 5_000


def load(name: str, path: str | None) -> tuple[NDArray, NDArray, str]:
    """Rows float32 `[n, d]`, classes int64 `[n]`, and the distance that suits them.

    Args:
        name: one of `BUNDLED`, or any name of a file.
        path: `.npz` with `labels` and `features` `[n, d]` (`[n, v, d]`: view 0 is taken), which are
            compared by cosine, or `images` uint8, whose pixels are compared by Euclidean distance.
    """
    if path is None:
        x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        if name in ("wine", "breast_cancer"):  # Columns in units of their own.
            x = (x - x.mean(axis=0)) / x.std(axis=0)
        return x.astype(np.float32), y.astype(np.int64), "euclidean"
    with np.load(path) as arrays:
        y = arrays["labels"][:_ROWS].astype(np.int64)
        name = "images" if "images" in arrays else "features"
        x = arrays[name][:_ROWS]
    if name == "images":
        return (x.reshape(len(y), -1) / 255).astype(np.float32), y, "euclidean"
    x = x[:, 0] if x.ndim == 3 else x
    return x.astype(np.float32), y, "cosine"
