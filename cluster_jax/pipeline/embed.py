"""Embeds a data set by a network: a trained one (`forward_of`), or a frozen pretrained one."""

import sys
from collections.abc import Callable, Generator, Mapping
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tqdm import tqdm

from cluster_jax.data import batches
from cluster_jax.data.datasets import Dataset
from cluster_jax.data.images import without
from cluster_jax.methods.base import Method
from cluster_jax.pipeline import parts
from cluster_jax.pipeline.parts import Parts

# (images uint8 [b, H, W, C], their indices int32 [b]), both sharded over the mesh -> name -> rows
# [b, ...] on every device.
Forward = Callable[[Array, Array], Mapping[str, Any]]
# Entry of an embedding, bool [n]: rows of images that stand in for unreadable files.
UNREADABLE = "unreadable"


def forward_of(method: Method, params: Any, model_state: Any, mesh: Mesh) -> Forward:
    """The forward pass of the network that a method keeps after training.

    Args:
        method: method whose `embed` is used.
        params: parameters, on all devices of the mesh.
        model_state: the method's other state, on all devices of the mesh.
        mesh: the devices.

    Returns:
        A function to `{"backbone": float32 [b, d], "projection": float32 [b, e]}`, not normalized;
        novel class discovery adds the logits of its heads.
    """
    forward = jax.jit(method.embed, out_shardings=NamedSharding(mesh, PartitionSpec()))
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
    """Embeddings of all images in the order of the data set.

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
    (axis,) = mesh.axis_names
    sharded = NamedSharding(mesh, PartitionSpec(axis))
    batch_size = -(-min(batch_size, dataset.size) // mesh.size) * mesh.size
    rows = range(dataset.size) if rows is None else rows
    wanted, together = dataset._replace(size=rows.stop), mesh.is_multi_process
    if kept is not None:  # Rounding depends on which images are computed together.
        kept = kept._replace(fingerprint=f"{kept.fingerprint}:{batch_size}x{mesh.size}")

    def embed_from(start: int) -> Generator[parts.Batch]:
        stream = batches.evaluation(
            wanted,
            batch_size=batch_size,
            process=jax.process_index() if together else 0,
            processes=jax.process_count() if together else 1,
            start=rows.start + start,
        )
        bar = tqdm(
            total=len(rows), initial=start, unit="image", desc="embedding", mininterval=1.0,
            file=sys.stderr, disable=jax.process_index() != 0, delay=2.0,
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

    embedded = parts.collect(kept, embed_from, together=together)
    if UNREADABLE in embedded and not embedded[UNREADABLE].any():
        del embedded[UNREADABLE]
    return embedded


def _unreadable(dataset: Dataset, index: np.ndarray, together: bool) -> np.ndarray:
    """Which images of a batch, of all its processes, stand in for unreadable files, bool `[b]`."""
    assert dataset.unreadable is not None
    mask = np.array([reason is not None for reason in dataset.unreadable(index)])
    if together:
        mask = multihost_utils.process_allgather(mask, tiled=True)
    return mask


def readable_rows(embedding: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The rows of an embedding without those of unreadable files."""
    rows = {name: values for name, values in embedding.items() if name != UNREADABLE}
    mask = embedding.get(UNREADABLE)
    return rows if mask is None else {name: values[~mask] for name, values in rows.items()}


def readable_images(dataset: Dataset, embedding: Mapping[str, np.ndarray]) -> Dataset:
    """The images of `readable_rows`, with the unreadable files as skipped."""
    return without(dataset, embedding.get(UNREADABLE, np.zeros(dataset.size, bool)))
