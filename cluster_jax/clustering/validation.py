"""Checks of what an estimator is given, and distances to a few centers."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Elements of one block of distances to the centers (float64: 32 MB).
_BLOCK = 2**22


def numeric(values: ArrayLike, name: str) -> NDArray:
    """`values` as a finite array of real numbers `[n, d]`, dtype kept.

    Raises:
        ValueError, TypeError: one sentence about what is wrong, with `name` in it.
    """
    if hasattr(values, "toarray"):
        raise TypeError(f"sparse input is not supported: pass {name}.toarray()")
    if np.ma.isMaskedArray(values) and np.ma.is_masked(values):
        raise ValueError(f"{name} has masked entries: fill them or drop their rows")
    try:
        array = np.asarray(values)
        if array.dtype.kind == "O":
            array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name} cannot be read as an array of numbers: {error}") from error
    if array.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: pass real coordinates as {name}")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must hold numbers; got an array of {array.dtype}")
    if array.ndim != 2:
        raise ValueError(
            f"{name} must be a 2-D array of points by coordinates; got shape {array.shape}. "
            f"Reshape your data with {name}.reshape(-1, 1) if it has a single coordinate"
        )
    n, d = array.shape
    if n == 0 or d == 0:
        kind = "sample" if n == 0 else "feature"
        raise ValueError(
            f"{name}: Found array with 0 {kind}(s) (shape={array.shape}) while a minimum of 1 is "
            "required."
        )
    bad = ~np.isfinite(array)
    if bad.any():
        i, k = np.argwhere(bad)[0]
        raise ValueError(
            f"{name} must be finite but contains NaN or infinity in {int(bad.sum())} places, first "
            f"{array[i, k]} in row {i}, column {k}: drop or fill those rows"
        )
    return array


def check_weights(weights: ArrayLike | None, n: int) -> NDArray | None:
    """`weights` as float64 `[n]`, or one sentence about what is wrong with them."""
    if weights is None:
        return None
    try:
        weights = np.asarray(weights, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"sample_weight must hold numbers: {error}") from error
    if weights.shape != (n,):
        raise ValueError(
            f"sample_weight must have one number for each of the {n} rows; got shape "
            f"{weights.shape}"
        )
    with np.errstate(over="ignore"):
        finite = np.isfinite(weights.sum())
    if not finite or (weights < 0).any():
        raise ValueError(
            "sample_weight and its sum must be finite and nowhere negative; got numbers from "
            f"{weights.min()} to {weights.max()}"
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
