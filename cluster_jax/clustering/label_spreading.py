"""Label spreading over a k-nearest-neighbor graph."""

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cluster_jax.core import knn

# Neighbors of a row, at most.
_COUNT = 10
# Weight of the neighbors, and number of updates, after which 0.9^100 of the start is left.
_ALPHA, _UPDATES = 0.9, 100


def label_spreading(values: NDArray, rows: NDArray, others: NDArray | None) -> NDArray:
    """Returns values after label spreading over the graph of each row's 10 nearest rows.

    The result F is the fixed point of F = 0.9 S F + 0.1 values, by 100 updates, where S is the
    symmetrically normalized adjacency matrix. An edge counts twice if each of its rows is among the
    nearest of the other. In a small set each row has only n / c - 1 neighbors, rounded down, which
    fit into one of c classes of equal size; if that is less than one, `values` are returned.

    Args:
        values: float `[n, c]`, one column for each class, at least one.
        rows: finite float `[n, f]`; nearest by the Euclidean distance. All pairs are compared.
        others: int `[n, k]`, further neighbors of each row, the nearest first, -1 for none. At most
            as many of these are used as of the neighbors by `rows`. None: there are none.

    Returns:
        float64 `[n, c]`. The sums of its rows are not those of `values`.

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
    """Returns the neighbors of the kept rows as positions in `kept`, int64 `[n, k]`.

    A neighbor that is not kept is -1.

    Args:
        neighbors: int `[N, k]`, the neighbors of N rows, 0 to N - 1; -1 is not allowed.
        kept: int `[n]`, indices of the rows that are kept, each once; no mask.

    Example:
        >>> among(np.array([[1, 2], [0, 2], [1, 0]]), np.array([0, 2])).tolist()
        [[-1, 1], [-1, 0]]
    """
    position = np.full(len(neighbors), -1)
    position[kept] = np.arange(len(kept))
    return position[neighbors[kept]]
