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
from cluster_jax.core.checks import InputError
from cluster_jax.training import checkpoint

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


def collect(
    parts: Parts | None,
    embed_from: Callable[[int], Generator[Batch]],
    *,
    together: bool = True,
) -> Batch:
    """Collects the rows of an embedding: those of finished parts, then those of later batches.

    Args:
        parts: location of the parts; None: nothing is written.
        embed_from: yields the batches from a given row on, in order.
        together: whether all processes call this together and get the same rows: they start with
            the same row, and the first process alone writes. Otherwise each has rows of its own.

    Returns:
        Name -> rows.
    """
    batches = [] if parts is None else _read(parts, together)
    writes = parts is not None and (jax.process_index() == 0 or not together)
    start = _count(batches)
    written, since = len(batches), time.monotonic()  # how many are in files

    def write() -> None:
        nonlocal written, since
        if parts is not None and writes and written < len(batches):
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


def share(count: int, step: int) -> range:
    """The rows of `count` that this process makes: consecutive ones, whole steps if there are many.

    Raises:
        InputError: there are fewer rows than processes.
    """
    process, processes = jax.process_index(), jax.process_count()
    if count < processes:
        raise InputError(
            f"images must be at least one for each of {processes} processes; got {count}"
        )
    step = min(step, count // processes)
    steps = -(-count // step)
    bounds = (min(count, steps * i // processes * step) for i in (process, process + 1))
    return range(*bounds)


def shared(parts: Parts, make: Callable[[Parts], Batch]) -> Batch | None:
    """Rows of which each process makes a share, joined in the first process; None in the others.

    A share that is done stays beside the parts of the others until the caller removes them, so that
    the same command makes only what a process that died has left.

    Args:
        parts: location of shares and parts; all processes must see the same folder. The fingerprint
            may be one of the share.
        make: makes the share of this process; its argument is the place for parts of it.

    Raises:
        InputError: the processes see different folders.
    """
    processes = jax.process_count()
    if processes == 1:
        return make(parts)
    files = [parts.folder / f"share_{i:05d}-of-{processes:05d}.npz" for i in range(processes)]
    own = files[jax.process_index()]
    if _read_file(parts, own) is None:
        parts.folder.mkdir(exist_ok=True)
        kept = parts._replace(folder=parts.folder / own.stem)
        io.write_arrays(own, make(kept), parts.fingerprint, compressed=False)
        remove(kept.folder)
    checkpoint.wait_for_all("shared")
    if jax.process_index() != 0:
        return None
    missing = [file.name for file in files if not file.exists()]
    if missing:
        raise InputError(
            f"{parts.folder} must be the same folder for all processes; got none of {missing[0]} "
            "in it: choose an --out that all of them share"
        )
    return _joined([io.read_arrays(file) for file in files])


def remove(folder: epath.Path) -> None:
    """Deletes the parts of a finished embedding, and their folder if nothing else is in it."""
    # A kill may have left the temporary file of a part, which has a dot before its name.
    for pattern in ("part_*", ".part_*", "share_*.npz"):
        for file in folder.glob(pattern):
            file.unlink()
    if folder.exists() and not any(folder.iterdir()):
        folder.rmdir()


def _read(parts: Parts, together: bool) -> list[Batch]:
    """The parts from the first row on, without a gap, as far as all processes can read them."""
    found: list[Batch] = []
    while (batch := _read_file(parts, _file(parts, _count(found)))) is not None:
        found.append(batch)
    if together and jax.process_count() > 1:
        found = found[: multihost_utils.process_allgather(np.int32(len(found))).min()]
    return found


def _read_file(parts: Parts, file: epath.Path) -> Batch | None:
    """The rows in a file; None if there is none, or it was made from something else."""
    try:
        if file.exists() and io.read_fingerprint(file) == parts.fingerprint:
            return io.read_arrays(file)
    except io.DamagedFile as error:
        logging.warning("%s is damaged (%s); making it again", file, error.reason)
    return None


def _file(parts: Parts, first: int) -> epath.Path:
    return parts.folder / f"part_{first:012d}.npz"


def _count(batches: Sequence[Batch]) -> int:
    return sum(len(next(iter(batch.values()))) for batch in batches)


def _joined(batches: Sequence[Batch]) -> Batch:
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
