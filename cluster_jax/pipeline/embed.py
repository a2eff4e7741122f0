"""The embedding of a whole data set by the network that a method keeps."""

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
    method: Method, params: Any, model_state: Any, dataset: Dataset, *, batch_size: int, mesh: Mesh
) -> dict[str, np.ndarray]:
    """Features of every image in the order of the data set; none is dropped.

    The last batch is padded with copies of its last image, whose features are cut off again.

    Args:
        method: its `embed` is used.
        params: parameters, on all devices of the mesh.
        model_state: likewise.
        dataset: the images.
        batch_size: images a forward pass, over all devices; rounded up to a multiple of them.
        mesh: the devices; all processes call this together and each gets the whole result.

    Returns:
        `{"backbone": float32 [n, d], "projection": float32 [n, e]}`, not normalized.
    """
    (axis,) = mesh.axis_names
    rows, whole = NamedSharding(mesh, PartitionSpec(axis)), NamedSharding(mesh, PartitionSpec())
    forward = jax.jit(method.embed, out_shardings=whole)
    batch_size = -(-min(batch_size, dataset.size) // mesh.size) * mesh.size
    found: list[dict[str, np.ndarray]] = []
    stream = batches.evaluation(
        dataset,
        batch_size=batch_size,
        process=jax.process_index(),
        processes=jax.process_count(),
    )
    bar = tqdm(
        total=dataset.size, unit="image", desc="embedding", mininterval=1.0, file=sys.stderr,
        disable=jax.process_index() != 0, delay=2.0,
    )  # fmt: skip
    with bar:
        for images, _, count in stream:
            placed = jax.make_array_from_process_local_data(rows, images)
            features = jax.device_get(forward(params, model_state, placed))
            found.append({name: f[:count] for name, f in features.items()})
            bar.update(count)
    return {name: np.concatenate([f[name] for f in found]) for name in found[0]}
