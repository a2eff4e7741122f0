"""Features that do not fit into memory: `.npy` files, read a part at a time.

One table may lie in one file or in a folder of shards, files of equally many columns that are read
in the order of their names, in which numbers are numbers. Nothing is ever unpickled.
"""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.core import arrays, buckets
from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted, natural

# Numbers of a block that is read at once (64 MB of float32).
_BLOCK = 2**24


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
        folder = buckets.path(path)
        self.files = [folder]
        if folder.suffix.lower() != ".npy" or folder.is_dir():
            # macOS leaves files with a dot before the name.
            names = (name for name in buckets.names(folder) if not name.startswith("."))
            names = (name for name in names if name.endswith(".npy"))
            self.files = [folder / name for name in sorted(names, key=natural)]
        if not self.files:
            raise InputError(f"{path} must be a folder of .npy files; got none in it")
        if self.files != [folder]:
            _check_numbers([file.stem for file in self.files])
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
            start, stop, step = rows.indices(len(self))
            if step == 1:
                return self._range(start, max(start, stop))
            rows = np.arange(start, stop, step)
        rows = np.asarray(rows)
        result = np.empty((len(rows), self.shape[1]), self.dtype)
        shard = np.searchsorted(self.starts, rows, side="right") - 1
        for i in np.unique(shard):
            is_here = shard == i
            result[is_here] = arrays.widened(_open(self.files[i])[rows[is_here] - self.starts[i]])
        return result

    def _range(self, start: int, stop: int) -> NDArray:
        result = np.empty((stop - start, self.shape[1]), self.dtype)
        for file, low, high in zip(self.files, self.starts[:-1], self.starts[1:], strict=True):
            first, last = max(start, int(low)), min(stop, int(high))
            if first < last:
                part = _open(file)[first - low : last - low]
                result[first - start : last - start] = arrays.widened(part)
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


def _open(file: epath.Path) -> np.memmap:
    """Opens a file with a table of numbers as a memory map."""
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        message = str(error).split("\n")[0]
        if "greater than file size" in message:
            message = f"only {file.stat().length:,} bytes, fewer than its header says"
        if "pickled (object)" in message:  # NumPy takes any other content for a pickle.
            message = "other content"
        must = f"{file} must be a complete .npy file of numbers"
        raise InputError(f"{must}; got {message}: write it again") from error
    if array.ndim != 2 or arrays.widened(array[:0]).dtype.kind not in "biuf" or not array.shape[1]:
        must = f"{file} must hold real numbers, rows by columns"
        raise InputError(f"{must}; got {array.dtype} of shape {array.shape}")
    return array


def _check_numbers(names: list[str]) -> None:
    """Raises an `InputError` if names that count the shards from 0 or 1 leave one out.

    Names count if they end on a number, or on `number-of-number`, which also tells the last one.
    """
    matches = [re.fullmatch(r"(.*?)(\d+)(?:-of-(\d+))?", name) for name in names]
    if None in matches or len({match[1] for match in matches if match}) > 1:
        return
    numbers = sorted(int(match[2]) for match in matches if match)
    totals = [int(match[3]) for match in matches if match and match[3]]
    first = min(numbers[0], 1)
    count = max(totals, default=numbers[-1] - first + 1)
    missing = sorted(set(range(first, first + count)) - set(numbers))
    if missing and (totals or numbers[0] <= 1):
        raise InputError(
            f"the shards must be numbered without a gap; got {counted(len(names), 'file')} from "
            f"{names[0]} to {names[-1]}, and no number {missing[0]}: copy the missing shard"
        )
