"""Tables of features whose columns have names, CSV and Parquet; and the ids and labels of rows."""

import csv
import io
import math
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster_jax.core import checks
from cluster_jax.core.checks import InputError, short
from cluster_jax.core.names import composed, counted
from cluster_jax.data import columns
from cluster_jax.data.arrays import Shards, as_floats, existing, read_arrays

# Files with titles of columns.
SUFFIXES = (".csv", ".parquet")
# Numbers of `.npy` features from which they are read in blocks (1 GB of float32).
LARGE = 2**28
# Rows from which numbers that are whole and distinct are taken for ids that were not named.
_FEW = 20


class Table(NamedTuple):
    """Features, and the ids of their rows.

    Attributes:
        values: features, float32 or float64 `[n, d]`, in memory or in shards. They are not checked:
            of an `.npz` they may have another shape, and any number may be NaN.
        names: id of each row, without repetition; None: rows are numbered.
        ids: the column, array or file of the ids, or None.
        columns: titles of the columns that the features are, or None.
        left_out: titles of columns, or names of arrays, that are not read.
        others: arrays of an `.npz` that describe the rows, by name.
        array: the array of an `.npz` that the features are, or None.
    """

    values: Any  # NDArray or Shards
    names: tuple[str, ...] | None = None
    ids: str | None = None
    columns: tuple[str, ...] | None = None
    left_out: tuple[str, ...] = ()
    others: Mapping[str, NDArray] = {}
    array: str | None = None

    @property
    def described(self) -> str:
        """Says in a line which columns or arrays are features, ids and left out.

        It is "" if nothing was chosen.
        """
        parts = {
            "features": ", ".join(self.columns or ()) or (self.left_out and self.array),
            "ids of rows": self.ids,
            "left out": ", ".join(self.left_out),
        }
        return "; ".join(f"{name}: {short(text)}" for name, text in parts.items() if text)


_NO_TABLE = Table(None)


class Labels(NamedTuple):
    """Labels as codes from 0, int32 `[n]`, and the name of each code."""

    codes: NDArray
    names: tuple[str, ...]


def read_rows(
    path: str,
    array: str | None = None,
    ids: str | None = None,
    earlier: Table = _NO_TABLE,
) -> Table:
    """Reads features: `.npy`, `.npz`, `.csv`, `.parquet`, or a folder of `.npy` parts.

    Those above 2^28 numbers in `.npy` files are read in blocks. A `.csv` has a line of titles and
    is in UTF-8, separated by commas. The features of a table are its column of vectors, or, if it
    has none, all its columns of numbers; of several columns of vectors, `array` must name one. A
    column of text is left out if none of its cells is a number; otherwise every cell must be one.
    In a CSV a vector is `[0.1, 0.2]`.

    Args:
        path: path of the file or folder.
        array: column of a table, or array of an `.npz`, with the features; None: as above, and of
            an `.npz` its only array, or `features`.
        ids: column or array of the ids of rows; None: that called `id`, and of an `.npz` the array
            `ids` or `files`. Of `.npy` files a file of ids: `.npy`, `.npz` (the array `ids`,
            `names`, `files`, or the only one), `.csv` of one column or `.txt`.
        earlier: a table whose columns of features are read, or, of an `.npz`, whose arrays of
            features and ids, and no other one of ids; `array` and `ids` have precedence.

    Raises:
        InputError: the file is missing or damaged or of another type; a cell or a vector is missing
            or of another kind; an id is missing or repeats; or there is no such column or array, as
            of an `array` of `.npy`.
    """
    path = os.path.expanduser(checks.local(path))
    suffix = os.path.splitext(path)[1].lower()
    named = (".npz", *SUFFIXES)
    if array is not None and suffix not in named:
        must = f"--array must name an array of a file of type {', '.join(named)}"
        raise InputError(f"{must}; got {array!r} of {path}")
    if os.path.isdir(path) or suffix == ".npy":
        shards = Shards(path if os.path.isdir(path) else str(existing(path, (".npy",))))
        values = shards if math.prod(shards.shape) > LARGE else shards[:]
        names = None
        if ids is not None:
            listed, _ = _read_list(ids, ("ids", "names", "files"), len(shards), "name")
            names = _checked_ids(listed.tolist(), ids, "it")
        return Table(values, names, ids)
    file = existing(path, (".npy", ".npz", *SUFFIXES))
    if suffix in SUFFIXES:
        return _read_columns(file, array, ids, None if array else earlier.columns)
    wanted = ("features", "x") if earlier.array is None else (earlier.array,)
    more = [name for name in (ids, earlier.ids) if name is not None]
    values, others, (name, *left_out) = read_arrays(path, wanted, array, more)
    if ids is not None and ids not in others:
        raise InputError(f"--ids must be an array of {path}; got {ids}")
    known = ("ids", "files") if earlier.array is None else (earlier.ids,)
    ids = ids or next((key for key in known if key in others), None)
    names = None
    if ids is not None:
        if others[ids].shape != (len(values),):
            must = f"{ids} in {path} must name each of the {counted(len(values), 'row')}"
            raise InputError(f"{must}; got shape {others[ids].shape}")
        names = _checked_ids(others[ids].tolist(), path, ids)
    values = as_floats(values, path)
    return Table(values, names, ids, left_out=tuple(left_out), others=others, array=name)


def _read_columns(
    file: pathlib.Path, array: str | None, ids: str | None, wanted: Sequence[str] | None
) -> Table:
    """Reads the features of a CSV or Parquet file; for the arguments see `read_rows`.

    Raises:
        InputError: see `read_rows`; or the table has no rows, two columns have one title, or the
            titles are numbers.
    """
    asked = [array] if array is not None else list(wanted or ())
    table, titles = columns.read(file, ids, asked)
    _check_titles(file, titles, table.num_rows)
    index = columns.index(table.schema)
    is_given = ids is not None
    ids = ids or next((title for title in titles if title.lower() == "id"), None)
    listed = short(", ".join(titles))
    for what, title in {"--ids": ids, "--array": array}.items():
        if title is not None and title not in titles:
            must = f"{what} must be a column of {file}, which has {listed}"
            raise InputError(f"{must}; got {short(title)}")
    if missing := [title for title in wanted or () if title not in titles]:
        must = f"{file} must have the column {short(missing[0])}, as the run has"
        raise InputError(f"{must}; got the columns {listed}")
    if ids is None and len(index) == 1 and columns.has_name(index[0]):
        ids = index[0] if columns.are_ids(table[index[0]]) else None
    none = {ids, *index} - set(asked)
    found = {t: columns.numbers(table[t]) for t in table.column_names if t not in none}
    found = {title: values for title, values in found.items() if values is not None}
    vectors = [title for title, values in found.items() if "list" in str(values.type)]
    if not asked and len(vectors) > 1:
        named = short(", ".join(vectors))
        raise InputError(f"--array must name one of the vectors of {file}, {named}; got none")
    for title in asked or ([] if vectors else table.column_names):
        if title not in none and columns.looks_like_vectors(table[title]):
            raise _not_understood(file, title, table[title].type)
    chosen = asked or vectors or list(found)
    if not chosen or not found.keys() >= set(chosen):
        must = f"{file} must have columns of numbers or of vectors"
        raise InputError(f"{must}; got {short(', '.join(chosen)) or listed}")
    read = [_values(file, title, table[title], found[title]) for title in chosen]
    if not asked and not vectors and not is_given:
        _warn_of_numbered(file, dict(zip(chosen, read, strict=True)))
    names = None if ids is None else _checked_ids(table[ids].to_pylist(), str(file), ids)
    left_out = [columns.shown(title) for title in titles if title not in (*chosen, ids)]
    return Table(np.concatenate(read, axis=1), names, ids, tuple(chosen), tuple(left_out))


def _check_titles(file: pathlib.Path, titles: Sequence[str], rows: int) -> None:
    """Raises an `InputError` unless a table has rows below different titles, which are words."""
    # Where a line of titles is missing, numbers are titles; pandas writes them from 0.
    numbers = [title for title in titles if isinstance(columns.parsed(title), float)]
    is_headed = not numbers or numbers == list(map(str, range(len(numbers))))
    if not rows or len(set(titles)) < len(titles) or not is_headed:
        must = f"{file} must have rows below different titles of columns, which are words"
        listed = short(", ".join(titles))
        raise InputError(f"{must}; got {counted(rows, 'row')} below {listed}")


def _not_understood(file: pathlib.Path, title: str, of: Any) -> InputError:
    """Returns the error of a column that may hold vectors in a type that does not say which."""
    must = f"the column {title} of {file} must hold vectors as lists of numbers, or no vectors"
    do = "write it as lists of numbers, or remove it"
    return InputError(f"{must}; got the type {short(str(of), 60)}: {do}")


def _warn_of_numbered(file: pathlib.Path, values: Mapping[str, NDArray]) -> None:
    """Warns of columns of features whose numbers are whole, and each there once, as ids are.

    Below `_FEW` rows that happens by chance.
    """
    found = [title for title, column in values.items() if columns.are_numbered(column)]
    if found and len(values[found[0]]) >= _FEW:
        are = "is a feature and has" if len(found) == 1 else "are features and have"
        checks.warn(
            f"{short(', '.join(found))} in {file} {are} another whole number in each row, as ids "
            f"have: if it names the rows, pass --ids={found[0]}"
        )


def _values(file: pathlib.Path, title: str, column: Any, values: Any) -> NDArray:
    """Returns the numbers of a column, float `[n, 1]`, or its vectors, `[n, d]`.

    A number that is missing in a vector is NaN, which no caller takes.

    Args:
        file: the table, like `title` and `column` for messages.
        title: title of the column.
        column: the column as it was read.
        values: the numbers or vectors of the column, see `_numbers`.

    Raises:
        InputError: a cell is missing or of another kind, or a vector of another length.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = "a number"
    width = 1
    is_bad = np.array(values.is_null())
    if "list" in str(values.type):
        lengths = np.array(pc.fill_null(pc.list_value_length(values), 0))
        width = int(next(filter(None, lengths), 0))
        is_bad = (lengths != width) | (lengths == 0)
        values = pc.list_flatten(values)
        wanted = f"a vector of {counted(width, 'number')}"
    if is_bad.any():
        row = int(is_bad.argmax())
        must = f"{file} must have {wanted} in each row of the column {title}"
        got = short(repr(column[row].as_py()))
        raise InputError(f"{must}; got {got} in row {row}: correct or remove it")
    return values.cast(pa.float64()).to_numpy(zero_copy_only=False).reshape(-1, width)


def _checked_ids(values: Sequence[Any], path: str, ids: str) -> tuple[str, ...]:
    """Returns ids as texts, letter by letter; `path` and `ids` name their source in messages.

    Whole numbers that pandas has written with a fraction of zeros lose it, if all ids are such.

    Raises:
        InputError: an id is missing, repeats, or is no text.

    Example:
        >>> _checked_ids([7.0, 8.0], "x.npy", "it"), _checked_ids([" 7.0", "8"], "x.csv", "id")
        (('7', '8'), (' 7.0', '8'))
    """
    names = list[str]()
    seen: dict[str, int] = {}
    for row, value in enumerate(values):
        name = _id(value)
        if name is None:
            must = f"ids must be texts or whole numbers in {path}"
            got = f"{short(repr(value))} in row {row} of {ids}"
            raise InputError(f"{must}; got {got}: write them as text")
        if not name.strip():
            raise InputError(f"ids must be in each row of {path}; got none in row {row} of {ids}")
        if name in seen:
            got = f"{short(repr(name))} in the rows {seen[name]} and {row} of {ids} in {path}"
            raise InputError(f"ids must be distinct; got {got}")
        seen[name] = row
        names.append(name)
    if all(re.fullmatch(r"-?(0|[1-9]\d*)\.0+", name) for name in names):
        names = [name.partition(".")[0] for name in names]
        if len(set(names)) < len(names):
            raise InputError(
                f"ids must be distinct; got one number in two forms of {ids} in {path}"
            )
    return tuple(names)


def _id(value: Any) -> str | None:
    """Returns an id as text, "" for a missing one; None if no text can say what it is."""
    if value is None or value != value:
        return ""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return None
    text = str(value)
    return None if "\0" in text else text


def read_labels(
    path: str, rows: int, names: Sequence[str] | None = None, *, partial: bool = False
) -> Labels:
    """Reads labels, integers or strings, from a `.npy`, `.npz`, `.csv` or `.txt` file.

    A `.txt` has one label a line. A `.csv` has a title and then a label a row; or, if `names` are
    given, a name and a label in each row, in any order, with or without a title.

    Args:
        path: path of the file; of an `.npz` the array `labels`, else `y`, else its only array is
            read. If all labels are indices in its array `label_names`, the names are those there.
        rows: expected number of labels.
        names: names of the rows, by which a `.csv` of two columns is matched; None: the `.csv` has
            one column.
        partial: whether such a `.csv` need not have all names; the others have the code -1.

    Returns:
        The code of each row, and the name of each code. The codes are in ascending order of the
        labels, which are texts in a `.csv` or `.txt`: "10" comes before "9".

    Raises:
        InputError: the file is missing, unreadable or of another type; it does not hold `rows`
            labels, or none for one of `names`; or a label is empty.
    """
    values, others = _read_list(path, ("labels", "y"), rows, "label", names, partial)
    codes = np.full(len(values), -1, np.int64)
    is_there = np.ones(len(values), bool)
    if partial and values.dtype.kind == "U":
        is_there = values != ""
    present, codes[is_there] = np.unique(values[is_there], return_inverse=True)
    classes = others.get("label_names", ())
    if values.dtype.kind in "iu" and len(present) and 0 <= present[0] <= present[-1] < len(classes):
        present = classes[present]
    return Labels(codes.astype(np.int32), tuple(map(str, present)))


def _read_list(
    path: str,
    keys: Sequence[str],
    rows: int,
    noun: str,
    names: Sequence[str] | None = None,
    partial: bool = False,
) -> tuple[NDArray, dict[str, NDArray]]:
    """Reads an integer or string for each row, `[rows]`, and the further arrays of an `.npz`.

    Args:
        path: the file, see `read_labels`.
        keys: names of the array of an `.npz`, by priority.
        rows: expected number of values.
        noun: what one value is called in messages, such as "label".
        names: see `read_labels`, like `partial`; a name without a value has "".
        partial: whether not all names need a value.

    Raises:
        InputError: see `read_labels`.
    """
    file = existing(path, (".npy", ".npz", ".csv", ".txt"))
    others: dict[str, NDArray] = {}
    if file.suffix.lower() in (".npy", ".npz"):
        values, others, _ = read_arrays(path, keys)
    else:
        values = np.array(_read_lines(file, noun, names, partial))
    if values.ndim != 1 or values.dtype.kind not in "biuU":
        must = f"{path} must hold one integer or string per row"
        raise InputError(f"{must}; got {values.dtype} of shape {values.shape}")
    if len(values) != rows:
        must = f"features and {noun}s must have the same length (a .csv begins with a title)"
        raise InputError(f"{must}; got {rows:,} and {len(values):,}")
    return values, others


def _read_lines(
    file: pathlib.Path, noun: str, names: Sequence[str] | None, partial: bool
) -> list[str]:
    """Reads one label, or other `noun`, of each row of a `.csv` or `.txt`, see `_read_list`.

    Blanks around a label are removed, those around an id are a part of it. Blank lines at the end
    do not count.

    Raises:
        InputError: a row has no label or several, or one of `names` has none.
    """
    # Lines end where an editor ends them: a label may have other separators of Unicode.
    text = io.StringIO(file.read_bytes().decode("utf-8-sig", "surrogateescape"), newline=None)
    is_csv = file.suffix.lower() == ".csv"
    rows = list(csv.reader(text)) if is_csv else [[line.rstrip("\n")] for line in text]
    while rows and not "".join(rows[-1]).strip():
        rows.pop()
    is_by_name = names is not None and bool(rows) and all(len(row) == 2 for row in rows)
    if names is not None and is_by_name:
        # A line of titles is the label of an image that is not there.
        label_of = {composed(name): label for name, label in rows}
        rows = [[label_of.get(composed(name), "")] for name in names]
        missing = [name for name, (label,) in zip(names, rows, strict=True) if not label]
        if missing and not partial:
            must = f"data.labels must name each of the {len(names):,} images"
            more = f"in {file} (and {len(missing) - 1:,} more)"
            raise InputError(f"{must}; got none of {missing[0]} {more}")
    elif is_csv:
        rows = rows[1:]
    for i, row in enumerate(rows):
        if is_by_name and row == [""]:
            continue  # Of `partial`.
        if len(row) != 1 or not row[0].strip():
            must = f"{file} must have one {noun} in each row"
            raise InputError(f"{must}; got {short(', '.join(row)) or 'none'} in row {i}")
    return [value.strip() if noun == "label" else value for (value,) in rows]
