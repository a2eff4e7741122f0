"""Embeds a whole data set, with the network that a method keeps after training or with another."""

import sys
from collections.abc import Callable, Generator, Mapping
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tqdm import tqdm

from cluster_jax.data import batches
from cluster_jax.data.datasets import Dataset
from cluster_jax.methods.base import Method
from cluster_jax.pipeline import parts
from cluster_jax.pipeline.parts import Parts


def embed(
    method: Method,
    params: Any,
    model_state: Any,
    dataset: Dataset,
    *,
    batch_size: int,
    mesh: Mesh,
    n_images: int | None = None,
    kept: Parts | None = None,
) -> dict[str, np.ndarray]:
    """Features of every image in the order of the data set.

    Args:
        method: method whose `embed` is used.
        params: parameters, on all devices of the mesh.
        model_state: the method's other state, on all devices of the mesh.
        dataset: the images.
        batch_size: see `rows`.
        mesh: see `rows`.
        n_images: see `rows`.
        kept: see `rows`.

    Returns:
        `{"backbone": float32 [n, d], "projection": float32 [n, e]}`, not normalized.
    """
    forward = jax.jit(method.embed, out_shardings=NamedSharding(mesh, PartitionSpec()))
    return rows(
        lambda images, _: forward(params, model_state, images),
        dataset,
        batch_size=batch_size,
        mesh=mesh,
        n_images=n_images,
        kept=kept,
    )


def rows(
    forward: Callable[[Array, Array], Mapping[str, Any]],
    dataset: Dataset,
    *,
    batch_size: int,
    mesh: Mesh,
    n_images: int | None = None,
    kept: Parts | None = None,
) -> dict[str, np.ndarray]:
    """What a network gives for every image in the order of the data set.

    The last batch is padded with copies of its last image, whose rows are discarded.

    Args:
        forward: uint8 `[b, H, W, C]` and their indices int32 `[b]`, both spread over the mesh, ->
            name -> rows `[b, ...]` on every device.
        dataset: the images.
        batch_size: images per forward pass, over all devices; rounded up to a multiple of their
            number.
        mesh: the devices; all processes call this together, and each gets the whole result.
        n_images: number of images whose rows are wanted; further images fill the last batch.
        kept: where parts are kept until all is done, for the caller to remove; None: nowhere.

    Returns:
        Name -> rows `[n, ...]`.
    """
    (axis,) = mesh.axis_names
    sharded = NamedSharding(mesh, PartitionSpec(axis))
    batch_size = -(-min(batch_size, dataset.size) // mesh.size) * mesh.size
    wanted = dataset.size if n_images is None else n_images
    if kept is not None:  # Rounding depends on which images are computed together.
        kept = kept._replace(fingerprint=f"{kept.fingerprint}:{batch_size}x{mesh.size}")

    def embed_from(start: int) -> Generator[parts.Batch]:
        stream = batches.evaluation(
            dataset,
            batch_size=batch_size,
            process=jax.process_index(),
            processes=jax.process_count(),
            start=start,
        )
        bar = tqdm(
            total=wanted, initial=start, unit="image", desc="embedding", mininterval=1.0,
            file=sys.stderr, disable=jax.process_index() != 0, delay=2.0,
        )  # fmt: skip
        with bar:
            for images, index, count in stream:
                placed = (
                    jax.make_array_from_process_local_data(sharded, x) for x in (images, index)
                )
                computed = jax.device_get(forward(*placed))
                bar.update(min(count, wanted - bar.n))
                yield {name: values[:count] for name, values in computed.items()}

    return {name: values[:wanted] for name, values in parts.collect(kept, embed_from).items()}
