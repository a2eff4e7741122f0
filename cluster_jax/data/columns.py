"""Tables of columns: Parquet, Arrow, JSON lines, and tensors of safetensors."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.core import arrays
from cluster_jax.core.checks import InputError, short

SUFFIXES = (".parquet", ".arrow", ".feather", ".jsonl", ".ndjson", ".safetensors")


def read(
    file: epath.Path, name: str | None, names_rows: Callable[[str], bool]
) -> tuple[NDArray, list[str] | None, dict[str, list[str]], str | None]:
    """Reads features `[n, d]` from a file, titles of numbers, other columns, and what names rows.

    Features are the column or tensor `name`; or else the only column of vectors, the only tensor
    with two axes, or all columns of numbers. Names are the first column of strings, or the one with
    a title of `names_rows`. See `tables.Columns`.

    Raises:
        InputError: the file cannot be read, or has no such column.
    """
    columns = _read(file)
    vectors = [key for key, column in columns.items() if column.ndim == 2]
    if name is None and len(vectors) > 1:
        found = short(", ".join(vectors))
        raise InputError(f"--array must name one of the vectors of {file}, {found}; got none")
    chosen, titles = name if name is not None else next(iter(vectors), None), None
    if chosen is not None:
        if chosen not in columns:
            found = short(", ".join(columns))
            raise InputError(f"--array must be a column of {file}, {found}; got {short(chosen)}")
        values = columns[chosen]
        values = values if values.ndim == 2 else values[:, None]
        used = {chosen}
    else:
        numbers = {
            key: column
            for key, column in columns.items()
            if column.dtype.kind in "biuf" and not names_rows(key)
        }
        if not numbers:
            found = short(", ".join(columns)) or "nothing"
            raise InputError(f"{file} must have columns of numbers or of vectors; got {found}")
        values, titles, used = np.stack(list(numbers.values()), axis=1), list(numbers), {*numbers}
    others = {
        key: _texts(column)
        for key, column in columns.items()
        if column.shape == (len(values),) and key not in used
    }
    titled = (key for key in others if names_rows(key))
    strings = (key for key in others if columns[key].dtype.kind in "US")
    return values, titles, others, next(titled, None) or next(strings, None)


def read_texts(file: epath.Path) -> dict[str, list[str]]:
    """Reads the columns of a file that are no vectors, as text."""
    return {key: _texts(column) for key, column in _read(file).items() if column.ndim == 1}


def _texts(column: NDArray) -> list[str]:
    return list(map(str, column.tolist()))


def _read(file: epath.Path) -> dict[str, NDArray]:
    try:
        return _columns(file)
    except ImportError as error:
        raise InputError(f"{file} needs {error.name}: pip install {error.name}") from error
    except Exception as error:  # Each library has errors of its own.
        reason = short(" ".join(str(error).split()))
        raise InputError(f"{file} must be a readable {file.suffix} file; got {reason}") from error


def _columns(file: epath.Path) -> dict[str, NDArray]:
    """Reads the columns by title: numbers `[n]`, vectors `[n, d]`, or strings `[n]`."""
    suffix = file.suffix.lower()
    if suffix == ".safetensors":
        from safetensors import deserialize

        tensors = sorted(deserialize(file.read_bytes()), key=lambda item: item[0])
        return {key: _tensor(tensor) for key, tensor in tensors}
    if suffix in (".jsonl", ".ndjson"):
        lines = file.read_bytes().decode("utf-8-sig").splitlines()
        rows: list[Mapping[str, Any]] = [json.loads(line) for line in lines if line.strip()]
        titles = list(rows[0]) if rows and isinstance(rows[0], Mapping) else []
        for number, row in enumerate(rows, 1):
            if not isinstance(row, Mapping) or not {*titles} <= {*row}:
                raise ValueError(f"row {number}, which is no object with the keys of the first")
        return {title: _column([row[title] for row in rows]) for title in titles}
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
    kind = column.type
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(test(kind) for test in tests):
        return column.to_numpy() if pa.types.is_primitive(kind) else _column(column.to_pylist())
    import pyarrow.compute

    _check_lengths(pyarrow.compute.list_value_length(column).to_pylist())
    flat = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(column), -1)


def _check_lengths(lengths: list[int | None]) -> None:
    if not lengths:
        raise ValueError("no rows")
    for row, length in enumerate(lengths):
        if length is None:
            raise ValueError(f"no vector in row {row}")
        if length != lengths[0]:
            both = f"{lengths[0]} in row 0 and {length} in row {row}"
            raise ValueError(f"vectors of different lengths, {both}")


def _column(values: list) -> NDArray:
    """Makes an array of a column of Python objects: numbers, strings, or vectors of one length."""
    if values and all(isinstance(value, list) for value in values):
        _check_lengths(list(map(len, values)))
        return np.array(values, np.float64)
    if any(isinstance(value, str) or value is None for value in values):
        return np.array([str(value) for value in values], str)
    return np.array(values)
