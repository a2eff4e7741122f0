"""Embeds a data set by a network: one in training (`forward_of`), or an `encoder.Encoder`.

A long embedding is kept in parts, from which an interrupted one resumes. A part is a file with the
rows of consecutive batches. It is written whenever `SECONDS` have passed since the last part, so
that a short embedding writes none, and on Ctrl-C and SIGTERM. The rows of a resumed embedding are
bit for bit those of one without an interruption.
"""

import contextlib
import re
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from cluster_jax.core import buckets, disk, interrupt, io, logs
from cluster_jax.core.logs import logger
from cluster_jax.data import batches
from cluster_jax.data.datasets import Dataset
from cluster_jax.data.images import without
from cluster_jax.training import state as states
from cluster_jax.training.state import TrainingRun

# Seconds of work that a kill can lose.
SECONDS = 20.0

# Name -> rows of one batch.
Batch = dict[str, np.ndarray]
# (images uint8 [b, H, W, C], their indices int32 [b]), both sharded over the mesh -> name -> rows
# [b, ...] on every device.
Forward = Callable[[Array, Array], Mapping[str, Any]]
# Entry of an embedding, bool [n]: rows of images that stand in for unreadable files.
UNREADABLE = "unreadable"


class Parts(NamedTuple):
    """Location and identity of the parts of an embedding.

    Attributes:
        file: the file or folder that is written once all parts are there.
        fingerprint: ASCII text that identifies network and images; parts with another fingerprint
            are made again.
    """

    file: epath.Path
    fingerprint: str

    @property
    def folder(self) -> epath.Path:
        """The folder of the parts, beside the file; need not exist."""
        return self.file.parent / f"{self.file.name}.parts"

    def finish(self, arrays: Mapping[str, np.ndarray], fingerprint: str) -> None:
        """Writes the file, which takes the place of its parts; the first process alone does."""
        if jax.process_index() == 0:
            io.write_arrays(self.file, arrays, fingerprint)
            self.remove()

    def remove(self) -> None:
        """Deletes the parts, and their folder if nothing else is in it."""
        # A kill may have left the temporary file of a part, which has a dot before its name.
        there = buckets.names(self.folder)
        files = {name for name in there if re.match(r"\.?part_|share_.*\.npz$", name)}
        if buckets.is_in_bucket(self.folder):
            buckets.remove(str(self.folder / name) for name in files)
            return
        for name in files:
            (self.folder / name).unlink()
        if there == files and self.folder.exists():
            self.folder.rmdir()


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
            disk.make(parts.folder)
            file = _file(parts, _count(batches[:written]))
            # A fast device would wait for a compression.
            io.write_arrays(file, joined(batches[written:]), parts.fingerprint, compressed=False)
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
    return joined(batches)


def _read(parts: Parts, together: bool) -> list[Batch]:
    """Reads the parts from the first row on, without a gap, as far as all processes can."""
    batches: list[Batch] = []
    while (batch := read_file(parts, _file(parts, _count(batches)))) is not None:
        batches.append(batch)
    if together and jax.process_count() > 1:
        batches = batches[: multihost_utils.process_allgather(np.int32(len(batches))).min()]
    return batches


def read_file(parts: Parts, file: epath.Path) -> Batch | None:
    """Reads the rows in a file; None if there is none, or it was made from something else."""
    try:
        if io.read_fingerprint(file) == parts.fingerprint:
            return io.read_arrays(file)
    except FileNotFoundError:
        return None
    except io.DamagedFile as error:
        logger.warning("%s is damaged (%s); making it again", file, error.reason)
    return None


def _file(parts: Parts, first: int) -> epath.Path:
    return parts.folder / f"part_{first:012d}.npz"


def _count(batches: Sequence[Batch]) -> int:
    return sum(len(next(iter(batch.values()))) for batch in batches)


def joined(batches: Sequence[Batch]) -> Batch:
    """Joins the rows of batches."""
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def forward_of(run: TrainingRun, params: Any, model_state: Any, mesh: Mesh) -> Forward:
    """Makes the forward pass of the network that a method keeps after training.

    Args:
        run: the training, whose `embed` is used.
        params: parameters, on all devices of the mesh.
        model_state: the method's other state, on all devices of the mesh.
        mesh: the devices.

    Returns:
        A function to the features of `methods.base.embed`.
    """
    forward = jax.jit(run.embed, out_shardings=states.replicated(mesh))
    return lambda images, _: forward(params, model_state, images)


def embed(
    forward: Forward,
    dataset: Dataset,
    *,
    batch_size: int,
    mesh: Mesh,
    rows: range | None = None,
    kept: Parts | None = None,
) -> dict[str, np.ndarray]:
    """Embeds all images in the order of the data set.

    The last batch is padded with copies of its last image, whose rows are discarded.

    Args:
        forward: the forward pass of the network, see `Forward`.
        dataset: the images.
        batch_size: images per forward pass, over all devices; rounded up to a multiple of their
            number.
        mesh: the devices. If they are of several processes, all of these call this together, and
            each gets the whole result.
        rows: consecutive images whose rows are wanted; None: all.
        kept: where parts are kept until all is done, for the caller to remove; None: nowhere.

    Returns:
        Name -> rows `[n, ...]`; `UNREADABLE` too if a file could not be read.
    """
    sharded = states.sharded(mesh)
    batch_size = -(-min(batch_size, dataset.size) // mesh.size) * mesh.size
    rows = range(dataset.size) if rows is None else rows
    wanted, together = dataset._replace(size=rows.stop), mesh.is_multi_process
    if kept is not None:  # Rounding depends on which images are computed together.
        kept = kept._replace(fingerprint=f"{kept.fingerprint}:{batch_size}x{mesh.size}")

    def embed_from(start: int) -> Generator[Batch]:
        stream = batches.evaluation(
            wanted,
            batch_size=batch_size,
            process=jax.process_index() if together else 0,
            processes=jax.process_count() if together else 1,
            start=rows.start + start,
        )
        bar = logs.progress_bar(
            total=len(rows), initial=start, unit="image", desc="embedding", mininterval=1.0,
            disable=jax.process_index() != 0, delay=2.0,
        )  # fmt: skip
        with bar:
            for images, index, count in stream:
                placed = (
                    jax.make_array_from_process_local_data(sharded, x) for x in (images, index)
                )
                computed = jax.device_get(forward(*placed))
                bar.update(count)
                if dataset.unreadable is not None:
                    computed = {**computed, UNREADABLE: _unreadable(dataset, index, together)}
                yield {name: values[:count] for name, values in computed.items()}

    embedded = collect(kept, embed_from, together=together)
    if UNREADABLE in embedded and not embedded[UNREADABLE].any():
        del embedded[UNREADABLE]
    return embedded


def _unreadable(dataset: Dataset, index: np.ndarray, together: bool) -> np.ndarray:
    """Returns which images of a batch, over all processes, replace unreadable files, bool `[b]`."""
    assert dataset.unreadable is not None
    mask = np.array([reason is not None for reason in dataset.unreadable(index)])
    if together:
        mask = multihost_utils.process_allgather(mask, tiled=True)
    return mask


def readable_rows(embedding: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Removes the rows of unreadable files from an embedding."""
    rows = {name: values for name, values in embedding.items() if name != UNREADABLE}
    mask = embedding.get(UNREADABLE)
    return rows if mask is None else {name: values[~mask] for name, values in rows.items()}


def readable_images(dataset: Dataset, embedding: Mapping[str, np.ndarray]) -> Dataset:
    """Returns the images of `readable_rows`, with the unreadable files as skipped."""
    return without(dataset, embedding.get(UNREADABLE, np.zeros(dataset.size, bool)))
