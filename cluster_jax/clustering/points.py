"""Checks of what an estimator is given, and distances to a few centres."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Elements of one block of distances to the centres (float64: 32 MB).
_BLOCK = 2**22


def check_points(X: ArrayLike) -> NDArray:
    """`X` as finite float64 `[n, d]`, or one sentence about what is wrong with it."""
    if hasattr(X, "toarray"):
        raise TypeError("sparse input is not supported: pass X.toarray()")
    try:
        array = np.asarray(X)
        if np.iscomplexobj(array):
            raise ValueError("Complex data not supported: pass real coordinates")
        array = np.asarray(array, np.float64)
    except TypeError as error:
        raise TypeError(f"X cannot be read as an array of numbers: {error}") from error
    if array.ndim != 2:
        raise ValueError(
            f"X must be a 2-D array of points by coordinates; got shape {array.shape}. "
            "Reshape your data with X.reshape(-1, 1) if it has a single coordinate"
        )
    n, d = array.shape
    if n == 0 or d == 0:
        kind = "sample" if n == 0 else "feature"
        raise ValueError(
            f"Found array with 0 {kind}(s) (shape={array.shape}) while a minimum of 1 is required."
        )
    bad = ~np.isfinite(array)
    if bad.any():
        i, k = np.argwhere(bad)[0]
        raise ValueError(
            f"X must be finite but contains NaN or infinity in {int(bad.sum())} places, first "
            f"{array[i, k]} in row {i}, column {k}: drop or fill those rows"
        )
    return array


def check_weights(weights: ArrayLike | None, n: int) -> NDArray | None:
    """`weights` as float64 `[n]`, or one sentence about what is wrong with them."""
    if weights is None:
        return None
    weights = np.asarray(weights, np.float64)
    if weights.shape != (n,):
        raise ValueError(
            f"sample_weight must have one number for each of the {n} rows; got shape "
            f"{weights.shape}"
        )
    if not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise ValueError(
            "sample_weight must be finite, nowhere negative and not zero everywhere; got numbers "
            f"from {weights.min()} to {weights.max()}"
        )
    return weights


def nearest(points: NDArray, centers: NDArray) -> NDArray:
    """Row of `centers` `[k, d]` closest to each of `points` `[n, d]`, by blocks of bounded size."""
    closest = np.empty(len(points), np.int64)
    rows = max(1, _BLOCK // centers.size)
    for start in range(0, len(points), rows):
        block = points[start : start + rows]
        apart = block[:, None, :] - centers[None, :, :]
        closest[start : start + rows] = np.argmin((apart**2).sum(axis=2), axis=1)
    return closest
