"""Agreement of found clusters with known classes."""

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

# Those of `scores` that are one number from 0 or so to 1 for the whole partition.
SCORES = ("acc", "nmi", "ari", "ami", "homogeneity", "completeness", "purity")


class Contingency(NamedTuple):
    """Counts int64 `[classes, clusters]` with the values that name its rows and its columns."""

    table: NDArray
    classes: NDArray
    clusters: NDArray


def contingency(labels: ArrayLike, clusters: ArrayLike) -> Contingency:
    """How many rows of each class lie in each cluster.

    Args:
        labels: known classes, integers `[n]`.
        clusters: found clusters, integers `[n]`.

    Raises:
        ValueError: empty, not 1-D, not whole numbers, or of different length.
    """
    labels, clusters = _whole(labels, "labels"), _whole(clusters, "clusters")
    if len(labels) != len(clusters):
        raise ValueError(
            f"labels and clusters must have the same length; got {len(labels)} and {len(clusters)}"
        )
    classes, row = np.unique(labels, return_inverse=True)
    found, column = np.unique(clusters, return_inverse=True)
    shape = (len(classes), len(found))
    counts = np.bincount(row * shape[1] + column, minlength=shape[0] * shape[1])
    return Contingency(counts.reshape(shape), classes, found)


def matching(labels: ArrayLike, clusters: ArrayLike) -> dict[int, int]:
    """The one-to-one matching of clusters to classes with most rows in common.

    Either side may have more members than the other; those left over, and pairs without a common
    row, are not in the result.

    Returns:
        cluster -> class.
    """
    counts = contingency(labels, clusters)
    rows, columns = linear_sum_assignment(counts.table, maximize=True)
    return {
        int(counts.clusters[j]): int(counts.classes[i])
        for i, j in zip(rows, columns, strict=True)
        if counts.table[i, j]
    }


def accuracy(labels: ArrayLike, clusters: ArrayLike) -> float:
    """Clustering accuracy: part of the rows that lie in the cluster matched to their class.

    The matching is rectangular, so an unmatched cluster counts as errors throughout: splitting a
    class in two costs the smaller half.
    """
    table = contingency(labels, clusters).table
    return float(table[linear_sum_assignment(table, maximize=True)].sum() / table.sum())


def purity(labels: ArrayLike, clusters: ArrayLike) -> dict[int, float]:
    """Cluster -> share of its rows that are of its most frequent class."""
    counts = contingency(labels, clusters)
    shares = counts.table.max(axis=0) / counts.table.sum(axis=0)
    return dict(zip(counts.clusters.tolist(), shares.tolist(), strict=True))


def scores(labels: ArrayLike, clusters: ArrayLike) -> dict[str, Any]:
    """All agreement scores of one partition.

    Returns:
        `acc` (rectangular matching, see `accuracy`), `nmi` (mutual information over the
        *arithmetic* mean of the entropies), `ari`, `ami` (arithmetic too), `homogeneity` and
        `completeness` (mutual information over the entropy of the classes and over that of the
        clusters), `purity` (part of the rows that are of the most frequent class of their
        cluster), `n_clusters` found and `n_classes` known; and one entry for each cluster in
        `matching` (see there) and `cluster_purity` (see `purity`).
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


def _whole(values: ArrayLike, name: str) -> NDArray:
    values = np.asarray(values)
    if values.ndim != 1 or not values.size:
        raise ValueError(f"{name} must be a non-empty 1-D array; got shape {values.shape}")
    if values.dtype.kind not in "iu":
        raise ValueError(f"{name} must be whole numbers; got {values.dtype}")
    return values
