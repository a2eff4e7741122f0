"""Input validation of the estimators."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array


def numeric(values: ArrayLike, name: str) -> NDArray:
    """`values` as a finite array of real numbers `[n, d]`, dtype kept (objects become float64).

    Extends scikit-learn's `check_array`: also rejects masks and dates, checks the number of
    dimensions and names the position of a non-finite value.

    Raises:
        ValueError, TypeError: the input is invalid.

    Example:
        >>> numeric([[1, 2], [3, 4]], "X").dtype.kind
        'i'
        >>> numeric([[1.0], [float("nan")]], "X")
        Traceback (most recent call last):
        ValueError: X must be finite; got NaN or infinity in 1 of 2 rows, first nan at [1, 0]
    """
    if np.ma.isMaskedArray(values) and np.ma.is_masked(values):
        raise ValueError(
            f"{name} must have no masked entries; got {np.ma.count_masked(values)}: fill them or "
            "drop their rows"
        )
    try:
        array = check_array(
            values, dtype="numeric", ensure_2d=False, allow_nd=True, ensure_all_finite=False
        )
    except (TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise type(error)(f"{name} must be an array of numbers; got an error: {reason}") from error
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must hold numbers; got an array of {array.dtype}")
    if array.ndim != 2:
        raise ValueError(
            f"{name} must be a 2-D array, rows by columns; got shape {array.shape}. Reshape your "
            f"data with {name}.reshape(-1, 1) if it has a single column"
        )
    finite = np.isfinite(array)
    if not finite.all():
        rows = int((~finite).any(axis=1).sum())
        i, k = np.argwhere(~finite)[0]
        raise ValueError(
            f"{name} must be finite; got NaN or infinity in {rows} of {len(array)} rows, first "
            f"{array[i, k]} at [{i}, {k}]"
        )
    return array
