"""Nearest rows by cosine similarity, on the device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import ArrayLike, NDArray

from cluster_jax.core.arrays import normalize_rows

BLOCK = 2048


def nearest(x: ArrayLike, count: int, device: jax.Device | None = None) -> NDArray:
    """Numbers of the `count` nearest other rows of each row, nearest first.

    Args:
        x: float `[n, d]`.
        count: below n.
        device: None for the default one.

    Returns:
        int32 `[n, count]`.
    """
    rows = normalize_rows(np.asarray(x, np.float32))
    blocks = -(-len(rows) // BLOCK)
    # Rows repeat to fill the last block.
    shape = (blocks, min(BLOCK, len(rows)))
    queries = np.resize(np.arange(len(rows), dtype=np.int32), shape)
    placed = jax.device_put((rows, queries), device)
    found = np.asarray(_nearest(*placed, count=count))
    return found.reshape(-1, count)[: len(rows)]


@functools.partial(jax.jit, static_argnames="count")
def _nearest(rows: Array, queries: Array, *, count: int) -> Array:
    def block(index: Array) -> Array:
        similarity = jnp.matmul(rows[index], rows.T, precision=lax.Precision.HIGHEST)
        own = jnp.arange(len(index))
        return lax.top_k(similarity.at[own, index].set(-jnp.inf), count)[1]

    return lax.map(block, queries)
