"""A folder to write to: whether it can be written, and one sentence where that fails."""

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator

from etils import epath

from cluster_jax.core.checks import InputError

# Errors of a disk, whatever the file.
_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


class WriteError(OSError):
    """Files could not be written; the message is one sentence that says what to do.

    Args:
        path: the file or folder.
        error: why.
        saved: what is safe, in words.
    """

    def __init__(self, path: epath.PathLike, error: Exception, saved: str):
        super().__init__(
            f"{path} cannot be written ({reason(error)}); {saved}: free space or make it writable, "
            "and run the same command again to resume"
        )


def check_writable(folder: epath.Path) -> None:
    """Raises an `InputError` unless a folder, or where it lacks its nearest parent, is writable."""
    if "://" in str(folder):  # the first write to a bucket tells
        return
    nearest = _existing(folder)
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(
            f"{nearest} must be a folder that can be written; got one that is read-only: choose "
            "another --workdir"
        )


def check_free(folder: epath.Path, needed: int, what: str) -> None:
    """Raises an `InputError` unless a folder's disk has room for `needed` bytes.

    Args:
        folder: need not exist.
        needed: bytes.
        what: what takes them, for the message.
    """
    if "://" in str(folder):
        return
    free = shutil.disk_usage(_existing(folder)).free
    if free < needed:
        raise InputError(
            f"the disk of {folder} must have {needed / 1e6:,.0f} MB free for {what}; got "
            f"{free / 1e6:,.0f} MB: free space, or choose another --workdir"
        )


def reserve(folder: epath.Path, needed: int) -> None:
    """Raises an `OSError` unless a folder's disk has room for `needed` bytes and a megabyte."""
    if "://" not in str(folder) and shutil.disk_usage(folder).free < needed + 1e6:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextlib.contextmanager
def explained(folder: epath.Path, saved: Callable[[], str]) -> Iterator[None]:
    """Turns an error of writing into the folder into a `WriteError`.

    Args:
        folder: the folder.
        saved: says what is safe.
    """
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        inside = str(error.filename or "").startswith(str(folder))
        if inside or error.errno in _CODES:
            raise WriteError(folder, error, saved()) from error
        raise


def reason(error: Exception) -> str:
    """Why the system does not write, in its words, also where a library quotes them."""
    quoted = (os.strerror(code) for code in _CODES if os.strerror(code) in str(error))
    return next(quoted, None) or getattr(error, "strerror", None) or "its files are not accepted"


def _existing(folder: epath.Path) -> epath.Path:
    """The folder or its nearest parent that exists."""
    folder = folder.expanduser().resolve()
    return next(path for path in (folder, *folder.parents) if path.exists())
