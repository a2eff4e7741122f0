"""Agreement of clusters with known classes."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import (
    adjusted_mutual_info_score,
    adjusted_rand_score,
    homogeneity_completeness_v_measure,
    normalized_mutual_info_score,
)
from sklearn.metrics.cluster import contingency_matrix

from cluster_jax.core.checks import InputError

# The entries of `scores` that are one number for the whole partition, at most 1.
SCORES = ("acc", "nmi", "ari", "ami", "homogeneity", "completeness", "purity")


class Contingency(NamedTuple):
    """Contingency table.

    Attributes:
        table: counts, int64 `[classes, clusters]`.
        classes: label of each row of the table, ascending.
        clusters: label of each column, ascending.
    """

    table: NDArray
    classes: NDArray
    clusters: NDArray


def contingency(labels: ArrayLike, clusters: ArrayLike) -> Contingency:
    """Returns how many rows of each class lie in each cluster.

    Args:
        labels: known classes, integers `[n]`.
        clusters: clusters, integers `[n]`.

    Raises:
        ValueError: empty, not 1-D, not integers, or of different length.

    Example:
        >>> contingency([0, 0, 5], [2, 7, 7])
        Contingency(table=array([[1, 1],
               [0, 1]]), classes=array([0, 5]), clusters=array([2, 7]))
    """
    true = _integers(labels, "labels")
    assigned = _integers(clusters, "clusters")
    if len(true) != len(assigned):
        must = "labels and clusters must have the same length"
        raise InputError(f"{must}; got {len(true)} and {len(assigned)}")
    table = contingency_matrix(true, assigned, dtype=np.int64)
    return Contingency(table, np.unique(true), np.unique(assigned))


def matching(labels: ArrayLike, clusters: ArrayLike) -> dict[int, int]:
    """Returns the one-to-one matching of clusters to classes with most rows in common.

    There may be more clusters than classes or fewer; unmatched ones, and pairs without a common
    row, are not in the result.

    Returns:
        Cluster -> class.

    Example:
        >>> matching([0, 0, 0, 1, 1], [4, 4, 8, 9, 9])
        {4: 0, 9: 1}
    """
    counts = contingency(labels, clusters)
    rows, columns = linear_sum_assignment(counts.table, maximize=True)
    return {
        int(counts.clusters[j]): int(counts.classes[i])
        for i, j in zip(rows, columns, strict=True)
        if counts.table[i, j]
    }


def accuracy(labels: ArrayLike, clusters: ArrayLike) -> float:
    """Returns the clustering accuracy: share of rows in the cluster matched to their class.

    The matching is one-to-one, so all rows of an unmatched cluster are errors: splitting a class
    in two costs the smaller half.

    Example:
        >>> accuracy([0, 0, 0, 1, 1], [4, 4, 8, 9, 9])
        0.8
    """
    table = contingency(labels, clusters).table
    return float(table[linear_sum_assignment(table, maximize=True)].sum() / table.sum())


def purity(labels: ArrayLike, clusters: ArrayLike) -> dict[int, float]:
    """Returns each cluster's share of rows that are of its most frequent class.

    Example:
        >>> purity([0, 0, 1, 1], [3, 3, 3, 4])
        {3: 0.6666666666666666, 4: 1.0}
    """
    counts = contingency(labels, clusters)
    shares = counts.table.max(axis=0) / counts.table.sum(axis=0)
    return dict(zip(counts.clusters.tolist(), shares.tolist(), strict=True))


def scores(labels: ArrayLike, clusters: ArrayLike) -> dict[str, Any]:
    """Returns all agreement scores of one partition.

    Returns:
        `acc` (rectangular matching, see `accuracy`), `nmi` (mutual information over the
        *arithmetic* mean of the entropies; NRCC cites the geometric one), `ari`, `ami` (arithmetic
        too), `homogeneity` and `completeness` (mutual information over the entropy of the classes
        and over that of the clusters), `purity` (share of the rows that are of the most frequent
        class of their cluster), `n_clusters`, `n_classes`, and by cluster `matching` (see there)
        and `cluster_purity` (see `purity`).

    Example:
        >>> metrics = scores([0, 0, 1, 1], [5, 5, 9, 9])
        >>> metrics["acc"], metrics["nmi"], metrics["n_clusters"], metrics["matching"]
        (1.0, 1.0, 2, {5: 0, 9: 1})
    """
    counts = contingency(labels, clusters)
    labels, clusters = np.asarray(labels), np.asarray(clusters)
    homogeneity, completeness, _ = homogeneity_completeness_v_measure(labels, clusters)
    return {
        "acc": accuracy(labels, clusters),
        "nmi": float(normalized_mutual_info_score(labels, clusters, average_method="arithmetic")),
        "ari": float(adjusted_rand_score(labels, clusters)),
        "ami": float(adjusted_mutual_info_score(labels, clusters, average_method="arithmetic")),
        "homogeneity": float(homogeneity),
        "completeness": float(completeness),
        "purity": float(counts.table.max(axis=0).sum() / counts.table.sum()),
        "n_clusters": len(counts.clusters),
        "n_classes": len(counts.classes),
        "matching": matching(labels, clusters),
        "cluster_purity": purity(labels, clusters),
    }


def _integers(values: ArrayLike, name: str) -> NDArray:
    array = np.asarray(values)
    if array.ndim != 1 or not array.size:
        raise InputError(f"{name} must be a non-empty 1-D array; got shape {array.shape}")
    if array.dtype.kind not in "iu":
        raise InputError(f"{name} must be integers; got {array.dtype}")
    return array
