"""Cluster assignment of new rows by their nearest training rows.

For clusterings of a UMAP map, which assigns no new rows itself: a UMAP object cannot be stored
without pickle, takes minutes to rebuild for large sets, and maps a row differently alone and in a
batch. Voting by the nearest training rows is as accurate (`experiments/placement.md`), instant,
and gives each training row its own label.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Elements of one block of similarities (float32: 64 MB).
_BLOCK = 2**24
# Training rows whose nearest other row is looked up for `novelty_threshold`, at most: of 5,000
# rows the share beyond the 0.99 quantile has a standard error of 0.14 %.
_SAMPLE = 5_000
# Share of the training rows that are within the threshold of another training row.
_WITHIN = 0.99


class Neighbors(NamedTuple):
    """Nearest training rows of `m` rows.

    Attributes:
        indices: int64 `[m, k]`, training rows in ascending order of distance.
        distances: float64 `[m, k]`, 1 - cosine.
    """

    indices: NDArray
    distances: NDArray


def neighbors(rows: ArrayLike, features: ArrayLike, n_neighbors: int) -> Neighbors:
    """The training rows nearest to each row, by 1 - cosine; ties go to the lower index.

    Not scikit-learn's `NearestNeighbors`: a row's result must not depend on the other rows of the
    call, bit for bit, and ties must have one answer. Its exhaustive search takes distances
    from blocked matrix products, whose rounding depends on the shape of the block; its trees give
    ties in no fixed order and are slow in hundreds of dimensions. Here the matrix product only
    picks candidates within its error bound; their distances are exact to float64.

    Args:
        rows: float `[m, d]`, of length one or zero.
        features: float `[n, d]`, likewise: the training rows.
        n_neighbors: number of neighbors k; capped at n.

    Raises:
        ValueError: the rows have another dimension than the features, or are not finite.

    Example:
        >>> neighbors([[1.0, 0.0]], [[0.0, 1.0], [1.0, 0.0], [0.0, -1.0]], 2)
        Neighbors(indices=array([[1, 0]]), distances=array([[0., 1.]]))
    """
    queries, training = np.asarray(rows, np.float32), np.asarray(features, np.float32)
    n, d = training.shape
    if queries.ndim != 2 or queries.shape[1] != d:
        raise ValueError(f"rows must have {d} columns like the training rows; got {queries.shape}")
    if not np.isfinite(queries).all():
        raise ValueError(
            "rows must be finite; got NaN or infinity: the network may not suit these images"
        )
    k = min(n_neighbors, n)
    indices, distances = np.empty((len(queries), k), np.int64), np.empty((len(queries), k))
    # A float32 sum of d products of unit rows is off by at most about d / 2^24, either way.
    margin = (d + 8) * 2.0**-23
    half_squares = np.square(training).sum(axis=1) / 2
    step = max(1, _BLOCK // n)
    for start in range(0, len(queries), step):
        block = queries[start : start + step]
        # Half the squared distance, up to a constant for each row: 1 - cosine of unit rows.
        rough = half_squares[None, :] - block @ training.T
        bound = np.partition(rough, k - 1, axis=1)[:, k - 1] + margin
        for i, row in enumerate(block):
            candidates = np.flatnonzero(rough[i] <= bound[i])
            differences = training[candidates].astype(np.float64) - row.astype(np.float64)[None, :]
            exact = np.square(differences).sum(axis=1) / 2
            order = np.argsort(exact, kind="stable")[:k]
            indices[start + i], distances[start + i] = candidates[order], exact[order]
    return Neighbors(indices, distances)


def vote(nearest: Neighbors, labels: NDArray) -> NDArray:
    """Label of each row by its neighbors' votes, each weighted by 1 / distance; int64 `[m]`.

    Neighbors at distance 0 outvote all others: a training row gets its own label, and
    duplicates with different labels get their most frequent one. Ties go to the lower label.

    Args:
        nearest: the nearest training rows.
        labels: int `[n]` of the training rows.

    Example:
        >>> vote(Neighbors(np.array([[0, 1, 2]]), np.array([[0.1, 0.3, 0.3]])), np.array([7, 4, 4]))
        array([7])
    """
    candidates, weights = labels.astype(np.int64)[nearest.indices], _weights(nearest)
    votes = np.zeros(candidates.shape)
    for label, weight in zip(candidates.T, weights.T, strict=True):
        votes += np.where(candidates == label[:, None], weight[:, None], 0)
    winners = votes == votes.max(axis=1, keepdims=True)
    return np.where(winners, candidates, np.iinfo(np.int64).max).min(axis=1)


def position(nearest: Neighbors, labels: NDArray, assigned: NDArray, embedding: NDArray) -> NDArray:
    """Positions of rows in the map, float64 `[m, c]`: the mean of their neighbors' positions.

    Weighted like the votes, over the neighbors that have the label assigned to the row: the mean
    of two clusters lies in neither. A training row keeps its own position.

    Args:
        nearest: the nearest training rows.
        labels: int `[n]` of the training rows.
        assigned: int `[m]`, the result of `vote`.
        embedding: float `[n, c]`, the map of the training rows.

    Example:
        >>> nearest = Neighbors(np.array([[0, 1, 2]]), np.array([[0.2, 0.2, 0.2]]))
        >>> labels, embedding = np.array([3, 3, 5]), np.array([[0.0], [1.0], [9.0]])
        >>> position(nearest, labels, vote(nearest, labels), embedding)
        array([[0.5]])
    """
    weights = _weights(nearest) * (labels[nearest.indices] == assigned[:, None])
    weights /= weights.sum(axis=1, keepdims=True)
    return (weights[:, :, None] * embedding[nearest.indices]).sum(axis=1)


def novelty_threshold(features: NDArray) -> float:
    """Distance to the nearest other training row that 99 % of the training rows stay within.

    By 1 - cosine. A new row farther than this from every training row is novel. On
    digits this flags 0.3 to 2.5 % of held-out rows; for images of other sets see
    `experiments/placement.md`. At most 5,000 evenly spaced rows are looked up.

    Args:
        features: float `[n, d]`, of length one or zero.

    Example:
        >>> novelty_threshold(np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]))
        1.0
    """
    n = len(features)
    count = min(n, _SAMPLE)
    nearest = neighbors(features[np.arange(count) * n // count], features, 2)
    # The smaller of the two distances is that of the row to itself.
    return float(np.quantile(nearest.distances[:, -1], _WITHIN))


def _weights(nearest: Neighbors) -> NDArray:
    """1 / distance in units of the smallest; where that is 0, one for each copy of the row."""
    distances = nearest.distances
    smallest = np.broadcast_to(distances[:, :1], distances.shape)
    return np.divide(smallest, distances, out=np.ones_like(distances), where=distances > 0)
