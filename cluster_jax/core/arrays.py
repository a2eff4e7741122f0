"""NumPy functions on feature arrays: L2 normalization, cluster means, distances, checks.

`core.ops` has the counterparts for JAX arrays inside a training step.
"""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.utils import check_array

from cluster_jax.core import checks
from cluster_jax.core.checks import InputError

# Elements of a float64 block of rows (32 MB), so that a large data set is never copied whole.
_BLOCK = 2**22


@runtime_checkable
class Rows(Protocol):
    """Rows `[n, d]` that are read a part at a time: a memory map, or `data.arrays.Shards`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows and of columns."""

    @property
    def dtype(self) -> np.dtype:
        """Type of the numbers."""

    def __getitem__(self, rows: Any, /) -> Any:
        """Reads the rows of a slice, or of an array of integers."""


def blocks(n_rows: int, n_columns: int) -> Iterator[slice]:
    """Yields consecutive slices of rows: at most 2^22 numbers in a slice, but at least one row.

    Example:
        >>> [(rows.start, rows.stop) for rows in blocks(5, 2**21)]
        [(0, 2), (2, 4), (4, 5)]
    """
    step = max(1, _BLOCK // max(1, n_columns))
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


def normalize_rows(x: NDArray) -> NDArray:
    """Scales rows of `x` `[n, d]` to length one, in the dtype of `x`; a row of zeros stays zero.

    Args:
        x: finite numbers `[n, d]`; if they are integers, the result is float64.
    """
    if x.dtype.kind != "f":
        x = x.astype(np.float64)
    with np.errstate(over="ignore", under="ignore"):
        norms = np.linalg.norm(x, axis=1, keepdims=True)
    # Rows whose squares overflow or underflow.
    is_extreme = ~np.isfinite(norms[:, 0]) | (norms[:, 0] < np.sqrt(np.finfo(x.dtype).tiny))
    if is_extreme.any():
        x, rows = x.copy(), x[is_extreme]
        largest = np.abs(rows).max(axis=1, keepdims=True, initial=0)
        x[is_extreme] = rows / np.where(largest > 0, largest, 1)
        norms[is_extreme] = np.linalg.norm(x[is_extreme], axis=1, keepdims=True)
    return x / np.where(norms > 0, norms, 1)


def cluster_means(x: NDArray, labels: NDArray, counts: NDArray | None = None) -> NDArray:
    """Computes the mean row of each cluster, float64 `[k, d]`; k is the highest label plus 1.

    Args:
        x: `[n, d]`.
        labels: cluster of each row, int `[n]`, 0 or more. The mean of an empty cluster is zero.
        counts: int `[n]`, how often each row counts; None: once.

    Example:
        >>> rows, labels = np.array([[0.0], [3.0], [9.0]]), np.array([0, 0, 1])
        >>> cluster_means(rows, labels, np.array([2, 1, 1])).tolist()
        [[1.0], [9.0]]
    """
    columns = x.T if counts is None else (counts * column for column in x.T)
    sums = np.stack([np.bincount(labels, column) for column in columns], axis=1)
    return sums / np.maximum(np.bincount(labels, counts), 1)[:, None]


def distances_to_centers(x: NDArray, centers: NDArray, labels: NDArray) -> NDArray:
    """Computes each row's Euclidean distance to the center of its cluster, float64 `[n]`.

    Args:
        x: `[n, d]`.
        centers: `[k, d]`.
        labels: cluster of each row, int `[n]`, 0 to k - 1.
    """
    distances = np.empty(len(x), np.float64)
    for rows in blocks(*x.shape):
        differences = x[rows].astype(np.float64) - centers[labels[rows]].astype(np.float64)
        distances[rows] = np.linalg.norm(differences, axis=1)
    return distances


def widened(values: Any) -> Any:
    """Returns bfloat16, a type that NumPy does not know, as float32; other values unchanged."""
    is_short = getattr(values, "dtype", None) == ml_dtypes.bfloat16
    return np.asarray(values).astype(np.float32) if is_short else values


def numeric(values: ArrayLike, name: str, largest: float = np.inf) -> NDArray:
    """Returns `values` as finite real numbers `[n, d]`, dtype kept (objects become float64).

    Extends scikit-learn's `check_array`: also rejects masks and dates, and says in which row a
    number is not finite.

    Raises:
        InputError, TypeError: the input is invalid, or has a number beyond `largest`.

    Example:
        >>> numeric([[1, 2], [3, 4]], "X").dtype.kind
        'i'
        >>> numeric([[1.0], [float("nan")]], "X")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        cluster_jax.core.checks.InputError: X must be finite; got NaN or infinity in row 1: ...
    """
    check_unmasked(values, name)
    try:
        array = check_array(widened(values), ensure_all_finite=False, input_name=name)
    except (TypeError, ValueError) as error:
        got = _vectors_in(values, name) or f"an error: {error}"
        said = f"{name} must be numbers, rows by columns; got {got}"
        kind = TypeError if isinstance(error, TypeError) else InputError
        raise kind(checks.sentence(" ".join(said.split()))) from error
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} must hold numbers; got an array of {array.dtype}")
    is_finite = np.isfinite(array).all(axis=1)
    if not is_finite.all():
        got = f"NaN or infinity in row {int(np.argmin(is_finite))}"
        raise InputError(f"{name} must be finite; got {got}: drop or fill it")
    size = max(float(array.max(initial=0)), -float(array.min(initial=0)))
    if size > largest:
        wanted = f"between -{largest:g} and {largest:g}, so that their squares are numbers"
        raise InputError(f"{name} must be {wanted}; got {size:g}: scale them")
    return array


def rows_of(values: Any, name: str, largest: float = np.inf) -> Rows:
    """Returns rows that are read in blocks, such as `Shards`, as they are; others as `numeric`.

    The former have a shape and a type, and nothing that makes an array of all of them.
    """
    is_array = hasattr(values, "__array__") or sparse.issparse(values)
    if isinstance(values, Rows) and not is_array:
        return values
    return numeric(values, name, largest)


def _vectors_in(values: Any, name: str) -> str | None:
    """Says which column of a table of pandas has vectors in its cells; None if none has."""
    if isinstance(getattr(values, "name", None), str) and hasattr(values, "to_frame"):
        values = values.to_frame()
    if not len(getattr(values, "columns", ())):
        return None
    for title in values.columns:
        column = values[title]
        if len(column) and isinstance(column.iloc[0], list | tuple | np.ndarray):
            return f"vectors in the column {title}: pass np.stack({name}[{title!r}])"
    return None


def check_unmasked(values: ArrayLike, name: str) -> None:
    """Raises an `InputError` if `values` is a masked array with masked entries."""
    if np.ma.is_masked(values):
        raise InputError(f"{name} must have no masked entries; got some: drop or fill their rows")


def one_per_row(values: ArrayLike, name: str, n: int) -> NDArray:
    """Returns `values` as an array `[n]`, such as a label of each row.

    Raises:
        InputError: the shape is another one.
    """
    array = np.asarray(values)
    if array.shape != (n,):
        must = f"{name} must have one entry for each of the {n} rows"
        raise InputError(f"{must}; got shape {array.shape}")
    return array
