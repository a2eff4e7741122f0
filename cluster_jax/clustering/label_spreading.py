"""Label spreading over a k-nearest-neighbor graph."""

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cluster_jax.clustering import knn

# Neighbors of a row, at most.
_COUNT = 10
# Weight of the neighbors, and number of updates, after which 0.9^100 of the start is left.
_ALPHA, _UPDATES = 0.9, 100


def label_spreading(values: NDArray, rows: NDArray, others: NDArray | None) -> NDArray:
    """Returns values after label spreading over the graph of each row's 10 nearest rows.

    They are the fixed point of F = 0.9 S F + 0.1 values, where S is the symmetrically normalized
    adjacency matrix. An edge counts twice if each of its rows is among the nearest of the other. In
    a small set a row has fewer neighbors, so that they fit into one of c classes of equal size.

    Args:
        values: float `[n, c]`, one column for each class.
        rows: float `[n, f]`; all pairs are compared.
        others: int `[n, k]`, further neighbors of each row, the nearest first, -1 for none; as many
            are used as of those by `rows`. None: there are none.

    Returns:
        float64 `[n, c]`.

    Source: Zhou et al., Learning with local and global consistency (2004), with values for all rows
    instead of labels for some.

    Example:
        >>> values = np.array([[1.0, 0.0], [0.6, 0.4], [0.4, 0.6], [0.0, 1.0]])
        >>> rows = np.array([[0.0], [1.0], [1.1], [1.9]])
        >>> label_spreading(values, rows, None).round(2).tolist()
        [[0.42, 0.29], [0.61, 0.56], [0.56, 0.61], [0.29, 0.42]]
    """
    count = min(_COUNT, len(rows) // values.shape[1] - 1)
    if count < 1:
        return values.astype(np.float64)
    near = knn.nearest(rows, rows, count, exclude_self=True).indices
    if others is not None:
        near = np.concatenate([near, others[:, :count]], axis=1)
    first, column = np.nonzero(near >= 0)
    n = len(rows)
    graph = sparse.csr_array((np.ones(len(first)), (first, near[first, column])), shape=(n, n))
    graph = (graph + graph.T).tocsr()
    scale = sparse.diags_array(1 / np.sqrt(graph.sum(axis=1)))
    graph = (scale @ graph @ scale).tocsr()
    start = values.astype(np.float64)
    result = start
    for _ in range(_UPDATES):
        result = _ALPHA * (graph @ result) + (1 - _ALPHA) * start
    return result


def among(neighbors: NDArray, kept: NDArray) -> NDArray:
    """Returns the neighbors of the kept rows as positions among these; -1 for rows not kept.

    Args:
        neighbors: int `[N, k]`.
        kept: int `[n]`, rows.

    Returns:
        int64 `[n, k]`.

    Example:
        >>> among(np.array([[1, 2], [0, 2], [1, 0]]), np.array([0, 2])).tolist()
        [[-1, 1], [-1, 0]]
    """
    position = np.full(len(neighbors), -1)
    position[kept] = np.arange(len(kept))
    return position[neighbors[kept]]
