"""Embeds a data set by a network: one in training (`forward_of`), or an `encoder.Encoder`.

The rows of an embedding that is under way are written into files beside it, so that an interrupted
one goes on. On CPUs its rows are bit for bit those of one without an interruption.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from cluster_jax.core import io, logs
from cluster_jax.core import mesh as meshes
from cluster_jax.data import batches
from cluster_jax.data.datasets import Dataset
from cluster_jax.data.images import without

# The most bytes of an embedding that are compressed.
MOST_COMPRESSED = 2**30
# Seconds of work that a kill can lose.
SECONDS = 20.0

# Name -> rows of one batch.
Batch = dict[str, np.ndarray]
# Images uint8 [b, H, W, C], sharded over the mesh -> name -> rows [b, ...] on every device.
Forward = Callable[[Array], Mapping[str, Any]]
# Entry of an embedding, bool [n]: rows of images that stand in for unreadable files.
UNREADABLE = "unreadable"
# Entry of an embedding in a workdir, int32 [n]: the labels of the images, if there are any.
LABELS = "labels"


class Parts(NamedTuple):
    """Location and identity of an embedding that is under way.

    Attributes:
        file: the file or folder that is written once all rows are there.
        fingerprint: identifies network and images; rows with another fingerprint are made again.
        is_valid: tells of the rows of a file, and the number of the first one, whether they are
            those of the images of now; None: the fingerprint tells.
    """

    file: epath.Path
    fingerprint: str
    is_valid: Callable[[int, Batch], bool] | None = None

    @property
    def folder(self) -> epath.Path:
        """The folder of the rows, beside the file; need not exist."""
        return self.file.parent / f"{self.file.name}.parts"

    def finish(self, arrays: Mapping[str, np.ndarray], fingerprint: str) -> None:
        """Writes the file, which takes the place of its rows; the first process alone does."""
        if jax.process_index() == 0:
            # Of 10 GB of features, compression would save a tenth and take minutes.
            is_small = sum(array.nbytes for array in arrays.values()) < MOST_COMPRESSED
            io.write_arrays(self.file, arrays, fingerprint, compressed=is_small)
            self.remove()

    def remove(self) -> None:
        """Deletes the rows, and their folder if nothing else is in it."""
        for file in self.folder.glob("rows_*.npz"):
            file.unlink()
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def rows(self) -> list[Batch]:
        """Returns the rows that are there, from the first one on, in the parts of their files."""
        found: list[Batch] = []
        with contextlib.suppress(io.DamagedFile):
            while (file := self._file(_count(found))).exists():
                if io.read_fingerprint(file) != self.fingerprint:
                    break
                rows = io.read_arrays(file)
                if self.is_valid is not None and not self.is_valid(_count(found), rows):
                    break
                found.append(rows)
        return found

    def add(self, first: int, rows: Batch) -> None:
        """Writes rows, of which `first` is the number of the first one."""
        self.folder.mkdir(exist_ok=True)
        io.write_arrays(self._file(first), rows, self.fingerprint, compressed=False)

    def _file(self, first: int) -> epath.Path:
        return self.folder / f"rows_{first}.npz"


def collect(parts: Parts | None, embed_from: Callable[[int], Generator[Batch]]) -> Batch:
    """Collects the rows of an embedding: those that are there, then those of later batches.

    Args:
        parts: where the rows are kept; None, and in a bucket: in memory alone.
        embed_from: yields the batches from a given row on, in order.

    Returns:
        Name -> rows.
    """
    if parts is not None and "://" in str(parts.file):
        parts = None
    found: list[Batch] = [] if parts is None else parts.rows()
    fresh: list[Batch] = []  # not in a file
    since = time.monotonic()
    try:
        with contextlib.closing(embed_from(_count(found))) as stream:
            for batch in stream:
                fresh.append(batch)
                if parts is not None and time.monotonic() - since > SECONDS:
                    parts.add(_count(found), _joined(fresh))
                    found, fresh = [*found, *fresh], []
                    since = time.monotonic()
    finally:
        if parts is not None and fresh:
            parts.add(_count(found), _joined(fresh))
    return _joined([*found, *fresh])


def _count(batches: Sequence[Batch]) -> int:
    """Counts the rows of batches."""
    return sum(len(next(iter(batch.values()))) for batch in batches)


def _joined(batches: Sequence[Batch]) -> Batch:
    if not batches:
        return {}
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def forward_of(
    network: Callable[..., Mapping[str, Any]],
    params: Any,
    model_state: Any,
    mesh: Mesh,
    needs: tuple[str, ...] | None = None,
) -> Forward:
    """Makes the forward pass of the network that a method keeps after training.

    Args:
        network: `TrainingRun.embed` of the training.
        params: parameters, on all devices of the mesh.
        model_state: the method's other state, on all devices of the mesh.
        mesh: the devices.
        needs: names of the features; None: all.

    Returns:
        A function to the features of `methods.base.embed`.
    """
    forward = _compiled(network, mesh, needs)
    return lambda images: forward(params, model_state, images)


# A training embeds again and again; eight programs are more than those of all stages of a run.
@functools.lru_cache(maxsize=8)
def _compiled(
    network: Callable[..., Mapping[str, Any]], mesh: Mesh, needs: tuple[str, ...] | None
) -> Callable[..., dict[str, Any]]:
    """Returns the jitted features of a network by name, on all devices, one program for a run."""

    def computed(*arguments: Any) -> dict[str, Any]:
        features = network(*arguments)
        return {name: features[name] for name in needs or features}

    return jax.jit(computed, out_shardings=meshes.replicated(mesh))


def embed(
    forward: Forward,
    dataset: Dataset,
    *,
    batch_size: int,
    mesh: Mesh,
    kept: Parts | None = None,
    also: Callable[[np.ndarray, np.ndarray], Batch] | None = None,
    in_all: bool = True,
) -> dict[str, np.ndarray]:
    """Embeds all images in the order of the data set.

    The last batch is padded with copies of its last image, whose rows are discarded.

    Args:
        forward: the forward pass of the network, see `Forward`.
        dataset: the images.
        batch_size: images per forward pass, over all devices; rounded up to a multiple of their
            number, and filled with copies where there are fewer images.
        mesh: the devices. If they are of several processes, all of these call this together.
        kept: where rows are kept until all is done, for the caller to remove; None, and where
            several processes call this together: nowhere.
        also: returns further rows of a batch, by name, from its images uint8 `[b, H, W, C]` and
            their indices int32 `[b]`; ignored where several processes call this together.
        in_all: where several processes call this together, whether each gets all rows; else the
            first one does, and the others get no row.

    Returns:
        Name -> rows `[n, ...]`; `UNREADABLE` too if a file could not be read.
    """
    sharded = meshes.sharded(mesh)
    batch_size = -(-batch_size // mesh.size) * mesh.size
    together = mesh.is_multi_process
    share = (jax.process_index(), jax.process_count()) if together else (0, 1)
    is_dropped = together and not in_all and jax.process_index() != 0
    kept = None if together else kept
    if kept is not None:  # Rounding depends on which images are computed together.
        kept = kept._replace(fingerprint=f"{kept.fingerprint}:{batch_size}x{mesh.size}")

    def embed_from(start: int) -> Generator[Batch]:
        stream = batches.evaluation(dataset, batch_size=batch_size, share=share, start=start)
        bar = logs.progress_bar(
            total=dataset.size, initial=start, unit="image", desc="embedding", mininterval=1.0,
            disable=jax.process_index() != 0, delay=2.0,
        )  # fmt: skip
        with bar:
            for images, index, count in stream:
                placed = jax.make_array_from_process_local_data(sharded, images)
                pending = forward(placed)
                more = {} if also is None or together else also(images, index)
                # Waiting here, too, so that no process is batches ahead of the others.
                jax.block_until_ready(pending)
                computed = more if is_dropped else {**jax.device_get(pending), **more}
                bar.update(count)
                if dataset.unreadable is not None:
                    # The images of all processes that stand in for unreadable files.
                    mask = np.array([reason is not None for reason in dataset.unreadable(index)])
                    if together:
                        mask = multihost_utils.process_allgather(mask, tiled=True)
                    computed = {**computed, UNREADABLE: mask}
                if not is_dropped:
                    yield {name: values[:count] for name, values in computed.items()}

    embedded = collect(kept, embed_from)
    if UNREADABLE in embedded and not embedded[UNREADABLE].any():
        del embedded[UNREADABLE]
    return embedded


def readable_rows(embedding: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the features of an embedding without rows of unreadable files, and without labels."""
    rows = {name: x for name, x in embedding.items() if name not in (UNREADABLE, LABELS)}
    mask = embedding.get(UNREADABLE)
    if mask is None:
        return rows
    return {name: values[~mask] for name, values in rows.items()}


def readable_images(dataset: Dataset, embedding: Mapping[str, np.ndarray]) -> Dataset:
    """Returns the images of `readable_rows`, with the unreadable files as skipped."""
    return without(dataset, embedding.get(UNREADABLE, np.zeros(dataset.size, bool)))
