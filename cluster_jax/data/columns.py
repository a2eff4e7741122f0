"""Tables of columns: Parquet, Arrow, JSON lines, and tensors of safetensors."""

import contextlib
import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.core import arrays
from cluster_jax.core.checks import InputError, short

# What such a file starts with and, if it is whole, ends with.
_MARKS = {".parquet": b"PAR1", ".arrow": b"ARROW1", ".feather": b"ARROW1"}
_STREAM = b"\xff\xff\xff\xff"  # starts a stream of Arrow, which has no mark at its end
SUFFIXES = (".parquet", ".arrow", ".feather", ".jsonl", ".ndjson", ".safetensors")


def read(
    file: epath.Path, name: str | None, names_rows: Callable[[str], bool]
) -> tuple[NDArray, list[str] | None, dict[str, list[str]], str | None]:
    """Reads features `[n, d]` from a file, titles of numbers, other columns, and what names rows.

    Features are the column or tensor `name`; or else the only column of vectors, the only tensor
    with two axes, or all columns of numbers. Names are the first column of distinct strings, or the
    one with a title of `names_rows`. See `tables.Columns`.

    Raises:
        InputError: the file cannot be read, or has no such column.
    """
    columns = _read(file)
    vectors = [key for key, column in columns.items() if column.ndim == 2]
    if name is None and len(vectors) > 1:
        listed = short(", ".join(vectors))
        raise InputError(f"--array must name one of the vectors of {file}, {listed}; got none")
    chosen, titles = name if name is not None else next(iter(vectors), None), None
    if chosen is not None:
        if chosen not in columns:
            listed = short(", ".join(columns))
            raise InputError(f"--array must be a column of {file}, {listed}; got {short(chosen)}")
        values = columns[chosen]
        _check_vectors(file, values)
        values = values if values.ndim == 2 else values[:, None]
        used = {chosen}
    else:
        numbers = {
            key: column
            for key, column in columns.items()
            if column.dtype.kind in "biuf" and not names_rows(key)
        }
        if not numbers:
            for column in columns.values():
                _check_vectors(file, column)
            listed = short(", ".join(columns)) or "nothing"
            raise InputError(f"{file} must have columns of numbers or of vectors; got {listed}")
        values, titles, used = np.stack(list(numbers.values()), axis=1), list(numbers), {*numbers}
    others = {
        key: _texts(column)
        for key, column in columns.items()
        if column.shape == (len(values),) and key not in used
    }
    titled = (key for key in others if names_rows(key))
    strings = (
        key
        for key in others
        if columns[key].dtype.kind in "US" and len(set(others[key])) == len(values)
    )
    return values, titles, others, next(titled, None) or next(strings, None)


def read_texts(file: epath.Path) -> dict[str, list[str]]:
    """Reads the columns of a file that are no vectors, as text; a missing value is empty."""
    return {key: _texts(column) for key, column in _read(file).items() if column.ndim == 1}


def _texts(column: NDArray) -> list[str]:
    if column.dtype.kind == "f" and (is_missing := np.isnan(column)).any():
        there = column[~is_missing]
        if (there == np.round(there)).all():  # Integers, of which some are missing.
            return ["" if value != value else f"{value:.0f}" for value in column.tolist()]
    return list(map(_text, column.tolist()))


def _text(value: Any) -> str:
    if value is None or value != value:  # NaN
        return ""
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return os.fsdecode(value) if isinstance(value, bytes) else str(value)


def _check_vectors(file: epath.Path, column: NDArray) -> None:
    """Raises an `InputError` for lists that are no vectors of one length."""
    if column.dtype != object:
        return
    lengths = [len(value) if isinstance(value, list) else None for value in column]
    if None in lengths:
        problem = f"none in row {lengths.index(None)}"
    else:
        row = next((i for i, length in enumerate(lengths) if length != lengths[0]), None)
        lists = f"of different lengths, {lengths[0]} in row 0 and {lengths[row or 0]} in row {row}"
        problem = "other content" if row is None else f"vectors {lists}"
    raise InputError(f"{file} must have vectors of numbers of one length; got {problem}")


def _read(file: epath.Path) -> dict[str, NDArray]:
    try:
        return _columns(file)
    except ImportError as error:
        raise InputError(f"{file} needs {error.name}: pip install {error.name}") from error
    except Exception as error:  # Each library has errors of its own.
        reason = damage(file) or short(" ".join(str(error).split()))
        raise InputError(f"{file} must be a whole {file.suffix} file; got {reason}") from error


def damage(file: epath.Path) -> str | None:
    """Explains a damaged file by the marks at its ends; None if they tell nothing."""
    if (mark := _MARKS.get(file.suffix.lower())) is None:
        return None
    with file.open("rb") as stream:
        start = stream.read(len(mark))
        size = stream.seek(0, 2)
        stream.seek(max(0, size - len(mark)))
        end = stream.read()
    if start == mark:
        is_cut = end != mark
        return f"only its first {size:,} bytes: write or copy it again" if is_cut else None
    if start.startswith(_STREAM):
        return None
    return f"{size:,} bytes{' of other content' * bool(size)}"


def _columns(file: epath.Path) -> dict[str, NDArray]:
    """Reads the columns by title: numbers `[n]`, vectors `[n, d]`, or strings `[n]`."""
    suffix = file.suffix.lower()
    if suffix == ".safetensors":
        from safetensors import deserialize

        tensors = sorted(deserialize(file.read_bytes()), key=lambda item: item[0])
        return {key: _tensor(tensor) for key, tensor in tensors}
    if suffix in (".jsonl", ".ndjson"):
        # Lines, unlike those of `splitlines`, may have any other character in their strings.
        lines = file.read_bytes().decode("utf-8-sig").split("\n")
        rows: list[Mapping[str, Any]] = [json.loads(line) for line in lines if line.strip()]
        for number, row in enumerate(rows, 1):
            if not isinstance(row, Mapping):
                raise ValueError(f"row {number}, which is no object")
        titles = dict.fromkeys(title for row in rows for title in row)
        return {title: _column([row.get(title) for row in rows]) for title in titles}
    import pyarrow as pa
    from pyarrow import feather, parquet

    with file.open("rb") as stream:
        if suffix == ".parquet":
            table = parquet.read_table(stream)
        else:
            try:
                table = feather.read_table(stream)
            except pa.ArrowInvalid:
                stream.seek(0)
                table = pa.ipc.open_stream(stream).read_all()
    return {title: _arrow_column(table[title], pa) for title in table.column_names}


def _tensor(tensor: Mapping[str, Any]) -> NDArray:
    """Reads a tensor, in bfloat16 too, which the NumPy part of safetensors does not read."""
    kind = tensor["dtype"]
    dtype = {"BF16": ml_dtypes.bfloat16, "BOOL": np.bool_}.get(kind)
    dtype = dtype or {"F": "f", "I": "i", "U": "u"}[kind[0]] + str(int(kind[1:]) // 8)
    return arrays.widened(np.frombuffer(tensor["data"], dtype).reshape(tensor["shape"]))


def _arrow_column(column: Any, pa: Any) -> NDArray:
    kind, types = column.type, pa.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return column.to_numpy()
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        import pyarrow.compute

        lengths = pyarrow.compute.list_value_length(column).unique().to_pylist()
        of_numbers = types.is_integer(kind.value_type) or types.is_floating(kind.value_type)
        if of_numbers and len(lengths) == 1 and lengths[0] is not None:
            flat = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
            return flat.reshape(len(column), -1)
    return _column(column.to_pylist())


def _column(values: list) -> NDArray:
    """Makes an array of a column of Python objects: numbers, strings, vectors, or others."""
    if all(isinstance(value, int | float | None) for value in values):
        return np.array([math.nan if value is None else value for value in values])
    if all(isinstance(value, list) for value in values):
        with contextlib.suppress(ValueError, TypeError):  # of other lists than vectors
            return np.array(values, np.float64).reshape(len(values), -1)
    if any(isinstance(value, list | dict) for value in values):
        column = np.empty(len(values), object)
        column[:] = values
        return column
    return np.array(list(map(_text, values)), str)
