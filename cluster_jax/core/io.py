"""Reading files and writing them atomically, in local folders and buckets."""

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath


def write(path: epath.PathLike, content: str | bytes) -> None:
    """Writes a file atomically: first a temporary file next to it, which then replaces it."""
    path = epath.Path(path)
    partial = path.parent / f".{path.name}.partial"
    try:
        if isinstance(content, str):
            # File names in tables may not be valid Unicode; their bytes are written unchanged.
            content = content.encode("utf-8", "surrogateescape")
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: epath.PathLike, value: Any) -> None:
    """Writes `value` as indented JSON; NaN and infinity, which JSON does not have, become null."""
    write(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def read_json(path: epath.PathLike) -> Any:
    """Reads a JSON file."""
    return json.loads(epath.Path(path).read_text())


def write_arrays(path: epath.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays as one compressed `.npz` file."""
    buffer = io.BytesIO()
    # NumPy's signature mixes its options with the arrays.
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write(path, buffer.getvalue())


def read_arrays(path: epath.PathLike) -> dict[str, np.ndarray]:
    """Reads the arrays of an `.npz` file without unpickling."""
    with np.load(io.BytesIO(epath.Path(path).read_bytes()), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def plain(value: Any) -> Any:
    """Converts `value` to JSON types: no NumPy or JAX types, lists instead of tuples."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
