"""Memory limits: the memory of this machine, and checks before large allocations."""

import os
import pathlib
import zipfile
from typing import BinaryIO

from cluster_jax.core.checks import InputError

# Memory limit of a container: version 2 and version 1 of Linux's control groups.
_CGROUP_FILES = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory() -> int:
    """Bytes of memory that this process may use."""
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for name in _CGROUP_FILES:
        file = pathlib.Path(name)
        text = file.read_text().strip() if file.is_file() else ""
        if text.isdecimal():
            sizes.append(int(text))
    return min(sizes)


def check_memory(name: str, value: object, needed: int, what: str) -> None:
    """Raises an `InputError` if an allocation exceeds the memory of this machine.

    Args:
        name: the config key, or the quantity that the user can make smaller.
        value: its value.
        needed: lower bound of the allocation in bytes.
        what: name of the allocated object, for the message.
    """
    available = memory()
    if needed > available:
        raise InputError(
            f"{name} must fit the memory of this machine, {available / 1e9:.1f} GB; got {value}, "
            f"for which {what} alone would take {needed / 1e9:,.1f} GB"
        )


def check_archive(path: object, file: BinaryIO) -> None:
    """Raises an `InputError` if a zip archive unpacks to more than half of the memory.

    Args:
        path: path of the archive, for the message.
        file: the opened file, afterwards at its start; a file that is no zip archive passes.
    """
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > memory() / 2:
            must = f"{path} must unpack to at most half of the memory"
            raise InputError(f"{must}; got {size / 1e9:,.1f} GB")
    file.seek(0)
