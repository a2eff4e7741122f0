"""Files of NumPy: arrays of images or features, and features that do not fit into memory.

Nothing is ever unpickled.
"""

import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath
from numpy.typing import ArrayLike, NDArray

from cluster_jax.core import arrays, buckets, checks
from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted, natural

# Optional arrays of a file that describe the rows of its main array.
ROW_METADATA = ("labels", "y", "label_names", "files", "names", "ids")
# Numbers of a block that is read at once (64 MB of float32).
_BLOCK = 2**24


def existing(path: str | None, kinds: tuple[str, ...]) -> epath.Path:
    """Returns the existing file at a path, of one of the kinds.

    Raises:
        InputError: there is none, it is of another kind, or empty.
    """
    wanted = f"must be a file of type {', '.join(kinds)}"
    if not path:
        raise InputError(f"data.dir {wanted}; got none")
    path = checks.local(path)
    file = buckets.path(path)
    if file.suffix.lower() not in kinds:
        raise InputError(f"{path} {wanted}; got {file.suffix or 'no suffix'}")
    with checks.reading(path):
        if not file.exists() or file.is_dir():
            raise InputError(f"{path} must be an existing file; got no such file")
        if not file.stat().length:
            raise InputError(f"{path} must not be empty; got 0 bytes: write or copy it again")
    return file


def read_arrays(
    path: str | None, names: Sequence[str], name: str | None = None, more: Sequence[str] = ()
) -> tuple[NDArray, dict[str, NDArray]]:
    """Reads the main array of a `.npy` or `.npz` file, and its arrays in `ROW_METADATA`.

    Args:
        path: path of the file, local or in a bucket.
        names: names of the main array of an `.npz`, by priority; else it is the only array that is
            not in `ROW_METADATA`.
        name: the name of the main array; None: one of `names`.
        more: names of further arrays beside those of `ROW_METADATA`.

    Raises:
        InputError: the file is missing, unreadable, has pickled objects, or no such array.
    """
    file = existing(path, (".npy", ".npz"))
    try:
        with file.open("rb") as stream:
            loaded = np.load(stream, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return arrays.widened(loaded), {}
            # NumPy returns other files of an archive as bytes.
            members = [m[:-4] for m in loaded.zip.namelist() if m.endswith(".npy")]
            of_rows = (*ROW_METADATA, *more)
            candidates = [key for key in members if key not in of_rows]
            names = names if name is None else (name,)
            only = candidates if len(candidates) == 1 and name is None else ()
            name = next((key for key in (*names, *only) if key in members), None)
            if name is None:
                wanted, available = " or ".join(map(repr, names)), ", ".join(sorted(candidates))
                raise InputError(
                    f"{path} must hold an array {wanted}; got {available or 'no arrays'}"
                )
            values = loaded[name]
            if not isinstance(values, np.ndarray):
                raise InputError(f"{name!r} of {path} must be an array; got other data")
            others = [key for key in of_rows if key in members and key != name]
            return arrays.widened(values), {key: loaded[key] for key in others}
    except InputError:
        raise
    except Exception as error:  # A damaged archive raises errors of zipfile, zlib and NumPy.
        raise _unreadable(path, error) from error


def _unreadable(path: object, error: Exception) -> InputError:
    """Makes the error of a file that NumPy cannot read."""
    reason = str(error).strip().split("\n")[0]
    if "pickle" in reason or "Python objects" in reason:  # NumPy takes any other content for one.
        reason = "pickled objects, which are never loaded, or other content"
    must = f"{path} must be a complete file of plain arrays of NumPy"
    return InputError(f"{must}; got {reason}: write it again")


def one_array(X: ArrayLike) -> NDArray:
    """Converts `X` to an array; raises an `InputError` for nested lists of different lengths."""
    try:
        return np.asarray(X)
    except ValueError as error:
        raise InputError("X must be one array; got parts of different shapes") from error


def strings(
    others: Mapping[str, NDArray], key: str, path: str | None, count: int | None = None
) -> tuple[str, ...] | None:
    """Returns a further array of a file as strings, or None.

    Raises:
        InputError: it is no list of strings, or has not `count` of them.
    """
    values = others.get(key)
    if values is None:
        return None
    if values.ndim != 1 or values.dtype.kind not in "Uiu":
        must = f"{key} in {path} must be a list of strings"
        raise InputError(f"{must}; got {values.dtype} of shape {values.shape}")
    if count not in (None, len(values)):
        must = f"{key} in {path} must name each of the {counted(count, 'row')}"
        raise InputError(f"{must}; got {len(values):,}")
    return tuple(map(str, values))


def check_labels(others: Mapping[str, NDArray], count: int, path: str) -> NDArray | None:
    """Returns the labels among the further arrays of a file, integers `[count]`, or None.

    Raises:
        InputError: another shape or dtype.
    """
    labels = others.get("labels", others.get("y"))
    if labels is not None and (labels.shape != (count,) or labels.dtype.kind not in "iu"):
        must = f"labels in {path} must be integers of shape ({count},), one per image"
        raise InputError(f"{must}; got {labels.dtype} of shape {labels.shape}")
    return labels


class Shards:
    """Rows `[n, d]` of `.npy` files; indexing reads the rows of a slice or of an array of integers.

    Rows are float32, or float64 where the files hold larger types. A file is open only while it is
    read, so that its pages do not count as memory of the process.

    Args:
        path: a file, or a folder of files with names that end on `.npy`.

    Attributes:
        files: paths of the files.
        starts: int64 `[files + 1]`, the first row of each file, and n.
        shape: n and d.
        dtype: type of the rows that are read.

    Raises:
        InputError: a file is missing, truncated, holds no real numbers, or has another number of
            columns than the first.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for i in range(2):
        ...         np.save(f"{folder}/part-{i}.npy", np.full((3, 2), i, np.float16))
        ...     shards = Shards(folder)
        ...     shards.shape, shards[2:4].tolist()
        ((6, 2), [[0.0, 0.0], [1.0, 1.0]])
    """

    def __init__(self, path: str) -> None:
        folder = pathlib.Path(path).expanduser()
        self.files = [folder]
        if folder.suffix.lower() != ".npy" or folder.is_dir():
            # macOS leaves files with a dot before the name.
            files = (file for file in folder.glob("*.npy") if not file.name.startswith("."))
            self.files = sorted(files, key=lambda file: natural(file.name))
        if not self.files:
            raise InputError(f"{path} must be a folder of .npy files; got none in it")
        _check_numbers([file.stem for file in self.files if file != folder])
        memories = [_open(file) for file in self.files]
        columns = memories[0].shape[1]
        for file, array in zip(self.files, memories, strict=True):
            if (width := array.shape[1]) != columns:
                like = f"{counted(columns, 'column')} like {self.files[0].name}"
                raise InputError(f"{file} must have {like}; got {width}")
        self.starts = np.cumsum([0, *(len(memory) for memory in memories)])
        self.shape = int(self.starts[-1]), columns
        # As the rows of a table in memory: large integers need float64.
        types = (arrays.widened(memory[:0]).dtype for memory in memories)
        is_small = np.result_type(np.float32, *types) == np.float32
        self.dtype = np.dtype(np.float32 if is_small else np.float64)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray:
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        rows = np.asarray(rows)
        result = np.empty((len(rows), self.shape[1]), self.dtype)
        shard = np.searchsorted(self.starts, rows, side="right") - 1
        for i in np.unique(shard):
            is_here = shard == i
            result[is_here] = arrays.widened(_open(self.files[i])[rows[is_here] - self.starts[i]])
        return result

    def blocks(self) -> Iterator[tuple[slice, NDArray]]:
        """Yields consecutive slices and their rows, at most 2^24 numbers at a time.

        Raises:
            InputError: a row is not finite.
        """
        step = max(1, _BLOCK // self.shape[1])
        for start in range(0, len(self), step):
            rows = slice(start, min(start + step, len(self)))
            values = self[rows]
            if not np.isfinite(values).all():
                i, column = np.argwhere(~np.isfinite(values))[0]
                shard = int(np.searchsorted(self.starts, start + i, side="right")) - 1
                raise InputError(
                    f"{self.files[shard]} must hold finite numbers; got {values[i, column]} at "
                    f"[{start + i - self.starts[shard]}, {column}]: drop or fill this row"
                )
            yield rows, values


def _open(file: pathlib.Path) -> np.memmap:
    """Opens a file with a table of numbers as a memory map."""
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _unreadable(file, error) from error
    if array.ndim != 2 or arrays.widened(array[:0]).dtype.kind not in "biuf" or not array.shape[1]:
        must = f"{file} must hold real numbers, rows by columns"
        raise InputError(f"{must}; got {array.dtype} of shape {array.shape}")
    return array


def _check_numbers(names: list[str]) -> None:
    """Raises an `InputError` if one of the parts named `NUMBER-of-NUMBER`, from 0, is missing."""
    matches = [re.fullmatch(r".*?(\d+)-of-(\d+)", name) for name in names]
    numbers = {int(match[1]) for match in matches if match}
    total = max((int(match[2]) for match in matches if match), default=0)
    if missing := sorted(set(range(total)) - numbers):
        raise InputError(
            f"the parts of features must be complete; got {counted(len(names), 'file')} of "
            f"{total}, and no number {missing[0]}: copy the missing one"
        )
