"""Vectors and labels from files: `.npy`, `.npz` and text. Nothing is ever unpickled."""

import array
import csv
import itertools
import pathlib
import zipfile
from collections.abc import Iterator
from typing import NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from cluster_jax import settings


class Table(NamedTuple):
    """Vectors, float `[n, d]`, and the name of each, or None."""

    values: NDArray
    names: tuple[str, ...] | None


class Labels(NamedTuple):
    """Labels as numbers from 0, int32 `[n]`, and the name of each number."""

    codes: NDArray
    names: tuple[str, ...]


def read_table(path: str, name: str | None) -> Table:
    """Vectors of a `.npy`, `.npz` or `.csv` file.

    A `.csv` has commas, one row per vector, with or without a line of titles; if the first column
    is not of numbers, it holds the names of the rows.

    Args:
        path: the file.
        name: which array of an `.npz`; None: the only one.

    Raises:
        InputError: the file is not there or holds no such vectors.
    """
    kind = _kind(path, (".npy", ".npz", ".csv"))
    if kind == ".csv":
        return _read_csv(path)
    values = _read_array(path, name)
    if values.dtype.kind not in "biuf":
        raise settings.InputError(f"{path} must hold real numbers; it holds {values.dtype}")
    if values.dtype.kind != "f":
        small = values.dtype.kind == "b" or values.dtype.itemsize <= 2
        values = values.astype(np.float32 if small else np.float64)
    elif values.dtype not in (np.float32, np.float64):
        values = values.astype(np.float32 if values.dtype.itemsize <= 4 else np.float64)
    return Table(values, None)


def read_labels(path: str, name: str | None, rows: int) -> Labels:
    """Labels, whole numbers or texts, from a `.npy`, `.npz`, `.csv` or `.txt` file.

    Text files have one label per line. A `.csv` with one line more than `rows` begins with a
    title.

    Raises:
        InputError: the file is not there, holds no labels, or not `rows` of them.
    """
    kind = _kind(path, (".npy", ".npz", ".csv", ".txt"))
    values = _read_lines(path, kind, rows) if kind in (".csv", ".txt") else _read_array(path, name)
    if values.ndim != 1 or values.dtype.kind not in "biuUS":
        raise settings.InputError(
            f"{path} must hold one whole number or text per row; it holds {values.dtype} of shape "
            f"{values.shape}"
        )
    if len(values) != rows:
        raise settings.InputError(
            f"features and labels must have the same length; got {rows:,} and {len(values):,}"
        )
    present, codes = np.unique(values, return_inverse=True)
    names = (v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in present)
    return Labels(codes.astype(np.int32), tuple(names))


def _kind(path: str, kinds: tuple[str, ...]) -> str:
    file = pathlib.Path(path)
    if file.suffix.lower() not in kinds:
        raise settings.InputError(f"{path} must be a file of type {', '.join(kinds)}")
    if not file.is_file():
        raise settings.InputError(f"there is no file {path}")
    return file.suffix.lower()


def _read_array(path: str, name: str | None) -> NDArray:
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            names = loaded.files
            if name is None and len(names) == 1:
                return loaded[names[0]]
            if name not in names:
                wanted = "several arrays" if name is None else f"no array {name!r}"
                raise settings.InputError(
                    f"{path} holds {wanted}; name one of: {', '.join(names) or '(it is empty)'}"
                )
            return loaded[name]
    except settings.InputError:
        raise
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        if "allow_pickle" in str(error):
            raise settings.InputError(
                f"{path} holds pickled Python objects, which are never loaded; save plain numbers"
            ) from error
        raise settings.InputError(f"{path} cannot be read: {_line(error)}") from error


def _read_csv(path: str) -> Table:
    """Numbers in rows; the first line may be titles, the first column names."""
    values, names = array.array("d"), []
    with _open(path) as file:
        lines = _lines(path, file)
        head = list(itertools.islice(lines, 2))
        if not head:
            raise settings.InputError(f"{path} is empty")
        _, sample = head[-1]
        width, named = len(sample), 0 if _is_number(sample[0]) else 1
        if named == width:
            raise settings.InputError(f"{path} has no columns of numbers; separate them by commas")
        if len(head) > 1 and not all(map(_is_number, head[0][1][named:])):
            del head[0]  # titles
        for number, line in itertools.chain(head, lines):
            if len(line) != width:
                raise settings.InputError(
                    f"{path}, line {number}: {len(line)} columns, where others have {width}"
                )
            try:
                values.extend(map(float, line[named:]))
            except ValueError as error:
                where = next(i for i in range(named, width) if not _is_number(line[i]))
                raise settings.InputError(
                    f"{path}, line {number}, column {where + 1}: {line[where]!r} is not a number"
                ) from error
            names += line[:named]
    table = np.array(values).reshape(-1, width - named)
    return Table(table, tuple(names) if named else None)


def _read_lines(path: str, kind: str, rows: int) -> NDArray:
    """One label per line: numbers if all are, else texts."""
    with _open(path) as file:
        if kind == ".txt":
            values = [line.strip() for line in file]
        else:
            lines = [line for _, line in _lines(path, file)]
            wide = next((i for i, line in enumerate(lines) if len(line) > 1), None)
            if wide is not None:
                raise settings.InputError(
                    f"{path} must have one column, the labels; row {wide + 1} has "
                    f"{len(lines[wide])}"
                )
            values = [line[0].strip() for line in lines]
    while values and not values[-1]:
        values.pop()
    if kind == ".csv" and len(values) == rows + 1:
        values = values[1:]
    try:
        return np.array([int(value) for value in values], np.int64)
    except (ValueError, OverflowError):
        return np.array(values)


def _open(path: str) -> TextIO:
    """A text file; bytes that are no UTF-8 are kept as they are."""
    return open(path, encoding="utf-8-sig", errors="surrogateescape", newline="")


def _lines(path: str, file: TextIO) -> Iterator[tuple[int, list[str]]]:
    """The lines that are not blank, as cells, each with its number."""
    reader = csv.reader(file)
    try:
        for line in reader:
            if line:
                yield reader.line_num, line
    except csv.Error as error:
        raise settings.InputError(f"{path}, line {reader.line_num}: {error}") from error


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
