"""Values of rows averaged with those of their neighbors."""

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering import basins

# Nearest rows of each kind that have a say, at most.
_COUNT = 10


def averaged(values: NDArray, rows: NDArray, others: NDArray | None) -> NDArray:
    """Values averaged over each row, its 10 nearest ones, and others of its neighbors.

    Of c classes of equal size, the nearest rows fit into one: of small sets fewer are taken. All
    pairs of rows are compared.

    Args:
        values: float `[n, c]`, one column for each class.
        rows: float `[n, f]`.
        others: int `[n, k]`, neighbors by something else than `rows`, the nearest first and -1 for
            none; as many are taken at most. None: there are none.

    Returns:
        float `[n, c]`.

    Example:
        >>> values = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> rows = np.array([[0.0], [1.0], [1.2], [9.0]])
        >>> averaged(values, rows, None).tolist()
        [[1.0, 0.0], [0.5, 0.5], [0.5, 0.5], [0.0, 1.0]]
        >>> averaged(values, rows, np.array([[-1], [0], [3], [2]]))[1].round(2).tolist()
        [0.67, 0.33]
    """
    count = min(_COUNT, len(rows) // values.shape[1] - 1)
    if count < 1:
        return values
    _, near = basins.nearest_rows(rows.astype(np.float64), count)
    if others is not None:
        near = np.concatenate([near, others[:, :count]], axis=1)
    total = values.copy()
    for column in near.T:  # all at once would be many times the values
        total += np.where(column[:, None] >= 0, values[column], 0)
    return total / (1 + (near >= 0).sum(axis=1, keepdims=True))


def among(neighbors: NDArray, kept: NDArray) -> NDArray:
    """Neighbors of the rows that are kept, as positions among these, -1 for others.

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
