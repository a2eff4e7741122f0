"""k-nearest-neighbor accuracy of features."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Elements of one block of similarities (float32: 64 MB).
_BLOCK = 2**24


def knn_accuracy(
    features: ArrayLike,
    labels: ArrayLike,
    *,
    n_neighbors: Sequence[int],
    queries: ArrayLike | None = None,
    query_labels: ArrayLike | None = None,
) -> dict[int, float | None]:
    """Part of the rows whose class wins the vote of their nearest rows by cosine.

    Every neighbor has one vote; of classes with equally many votes the smallest wins.

    Args:
        features: float `[n, d]`, the rows that vote.
        labels: their classes, integers `[n]`.
        n_neighbors: numbers of voters.
        queries: float `[m, d]` to classify; None for the voters themselves, each without its own
            vote (leave-one-out).
        query_labels: integers `[m]`, with `queries`.

    Returns:
        number of voters -> accuracy, or None where there are not that many voters.

    Raises:
        ValueError: shapes that do not fit, or a number of voters below 1.
    """
    voters = _unit(features, "features")
    classes, votes = np.unique(_one_each(labels, voters, "labels"), return_inverse=True)
    alone = queries is None
    if alone != (query_labels is None):
        raise ValueError("give both queries and query_labels, or neither")
    asked = voters if alone else _unit(queries, "queries")
    truth = _one_each(labels if alone else query_labels, asked, "query_labels")
    if asked.shape[1] != voters.shape[1]:
        raise ValueError(
            f"queries must have as many columns as features, {voters.shape[1]}; got "
            f"{asked.shape[1]}"
        )
    if not n_neighbors or min(n_neighbors) < 1:
        raise ValueError(f"the numbers of neighbors must be at least 1; got {n_neighbors}")
    available = len(voters) - alone
    possible = [k for k in n_neighbors if k <= available]
    right = dict.fromkeys(possible, 0)
    rows = max(1, _BLOCK // len(voters))
    for start in range(0, len(asked) if possible else 0, rows):
        similarity = asked[start : start + rows] @ voters.T
        here = np.arange(len(similarity))
        if alone:
            similarity[here, start + here] = -np.inf
        nearest = _largest(similarity, max(possible))
        for k in possible:
            poll = np.zeros((len(similarity), len(classes)), np.int32)
            for column in nearest[:, :k].T:
                poll[here, votes[column]] += 1
            winner = classes[poll.argmax(axis=1)]
            right[k] += int((winner == truth[start : start + rows]).sum())
    return {k: right[k] / len(asked) if k in right else None for k in n_neighbors}


def _largest(values: NDArray, k: int) -> NDArray:
    """Columns of the `k` largest entries of each row, largest first."""
    rest = values.shape[1] - k
    if rest:
        columns = np.argpartition(values, rest, axis=1)[:, rest:]
    else:
        columns = np.broadcast_to(np.arange(k), values.shape)
    order = np.argsort(-np.take_along_axis(values, columns, axis=1), axis=1, kind="stable")
    return np.take_along_axis(columns, order, axis=1)


def _unit(features: ArrayLike, name: str) -> NDArray:
    """Rows of length one (a row of zeros stays), float32 unless given as float64."""
    features = np.asarray(features)
    if features.ndim != 2 or not features.size:
        raise ValueError(f"{name} must be a non-empty 2-D array; got shape {features.shape}")
    if features.dtype != np.float64:
        features = features.astype(np.float32)
    if not np.isfinite(features).all():
        raise ValueError(f"{name} contain NaN or infinity: drop or fill those rows")
    norm = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.where(norm > 0, norm, 1)


def _one_each(labels: ArrayLike, features: NDArray, name: str) -> NDArray:
    labels = np.asarray(labels)
    if labels.shape != (len(features),):
        raise ValueError(
            f"{name} must have one entry for each of the {len(features)} rows; got shape "
            f"{labels.shape}"
        )
    return labels
