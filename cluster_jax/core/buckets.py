"""Paths of a training, which may be in a bucket: `gs://bucket/run`, by `etils.epath`."""

import importlib.util

import fsspec
from etils import epath

from cluster_jax.core import checks
from cluster_jax.core.checks import InputError


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
    # Every folder is listed anew: other processes write there as well.
    fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False
    return epath.Path(path)


def names(folder: epath.PathLike) -> set[str]:
    """Lists the files and folders in a folder, which need not exist."""
    path = epath.Path(folder)
    if path.is_dir():
        return {entry.name for entry in path.iterdir()}
    return set()
