"""Checks of a disk before something is written, and one sentence where writing fails."""

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator

from etils import epath

from cluster_jax.core import buckets, checks
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
        reason = system or checks.short(" ".join(_text(error).split()), 160)
        to_do = "free space or make it writable"
        if buckets.is_in_bucket(path):
            to_do = "check its name and who may write to it"
            if isinstance(error, FileNotFoundError):  # It quotes a request.
                reason, to_do = "no such bucket", "create it"
            elif told := buckets.cause(error):
                reason = checks.short(told[0], 160)
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
    if buckets.is_in_bucket(folder):
        if not needed:
            with explained(folder):
                # Each host of a job has its own: a server limits the writes of one object.
                probe = f"{folder}/.writable-{secrets.token_hex(4)}"
                buckets.write(probe, b"")
                buckets.remove([probe])
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


def _text(error: BaseException) -> str:
    """Returns what an error says, or the error that it comes from, or one of its group."""
    inner = (*getattr(error, "exceptions", ()), error.__cause__, error.__context__)
    return str(error) or next((text for e in inner if e and (text := _text(e))), "")


def make(folder: epath.PathLike, *, parents: bool = False) -> None:
    """Makes a folder, and those above it if asked for; a bucket needs none."""
    if not buckets.is_in_bucket(folder):
        epath.Path(folder).mkdir(parents=parents, exist_ok=True)


@contextlib.contextmanager
def explained(folder: epath.PathLike) -> Iterator[None]:
    """Turns an error of writing into a folder, or anything in a bucket, into a `WriteError`."""
    try:
        yield
    except (WriteError, InputError):
        raise
    except Exception as error:
        if buckets.is_in_bucket(folder):  # Its library has errors of its own.
            raise WriteError(folder, error) from error
        if not isinstance(error, OSError):
            raise
        if str(error.filename or "").startswith(str(folder)) or error.errno in _CODES:
            raise WriteError(folder, error) from error
        raise
