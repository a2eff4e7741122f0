"""Columns of CSV and Parquet tables: which hold numbers or vectors, and which are pandas' index."""

import json
import pathlib
import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from cluster_jax.core.checks import InputError, short

Kind = Literal["numbers", "vectors", "text", "unclear", "other"]

# How pandas titles a column without a title, which most often is an index of another table.
_UNNAMED = re.compile(r"(Unnamed: [\d.]+)?")
# How pandas titles an index without a name in a Parquet file.
_NAMELESS = re.compile(r"__index_level_\d+__")
# Bytes of the longest digest in use: longer cells of one length are taken for vectors.
_LONGEST_DIGEST = 64
# Sizes of the numbers of most vectors.
_SIZES = (1e-9, 1e9)


def read(file: pathlib.Path, ids: str | None, wanted: Sequence[str]) -> tuple[Any, list[str]]:
    """Reads a table by pyarrow; the cells of a column of ids in a CSV stay text.

    Args:
        file: the table.
        ids: title of the column of ids; None: the title is id, ID or Id, and all columns are read
            that may be numbers, vectors or ids.
        wanted: titles of further columns, of which a Parquet file has no others read; empty: all.

    Returns:
        The columns that were read, and the titles of all columns. If there is no column of one of
        the titles, or two columns have one title, no column is read.

    Raises:
        InputError: the file is no such table.
    """
    import pyarrow as pa
    from pyarrow import csv as tables
    from pyarrow import parquet

    kind = "a whole Parquet file"
    try:
        if file.suffix.lower() != ".csv":
            with parquet.ParquetFile(file) as opened:
                schema = opened.schema_arrow
                titles = schema.names
                own = list(wanted)
                if not wanted:
                    own = [field.name for field in schema if kind_of(field.type) != "other"]
                own += [ids] if ids else [t for t in titles if t.lower() == "id"]
                own += [] if ids else index(schema)
                if len(set(titles)) < len(titles) or not set(own) <= set(titles):
                    own = []
                # A column of records is read by its title alone, not by those of its fields.
                return opened.read(list(dict.fromkeys(own))), titles
        kind = "a table in UTF-8 with a line of titles, separated by commas"
        # An id may have a leading zero, or more digits than a number keeps.
        texts = dict.fromkeys([ids] if ids else ["id", "ID", "Id"], pa.string())
        how = tables.ParseOptions(newlines_in_values=True)
        of = tables.ConvertOptions(column_types=texts)
        table = tables.read_csv(file, parse_options=how, convert_options=of)
        return table, table.column_names
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, MemoryError):
            raise
        reason = short(" ".join(str(error).split()))
        raise InputError(f"{file} must be {kind}; got {reason}") from error


def kind_of(of: Any) -> Kind:
    """Returns what a column of a type of Arrow may be.

    Bytes, tables in a cell, records with a list of numbers, and lists of nothing are "unclear": it
    cannot be told which vector they are, if any.
    """
    import pyarrow as pa

    types = pa.types
    if isinstance(of, pa.BaseExtensionType):
        if isinstance(of, pa.FixedShapeTensorType) and len(of.shape) == 1:
            return "vectors"
        storage = kind_of(of.storage_type)
        is_list = storage in ("vectors", "unclear") and not types.is_fixed_size_binary(
            of.storage_type
        )
        return "unclear" if is_list else "other"
    if types.is_dictionary(of):
        of = of.value_type
    if types.is_integer(of) or types.is_floating(of) or types.is_boolean(of):
        return "numbers"
    if types.is_decimal(of):
        return "numbers"
    if "string" in str(of) and not types.is_nested(of):
        return "text"
    if types.is_list(of) or types.is_large_list(of) or types.is_fixed_size_list(of):
        inner = kind_of(of.value_type)
        if inner == "numbers":
            return "vectors"
        is_nested = inner in ("vectors", "unclear") or types.is_null(of.value_type)
        return "unclear" if is_nested else "other"
    if types.is_struct(of):
        has_vector = any(kind_of(of.field(i).type) == "vectors" for i in range(of.num_fields))
        return "unclear" if has_vector else "other"
    if types.is_binary(of) or types.is_large_binary(of) or types.is_fixed_size_binary(of):
        return "unclear"
    return "other"


def numbers(column: Any) -> Any:
    """Returns a column of numbers or vectors; None if it has neither.

    A column of text is read as numbers or vectors, and a cell of text that is no number is null. If
    any cell begins with `[`, the column is one of vectors, and all other cells are null.
    """
    import pyarrow as pa

    kind = kind_of(column.type)
    if kind == "vectors" and isinstance(column.type, pa.BaseExtensionType):
        return pa.chunked_array(
            [chunk.storage for chunk in column.chunks], column.type.storage_type
        )
    if kind == "vectors":
        return column
    if kind == "numbers":
        is_coded = pa.types.is_dictionary(column.type)
        return column.cast(column.type.value_type) if is_coded else column
    if kind != "text":
        return None
    texts = column.to_pylist()
    has_vectors = any(text is not None and text.lstrip().startswith("[") for text in texts)
    of = pa.list_(pa.float64()) if has_vectors else pa.float64()
    cells = [parsed(text) for text in texts]
    cells = [cell if isinstance(cell, list) == has_vectors else None for cell in cells]
    has_numbers = has_vectors or any(cell is not None for cell in cells)
    return pa.array(cells, of) if has_numbers else None


def parsed(cell: str | None) -> float | list[float] | None:
    """Returns the number or the vector that a text writes as JSON; None for any other text.

    "NaN" and "Infinity" are numbers, and so are true and false.
    """
    try:
        value = json.loads(cell or "")
        if isinstance(value, list):
            return list(map(float, value))
        return float(value)
    except (TypeError, ValueError):
        return None


def looks_like_vectors(column: Any) -> bool:
    """Returns whether a column is "unclear" to `kind_of`, and its cells may be vectors.

    Cells of bytes may be if all have one length, and are longer than any digest, or are numbers of
    usual sizes when they are read as such; names, digests and pictures are not.
    """
    import pyarrow as pa

    if kind_of(column.type) != "unclear":
        return False
    types, of = pa.types, column.type
    if not (types.is_binary(of) or types.is_large_binary(of) or types.is_fixed_size_binary(of)):
        return True
    cells = [cell for cell in column.to_pylist() if cell is not None]
    lengths = set(map(len, cells))
    if len(lengths) != 1 or (length := lengths.pop()) < 2 or all(map(_is_text, cells)):
        return False
    return length > _LONGEST_DIGEST or any(
        length % np.dtype(dtype).itemsize == 0 and _are_usual(np.frombuffer(b"".join(cells), dtype))
        for dtype in ("<f2", "<f4", "<f8", ">f4", ">f8")
    )


def _is_text(cell: bytes) -> bool:
    """Returns whether bytes are text in UTF-8 that can be printed."""
    try:
        return cell.decode().isprintable()
    except UnicodeDecodeError:
        return False


def _are_usual(values: np.ndarray) -> bool:
    """Returns whether all numbers are zero or of a usual size."""
    with np.errstate(invalid="ignore"):
        sizes = np.abs(values.astype(np.float64))
    smallest, largest = _SIZES
    return bool(np.all((sizes == 0) | ((sizes >= smallest) & (sizes <= largest))))


def index(schema: Any) -> list[str]:
    """Returns the titles of the columns that are an index of pandas, or have no title."""
    marked = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
    # An index that only counts the rows is no column, but a record of where it begins and ends.
    titles = {title for title in marked.get("index_columns", ()) if isinstance(title, str)}
    titles |= {title for title in schema.names if _UNNAMED.fullmatch(title)}
    return [title for title in schema.names if title in titles]


def has_name(title: str) -> bool:
    """Returns whether the title of an index is a name that it has in pandas."""
    return not (_UNNAMED.fullmatch(title) or _NAMELESS.fullmatch(title))


def shown(title: str) -> str:
    """Returns how a message calls a column."""
    if _NAMELESS.fullmatch(title):
        return "an index without a name"
    return title or "a column without a title"


def are_ids(column: Any) -> bool:
    """Returns whether each cell of a column has a value that no other cell has."""
    return column.null_count == 0 and len(column.unique()) == len(column)


def are_numbered(values: np.ndarray) -> bool:
    """Returns whether numbers `[n]` are whole and each is there once, as ids of rows are."""
    is_whole = np.isfinite(values).all() and bool(np.all(values == np.floor(values)))
    return is_whole and len(np.unique(values)) == len(values)
