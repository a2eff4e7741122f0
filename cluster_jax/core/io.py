"""Reading and writing files atomically, in a local folder or a bucket."""

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath


def write(path: epath.PathLike, content: str | bytes) -> None:
    """Writes a file through a temporary one beside it, so that no reader sees half of it."""
    path = epath.Path(path)
    partial = path.parent / f".{path.name}.partial"
    try:
        if isinstance(content, str):
            # A file name need not be valid Unicode; its bytes are written as they are.
            content = content.encode("utf-8", "surrogateescape")
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: epath.PathLike, value: Any) -> None:
    """Writes `value` as indented JSON; NaN and infinity, which JSON lacks, become null."""
    write(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def read_json(path: epath.PathLike) -> Any:
    """Reads a JSON file."""
    return json.loads(epath.Path(path).read_text())


def write_arrays(path: epath.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays as one compressed `.npz` file."""
    buffer = io.BytesIO()
    # NumPy declares its other parameters among the arrays.
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write(path, buffer.getvalue())


def read_arrays(path: epath.PathLike) -> dict[str, np.ndarray]:
    """Reads the arrays of an `.npz` file; never unpickles."""
    with np.load(io.BytesIO(epath.Path(path).read_bytes()), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def plain(value: Any) -> Any:
    """`value` as JSON values: without the types of NumPy and JAX, without tuples."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
