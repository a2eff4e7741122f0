"""Clusters of all rows from the tree of a sample of them: labels, and votes for new rows."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering import basins, levels, membership, signal
from cluster_jax.clustering.levels import Tree
from cluster_jax.clustering.membership import Membership
from cluster_jax.clustering.signal import Signal
from cluster_jax.core.arrays import normalize_rows

# Rows of which the tree is built, at most: its cost does not grow with the set.
_SAMPLE = 10_000
# Rows that vote for the cluster of a new one.
_VOTERS = 15


class SampledTree(NamedTuple):
    """The tree of a sample of the rows.

    Attributes:
        tree: nested groups of the sample.
        sample: int64 `[m]`, the rows it has, in an order that does not depend on theirs.
    """

    tree: Tree
    sample: NDArray


class Prepared(NamedTuple):
    """Rows of which the map is made and clusters are found.

    Attributes:
        projection: of rows as `scaled` has them.
        rows: float64 `[n, r]`.
        order: int64 `[n]`, an order of the rows that does not depend on theirs.
    """

    projection: Signal
    rows: NDArray
    order: NDArray


def prepare(x: NDArray, metric: str) -> Prepared:
    """Features without their noise; what a row becomes does not depend on the order of the rows.

    Args:
        x: float `[n, d]`.
        metric: `"cosine"` scales rows to length one first.

    Example:
        >>> prepare(np.array([[0.0, 2.0], [4.0, 2.0]]), "euclidean").rows.tolist()
        [[-2.0, 0.0], [2.0, 0.0]]
    """
    spread = scaled(signal.dequantize(x), metric)
    order = signal.order(spread)
    spread = spread[order]
    projection = signal.fit(spread)
    return Prepared(projection, undone(projection.project(spread), order), order)


def undone(values: NDArray, order: NDArray) -> NDArray:
    """Values of rows that were put in an order, in the former one.

    Example:
        >>> undone(np.array([7, 8, 9]), np.array([2, 0, 1])).tolist()
        [8, 9, 7]
    """
    restored = np.empty_like(values)
    restored[order] = values
    return restored


def scaled(x: NDArray, metric: str) -> NDArray:
    """Rows `[n, d]` as floating-point numbers, of length one for `"cosine"`.

    Example:
        >>> scaled(np.array([[3, 4]]), "cosine").tolist()
        [[0.6, 0.8]]
    """
    if x.dtype.kind != "f":
        x = x.astype(np.float64)
    elif x.dtype.itemsize < 4:  # sums of squares leave float16's range
        x = x.astype(np.float32)
    return normalize_rows(x) if metric == "cosine" else x


def find(rows: NDArray, points: NDArray) -> SampledTree:
    """The tree of at most 10,000 of the rows, independent of their order.

    Args:
        rows: float64 `[n, r]`, from `prepare`.
        points: float64 `[n, c]`, their map.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(200, 2)) + 9 * (np.arange(200) % 2)[:, None]
        >>> find(x, x).tree.n_clusters
        2
    """
    sample = signal.order(points)
    if len(sample) > _SAMPLE:
        rng = np.random.default_rng(0)
        sample = sample[np.sort(rng.choice(len(sample), _SAMPLE, replace=False))]
    return SampledTree(levels.build(rows[sample], points[sample]), sample)


def assign(rows: NDArray, points: NDArray, sampled: SampledTree, groups: NDArray) -> Membership:
    """Labels of all rows, and their probabilities, from the groups of the sample.

    Args:
        rows: float64 `[n, r]`.
        points: float64 `[n, c]`.
        sampled: from `find`.
        groups: int64 `[m]`, a cut of its tree.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(200, 2)) + 9 * (np.arange(200) % 2)[:, None]
        >>> sampled = find(x, x)
        >>> np.bincount(assign(x, x, sampled, levels.cut(sampled.tree)).labels).tolist()
        [100, 100]
    """
    sample = sampled.sample
    n_neighbors = min(membership.NEIGHBORS, len(sample) - 1)
    if n_neighbors < 1 or not groups.any():
        return membership.certain(np.zeros(len(rows), np.int64))
    _, neighbors = basins.nearest_rows(rows[sample], n_neighbors)
    of_sample = membership.assign(rows[sample], groups, neighbors)
    # Rows outside the sample are like the nearest one in it.
    nearest = np.empty(len(rows), np.int64)
    nearest[sample] = np.arange(len(sample))
    if len(sample) < len(rows):
        others = np.setdiff1d(np.arange(len(rows)), sample, assume_unique=True)
        nearest[others] = basins.nearest_to(points[others], points[sample], 1)[1][:, 0]
    return Membership(*(values[nearest] for values in of_sample))


def at_level(
    sampled: SampledTree,
    labels: NDArray,
    rows: Callable[[], tuple[NDArray, NDArray]],
    *,
    k: int | None = None,
    level: float | None = None,
) -> NDArray:
    """Labels of all rows at another cut of the tree; without `k` and `level` those that there are.

    Groups of a coarser cut are unions of the clusters; for a finer one rows are assigned anew.

    Args:
        sampled: from `find`.
        labels: int64 `[n]`, from `assign` with a cut of its tree: the clusters.
        rows: gives the first two arguments of `assign`; only called for a finer cut.
        k: see `levels.cut`.
        level: see `levels.cut`.

    Returns:
        int64 `[n]`.

    Example:
        >>> tree = Tree(np.array([0, 1, 2]), np.array([[0, 1], [2, 3]]), np.array([1.0, 2.0]))
        >>> sampled, rows = SampledTree(tree, np.arange(3)), np.zeros((3, 1))
        >>> at_level(sampled, np.array([0, 1, 2]), lambda: (rows, rows), k=2).tolist()
        [0, 0, 1]
    """
    if k is None and level is None:
        return labels
    groups = levels.cut(sampled.tree, k=k, level=level)
    clusters = levels.cut(sampled.tree, k=int(labels.max()) + 1)
    if groups.max() > clusters.max():
        return assign(*rows(), sampled, groups).labels
    united = np.zeros(int(clusters.max()) + 1, np.int64)
    united[clusters] = groups
    return united[labels]


def vote(rows: NDArray, sampled: SampledTree, labels: NDArray, queries: NDArray) -> NDArray:
    """Labels of new rows by the nearest rows of the sample, weighted by 1 / distance.

    Args:
        rows: float64 `[n, r]`.
        sampled: from `find`.
        labels: int64 `[n]`.
        queries: float64 `[q, r]`, projected like the rows.

    Returns:
        int64 `[q]`; a row of the sample keeps its label.

    Example:
        >>> x = np.array([[0.0], [1.0], [8.0], [9.0]])
        >>> sampled = SampledTree(levels.build(x, x), np.arange(4))
        >>> vote(x, sampled, np.array([0, 0, 1, 1]), np.array([[0.9], [8.2]])).tolist()
        [0, 1]
    """
    sample = sampled.sample
    count = min(_VOTERS, len(sample))
    distances, nearest = basins.nearest_to(queries, rows[sample], count)
    closest = distances[:, :1]
    # At distance 0 only equal rows vote.
    weights = np.divide(closest, distances, out=np.ones_like(distances), where=distances > 0)
    votes = np.zeros((len(queries), int(labels.max()) + 1))
    for column, weight in zip(labels[sample][nearest].T, weights.T, strict=True):
        votes[np.arange(len(queries)), column] += weight
    return votes.argmax(axis=1)
