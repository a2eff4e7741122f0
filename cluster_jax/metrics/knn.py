"""k-nearest-neighbor accuracy of features."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.neighbors import NearestNeighbors

from cluster_jax.core.arrays import normalize_rows

# Elements of one block of votes (int32: 64 MB).
_BLOCK = 2**24


def knn_accuracy(
    features: ArrayLike,
    labels: ArrayLike,
    *,
    n_neighbors: Sequence[int] = (20,),
    queries: ArrayLike | None = None,
    query_labels: ArrayLike | None = None,
) -> dict[int, float | None]:
    """Share of the rows whose class wins the vote of their nearest rows by cosine similarity.

    Every neighbor has one vote; of classes with equally many votes the smallest wins.

    Args:
        features: finite float `[n, d]`, the rows that vote.
        labels: their classes, integers `[n]`.
        n_neighbors: numbers of voters, at least one.
        queries: finite float `[m, d]` to classify; None for the voters themselves, each without
            its own vote (leave-one-out).
        query_labels: integers `[m]`, with `queries`.

    Returns:
        Number of voters -> accuracy, or None where there are not that many voters.

    Raises:
        ValueError: shapes that do not match, or a number of voters below 1.

    Example:
        >>> knn_accuracy([[1.0, 0.0], [9.0, 1.0], [0.0, 2.0]], [0, 0, 1], n_neighbors=(1, 5))
        {1: 0.6666666666666666, 5: None}
    """
    voters = _normalized(features, "features")
    voter_labels = _labels_of(voters, labels, "labels")
    leave_one_out = queries is None and query_labels is None
    if leave_one_out:
        query_rows, true_labels = voters, voter_labels
    elif queries is None or query_labels is None:
        raise ValueError("queries and query_labels must be given together; got only one of them")
    else:
        query_rows = _normalized(queries, "queries")
        true_labels = _labels_of(query_rows, query_labels, "query_labels")
    if query_rows.shape[1] != voters.shape[1]:
        must = f"queries must have as many columns as features, {voters.shape[1]}"
        raise ValueError(f"{must}; got {query_rows.shape[1]}")
    if not n_neighbors or min(n_neighbors) < 1:
        raise ValueError(f"n_neighbors must be numbers of at least 1; got {n_neighbors}")
    possible = [k for k in n_neighbors if k <= len(voters) - leave_one_out]
    if not possible:
        return dict.fromkeys(n_neighbors)
    # Of unit rows the nearest by Euclidean distance have the highest cosine similarity.
    search = NearestNeighbors(n_neighbors=max(possible), algorithm="brute").fit(voters)
    nearest = search.kneighbors(None if leave_one_out else query_rows, return_distance=False)
    accuracies = vote(nearest, voter_labels, true_labels, possible)
    return {k: accuracies.get(k) for k in n_neighbors}


def vote(
    nearest: NDArray, labels: NDArray, true_labels: NDArray, n_neighbors: Sequence[int]
) -> dict[int, float]:
    """Share of the queries whose class wins the vote of their nearest rows.

    Args:
        nearest: numbers of the voters of each query, nearest first, integers `[m, k]`.
        labels: classes of all voters, integers `[n]`.
        true_labels: classes of the queries, integers `[m]`.
        n_neighbors: numbers of voters, 1 to k.

    Returns:
        Number of voters -> accuracy.

    Example:
        >>> vote(np.array([[0, 1, 2]]), np.array([5, 7, 7]), np.array([7]), (1, 3))
        {1: 0.0, 3: 1.0}
    """
    classes, votes = np.unique(labels, return_inverse=True)
    correct = dict.fromkeys(n_neighbors, 0)
    step = max(1, _BLOCK // len(classes))
    for start in range(0, len(nearest), step):
        ballots = votes[nearest[start : start + step]]
        rows = np.arange(len(ballots))
        for k in n_neighbors:
            counts = np.zeros((len(ballots), len(classes)), np.int32)
            for ballot in ballots[:, :k].T:
                counts[rows, ballot] += 1
            winner = classes[counts.argmax(axis=1)]
            correct[k] += int((winner == true_labels[start : start + step]).sum())
    return {k: count / len(nearest) for k, count in correct.items()}


def _normalized(features: ArrayLike, name: str) -> NDArray:
    """Rows of length one (a row of zeros stays), float32 unless given as float64."""
    rows = np.asarray(features)
    if rows.ndim != 2 or not rows.size:
        raise ValueError(f"{name} must be a non-empty 2-D array; got shape {rows.shape}")
    if rows.dtype != np.float64:
        rows = rows.astype(np.float32)
    if not np.isfinite(rows).all():
        raise ValueError(f"{name} must be finite; got NaN or infinity: drop or fill those rows")
    return normalize_rows(rows)


def _labels_of(rows: NDArray, labels: ArrayLike, name: str) -> NDArray:
    values = np.asarray(labels)
    if values.shape != (len(rows),):
        must = f"{name} must have one entry for each of the {len(rows)} rows"
        raise ValueError(f"{must}; got shape {values.shape}")
    return values
