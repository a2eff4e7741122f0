"""Tables of features and labels from `.npy`, `.npz` and text files. Nothing is ever unpickled."""

import array
import codecs
import collections
import csv
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TextIO

import numpy as np
from etils import epath
from numpy.typing import ArrayLike, NDArray

from cluster_jax.core import arrays, buckets, checks
from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted
from cluster_jax.data import columns
from cluster_jax.data.shards import Shards

# Optional arrays of a file that describe the rows of its main array.
ROW_METADATA = ("labels", "y", "label_names", "files", "names", "ids")
# Titles of a column of names of rows, which may be numbers; as well as any that ends with "_id".
_NAME_TITLES = (
    *("", "file", "filename", "id", "image", "index", "key", "name", "path", "row", "url", "uuid"),
)
# Rows from which distinct integers in order count the rows: of few, a feature may be in order.
_COUNTED_ROWS = 10
# Rows in which a column has a cell that is not missing, or is one of numbers.
_AHEAD = 100
# What stands for a number that is missing, so that its column is one of numbers.
_MISSING = ("", "-", "?", "n/a", "na", "null", "none", "missing")
# Numbers of `.npy` features from which they are read in blocks (1 GB of float32).
LARGE = 2**28


class Table(NamedTuple):
    """Features, and what else their file says of the rows.

    Attributes:
        values: features, float `[n, d]`.
        names: name of each row, or None.
        metadata: title -> a cell for each row, of columns that are no features.
    """

    values: NDArray
    names: tuple[str, ...] | None
    metadata: Mapping[str, Sequence[str]] = {}


class Columns(NamedTuple):
    """A file of columns, before it is settled which of them names the rows.

    Attributes:
        values: the columns of numbers, or the only column of vectors, `[n, d]`.
        titles: of the columns of numbers, or None.
        others: title -> the cells of a column that is no feature.
        named: title of that which names the rows, or None.
    """

    values: NDArray
    titles: Sequence[str] | None
    others: dict[str, list[str]]
    named: str | None


class Labels(NamedTuple):
    """Labels as codes from 0, int32 `[n]`, and the name of each code."""

    codes: NDArray
    names: tuple[str, ...]


def open_large(path: str) -> Shards | None:
    """Opens features above 2^28 numbers, in a `.npy` file or a folder of them, to read in blocks.

    None: they are few enough for `read_table`, or in another type of file.

    Raises:
        InputError: a file cannot be used, see `Shards`.
    """
    path = os.path.expanduser(checks.local(path))
    file = buckets.path(path)
    if not _is_folder(file) and not (
        file.suffix.lower() == ".npy" and file.is_file() and file.stat().length > LARGE
    ):
        return None
    shards = Shards(path)
    return shards if math.prod(shards.shape) > LARGE else None


def read_table(path: str, name: str | None, ids: str | None = None) -> Table:
    """Reads features from a `.npy`, `.npz`, `.csv` or `.tsv` file, or a folder of `.npy` shards.

    A `.csv` is separated by commas, or by semicolons with decimal commas, a `.tsv` by tabs. The
    encoding is UTF-8, or UTF-16 with a byte order mark. An optional header has words, or 0, 1, ...
    as pandas writes them. The first column holds names of the rows if its cells are no numbers or
    its title is one of those, see `names_rows`. Any other column with such a title, or of distinct
    integers in order, is no feature either, and names the rows if no other column does; a warning
    says so. Columns of text are metadata.

    Args:
        path: path of the file.
        name: name of an array of an `.npz`; None: its only array, or `features` of the command
            `embed`, with the row names `files`.
        ids: title of the column, or name of the array, that names the rows, of `.npy` files a file
            of names, see `read_names`; None: as above, and of an `.npz` the array `files`, `names`
            or `ids`.

    Raises:
        InputError: the file is missing, or holds no table of real numbers.
    """
    path = path and os.path.expanduser(checks.local(path))
    if path and _is_folder(buckets.path(path)):
        values = Shards(path)[:]
        return Table(values, read_names(ids, len(values)))
    (values, names, metadata), _ = read_features(path, name, ids)
    values = arrays.widened(values)
    if values.dtype.kind not in "biuf":
        raise InputError(f"{path} must hold real numbers; got {values.dtype}")
    fits_float32 = np.promote_types(values.dtype, np.float32) == np.float32
    values = values.astype(np.float32 if fits_float32 else np.float64, copy=False)
    return Table(values, names, metadata)


def read_features(
    path: str | None, name: str | None = None, ids: str | None = None
) -> tuple[Table, dict[str, NDArray]]:
    """Reads features as they are stored, what describes them, and further arrays of an `.npz`.

    Args:
        path: see `read_table`, like the next two.
        name: name of an array of an `.npz`, or None.
        ids: what names the rows, or None.

    Raises:
        InputError: see `read_table`; names of another number than rows.
    """
    others: dict[str, NDArray] = {}
    path = path and os.path.expanduser(checks.local(path))
    file = _file(path, (".npy", ".npz", ".csv", ".tsv", *columns.SUFFIXES))
    if file.suffix.lower() in (".csv", ".tsv"):
        table = _named(str(path), _read_csv(str(path), name, ids), ids)
    elif file.suffix.lower() in columns.SUFFIXES:
        table = _named(str(path), Columns(*columns.read(file, name, names_rows)), ids)
    else:
        values, others = read_arrays(path, ("features", "x"), name, () if ids is None else (ids,))
        if file.suffix.lower() == ".npy":
            return Table(values, read_names(ids, len(values))), others
        if ids is not None and ids not in others:
            raise InputError(f"--ids must be an array of {path}; got {ids}")
        name_columns = (
            strings(others, key, path) for key in ([ids] if ids else ["files", "names", "ids"])
        )
        table = Table(values, next((names for names in name_columns if names is not None), None))
    names = table.names
    if names is not None and len(names) != len(table.values):
        must = f"files in {path} must name each of the {counted(len(table.values), 'row')}"
        raise InputError(f"{must}; got {len(names)}")
    repeated = _repeated(names)
    if ids is not None:
        _check_distinct(names, ids)
    elif repeated:
        checks.warn(
            f"{path} gives the name {repeated[0]!r} to several rows, one of {len(repeated):,} such "
            "names: these rows cannot be compared or corrected by name",
            2,
        )
    return table, others


def read_names(path: str | None, rows: int) -> tuple[str, ...] | None:
    """Names of the rows of `.npy` files, one in each line or entry of another file, or None.

    Args:
        path: `.npy`, `.npz` (the array `ids`, `names`, `files`, or the only one), `.csv` or `.txt`;
            None: there are none.
        rows: expected number of names.

    Raises:
        InputError: the file is missing, or does not hold `rows` distinct names.
    """
    if path is None:
        return None
    kinds = (".npy", ".npz", ".csv", ".txt")
    if os.path.splitext(path)[1].lower() not in kinds:
        raise InputError(
            f"--ids must be a file of names ({', '.join(kinds)}) for .npy files; got {path}"
        )
    values, _ = _read_list(path, ("ids", "names", "files"), None, rows, "name")
    names = tuple(map(str, values.tolist()))
    _check_distinct(names, path)
    return names


def _repeated(names: Iterable[str] | None) -> list[str]:
    return [name for name, count in collections.Counter(names).items() if count > 1]


def _check_distinct(names: Iterable[str] | None, of: str) -> None:
    if repeated := _repeated(names):
        raise InputError(
            f"--ids must be distinct values; got {checks.short(repr(repeated[0]))} in several rows "
            f"of {of!r}"
        )


def read_texts(path: str) -> Mapping[str, Sequence[str]]:
    """Reads all columns of a table with titles, as text: CSV, TSV, Parquet, Arrow or JSON lines.

    Raises:
        InputError: the file cannot be read, or has no rows, or two columns of one title.
    """
    path = os.path.expanduser(checks.local(path))
    kinds = (".csv", ".tsv", *(kind for kind in columns.SUFFIXES if kind != ".safetensors"))
    file = _file(path, kinds)
    if file.suffix.lower() not in (".csv", ".tsv"):
        return columns.read_texts(file)
    with _open(path) as stream:
        lines = list(_lines(path, stream, are_texts=True))
    lines = [(number, line) for number, line in lines if any(map(str.strip, line))]
    if len(lines) < 2:
        content = counted(len(lines), "line")
        raise InputError(f"{path} must have a line of titles and rows; got {content}")
    (_, titles), *rows = lines
    if len(set(map(str.strip, titles))) < len(titles):
        raise InputError(f"{path} must have a title for each column; got {', '.join(titles)}")
    for number, row in rows:
        if len(row) != len(titles):
            like = f"{counted(len(titles), 'column')} like its titles"
            raise InputError(f"{path}, line {number} must have {like}; got {len(row)}")
    return dict(zip(titles, zip(*(row for _, row in rows), strict=True), strict=True))


def names_rows(title: str) -> bool:
    """Returns whether a column of this title has rows' names, or numbers that identify them.

    Example:
        >>> names_rows("UUID"), names_rows("user_id"), names_rows("width")
        (True, True, False)
    """
    title = title.strip().lower()
    return title in _NAME_TITLES or title.endswith("_id")


def _named(path: str, read: Columns, ids: str | None) -> Table:
    """Makes a table whose column `ids`, or else that which seems to, names the rows."""
    values, titles, others, named = read
    if ids is None and (named is None or not names_rows(named)):
        # Of a first column of words, and one that is called "id", the latter names the rows.
        numeric = () if named is None else titles or ()
        ids = next((title for title in (*others, *numeric) if title and names_rows(title)), None)
    if ids is None:
        names = None if named is None else tuple(others.pop(named))
        return _without_ids(path, Table(values, names, others), titles)
    if ids in others:
        return Table(values, tuple(others.pop(ids)), others)
    if titles is None or ids not in titles:
        choices = checks.short(", ".join(filter(None, (*others, *(titles or ())))) or "no titles")
        raise InputError(f"--ids must be a column of {path}, {choices}; got {ids}")
    at = list(titles).index(ids)
    names = tuple(f"{value:.15g}" for value in values[:, at].tolist())
    return Table(np.delete(values, at, axis=1), names, others)


def _without_ids(path: str, table: Table, titles: Sequence[str] | None) -> Table:
    """Removes columns of numbers that identify rows; they name these if nothing else does.

    These have such a title, or hold distinct integers in order. As features, they would outweigh
    all others.
    """
    values, names, others = table
    if values.ndim != 2 or titles is None or values.dtype.kind not in "iuf":
        return table
    is_id = np.array([names_rows(title) for title in titles])
    if len(values) >= _COUNTED_ROWS:
        is_whole = (values == np.round(values)).all(axis=0)
        is_id |= is_whole & (np.diff(values, axis=0) > 0).all(axis=0)
    if not is_id.any() or is_id.all():
        return table
    first, *_ = ids = np.flatnonzero(is_id).tolist()
    listed = checks.short(", ".join(titles[i].strip() or f"column {i + 1}" for i in ids))
    use = "names the rows" if names is None else "is left out"
    checks.warn(f"{path}: {listed} identifies rows, so it {use}", 4)
    if names is None:
        names = tuple(f"{value:.0f}" for value in values[:, first].tolist())
    return Table(values[:, ~is_id], names, others)


def read_labels(path: str, name: str | None, rows: int) -> Labels:
    """Reads labels, integers or strings, from a `.npy`, `.npz`, `.csv` or `.txt` file.

    Text files have one label per line and no blank lines. A `.csv` with one line more than
    `rows` has a header: a word, or among integers 0.

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
    kind = _file(path, (".npy", ".npz", ".csv", ".txt")).suffix.lower()
    others: dict[str, NDArray] = {}
    if kind in (".csv", ".txt"):
        values = _read_lines(path, kind, rows, noun)
    else:
        values, others = read_arrays(path, arrays_, name)
    if values.ndim != 1 or values.dtype.kind not in "biuUS":
        must = f"{path} must hold one integer or string per row"
        raise InputError(f"{must}; got {values.dtype} of shape {values.shape}")
    if len(values) != rows:
        must = f"features and {noun}s must have the same length"
        raise InputError(f"{must}; got {rows:,} and {len(values):,}")
    if values.dtype.kind == "S":
        values = np.array([value.decode("utf-8", "replace") for value in values.tolist()])
    return values, others


def _is_folder(path: epath.Path) -> bool:
    """Returns whether a path is a folder of shards; one in a bucket has no suffix."""
    return path.is_dir() if "://" not in str(path) else not path.suffix


def _file(path: str | None, kinds: tuple[str, ...]) -> epath.Path:
    """Returns the existing file at a path, of one of the kinds."""
    wanted = f"must be a file of type {', '.join(kinds)}"
    if not path:
        raise InputError(f"data.dir {wanted}; got none")
    path = checks.local(path)
    file = buckets.path(path)
    if file.suffix.lower() not in kinds:
        raise InputError(f"{path} {wanted}; got {file.suffix or 'no suffix'}")
    with checks.reading(path):
        is_there = file.exists() and not file.is_dir()
        # One request less for a file in a bucket, whose reader says it.
        is_empty = is_there and not buckets.is_in_bucket(file) and not file.stat().length
    if not is_there:
        raise InputError(f"{path} must be an existing file; got no such file")
    if is_empty:
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
    file = _file(path, (".npy", ".npz"))
    try:
        with file.open("rb") as stream:
            checks.check_archive(path, stream)
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
    # A damaged archive raises errors of zipfile, zlib, lzma and NumPy.
    except Exception as error:
        if "pickle" in str(error):  # NumPy takes any content that is no array for a pickle.
            is_array = "Object arrays" in str(error)
            available = "pickled objects, which are never loaded" if is_array else "other content"
            raise InputError(f"{path} must hold plain arrays of NumPy; got {available}") from error
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"{path} must be a readable file; got an error: {reason}") from error


def one_array(X: ArrayLike) -> NDArray:
    """Converts `X` to an array; raises an `InputError` for nested lists of different lengths."""
    try:
        return np.asarray(X)
    except ValueError as error:
        raise InputError("X must be one array; got parts of different shapes") from error


def strings(others: Mapping[str, NDArray], key: str, path: str | None) -> tuple[str, ...] | None:
    """Returns a further array of a file as strings, or None; raises if it is no list of them."""
    values = others.get(key)
    if values is not None and (values.ndim != 1 or values.dtype.kind not in "Uiu"):
        must = f"{key} in {path} must be a list of strings"
        raise InputError(f"{must}; got {values.dtype} of shape {values.shape}")
    return None if values is None else tuple(map(str, values))


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


def _read_vectors(
    path: str, title_row: list[str] | None, rows: Iterator[tuple[int, list[str]]], name: str | None
) -> Columns:
    """Reads a table with a column of vectors, cells as "[0.1, 0.2]"; names as in `_read_csv`."""
    values: list[NDArray] = []
    lines: list[list[str]] = []
    at: int | None = None
    named, width = None, 0
    titles = [title.strip() for title in title_row or ()]
    for number, line in rows:
        if at is None:
            vectors = [i for i, cell in enumerate(line) if _is_vector(cell)]
            if (name is not None and name not in titles) or (name is None and len(vectors) > 1):
                available = checks.short(", ".join(titles) or "columns without titles")
                raise InputError(
                    f"--array must be the title of a column of vectors of {path}, {available}; got "
                    f"{name}"
                )
            at = vectors[0] if name is None else titles.index(name)
            width = len(line)
            others = [i for i in range(len(line)) if i != at]
            titled = [i for i in others if titles and names_rows(titles[i])]
            words = [i for i in others if not _is_number(line[i])]
            named = next(iter([*titled, *words]), None)
        where = f"{path}, line {number}"
        if len(line) != width:
            like = f"{counted(width, 'column')} like the first one"
            raise InputError(f"{where} must have {like}; got {len(line)}")
        cell = line[at].strip()
        if "..." in cell:
            raise InputError(
                f"{where} must have all the numbers of a vector; got {checks.short(repr(cell))}, "
                "which a library has shortened: write the table as Parquet"
            )
        try:
            values.append(np.array(cell.strip("[]").replace(",", " ").split(), np.float64))
        except ValueError as error:
            must = f"{where}, column {at + 1} must be a vector such as [0.1, 0.2]"
            raise InputError(f"{must}; got {checks.short(repr(cell))}") from error
        if len(values[-1]) != len(values[0]):
            must = f"{where} must have a vector of {counted(len(values[0]), 'number')} like others"
            raise InputError(f"{must}; got {len(values[-1])}: {checks.short(repr(cell))}")
        lines.append(line)
    texts = _others(titles, [i for i in range(width) if i != at], lines)
    if named is None:
        return Columns(np.stack(values), None, texts, None)
    key = titles[named] if titles else ""
    return Columns(np.stack(values), None, {key: [row[named] for row in lines], **texts}, key)


def _others(
    titles: Sequence[str], at: Iterable[int], rows: Sequence[Sequence[str]]
) -> dict[str, list[str]]:
    """Returns columns that are no features, by their titles; those without one are left out."""
    return {titles[i]: [row[i] for row in rows] for i in at if i < len(titles) and titles[i]}


def _is_vector(cell: str) -> bool:
    return cell.strip().startswith("[") and cell.strip().endswith("]")


def _read_csv(path: str, name: str | None, ids: str | None) -> Columns:
    """Reads a table of numbers with an optional header and an optional first column of row names.

    Of a table with a column of vectors, it is this one, or that with the title `name`. Beside
    numbers, columns of text that have a title are no features, and neither is the column `ids`.
    """
    values, names, texts = array.array("d"), list[str](), list[list[str]]()
    ahead: list[tuple[int, list[str]]] = []
    with _open(path) as file:
        lines = _lines(path, file)
        head = list(itertools.islice(lines, 2))
        if not head:
            raise InputError(f"{path} must not be empty; got no rows")
        line_number, sample = head[-1]
        if any(map(_is_vector, sample)):
            has_title = len(head) > 1 and not any(map(_is_vector, head[0][1]))
            rows = itertools.chain(head[has_title:], lines)
            return _read_vectors(path, head[0][1] if has_title else None, rows, name)
        title = head[0][1][0].strip().lower() if len(head) > 1 else None
        width, has_title_of_names = len(sample), title is not None and names_rows(title)
        has_names = has_title_of_names or bool(sample[0].strip() and not _is_number(sample[0]))
        first = int(has_names)  # column of numbers
        if first == width:
            raise InputError(f"{path} must have columns of numbers, separated by commas; got none")
        titles: list[str] | None = None
        numbers = list(range(first, width))
        if len(head) > 1 and _is_header(path, *head[0], sample, first):
            titles = head.pop(0)[1]
            ahead += itertools.islice(lines, _AHEAD)
            if len(titles) == width:
                some = [line for _, line in (*head, *ahead) if len(line) == width]
                numbers = _columns_of_numbers(path, titles, some, first, ids)
        elif title == "":
            where = f"{path}, line {head[0][0]}, column 1"
            raise InputError(f"{where} must not be empty; got an empty cell")
        for number, line in itertools.chain(head, ahead, lines):
            where = f"{path}, line {number}"
            if len(line) != width:
                like = f"{counted(width, 'column')} like line {line_number}"
                raise InputError(f"{where} must have {like}; got {len(line)}")
            cells = line[first:] if len(numbers) == width - first else [line[i] for i in numbers]
            try:
                if not _is_plain("".join(cells)):
                    raise ValueError
                values.extend(map(float, cells))
            except ValueError as error:
                i = next(i for i in numbers if not _is_number(line[i]))
                must = f"{where}, column {i + 1} must be a number"
                raise InputError(f"{must}; got {checks.short(repr(line[i]))}") from error
            names += line[:first]
            if len(cells) < width - first:
                texts.append(line)
    others = names[: len(head) - 1] + names[len(head) :]
    if has_names and not has_title_of_names and others and all(map(_is_number, others)):
        where = f"{path}, line {line_number}, column 1"
        raise InputError(f"{where} must be a number; got {checks.short(repr(sample[0]))}")
    table = np.array(values).reshape(-1, len(numbers))
    of_numbers = None if titles is None or len(titles) != width else [titles[i] for i in numbers]
    is_text = [i for i in range(first, width) if i not in numbers]
    text_columns = _others(titles or [], is_text, texts)
    if not has_names:
        return Columns(table, of_numbers, text_columns, None)
    key = titles[0].strip() if titles and len(titles) == width else ""
    return Columns(table, of_numbers, {key: names, **text_columns}, key)


def _columns_of_numbers(
    path: str, titles: list[str], rows: Sequence[list[str]], first: int, ids: str | None
) -> list[int]:
    """Finds the columns from `first` on whose first cell that is there is a number, and no id.

    An id keeps its digits as text.
    """
    every = range(first, len(titles))
    is_id = {i for i in every if titles[i].strip() == ids or names_rows(titles[i])}
    cells = {
        i: next((row[i] for row in rows if row[i].strip().lower() not in _MISSING), "0")
        for i in every
    }
    is_text = {i for i in every if not _is_number(cells[i])}
    if len(is_text | is_id) == len(every):
        return list(every)
    for which, said in (
        (is_text, "is text, which describes rows, and no feature"),
        (set[int]() if ids else is_id - is_text, "identifies rows, and is no feature"),
    ):
        if which:
            listed = checks.short(", ".join(titles[i].strip() for i in sorted(which)))
            checks.warn(f"{path}: {listed} {said}", 5)
    return [i for i in every if i not in is_text | is_id]


def _is_header(path: str, number: int, line: list[str], sample: list[str], first: int) -> bool:
    """Returns whether the first line is a header, by its cells and the next line, `sample`.

    Numbers start in the column `first`.

    Raises:
        InputError: the line can be read both as a header and as a row.
    """
    cells = line[first:]
    if cells == [str(i) for i in range(len(cells))] and len(line) == len(sample):
        all_integers = all(cell.strip().lstrip("+-").isdigit() for cell in sample[first:])
        if len(cells) <= 2 and all_integers and line[0].strip():
            raise InputError(
                f"{path}, line {number} must be column titles or a row of numbers; got "
                f"{','.join(line)!r}, which may be either: use words as titles"
            )
        return True
    # A line of words and numbers is a malformed row, which the caller reports.
    return not any(map(_is_number, cells))


def _read_lines(path: str, kind: str, rows: int, noun: str) -> NDArray:
    """Reads one label, or other `noun`, per line: integers if all are integers, else strings."""
    with _open(path) as file:
        if kind == ".txt":
            lines = [[line] for line in file]
        else:
            lines = [line or [""] for _, line in _lines(path, file, blank=True)]
    for row, line in enumerate(lines, 1):
        if len(line) > 1:
            must = f"{path} must have one column, the {noun}s"
            raise InputError(f"{must}; got {len(line)} in row {row}")
    values = [line[0].strip() for line in lines]
    while values and not values[-1]:
        values.pop()
    if "" in values:
        must = f"{path}, line {values.index('') + 1} must be a {noun}"
        raise InputError(f"{must}; got a blank line")
    # Among integers only 0 is a title, as pandas writes it: another one is a label too many.
    is_title = values[:1] == ["0"] or not all(_is_number(value, int) for value in values)
    if kind == ".csv" and len(values) == rows + 1 and is_title:
        values = values[1:]
    elif kind == ".csv" and _has_header(values):
        content = f"{len(values) - 1:,} below the title {values[0]!r}"
        raise InputError(f"{path} must hold {counted(rows, noun)}; got {content}")
    try:
        numbers = np.array([int(value) for value in values], np.int64)
    except (ValueError, OverflowError):
        return np.array(values)
    # "1_0", "01" and "+1" are names: as numbers, two of them could become one class.
    return numbers if [str(n) for n in numbers.tolist()] == values else np.array(values)


def _has_header(values: list[str]) -> bool:
    """Returns whether the first value is a word and the others, two or more, are integers."""
    is_integer = [_is_number(value, int) for value in values]
    return len(values) > 2 and not is_integer[0] and all(is_integer[1:])


def _open(path: str) -> TextIO:
    """Opens a text file; bytes that are not UTF-8 become lone surrogates."""
    with open(path, "rb") as file:
        is_utf_16 = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    if is_utf_16:
        return open(path, encoding="utf-16", errors="replace", newline="")
    return open(path, encoding="utf-8-sig", errors="surrogateescape", newline="")


def _lines(
    path: str, file: TextIO, blank: bool = False, *, are_texts: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """Yields line numbers and cells of a file's lines; without blank lines unless `blank`.

    Decimal commas become points unless `are_texts`.
    """
    first = file.readline()
    file.seek(0)
    delimiter = "\t" if path.lower().endswith(".tsv") else ";" if ";" in first else ","
    lines: Iterator[str] = iter(file)
    if delimiter not in first and " " in first.strip() and '"' not in first and not blank:
        delimiter, lines = " ", (line.strip() for line in file)
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=delimiter == " ")
    try:
        for line in reader:
            if line or blank:
                is_plain = are_texts or delimiter == ","
                cells = line if is_plain else [_decimal_point(cell) for cell in line]
                yield reader.line_num, cells
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}") from error


def _decimal_point(cell: str) -> str:
    """Replaces the decimal comma of a number by a point; leaves other cells unchanged."""
    number = cell.strip().replace(",", ".", 1)
    return number if "," in cell and _is_number(number) else cell


def _is_number(cell: str, kind: type[float] | type[int] = float) -> bool:
    try:
        kind(cell)
    except ValueError:
        return False
    return _is_plain(cell)


def _is_plain(text: str) -> bool:
    """Returns whether a text has nothing that only Python reads as part of a number, like "0_1"."""
    return "_" not in text and text.isascii()
