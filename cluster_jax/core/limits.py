"""What fits the memory of this machine, estimated before anything is computed."""

import os
import pathlib
import zipfile
from typing import BinaryIO

from cluster_jax.core.checks import InputError

# A limit of a container, in the two versions of Linux's control groups.
_GROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory() -> int:
    """Bytes of memory that this process may use."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for name in _GROUPS:
        file = pathlib.Path(name)
        text = file.read_text().strip() if file.is_file() else ""
        if text.isdecimal():
            found.append(int(text))
    return min(found)


def check_memory(name: str, value: object, needed: int, what: str) -> None:
    """Raises an `InputError` if something needs more memory than there is.

    Args:
        name: the config key, or what to make smaller.
        value: its value.
        needed: bytes, a lower bound.
        what: what takes them.
    """
    there = memory()
    if needed > there:
        raise InputError(
            f"{name} must fit the memory of this machine, {there / 1e9:.1f} GB; got {value}, for "
            f"which {what} alone would take {needed / 1e9:,.1f} GB"
        )


def check_archive(path: object, file: BinaryIO) -> None:
    """Raises an `InputError` if what a zip archive unpacks to takes half of the memory or more.

    Args:
        path: its name, for the message.
        file: the opened file, read from its start; another kind of file passes.
    """
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > memory() / 2:
            raise InputError(
                f"{path} must unpack to at most half of the memory; got {size / 1e9:,.1f} GB"
            )
    file.seek(0)
