"""Embeds a whole data set with the network that a method keeps after training."""

import sys
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tqdm import tqdm

from cluster_jax.data import batches
from cluster_jax.data.datasets import Dataset
from cluster_jax.methods.base import Method


def embed(
    method: Method,
    params: Any,
    model_state: Any,
    dataset: Dataset,
    *,
    batch_size: int,
    mesh: Mesh,
    n_images: int | None = None,
) -> dict[str, np.ndarray]:
    """Features of every image in the order of the data set.

    The last batch is padded with copies of its last image, whose features are discarded.

    Args:
        method: method whose `embed` is used.
        params: parameters, on all devices of the mesh.
        model_state: the method's other state, on all devices of the mesh.
        dataset: the images.
        batch_size: images per forward pass, over all devices; rounded up to a multiple of their
            number.
        mesh: the devices; all processes call this together, and each gets the whole result.
        n_images: those whose features are wanted, the first; the others fill the last batch.

    Returns:
        `{"backbone": float32 [n, d], "projection": float32 [n, e]}`, not normalized.
    """
    (axis,) = mesh.axis_names
    sharded = NamedSharding(mesh, PartitionSpec(axis))
    replicated = NamedSharding(mesh, PartitionSpec())
    forward = jax.jit(method.embed, out_shardings=replicated)
    batch_size = -(-min(batch_size, dataset.size) // mesh.size) * mesh.size
    wanted = dataset.size if n_images is None else n_images
    embedded: list[dict[str, np.ndarray]] = []
    stream = batches.evaluation(
        dataset,
        batch_size=batch_size,
        process=jax.process_index(),
        processes=jax.process_count(),
    )
    bar = tqdm(
        total=wanted, unit="image", desc="embedding", mininterval=1.0, file=sys.stderr,
        disable=jax.process_index() != 0, delay=2.0,
    )  # fmt: skip
    with bar:
        for images, _, count in stream:
            placed = jax.make_array_from_process_local_data(sharded, images)
            features = jax.device_get(forward(params, model_state, placed))
            embedded.append({name: rows[:count] for name, rows in features.items()})
            bar.update(min(count, wanted - bar.n))
    return {
        name: np.concatenate([batch[name] for batch in embedded])[:wanted] for name in embedded[0]
    }
