"""Buckets such as `gs://bucket/folder`: few requests, and patience with a busy server.

A bucket has objects and no folders: what is written appears as a whole or not at all, so that no
temporary file is needed, and a folder is there as soon as something is in it. Each request takes
some 50 ms, wherefore a file is read and written by one, and a folder is listed by one.
"""

import contextlib
import functools
import io
import os
import re
from collections.abc import Iterable
from typing import Any

import fsspec
from etils import epath

# Seconds that a request is repeated for while the server is busy (429, 5xx) or cut off.
PATIENCE = 180.0
# Files that are read at once.
REQUESTS = 32
BUSY = (408, 429, 500, 502, 503, 504)


def is_in_bucket(path: epath.PathLike) -> bool:
    """Returns whether a path is one of a bucket, such as `gs://bucket/folder`."""
    return "://" in str(path)


def path(path: epath.PathLike) -> epath.Path:
    """Expands `~` in a path that a user gives; the first path of a bucket loads its library."""
    if str(path).startswith("gs://"):
        _register()
    return epath.Path(path).expanduser()


@functools.cache
def _register() -> None:
    """Makes `core.gcs` read and write `gs://` in the whole process from now on."""
    for name in ("gs", "gcs"):
        fsspec.register_implementation(
            name, "cluster_jax.core.gcs.Files", clobber=True,
            errtxt="Please install gcsfs to access Google Storage",
        )  # fmt: skip


def read(
    path: epath.PathLike,
    start: int | None = None,
    end: int | None = None,
    generation: int | None = None,
) -> bytes:
    """Reads a file, by one request in a bucket, of which also bytes from `start` to `end`.

    Args:
        path: the file.
        start: first byte.
        end: one past the last byte.
        generation: of the object that is meant, see `tree`; None: whichever is there.

    Raises:
        FileNotFoundError: there is none.
        FileExistsError: the object was replaced by another one.
    """
    if not str(path).startswith("gs://"):
        with epath.Path(path).open("rb") as file:
            file.seek(start or 0)
            return file.read(-1 if end is None else end - file.tell())
    if start is not None and start == end:
        return b""
    span = {} if start is None else {"Range": f"bytes={start}-{'' if end is None else end - 1}"}
    more = {"alt": "media", "headers": span, "ifGenerationMatch": generation}
    return _files().call("GET", "b/{}/o/{}", *_split(path), **more)[1]


class _Opened(io.RawIOBase):
    """An object of a bucket, opened to read; one that replaces it in the meantime is an error.

    Args:
        path: the object.
        generation: see `read`; None: of the one that is there now.

    Attributes:
        size: its bytes.
        generation: its generation.
    """

    def __init__(self, path: epath.PathLike, generation: int | None = None):
        facts = _files().call(
            "GET", "b/{}/o/{}", *_split(path), json_out=True, fields="size,generation",
            ifGenerationMatch=generation,
        )  # fmt: skip
        self.size, self.generation = int(facts["size"]), int(facts["generation"])
        self._path, self._place = path, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self.size}[whence]
        self._place = max(0, start + offset)
        return self._place

    def readinto(self, buffer: Any) -> int:
        start = min(self._place, self.size)
        data = read(self._path, start, min(start + len(buffer), self.size), self.generation)
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)


def opened(path: epath.PathLike, ahead: int, generation: int | None = None) -> io.BufferedReader:
    """Opens a file to read, in a bucket with some bytes ahead: more bytes are fewer requests.

    The attribute `raw` of one in a bucket is an `_Opened`; see there and `read` for the errors.
    """
    if not str(path).startswith("gs://"):
        return epath.Path(path).open("rb")
    return io.BufferedReader(_Opened(path, generation), ahead)


def write(path: epath.PathLike, content: bytes) -> None:
    """Writes a file of a bucket, in one piece."""
    if not str(path).startswith("gs://"):
        epath.Path(path).write_bytes(content)
    else:
        _files().pipe_file(str(path), content)


def names(folder: epath.PathLike) -> set[str]:
    """Lists the files and folders in a folder, which need not exist, by one request."""
    if not str(folder).startswith("gs://"):
        path = epath.Path(folder)
        return {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    return {name.split("/")[0] for name in tree(folder, delimiter="/")}


def tree(folder: epath.PathLike, delimiter: str = "") -> dict[str, int]:
    """Returns the generation of each object below a folder of a bucket, by the rest of its name.

    An object that is written again, by whatever name, has another generation.

    It takes one request for 1,000 objects.

    Args:
        folder: `gs://bucket/folder`.
        delimiter: "/": only what is in the folder itself; its folders end on "/", and have 0.

    Raises:
        FileNotFoundError: there is no such bucket.
    """
    bucket, prefix = _split(str(folder).rstrip("/"))
    prefix = f"{prefix}/" if prefix else ""
    files, generations, token = _files(), dict[str, int](), None
    while token != "":
        page = files.call(
            "GET", "b/{}/o", bucket, json_out=True, prefix=prefix or None, pageToken=token,
            delimiter=delimiter or None, maxResults=1000,
            fields="items(name,generation),prefixes,nextPageToken",
        )  # fmt: skip
        generations |= {x["name"]: int(x["generation"]) for x in page.get("items", ())}
        generations |= dict.fromkeys(page.get("prefixes", ()), 0)
        token = page.get("nextPageToken", "")
    rest = {name.removeprefix(prefix): x for name, x in generations.items()}
    return {name: x for name, x in rest.items() if name}  # An empty one marks the folder.


def _split(path: epath.PathLike) -> tuple[str, str]:
    """Returns the bucket and the name of an object."""
    bucket, _, name = str(path).removeprefix("gs://").partition("/")
    return bucket, name


def remove(paths: Iterable[str]) -> None:
    """Deletes files of a bucket; one that is not there is no error."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            _files().rm_file(path)


@functools.cache
def _files() -> Any:
    """Returns the file system of Google's buckets, the one that `epath` and so Orbax take too."""
    _register()
    return fsspec.filesystem("gcs", finalize_on_close=True)


def status(error: BaseException) -> int:
    """Returns the HTTP status that an error of a bucket's library has; 0 without one."""
    code = str(getattr(error, "code", None) or getattr(error, "status", None) or "")
    return int(code) if code.isdigit() else 0


def explain(error: BaseException) -> str | None:
    """Explains a bucket's error in a sentence with its library's words; None for other errors."""
    told = cause(error)
    return told and ": ".join(told)


def cause(error: BaseException) -> tuple[str, str] | None:
    """Returns what a bucket's error says, with its path, and what to do; None for other errors."""
    text, where = " ".join(str(error).split()), getattr(error, "where", None)
    library = type(error).__module__.partition(".")[0]
    if where is None and library not in ("gcsfs", "google", "aiohttp"):
        return None
    where, code = where or "the bucket", status(error)
    reason = re.sub(r"(^Forbidden: )?\S*\b(https?://|b/)\S+", "", text).strip(" :")
    if isinstance(error, FileNotFoundError) or code == 404:
        return f"{where} must exist; got no such file or bucket", "check its name"
    if isinstance(error, FileExistsError) or code == 412:
        changed = f"{where} must stay as it is during a run; got it changed meanwhile (412)"
        return changed, "end what writes it, and run the same command again"
    if text.startswith("Forbidden") or code == 403:
        return f"{where} may not be used (403: {reason})", "ask for the role Storage Object User"
    if code == 401 or library == "google":
        return f"{where} needs credentials ({reason})", "gcloud auth application-default login"
    if code == 400:
        return f"{where} is no place in a bucket ({reason})", "check its name"
    answer = f"{where} does not answer ({reason or type(error).__name__})"
    return answer, "run the same command again to go on"
