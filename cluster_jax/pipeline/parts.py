"""Partial results of an embedding, from which an interrupted embedding resumes.

A part is a file with the rows of consecutive batches. It is written whenever `SECONDS` have passed
since the last part, so that a short embedding writes none, and on Ctrl-C and SIGTERM. An embedding
resumes with the next batch; its rows are bit for bit the same as without an interruption.
"""

import contextlib
import time
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from absl import logging
from etils import epath
from jax.experimental import multihost_utils

from cluster_jax.core import interrupt, io

# Seconds of work that a kill can lose.
SECONDS = 20.0

# Name -> rows of one batch.
Batch = dict[str, np.ndarray]


class Parts(NamedTuple):
    """Location and identity of the parts of an embedding.

    Attributes:
        folder: see `folder_of`; need not exist.
        fingerprint: ASCII text that identifies network and images; parts with another fingerprint
            are made again.
        guard: raises if the folder may not be written any longer; called before each part.
    """

    folder: epath.Path
    fingerprint: str
    guard: Callable[[], None] = lambda: None


def folder_of(file: epath.Path) -> epath.Path:
    """The folder of the parts of a file: beside it, `FILE.parts`."""
    return file.parent / f"{file.name}.parts"


def collect(parts: Parts | None, embed_from: Callable[[int], Generator[Batch]]) -> Batch:
    """Collects the rows of an embedding: those of finished parts, then those of later batches.

    Args:
        parts: location of the parts; None: nothing is written.
        embed_from: yields the batches from a given row on, in order. All processes call it
            together, with the same row; the first process alone writes.

    Returns:
        Name -> rows.
    """
    batches = [] if parts is None else _read(parts)
    start = _count(batches)
    written, since = len(batches), time.monotonic()  # how many are in files

    def write() -> None:
        nonlocal written, since
        if parts is not None and written < len(batches) and jax.process_index() == 0:
            parts.guard()
            parts.folder.mkdir(exist_ok=True)
            file = _file(parts, _count(batches[:written]))
            # A fast device would wait for a compression.
            io.write_arrays(file, _joined(batches[written:]), parts.fingerprint, compressed=False)
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
    return _joined(batches)


def remove(folder: epath.Path) -> None:
    """Deletes the parts of a finished embedding, and their folder if nothing else is in it."""
    # A kill may have left the temporary file of a part, which has a dot before its name.
    for file in (*folder.glob("part_*"), *folder.glob(".part_*")):
        file.unlink()
    if folder.exists() and not any(folder.iterdir()):
        folder.rmdir()


def _read(parts: Parts) -> list[Batch]:
    """The parts from the first row on, without a gap, as far as all processes can read them."""
    found: list[Batch] = []
    while (file := _file(parts, _count(found))).exists():
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


def _file(parts: Parts, first: int) -> epath.Path:
    return parts.folder / f"part_{first:012d}.npz"


def _count(batches: Sequence[Batch]) -> int:
    return sum(len(next(iter(batch.values()))) for batch in batches)


def _joined(batches: Sequence[Batch]) -> Batch:
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
