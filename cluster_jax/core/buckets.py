"""Paths of a training, which may be in a bucket: `gs://bucket/run`, by `etils.epath`."""

import contextlib
import importlib.util
import os
from collections.abc import Iterator

from etils import epath

from cluster_jax.core import checks
from cluster_jax.core.checks import InputError

# Packages that read and write buckets; with TensorFlow installed, gs:// goes through it.
_LIBRARIES = ("gcsfs", "google", "aiohttp", "tensorflow")


class BucketError(Exception):
    """A bucket, or the network on the way to it, fails; the same command may succeed later."""

    exit_code = 1  # of a command that it ends


def is_error(error: BaseException) -> bool:
    """Returns whether an error is of a library that reads buckets; these have no common class."""
    return type(error).__module__.partition(".")[0] in _LIBRARIES


@contextlib.contextmanager
def named(path: epath.PathLike) -> Iterator[None]:
    """Makes errors of libraries that read buckets a `BucketError`, which names the path."""
    try:
        yield
    except Exception as error:
        if not is_error(error):
            raise
        got = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise BucketError(f"{path} cannot be read now; got {got}") from error


def is_in_bucket(path: epath.PathLike) -> bool:
    """Returns whether a path is one of a bucket, such as `gs://bucket/folder`."""
    return "://" in str(path)


def path(path: epath.PathLike) -> epath.Path:
    """Returns a path that a user gives, with `~` expanded.

    Raises:
        InputError: it is in a bucket for which a library is missing, or no path at all.
    """
    if not str(path).startswith("gs://"):
        return epath.Path(checks.local(path)).expanduser()
    if importlib.util.find_spec("gcsfs") is None:
        raise InputError(f"{checks.short(path)} needs gcsfs; got none: pip install gcsfs")
    import fsspec  # Not before: a command that reads no bucket needs none.

    # Every folder is listed anew: other processes write there as well.
    fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False
    return epath.Path(path)


def names(folder: epath.PathLike) -> set[str]:
    """Lists the files and folders in a folder, which need not exist."""
    path = epath.Path(folder)
    if not is_in_bucket(path):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return set(os.listdir(path))
        return set()
    return {entry.name for entry in path.iterdir()} if path.is_dir() else set()
