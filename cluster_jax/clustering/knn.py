"""Exact nearest neighbors of rows, by Euclidean distance."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Elements of one block of distances (float32: 64 MB).
_BLOCK = 2**24


class Neighbors(NamedTuple):
    """Nearest rows of `m` queries.

    Attributes:
        indices: int64 `[m, k]`, in ascending order of distance.
        distances: float64 `[m, k]`, Euclidean.
    """

    indices: NDArray
    distances: NDArray


def nearest(queries: NDArray, rows: NDArray, k: int, *, exclude_self: bool = False) -> Neighbors:
    """The k rows nearest to each query; ties go to the lower index.

    A product of matrices picks twice as many candidates; their distances are then computed from
    differences in float64, so that the result for a query does not depend on the other queries.

    Args:
        queries: float32 `[m, r]`.
        rows: float32 `[n, r]`.
        k: number of neighbors, capped at the number of rows.
        exclude_self: query i is row i and none of its own neighbors.

    Example:
        >>> rows = np.array([[0.0], [1.0], [5.0]], np.float32)
        >>> found = nearest(rows, rows, 1, exclude_self=True)
        >>> found.indices[:, 0].tolist(), found.distances[:, 0].tolist()
        ([1, 0, 1], [1.0, 1.0, 4.0])
    """
    n = len(rows)
    k = min(k, n - exclude_self)
    indices = np.empty((len(queries), k), np.int64)
    distances = np.empty((len(queries), k))
    squares = np.square(rows).sum(axis=1)
    step = max(1, _BLOCK // n)
    for start in range(0, len(queries) if k else 0, step):
        block = queries[start : start + step]
        scores = squares - 2 * (block @ rows.T)
        if exclude_self:
            own = np.arange(len(block))
            scores[own, start + own] = np.inf
        count = min(2 * k, n - exclude_self)
        candidates = np.sort(np.argpartition(scores, count - 1, axis=1)[:, :count], axis=1)
        gaps = np.empty(candidates.shape)
        for j, column in enumerate(candidates.T):
            gaps[:, j] = np.square(block.astype(np.float64) - rows[column]).sum(axis=1)
        order = np.argsort(gaps, axis=1, kind="stable")[:, :k]
        indices[start : start + step] = np.take_along_axis(candidates, order, axis=1)
        distances[start : start + step] = np.sqrt(np.take_along_axis(gaps, order, axis=1))
    return Neighbors(indices, distances)


def vote(neighbors: Neighbors, labels: NDArray) -> NDArray:
    """Share of each label among a query's neighbors, weighted by 1 / distance: float64 `[m, c]`.

    A neighbor at distance zero, up to rounding, outvotes all others: a training row keeps its own
    label.

    Args:
        neighbors: of m queries.
        labels: int `[n]`, 0 to c - 1, of the rows.

    Example:
        >>> vote(Neighbors(np.array([[0, 1]]), np.array([[1.0, 3.0]])), np.array([1, 0]))
        array([[0.25, 0.75]])
    """
    farthest = np.maximum(neighbors.distances[:, -1:], np.finfo(float).tiny)
    weights = 1 / np.maximum(neighbors.distances / farthest, 1e-9)
    shares = np.zeros((len(weights), int(labels.max()) + 1))
    every = np.arange(len(weights))
    for label, weight in zip(labels[neighbors.indices].T, weights.T, strict=True):
        shares[every, label] += weight
    return shares / weights.sum(axis=1, keepdims=True)
