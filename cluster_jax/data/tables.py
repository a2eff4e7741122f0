"""Tables of features whose columns have names, CSV and Parquet; and the ids and labels of rows."""

import csv
import json
import math
import os
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.core import arrays, checks
from cluster_jax.core.checks import InputError, short
from cluster_jax.core.names import counted
from cluster_jax.data.arrays import Shards, existing, read_arrays, strings

# Files with titles of columns.
SUFFIXES = (".csv", ".parquet")
# Numbers of `.npy` features from which they are read in blocks (1 GB of float32).
LARGE = 2**28


class Table(NamedTuple):
    """Features, and the ids of their rows.

    Attributes:
        values: features, float `[n, d]`, in memory or in shards.
        names: id of each row; None: they are numbered.
        ids: the column, array or file of the ids, or None.
        columns: titles of the columns that the features are, or None.
        left_out: titles of columns that are neither features nor ids.
    """

    values: Any  # NDArray or Shards
    names: tuple[str, ...] | None = None
    ids: str | None = None
    columns: tuple[str, ...] | None = None
    left_out: tuple[str, ...] = ()

    @property
    def described(self) -> str:
        """Says in a line which columns are features, which are left out, and what rows are called.

        It is "" if nothing was chosen.
        """
        parts = {
            "features": ", ".join(self.columns or ()),
            "ids of rows": self.ids,
            "left out": ", ".join(self.left_out),
        }
        return "; ".join(f"{name}: {short(text)}" for name, text in parts.items() if text)


class Labels(NamedTuple):
    """Labels as codes from 0, int32 `[n]`, and the name of each code."""

    codes: NDArray
    names: tuple[str, ...]


def read_rows(
    path: str,
    array: str | None = None,
    ids: str | None = None,
    columns: Sequence[str] | None = None,
) -> Table:
    """Reads features: `.npy`, `.npz`, `.csv`, `.parquet`, or a folder of `.npy` parts.

    Those above 2^28 numbers in `.npy` files are read in blocks. A `.csv` has a line of titles and
    is in UTF-8, separated by commas. Of a table, features are the only column of vectors, or else
    all columns of numbers; a column of text is left out. In a CSV a vector is `[0.1, 0.2]`.

    Args:
        path: path of the file or folder.
        array: column of a table, or array of an `.npz`, with the features; None: as above, and of
            an `.npz` its only array, or `features`.
        ids: column or array of the ids of rows; None: that called `id`, and of an `.npz` the array
            `ids` or `files`. Of `.npy` files a file of ids, see `read_names`.
        columns: those of an earlier table, which are read again; None: as above.

    Raises:
        InputError: the file cannot be used: a cell or a vector is missing or of another kind, an id
            is missing or repeats, or there is no such column.
    """
    path = os.path.expanduser(checks.local(path))
    suffix = os.path.splitext(path)[1].lower()
    if os.path.isdir(path) or suffix == ".npy":
        shards = Shards(path if os.path.isdir(path) else str(existing(path, (".npy",))))
        is_large = math.prod(shards.shape) > LARGE
        return Table(shards if is_large else shards[:], read_names(ids, len(shards)), ids)
    file = existing(path, (".npy", ".npz", *SUFFIXES))
    if suffix in SUFFIXES:
        table = _read_columns(pathlib.Path(file), array, ids, columns)
    else:
        table = _read_npz(path, array, ids)
    return table._replace(values=_floats(table.values, path))


def _floats(values: Any, path: str) -> NDArray:
    """Returns real numbers `[n, ...]` as float32, or as float64 where that does not hold them."""
    values = arrays.widened(values)
    if values.dtype.kind not in "biuf":
        raise InputError(f"{path} must hold real numbers; got {values.dtype}")
    fits_float32 = np.promote_types(values.dtype, np.float32) == np.float32
    return values.astype(np.float32 if fits_float32 else np.float64, copy=False)


def _read_npz(path: str, array: str | None, ids: str | None) -> Table:
    values, others = read_arrays(path, ("features", "x"), array, () if ids is None else (ids,))
    if ids is not None and ids not in others:
        raise InputError(f"--ids must be an array of {path}; got {ids}")
    ids = ids or next((key for key in ("ids", "files") if key in others), None)
    if ids is None:
        return Table(values)
    names = _checked_ids(strings(others, ids, path, len(values)) or (), path, ids)
    return Table(values, names, ids)


def _read_columns(
    file: pathlib.Path, array: str | None, ids: str | None, columns: Sequence[str] | None
) -> Table:
    """Reads the features of a table, see `read_rows`."""
    table = _arrow(file, ids)
    titles = table.column_names
    listed = short(", ".join(titles))
    # Where a line of titles is missing, numbers are titles; pandas writes them from 0.
    numbers = [title for title in titles if _is_float(title)]
    is_headed = not numbers or numbers == list(map(str, range(len(numbers))))
    if not table.num_rows or len(set(titles)) < len(titles) or not is_headed:
        must = f"{file} must have rows below different titles of columns, which are words"
        raise InputError(f"{must}; got {counted(table.num_rows, 'row')} below {listed}")
    ids = ids or next((title for title in titles if title.lower() == "id"), None)
    for title, flag in ((ids, "--ids"), (array, "--array")):
        if title is not None and title not in titles:
            raise InputError(f"{flag} must be a column of {file}, {listed}; got {short(title)}")
    if missing := [title for title in columns or () if title not in titles]:
        must = f"{file} must have the column {short(missing[0])}, as the run has"
        raise InputError(f"{must}; got {listed}: give it this title")
    others = [title for title in titles if title not in (ids, "")]
    vectors = [title for title in others if _is_vector(table[title])]
    chosen = list(columns or ()) if array is None else [array]
    if not chosen and len(vectors) > 1:
        named = short(", ".join(vectors))
        raise InputError(f"--array must name one of the vectors of {file}, {named}; got none")
    chosen = chosen or vectors or [title for title in others if _is_number(file, table, title)]
    if not chosen:
        raise InputError(f"{file} must have columns of numbers or of vectors; got {listed}")
    if chosen[0] in vectors:
        values = _vectors(file, chosen[0], table[chosen[0]])
    else:
        values = np.stack([_numbers(file, title, table[title]) for title in chosen], axis=1)
    names = None if ids is None else _checked_ids(table[ids].to_pylist(), str(file), ids)
    left_out = [t or "a column without a title" for t in titles if t not in (*chosen, ids)]
    return Table(values, names, ids, tuple(chosen), tuple(left_out))


def _arrow(file: pathlib.Path, ids: str | None) -> Any:
    """Reads a table by pyarrow; the cells of a column of ids in a CSV stay text."""
    import pyarrow as pa
    from pyarrow import csv as tables
    from pyarrow import parquet

    is_csv = file.suffix.lower() == ".csv"
    try:
        if not is_csv:
            return parquet.read_table(file)
        # An id may have a leading zero, or more digits than a number keeps.
        texts = dict.fromkeys([ids] if ids else ["id", "ID", "Id"], pa.string())
        return tables.read_csv(file, convert_options=tables.ConvertOptions(column_types=texts))
    except (pa.ArrowException, OSError) as error:
        kind = "a table in UTF-8 with a line of titles, separated by commas"
        kind = kind if is_csv else "a whole Parquet file"
        reason = short(" ".join(str(error).split()))
        raise InputError(f"{file} must be {kind}; got {reason}") from error


def _is_float(text: str | None) -> bool:
    try:
        return math.isfinite(float(text or "")) and "_" not in str(text)
    except ValueError:
        return False


def _is_vector(column: Any) -> bool:
    """Returns whether a column has lists, or texts one of which is written as a list."""
    import pyarrow.compute as pc

    if "string" not in str(column.type):
        return "list" in str(column.type)
    return bool(pc.any(pc.starts_with(pc.utf8_ltrim_whitespace(column), "[")).as_py())


def _is_number(file: pathlib.Path, table: Any, title: str) -> bool:
    """Returns whether a column has numbers.

    Raises:
        InputError: some cells are numbers, and others text.
    """
    column = table[title]
    if "string" not in str(column.type):
        return str(column.type).startswith(
            ("int", "uint", "float", "half", "double", "bool", "dec")
        )
    cells = column.to_pylist()
    is_float = list(map(_is_float, cells))
    if any(is_float):
        raise _not_in_each_row(file, title, "a number", column, is_float.index(False))
    return False


def _not_in_each_row(
    file: pathlib.Path, title: str, wanted: str, column: Any, row: int
) -> InputError:
    """Makes the error of a cell that is missing or of another kind."""
    cell = column[row].as_py()
    got = "none" if cell is None else short(repr(cell))
    if isinstance(cell, list):
        got = f"a list of length {len(cell)}, {got},"
    must = f"{file} must have {wanted} in each row of the column {title}"
    return InputError(f"{must}; got {got} in row {row}: correct or remove it")


def _numbers(file: pathlib.Path, title: str, column: Any) -> NDArray:
    """Returns a column of numbers `[n]`; a missing one is refused with its row."""
    import pyarrow as pa

    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise _not_in_each_row(file, title, "a number", column, row)
    try:
        return column.cast(pa.float64()).to_numpy()
    except pa.ArrowException as error:
        kind = column.type
        raise InputError(f"{file} must have numbers in the column {title}; got {kind}") from error


def _vectors(file: pathlib.Path, title: str, column: Any) -> NDArray:
    """Returns a column of vectors, float `[n, d]`; one that is not like the others is refused."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lists = column
    if "string" in str(column.type):
        rows = [_parsed(cell) for cell in column.to_pylist()]
        lists = pa.chunked_array([pa.array(rows, pa.list_(pa.float64()))])
    lengths = np.array([length or 0 for length in pc.list_value_length(lists).to_pylist()])
    width = next(filter(None, lengths.tolist()), 0)
    bad = np.flatnonzero((lengths != width) | (lengths == 0)).tolist()
    flat = pc.list_flatten(lists)
    if flat.null_count:
        place = flat.is_null().to_pylist().index(True)
        bad.append(int(np.searchsorted(lengths.cumsum(), place, side="right")))
    if bad:
        numbers = counted(width, "number") if width else "numbers"
        raise _not_in_each_row(file, title, f"a vector of {numbers}", column, min(bad))
    return _numbers(file, title, flat).reshape(-1, width)


def _parsed(cell: Any) -> list[float] | None:
    """Returns the vector that a text writes; None where it writes none."""
    try:
        return list(map(float, json.loads(cell)))
    except (TypeError, ValueError):
        return None


def read_names(path: str | None, rows: int) -> tuple[str, ...] | None:
    """Returns the ids of the rows of `.npy` files, one in each line or entry of another file.

    Args:
        path: `.npy`, `.npz` (the array `ids`, `names`, `files`, or the only one), `.csv` of one
            column or `.txt`; None: there are none.
        rows: expected number of ids.

    Raises:
        InputError: the file is missing, or does not hold `rows` distinct ids.
    """
    if path is None:
        return None
    values, _ = _read_list(path, ("ids", "names", "files"), None, rows, "name")
    return _checked_ids(values.tolist(), path, "it")


def _checked_ids(values: Iterable[Any], path: str, ids: str) -> tuple[str, ...]:
    """Returns ids in one form, in which 1.0 is 1.

    Raises:
        InputError: one is missing or repeats.
    """
    names, seen = list(map(_id, values)), dict[str, int]()
    for row, name in enumerate(names):
        if not name:
            raise InputError(f"ids must be in each row of {path}; got none in row {row} of {ids}")
        if name in seen:
            raise InputError(
                f"ids must be distinct; got {short(repr(name))} in the rows {seen[name]} and "
                f"{row} of {ids} in {path}"
            )
        seen[name] = row
    return tuple(names)


def _id(value: Any) -> str:
    """Returns an id as text, "" for a missing one.

    Example:
        >>> _id(7.0), _id(" 7.0"), _id("007"), _id(float("nan"))
        ('7', '7', '007', '')
    """
    if value is None or value != value:
        return ""
    text = os.fsdecode(value) if isinstance(value, bytes) else str(value)
    return re.sub(r"^(-?\d+)\.0+$", r"\1", text.strip())


def read_labels(path: str, name: str | None, rows: int) -> Labels:
    """Reads labels, integers or strings, from a `.npy`, `.npz`, `.csv` or `.txt` file.

    A `.txt` has one label a line, and a `.csv` one column, below its title.

    Args:
        path: path of the file.
        name: name of an array of an `.npz`; None: its only array, or `labels` of the
            command `embed`.
        rows: expected number of labels.

    Raises:
        InputError: the file is missing, or does not hold `rows` labels.
    """
    values, others = _read_list(path, ("labels", "y"), name, rows, "label")
    present, codes = np.unique(values, return_inverse=True)
    classes = others.get("label_names", ())
    if values.dtype.kind in "iu" and 0 <= present[0] <= present[-1] < len(classes):
        present = classes[present]
    return Labels(codes.astype(np.int32), tuple(map(str, present)))


def _read_list(
    path: str, arrays_: Sequence[str], name: str | None, rows: int, noun: str
) -> tuple[NDArray, dict[str, NDArray]]:
    """Reads an integer or string for each row, `[rows]`, and the further arrays of an `.npz`.

    Args:
        path: see `read_labels`, like `name` and `rows`.
        arrays_: names of the array of an `.npz`, by priority.
        name: name of the array, or None.
        rows: expected number.
        noun: what one of them is called.
    """
    path = os.path.expanduser(checks.local(path))
    file = existing(path, (".npy", ".npz", ".csv", ".txt"))
    others: dict[str, NDArray] = {}
    if file.suffix.lower() in (".csv", ".txt"):
        values = _read_lines(file, noun)
    else:
        values, others = read_arrays(path, arrays_, name)
    if values.ndim != 1 or values.dtype.kind not in "biuU":
        must = f"{path} must hold one integer or string per row"
        raise InputError(f"{must}; got {values.dtype} of shape {values.shape}")
    if len(values) != rows:
        must = f"features and {noun}s must have the same length (a .csv begins with a title)"
        raise InputError(f"{must}; got {rows:,} and {len(values):,}")
    return values, others


def _read_lines(file: epath.Path, noun: str) -> NDArray:
    """Reads one label, or other `noun`, per line, as strings."""
    text = file.read_bytes().decode("utf-8-sig", "surrogateescape")
    rows = [[line.strip()] for line in text.rstrip().splitlines()]
    if file.suffix.lower() == ".csv":
        rows = list(csv.reader(line for (line,) in rows))[1:]
    for i, row in enumerate(rows):
        if len(row) != 1 or not row[0]:
            must = f"{file} must have one {noun} in each row"
            raise InputError(f"{must}; got {short(', '.join(row)) or 'none'} in row {i}")
    return np.array([value for (value,) in rows])
