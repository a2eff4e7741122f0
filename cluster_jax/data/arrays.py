"""Files of NumPy: arrays of images or features, and features that do not fit into memory.

Nothing is ever unpickled.
"""

import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cluster_jax.core import arrays, checks, io
from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted, natural

# Optional arrays of a file that describe the rows of its main array.
ROW_METADATA = ("labels", "y", "label_names", "files", "names", "ids")


def existing(path: str | None, kinds: tuple[str, ...]) -> pathlib.Path:
    """Returns the existing file at a path, of one of the kinds.

    Args:
        path: the file; `~` is the home folder. None or "" raises an error, as of a missing
            `data.dir`.
        kinds: suffixes in lower case, such as ".npy". That of the file may have another case.

    Raises:
        InputError: there is no such file, its suffix is another one, or the path is an address such
            as `gs://...`.
    """
    wanted = f"must be a file of type {', '.join(kinds)}"
    if not path:
        raise InputError(f"data.dir {wanted}; got none")
    file = pathlib.Path(checks.local(path)).expanduser()
    if file.suffix.lower() not in kinds:
        raise InputError(f"{path} {wanted}; got {file.suffix or 'no suffix'}")
    if not file.is_file():
        raise InputError(f"{path} must be an existing file; got no such file")
    return file


def read_arrays(
    path: str | None, names: Sequence[str], name: str | None = None, more: Sequence[str] = ()
) -> tuple[NDArray, dict[str, NDArray], list[str]]:
    """Reads the main array of a `.npy` or `.npz` file, and its arrays in `ROW_METADATA`.

    Args:
        path: path of the file; None and "" raise an error, as of a missing `data.dir`.
        names: names of the main array of an `.npz`, by priority. If the file has none of them, the
            main array is its only array beside `ROW_METADATA` and `more`. A `.npy` file has one
            array, and this and the next two arguments have no effect.
        name: the name of the main array, instead of `names`; None: as above.
        more: names of further arrays that are read like those of `ROW_METADATA`.

    Returns:
        The main array, of any shape and dtype; of an `.npz`, the arrays of `ROW_METADATA` and
        `more` that it has, by name; and the name of the main array, "" of `.npy`, and after it
        those of the arrays that are not read.

    Raises:
        InputError: the file is missing, unreadable, has pickled objects, or no such array.
        MemoryError: it does not fit into memory.
    """
    file = existing(path, (".npy", ".npz"))
    try:
        with io.in_memory(path), file.open("rb") as stream:
            loaded = np.load(stream, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded, {}, [""]
            of_rows = [key for key in loaded.files if key in (*ROW_METADATA, *more)]
            others = [key for key in loaded.files if key not in of_rows]
            wanted = [key for key in names if key not in more] if name is None else [name]
            only = others if name is None and len(others) == 1 else ()
            name = next((key for key in (*wanted, *only) if key in loaded.files), None)
            if name is None:
                must = f"{path} must hold an array {' or '.join(map(repr, wanted))}"
                raise InputError(f"{must}; got {', '.join(sorted(loaded.files)) or 'no arrays'}")
            described = {key: loaded[key] for key in of_rows if key != name}
            return loaded[name], described, [name, *(key for key in others if key != name)]
    except (InputError, MemoryError):
        raise
    except Exception as error:  # A damaged archive raises errors of zipfile, zlib and NumPy.
        raise _unreadable(path, error) from error


def _unreadable(path: object, error: Exception) -> InputError:
    """Returns the error of a file that NumPy cannot read; `error` is what NumPy has raised."""
    reason = str(error).strip().split("\n")[0]
    if "pickle" in reason or "Python objects" in reason:  # NumPy takes any other content for one.
        reason = "pickled objects, which are never loaded, or other content"
    must = f"{path} must be a complete file of plain arrays of NumPy"
    return InputError(f"{must}; got {reason}: write it again")


def labels_in(others: Mapping[str, NDArray], count: int, path: str) -> NDArray | None:
    """Returns the labels among the further arrays of a file, integers `[count]`, or None.

    Args:
        others: the further arrays, of which `labels`, else `y`, are the labels.
        count: number of images.
        path: the file, for messages.

    Raises:
        InputError: the labels have another shape, or are no integers.
    """
    labels = others.get("labels", others.get("y"))
    if labels is not None and (labels.shape != (count,) or labels.dtype.kind not in "iu"):
        must = f"labels in {path} must be integers of shape ({count},), one per image"
        raise InputError(f"{must}; got {labels.dtype} of shape {labels.shape}")
    return labels


def as_floats(values: Any, path: object) -> NDArray:
    """Returns an array of real numbers as float32, or float64 if float32 does not hold its dtype.

    So int32 becomes float64, and a mask float32. The array itself is returned if its dtype fits.

    Args:
        values: an array; a list must be converted before.
        path: the source of the array, for messages.

    Raises:
        InputError: the array does not hold real numbers.
    """
    values = arrays.widened(values)
    if values.dtype.kind not in "biuf":
        raise InputError(f"{path} must hold real numbers; got {_kind(values.dtype)}")
    return values.astype(_float_type(values.dtype), copy=False)


def _kind(dtype: np.dtype) -> str:
    """Returns the name of a dtype for a message; NumPy saves bfloat16 as bytes without a type."""
    if dtype.kind == "V":
        return f"{dtype} (save bfloat16 as float32)"
    return str(dtype)


def _float_type(*dtypes: np.dtype) -> np.dtype:
    """Returns float32 if it holds the numbers of all these types, else float64."""
    is_small = np.result_type(np.float32, *dtypes) == np.float32
    return np.dtype(np.float32 if is_small else np.float64)


class Shards:
    """Rows `[n, d]` of `.npy` files; a slice or an array of integers reads some of them.

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
        InputError: a file is missing, truncated, is no table of real numbers, or has another number
            of columns than the first; or one of the parts named `NUMBER-of-NUMBER` is missing.

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
        self.dtype = _float_type(*(memory.dtype for memory in memories))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray:
        """Returns copies of some rows, float32 or float64 `[m, d]`.

        Args:
            rows: a slice, or integers `[m]` from 0 to n - 1, in any order. A mask or negative
                numbers are not refused, but read other rows or raise an IndexError.

        Raises:
            InputError: a file has been removed or damaged since.
            IndexError: an index is out of range.
            TypeError: `rows` is a single integer.
        """
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        rows = np.asarray(rows)
        result = np.empty((len(rows), self.shape[1]), self.dtype)
        shard = np.searchsorted(self.starts, rows, side="right") - 1
        for i in np.unique(shard):
            is_here = shard == i
            result[is_here] = _open(self.files[i])[rows[is_here] - self.starts[i]]
        return result

    def blocks(self) -> Iterator[tuple[slice, NDArray]]:
        """Yields consecutive slices and their rows, see `core.arrays.blocks`.

        Raises:
            InputError: a row is not finite, or a file has been removed or damaged since.
        """
        for rows in arrays.blocks(*self.shape):
            values = self[rows]
            if not np.isfinite(values).all():
                row = rows.start + int(np.argmin(np.isfinite(values).all(axis=1)))
                shard = int(np.searchsorted(self.starts, row, side="right")) - 1
                must = f"{self.files[shard]} must hold finite numbers"
                got = f"NaN or infinity in row {row - self.starts[shard]}"
                raise InputError(f"{must}; got {got}: drop or fill it")
            yield rows, values


def _open(file: pathlib.Path) -> np.memmap:
    """Opens a file with a table of numbers as a memory map.

    Raises:
        InputError: the file cannot be read, or has no real numbers `[n, d]` with a column.
    """
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _unreadable(file, error) from error
    if array.ndim != 2 or array.dtype.kind not in "biuf" or not array.shape[1]:
        must = f"{file} must hold real numbers, rows by columns"
        raise InputError(f"{must}; got {_kind(array.dtype)} of shape {array.shape}")
    return array


def _check_numbers(names: list[str]) -> None:
    """Raises an `InputError` if one of the parts named `NUMBER-of-NUMBER`, from 0, is missing.

    `names` are those of all files without suffixes; other names do not matter.
    """
    matches = [re.fullmatch(r".*?(\d+)-of-(\d+)", name) for name in names]
    numbers = {int(match[1]) for match in matches if match}
    total = max((int(match[2]) for match in matches if match), default=0)
    if missing := sorted(set(range(total)) - numbers):
        got = f"{counted(len(names), 'file')} of {total}, and no number {missing[0]}"
        raise InputError(f"the parts of features must be complete; got {got}: copy the missing one")
