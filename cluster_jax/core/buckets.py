"""Paths of a training, which may be in a bucket: `gs://bucket/run`, by `etils.epath`."""

import functools

import fsspec
from etils import epath

from cluster_jax.core import checks


def is_in_bucket(path: epath.PathLike) -> bool:
    """Returns whether a path is one of a bucket, such as `gs://bucket/folder`."""
    return "://" in str(path)


def path(path: epath.PathLike) -> epath.Path:
    """Returns a path that a user gives, with `~` expanded.

    Raises:
        InputError: it is in a bucket for which a library is missing, or no path at all.
    """
    if is_in_bucket(path):
        _forget_listings()
    return epath.Path(checks.address(path)).expanduser()


@functools.cache
def _forget_listings() -> None:
    """Has every folder of a bucket listed anew: other processes write there as well."""
    fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False


def names(folder: epath.PathLike) -> set[str]:
    """Lists the files and folders in a folder, which need not exist."""
    path = epath.Path(folder)
    return {entry.name for entry in path.iterdir()} if path.is_dir() else set()
