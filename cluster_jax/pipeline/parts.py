"""Parts of an embedding that is being made: an interruption keeps those that are done.

A part is a file with the rows of some batches in a row. It is written whenever `SECONDS` have
passed since the last one, so that an embedding that takes no time writes none, and by Ctrl-C and
SIGTERM. An embedding goes on with the next batch, so that it is bit for bit the same with and
without parts.
"""

import contextlib
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging
from etils import epath
from jax.experimental import multihost_utils

from cluster_jax.core import interrupt, io
from cluster_jax.core.checks import InputError

# Seconds of work that a kill can lose.
SECONDS = 20.0
ABOUT, SUFFIX, _NAME = "about.json", ".parts", "part_"

# Name -> rows of one batch.
Batch = dict[str, np.ndarray]


class Parts(NamedTuple):
    """Where the parts of an embedding are, and whose they are.

    Attributes:
        folder: see `folder_of`; need not exist.
        fingerprint: ASCII text that says what the embedding is made from; parts with another one
            are made again.
        guard: raises if the folder may not be written any longer; called before each part.
    """

    folder: epath.Path
    fingerprint: str
    guard: Callable[[], None] = lambda: None


def folder_of(file: epath.Path) -> epath.Path:
    """The folder of the parts of a file: beside it, `FILE.parts`."""
    return file.parent / f"{file.name}{SUFFIX}"


def collect(parts: Parts | None, embed_from: Callable[[int], Generator[Batch]]) -> Batch:
    """All rows: those of the parts that are there, and of the batches after them.

    Args:
        parts: where; None: nothing is kept.
        embed_from: gives the batches from a row on, in order. All processes call it together, with
            the same row; the first process alone writes.

    Returns:
        Name -> rows.
    """
    found = [] if parts is None else _read(parts)
    start = sum(_count(part) for part in found)
    batches: list[Batch] = []
    written, since = 0, time.monotonic()  # how many batches are in files

    def write() -> None:
        nonlocal written, since
        if parts is not None and written < len(batches):
            first = start + sum(_count(batch) for batch in batches[:written])
            _write(parts, first, _joined(batches[written:]))
            written, since = len(batches), time.monotonic()

    try:
        with contextlib.closing(embed_from(start)) as stream:
            for batch in stream:
                batches.append(batch)
                if time.monotonic() - since > SECONDS:
                    write()
    except (KeyboardInterrupt, interrupt.Terminated):
        write()
        raise
    return _joined([*found, *batches])


def claim(folder: epath.Path, about: Mapping[str, Any]) -> None:
    """Creates a folder of parts that a user chose, or checks that it has parts of the same images.

    Raises:
        InputError: they are not, or the folder has other files.
    """
    file, about = folder / ABOUT, io.plain(about)
    if not file.exists():
        if folder.exists() and any(folder.iterdir()):
            raise InputError(
                f"{folder} must be a new folder for parts of the features; got one with other "
                "files: choose another --out"
            )
        folder.mkdir(parents=True, exist_ok=True)
        io.write_json(file, about, checksum=True)
        return
    try:
        stored = io.read_json(file)
    except ValueError:
        stored = None
    if stored != about:
        raise InputError(
            f"{folder} must have parts of the same images, network and views; got others: delete "
            "it, or choose another --out"
        )


def remove(folder: epath.Path) -> None:
    """Deletes the parts, once the embedding is written elsewhere; there may be none.

    Files of others stay, and with them the folder.
    """
    if not folder.exists():
        return
    for file in [*folder.iterdir()]:
        # A kill may have left the temporary file of a part, which has a dot before its name.
        if file.name.lstrip(".").startswith((_NAME, ABOUT)):
            file.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()


def exist(folder: epath.Path) -> bool:
    """Whether there are parts in a folder, which need not exist."""
    return any(folder.glob(f"{_NAME}*"))


def _read(parts: Parts) -> list[Batch]:
    """The parts from the first row on, without a gap, as far as all processes can read them."""
    found: list[Batch] = []
    for file in sorted(parts.folder.glob(f"{_NAME}*.npz")):
        if file != _file(parts, sum(_count(part) for part in found)):
            break
        try:
            if io.read_fingerprint(file) != parts.fingerprint:
                break
            found.append(io.read_arrays(file))
        except io.DamagedFile as error:
            logging.warning("%s is damaged (%s); making it again", file, error.reason)
            break
    if jax.process_count() > 1:
        found = found[: multihost_utils.process_allgather(np.int32(len(found))).min()]
    return found


def _write(parts: Parts, first: int, rows: Batch) -> None:
    if jax.process_index() != 0:
        return
    parts.guard()
    parts.folder.mkdir(exist_ok=True)
    # A fast device would wait for a compression.
    io.write_arrays(_file(parts, first), rows, parts.fingerprint, compressed=False)


def _file(parts: Parts, first: int) -> epath.Path:
    return parts.folder / f"{_NAME}{first:012d}.npz"


def _count(rows: Batch) -> int:
    return len(next(iter(rows.values())))


def _joined(batches: Sequence[Batch]) -> Batch:
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
