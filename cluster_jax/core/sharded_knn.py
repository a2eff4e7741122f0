"""The search of `core.knn` on accelerators and pods: rows of highest cosine, by all devices.

`knn.nearest` is exact in float64 on one host; this one compares float32 products on a mesh.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec
from numpy.typing import NDArray

from cluster_jax.core import collectives, hosts
from cluster_jax.core.hosts import Spread

_AXIS = "rows"
# Scores that a device computes at once (float32: 256 MB).
_SCORES = 2**26


def nearest(
    rows: NDArray | Spread, queries: NDArray | Spread | None = None, *, k: int, mesh: Mesh | None
) -> tuple[NDArray, NDArray]:
    """Returns rows of highest cosine, int32 `[m, k]`, and their cosines; devices share the rows.

    Of equally near rows the first comes first.

    Args:
        rows: `[n, d]`, of length one, n at least k.
        queries: `[m, d]`, of length one; None: the rows, each without itself.
        k: number of rows.
        mesh: the devices; None: those of this process.

    Example:
        >>> found, cosines = nearest(np.array([[1.0, 0.0], [0.5, 0.8]]), k=1, mesh=None)
        >>> found.tolist(), cosines.tolist()
        ([[1], [0]], [[0.5], [0.5]])
    """
    if mesh is None:
        mesh = Mesh(jax.local_devices(), (_AXIS,))
    n = len(rows)
    asked = rows if queries is None else queries
    numbers = np.arange(n) if queries is None else np.full(len(asked), -1)
    shard, whole = PartitionSpec(_AXIS), PartitionSpec()
    placed = hosts.placed(rows, mesh)
    body = functools.partial(_highest, n=n, k=k)
    search = jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=(shard, whole, whole), out_specs=whole)
    )
    step = min(len(asked), max(1, _SCORES * mesh.size // n))
    found = []
    for start in range(0, len(asked), step):
        # The last block starts early enough to be full, so that all are one program.
        first = min(start, len(asked) - step)
        some = np.arange(first, first + step)
        outputs = search(placed, asked[some], numbers[some])
        found.append([np.asarray(output)[start - first :] for output in outputs])
    indices, cosines = map(np.concatenate, zip(*found, strict=True))
    return indices, cosines


def nearest_for(
    queries: NDArray | Spread, rows: NDArray, *, k: int, mesh: Mesh | None
) -> tuple[NDArray, NDArray]:
    """Returns `nearest` for queries that one process alone may have, among a few rows.

    Example:
        >>> queries, rows = np.eye(2), np.array([[0.0, 1.0], [0.6, 0.8]])
        >>> nearest_for(queries, rows, k=1, mesh=None)[0].tolist()
        [[1], [0]]
    """
    return nearest(rows, queries, k=k, mesh=mesh)


def _highest(
    rows: Array, queries: Array, own_numbers: Array, *, n: int, k: int
) -> tuple[Array, Array]:
    """Returns the k rows of all devices nearest to each query, of equally near ones the first.

    And their cosines, `[m, k]` as well.
    """
    numbers = collectives.local_rows(len(rows), _AXIS)
    scores = jnp.matmul(queries, rows.T, precision=lax.Precision.HIGHEST)
    is_other = (numbers[None] < n) & (numbers[None] != own_numbers[:, None])
    scores, places = lax.top_k(jnp.where(is_other, scores, -jnp.inf), min(k, len(rows)))
    scores, found = (collectives.gather(x.T, _AXIS).T for x in (scores, numbers[places]))
    highest, order = lax.top_k(scores, k)
    return jnp.take_along_axis(found, order, axis=1), highest
