"""Reading files and writing them atomically, in local folders and buckets.

Arrays that a later command reads again carry the checksums of their archive.
"""

import contextlib
import io
import json
import os
import zipfile
from collections.abc import Collection, Iterator, Mapping
from typing import IO, Any

import numpy as np
from etils import epath

from cluster_jax.core import buckets
from cluster_jax.core.checks import InputError


class DamagedFile(InputError):
    """The content of a file is not what was written; the message names the file.

    It says that a copy can be restored, and what can be done `otherwise`, if there is something.
    """

    def __init__(self, path: epath.PathLike, reason: str, otherwise: str = ""):
        self.path = path
        self.reason = reason
        self.otherwise = otherwise
        do = f"restore it from a copy, or {otherwise}" if otherwise else "restore it from a copy"
        super().__init__(f"{path} is damaged ({reason}); {do}")


def check_writable(folder: epath.Path) -> None:
    """Raises an `InputError` unless a folder, which need not exist, can be written."""
    folder = epath.Path(folder).expanduser()
    if buckets.is_in_bucket(folder):
        return
    folder = folder.resolve()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(nearest, os.W_OK | os.X_OK):
        must = f"{nearest} must be a folder that can be written"
        raise InputError(f"{must}; got one that is read-only: choose another folder")


def write(path: epath.PathLike, content: str | bytes) -> None:
    """Writes a file atomically: first a temporary file next to it, which then replaces it.

    For links, buckets, pipes and devices see `replacing`.
    """
    if isinstance(content, str):
        # File names in tables may not be valid Unicode; their bytes are written unchanged.
        content = content.encode("utf-8", "surrogateescape")
    with replacing(epath.Path(path)) as file:
        file.write(content)


@contextlib.contextmanager
def replacing(path: epath.Path) -> Iterator[IO[bytes]]:
    """Opens a temporary file next to a file, which it replaces at the end if there is no error.

    A link stays, and the file that it leads to is replaced. In a bucket, where a file appears as a
    whole by itself, the content is collected in memory, and is written at the end, without a
    temporary file. So it is for a pipe or a device, which gets the content. An error of the system,
    such as that of a full disk, has the name of the file.
    """
    is_in_bucket = buckets.is_in_bucket(path)
    # `epath` takes a pipe for a file.
    if is_in_bucket or (os.path.exists(path) and not os.path.isfile(path)):
        content = io.BytesIO()
        yield content
        with path.open("wb") if is_in_bucket else open(path, "wb") as file:
            file.write(content.getvalue())
        return
    path = epath.Path(os.path.realpath(path))
    partial = path.parent / f".{path.name}.partial"
    try:
        with open(partial, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # Else a lost power supply may leave an empty file.
        partial.replace(path)
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(partial)):
            error.filename = str(path)
        raise
    finally:
        with contextlib.suppress(OSError):  # A read-only disk has told of the file itself.
            partial.unlink()


def write_json(path: epath.PathLike, value: Any) -> None:
    """Writes `value` as indented JSON; NaN and infinity, which JSON does not have, become null."""
    write(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def read_json(path: epath.PathLike) -> Any:
    """Reads a JSON file.

    Raises:
        DamagedFile: it is not JSON.
    """
    try:
        return json.loads(epath.Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise DamagedFile(path, "it is not JSON") from error


def write_arrays(
    path: epath.PathLike,
    arrays: Mapping[str, np.ndarray],
    fingerprint: str = "",
    *,
    compressed: bool = True,
) -> None:
    """Writes arrays as one `.npz` file, in which each has its CRC-32.

    Args:
        path: the file.
        arrays: by name.
        fingerprint: ASCII text that says what the arrays were made from, see `read_fingerprint`.
        compressed: whether to compress it, which takes longer than anything else here.
    """
    with replacing(epath.Path(path)) as file:
        # NumPy's signature mixes its options with the arrays.
        (np.savez_compressed if compressed else np.savez)(file, **arrays)  # type: ignore[arg-type]
        with zipfile.ZipFile(file, "a") as archive:
            archive.comment = fingerprint.encode("ascii")


def read_arrays(
    path: epath.PathLike, names: Collection[str] | None = None
) -> dict[str, np.ndarray]:
    """Returns the arrays of a file of `write_arrays`, which are read without unpickling.

    Args:
        path: the file.
        names: those that are read, of which the file may lack some; None: all.

    Raises:
        DamagedFile: it is not what was written.
        MemoryError: it does not fit into memory.
    """
    path = epath.Path(path)
    is_in_bucket = buckets.is_in_bucket(path)
    with (
        in_memory(path),
        io.BytesIO(path.read_bytes()) if is_in_bucket else path.open("rb") as content,
    ):
        try:
            with np.load(content, allow_pickle=False) as file:
                wanted = file.files if names is None else names
                return {name: file[name] for name in file.files if name in wanted}
        except MemoryError:
            raise
        except Exception as error:  # zipfile and zlib have errors of their own.
            raise DamagedFile(path, "its arrays cannot be read") from error


@contextlib.contextmanager
def in_memory(path: object) -> Iterator[None]:
    """Lets a `MemoryError` inside say which file was read: it is not damaged."""
    try:
        yield
    except MemoryError as error:
        raise MemoryError(f"too little memory to read {path}: free some, and try again") from error


def read_fingerprint(path: epath.PathLike) -> str:
    """Returns the fingerprint in a file of `write_arrays`, of which the end alone is read.

    Raises:
        DamagedFile: it has none.
    """
    try:
        with epath.Path(path).open("rb") as file, zipfile.ZipFile(file) as archive:
            return archive.comment.decode("ascii")
    except (zipfile.BadZipFile, UnicodeDecodeError) as error:
        raise DamagedFile(path, "it is no archive") from error


def plain(value: Any, *, all_numbers: bool = False) -> Any:
    """Converts `value` to JSON types: no NumPy or JAX types, lists instead of tuples.

    NaN and infinity, which JSON does not have, become None, unless `all_numbers` keeps them.
    """
    if isinstance(value, Mapping):
        return {str(k): plain(v, all_numbers=all_numbers) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v, all_numbers=all_numbers) for v in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist(), all_numbers=all_numbers)
    if isinstance(value, float) and not np.isfinite(value) and not all_numbers:
        return None
    return value
