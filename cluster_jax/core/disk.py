"""Checks of a disk before something is written, and one sentence where writing fails."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator

from etils import epath

from cluster_jax.core import checks
from cluster_jax.core.checks import InputError

# Errors of a disk, whatever the file.
_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


class WriteError(OSError):
    """Files could not be written; the message is one sentence that says what to do.

    Args:
        path: the file or folder.
        error: why.
    """

    def __init__(self, path: epath.PathLike, error: Exception):
        # A library may quote the system's words in an error of its own.
        quoted = (os.strerror(code) for code in _CODES if os.strerror(code) in str(error))
        system = next(quoted, None) or getattr(error, "strerror", None)
        reason = system or checks.short(" ".join(str(error).split()), 160)
        to_do = "free space or make it writable"
        if is_in_bucket(path) and isinstance(error, FileNotFoundError):  # It quotes a request.
            reason, to_do = f"no such bucket: {reason}", "create it"
        super().__init__(
            checks.sentence(
                f"{path} cannot be written ({reason or 'its files are not accepted'}): {to_do}, "
                "and run the same command again to resume"
            )
        )


def check(folder: epath.Path, needed: int = 0, what: str = "") -> None:
    """Raises an `InputError` unless a folder can be written and its disk has room.

    Args:
        folder: need not exist; its nearest parent that exists is checked. Into a bucket an empty
            file is written for a moment.
        needed: bytes.
        what: name of what is to be written, for the message.
    """
    if is_in_bucket(folder):
        if not needed:
            with explained(folder):
                probe = folder / ".writable"
                probe.write_bytes(b"")
                probe.unlink(missing_ok=True)
        return
    folder = folder.expanduser().resolve()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    other = "choose another folder"
    if not os.access(nearest, os.W_OK | os.X_OK):
        must = f"{nearest} must be a folder that can be written"
        raise InputError(f"{must}; got one that is read-only: {other}")
    free = shutil.disk_usage(nearest).free
    if free < needed:
        raise InputError(
            f"the disk of {folder} must have {needed / 1e6:,.1f} MB free for {what}; got "
            f"{free / 1e6:,.1f} MB: free space and run the same command again, or {other}"
        )


def is_in_bucket(path: epath.PathLike) -> bool:
    """Whether a path is one of a bucket, such as `gs://bucket/folder`."""
    return "://" in str(path)


@contextlib.contextmanager
def explained(folder: epath.PathLike) -> Iterator[None]:
    """Turns an error of writing into a folder, or anything in a bucket, into a `WriteError`."""
    try:
        yield
    except (WriteError, InputError):
        raise
    except Exception as error:
        if is_in_bucket(folder):  # Its library has errors of its own.
            raise WriteError(folder, error) from error
        if not isinstance(error, OSError):
            raise
        if str(error.filename or "").startswith(str(folder)) or error.errno in _CODES:
            raise WriteError(folder, error) from error
        raise
