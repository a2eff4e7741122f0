"""Embeds a data set by a network: one in training (`forward_of`), or an `encoder.Encoder`.

An embedding is filled in place, a `.npy` file of each of its entries with a counter of the rows, so
that an interrupted one goes on. Its rows are bit for bit those of one without an interruption.
"""

import contextlib
import functools
import os
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from numpy.typing import NDArray

from cluster_jax.core import io, logs
from cluster_jax.data import batches
from cluster_jax.data.datasets import Dataset
from cluster_jax.data.images import without
from cluster_jax.training import state as states
from cluster_jax.training.state import TrainingRun

# Seconds of work that a kill can lose.
SECONDS = 20.0

# Name -> rows of one batch.
Batch = dict[str, np.ndarray]
# Images uint8 [b, H, W, C], sharded over the mesh -> name -> rows [b, ...] on every device.
Forward = Callable[[Array], Mapping[str, Any]]
# Entry of an embedding, bool [n]: rows of images that stand in for unreadable files.
UNREADABLE = "unreadable"
_COUNTER = "counter.json"


class Parts(NamedTuple):
    """Location and identity of an embedding that is under way.

    Attributes:
        file: the file or folder that is written once all rows are there.
        fingerprint: identifies network and images; rows with another fingerprint are made again.
    """

    file: epath.Path
    fingerprint: str

    @property
    def folder(self) -> epath.Path:
        """The folder of the rows, beside the file; need not exist."""
        return self.file.parent / f"{self.file.name}.parts"

    def finish(self, arrays: Mapping[str, np.ndarray], fingerprint: str) -> None:
        """Writes the file, which takes the place of its rows; the first process alone does."""
        if jax.process_index() == 0:
            io.write_arrays(self.file, arrays, fingerprint)
            self.remove()

    def remove(self) -> None:
        """Deletes the rows, and their folder if nothing else is in it."""
        for pattern in (_COUNTER, "rows_*.npy", "share_*.npz"):
            for file in self.folder.glob(pattern):
                file.unlink()
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def opened(self) -> tuple[int, Batch]:
        """Returns the number of rows that are there, and the arrays, to be filled from there on."""
        try:
            counter = io.read_json(self.folder / _COUNTER)
            if counter["fingerprint"] == self.fingerprint:
                files = {name: self.folder / f"rows_{name}.npy" for name in counter["names"]}
                return counter["rows"], {x: np.load(f, mmap_mode="r+") for x, f in files.items()}
        except (OSError, ValueError):  # There is none, or it is damaged.
            pass
        return 0, {}

    def made(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> NDArray:
        """Makes the file of an entry, and returns it as an array to be filled."""
        self.folder.mkdir(exist_ok=True)
        path = os.fspath(self.folder / f"rows_{name}.npy")
        values = np.lib.format.open_memmap(path, "w+", dtype, shape)
        with open(path, "r+b") as file:
            # A full disk is an error now; later, as memory that cannot be written, a crash.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, os.path.getsize(path))
        return values

    def set_counter(self, rows: int, arrays: Batch) -> None:
        """Sets the counter, after the rows are on the disk."""
        for values in arrays.values():
            values.flush()  # type: ignore[attr-defined]  # of a memory map
        counter = {"fingerprint": self.fingerprint, "rows": rows, "names": [*arrays]}
        io.write_json(self.folder / _COUNTER, counter)


def collect(
    parts: Parts | None, total: int, embed_from: Callable[[int], Generator[Batch]]
) -> Batch:
    """Collects the rows of an embedding: those that are there, then those of later batches.

    Args:
        parts: where the rows are kept; None, and in a bucket: in memory alone.
        total: number of all rows.
        embed_from: yields the batches from a given row on, in order.

    Returns:
        Name -> rows.
    """
    if parts is not None and "://" in str(parts.file):
        parts = None
    done, arrays = (0, {}) if parts is None else parts.opened()
    since = time.monotonic()
    try:
        with contextlib.closing(embed_from(done)) as stream:
            for batch in stream:
                for name, rows in batch.items():
                    if done == 0:
                        shape = total, *rows.shape[1:]
                        made = np.empty if parts is None else functools.partial(parts.made, name)
                        arrays[name] = made(shape, rows.dtype)
                    arrays[name][done : done + len(rows)] = rows
                done += len(next(iter(batch.values())))
                if parts is not None and time.monotonic() - since > SECONDS:
                    parts.set_counter(done, arrays)
                    since = time.monotonic()
    finally:
        if parts is not None and arrays:
            parts.set_counter(done, arrays)
    return {name: np.asarray(values) for name, values in arrays.items()}


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
    return lambda images: forward(params, model_state, images)


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
            number, and filled with copies where there are fewer images.
        mesh: the devices. If they are of several processes, all of these call this together, and
            each gets the whole result.
        rows: consecutive images whose rows are wanted; None: all.
        kept: where rows are kept until all is done, for the caller to remove; None, and where
            several processes call this together: nowhere.

    Returns:
        Name -> rows `[n, ...]`; `UNREADABLE` too if a file could not be read.
    """
    sharded = states.sharded(mesh)
    batch_size = -(-batch_size // mesh.size) * mesh.size
    rows = range(dataset.size) if rows is None else rows
    wanted, together = dataset._replace(size=rows.stop), mesh.is_multi_process
    kept = None if together else kept
    if kept is not None:  # Rounding depends on which images are computed together.
        kept = kept._replace(fingerprint=f"{kept.fingerprint}:{batch_size}x{mesh.size}")

    def embed_from(start: int) -> Generator[Batch]:
        stream = batches.evaluation(
            wanted,
            batch_size=batch_size,
            share=(jax.process_index(), jax.process_count()) if together else (0, 1),
            start=rows.start + start,
        )
        bar = logs.progress_bar(
            total=len(rows), initial=start, unit="image", desc="embedding", mininterval=1.0,
            disable=jax.process_index() != 0, delay=2.0,
        )  # fmt: skip
        with bar:
            for images, index, count in stream:
                placed = jax.make_array_from_process_local_data(sharded, images)
                computed = jax.device_get(forward(placed))
                bar.update(count)
                if dataset.unreadable is not None:
                    computed = {**computed, UNREADABLE: _unreadable(dataset, index, together)}
                yield {name: values[:count] for name, values in computed.items()}

    embedded = collect(kept, len(rows), embed_from)
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
