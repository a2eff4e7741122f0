"""k-nearest-neighbor accuracy of features."""

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import ArrayLike, NDArray

from cluster_jax.core import hosts, knn, sharded_knn
from cluster_jax.core.arrays import normalize_rows, numeric, one_per_row
from cluster_jax.core.checks import InputError


def knn_accuracy(
    features: ArrayLike,
    labels: ArrayLike,
    *,
    n_neighbors: Sequence[int] = (20,),
    queries: ArrayLike | None = None,
    query_labels: ArrayLike | None = None,
    mesh: Mesh | None = None,
) -> dict[int, float | None]:
    """Returns the share of rows whose class wins the vote of the nearest rows by cosine.

    Every neighbor has one vote; of classes with equally many votes the smallest wins.

    Args:
        features: finite float `[n, d]`, the rows that vote.
        labels: their classes, integers `[n]`.
        n_neighbors: numbers of voters, at least one.
        queries: finite float `[m, d]` to classify; None for the voters themselves, each without
            its own vote (leave-one-out).
        query_labels: integers `[m]`, with `queries`.
        mesh: devices of all processes, see `hosts.on_all`; None: those of this process.

    Returns:
        Number of voters -> accuracy, or None where there are not that many voters.

    Raises:
        ValueError: shapes that do not match, or a number of voters below 1.

    Example:
        >>> knn_accuracy([[1.0, 0.0], [9.0, 1.0], [0.0, 2.0]], [0, 0, 1], n_neighbors=(1, 5))
        {1: 0.6666666666666666, 5: None}
    """
    if (queries is None) != (query_labels is None):
        raise InputError("queries and query_labels must be given together; got only one of them")
    if not n_neighbors or min(n_neighbors) < 1:
        raise InputError(f"n_neighbors must be numbers of at least 1; got {n_neighbors}")
    voters, classes = _checked(features, labels)
    asked, true_labels = (None, classes) if queries is None else _checked(queries, query_labels)
    if asked is not None and asked.shape[1] != voters.shape[1]:
        must = f"queries must have as many columns as features, {voters.shape[1]}"
        raise InputError(f"{must}; got {asked.shape[1]}")
    possible = [k for k in n_neighbors if k <= len(voters) - (asked is None)]
    if not possible:
        return dict.fromkeys(n_neighbors)
    if mesh is None and jax.default_backend() == "cpu":
        others = voters if asked is None else asked
        found = knn.nearest(
            others, voters, max(possible), metric="cosine", exclude_self=asked is None
        )
        nearest = found.indices
    else:
        arrays = () if asked is None else (asked,)
        nearest, _ = hosts.on_all(sharded_knn.nearest, mesh, voters, *arrays, k=max(possible))
    names, codes = np.unique(classes, return_inverse=True)
    accuracies: dict[int, float | None] = dict.fromkeys(n_neighbors)
    for k in possible:
        # The first of the highest counts is that of the smallest class.
        won = [np.bincount(ballot).argmax() for ballot in codes[nearest[:, :k]]]
        accuracies[k] = float(np.mean(names[won] == true_labels))
    return accuracies


def _checked(features: ArrayLike, labels: ArrayLike | None) -> tuple[NDArray, NDArray]:
    """Returns rows of length one (zeros stay), float32 unless given as float64; and labels."""
    rows = numeric(features, "features")
    unit = normalize_rows(rows if rows.dtype == np.float64 else rows.astype(np.float32))
    return unit, one_per_row(np.asarray(labels), "labels", len(rows))
