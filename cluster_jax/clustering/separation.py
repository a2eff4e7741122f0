"""The test of what is apart: rows are rare between two clusters.

`unions` uses it in both directions. Clusters of which none is joined to another one are apart; and
a cluster has no parts that are apart, if its parts become one.

Both clusters are projected on the line through their means. Each row is projected by the means of
the other rows: otherwise few rows in many columns would always look apart. Windows move along the
line from the median of one cluster to that of the other; their half width is 0.2 of the distance
of the medians. The clusters are apart if a window in between has at most a sixth of the rows of
those at the ends, and if this is more than chance: the difference of the square roots of the two
counts is at least 2.7, so that at least eight rows are at each end of an empty window. (The
standard deviation of the difference of two such roots is 0.7.)

The test takes the sharp rows first, see `representation`, and where they are not apart, the
features as they are: the axes of the sharp rows are those of large clusters.

The half width and the difference were chosen on the true clusters of 150 random sets (98 of them
with clusters eight standard deviations or more apart). With half widths of 0.15, 0.2 and 0.25, and
a difference of 2.7, all true clusters are apart in 89, 92 and 89 % of these sets, and one of up to
eight true clusters has parts in 3, 0 and 1 %. With 0.2 and differences of 2.4 and 3.0 these are 95
and 91 %, and 10 and 0 %.

A verdict must not be sure that a cluster has no parts where the test merely lacks rows. So its
halves are compared with a difference of the root of six, too, see `verdict`. On 100 random sets
(seeds 300 to 419 of `tests/clustering/shapes.py`, those of at most 700 rows) one of the true
clusters then may have parts in 6 % of the sets. Six to eight rows of the nearest cluster, added to
a true cluster, may be a part of it in 96 % of the cases, and are apart in 29 %.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from cluster_jax.clustering import representation, tree
from cluster_jax.clustering.representation import Smoother
from cluster_jax.core import knn
from cluster_jax.core.arrays import cluster_means

# Number of windows, and half width of each in units of the distance of the medians.
_WINDOWS, _HALF_WIDTH = 21, 0.2
# Share of the rows at the ends that may be in between; the least difference of square roots.
_RARE, LEAST_DROP = 1 / 6, 2.7
# Fewest rows that can be apart from others: eight have the least square root, 2.8.
FEWEST = 8
# Number of nearest clusters that each cluster is compared with.
_NEAREST = 4
# Fewest rows of a piece of a curved cluster.
_PIECE = 25
# Rows for each axis below which nothing is apart: they could not be told from noise.
_ROWS_PER_AXIS = 2


class Compared(NamedTuple):
    """Clusters of n rows, or pieces of them, compared two by two.

    Attributes:
        labels: int64 `[n]`, the clusters, 0 to k - 1.
        own: int64 `[p]`, the cluster of each piece.
        sizes: int64 `[p]`, the number of rows of each piece.
        pairs: int64 `[l, 2]`, the pieces that were compared.
        drops: float64 `[l]`, see `drop_between`.
    """

    labels: NDArray
    own: NDArray
    sizes: NDArray
    pairs: NDArray
    drops: NDArray


def compare(x: NDArray, rows: Smoother, labels: NDArray, *, is_curved: bool = False) -> Compared:
    """Compares each cluster with the four that have the nearest means.

    In fewer than two rows for each axis all rows are taken as one cluster.

    Args:
        x: features `[n, d]`, one row for each of the n rows of the representation.
        rows: the representation of these rows.
        labels: int `[n]`, clusters 0 to k - 1, none of them empty.
        is_curved: whether clusters may have any shape. Then pieces of 25 to 49 rows are compared,
            not whole clusters.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 8)) + 9 * (np.arange(300) % 3)[:, None]
        >>> compared = compare(x, representation.fit(x, "euclidean"), np.arange(300) % 3)
        >>> compared.pairs.tolist(), (compared.drops >= LEAST_DROP).tolist()
        ([[0, 1], [0, 2], [1, 2]], [True, True, True])
    """
    if not has_enough_rows(rows):
        labels = np.zeros_like(labels)
    pieces = _pieces(rows.smooth, labels) if is_curved else labels
    members = tree.members(pieces)
    own = np.array([labels[piece[0]] for piece in members])
    pairs: list[tuple[int, int]] = []
    if labels.any():
        pairs = _nearest_pairs(cluster_means(rows.sharp, pieces), own if is_curved else None)
    drops = [_drop(x, rows, members[i], members[j]) for i, j in pairs]
    sizes = np.array([len(piece) for piece in members])
    return Compared(labels, own, sizes, np.array(pairs, np.int64).reshape(-1, 2), np.array(drops))


def unions(compared: Compared, least_drop: float = LEAST_DROP, least_rows: int = 0) -> NDArray:
    """Returns labels in which clusters that are not apart are one cluster, int64 `[n]`.

    Args:
        compared: the clusters.
        least_drop: the least difference of the square roots between clusters that are apart.
        least_rows: clusters, or pieces, of fewer rows are joined to none.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 8)) + 9 * (np.arange(300) % 3)[:, None]
        >>> rows, halves = representation.fit(x, "euclidean"), np.arange(300) % 6
        >>> np.bincount(unions(compare(x, rows, halves))).tolist()
        [100, 100, 100]
    """
    labels, own, sizes, pairs, drops = compared
    is_linked = (drops < least_drop) & (sizes[pairs] >= least_rows).all(axis=1)
    first, second = own[pairs[is_linked]].T
    k = int(labels.max()) + 1
    graph = sparse.coo_array((np.ones(len(first)), (first, second)), shape=(k, k))
    return connected_components(graph, directed=False)[1].astype(np.int64)[labels]


def has_enough_rows(rows: Smoother) -> bool:
    """Returns whether there are two rows for each axis; with fewer, nothing can be told apart.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 8))
        >>> [has_enough_rows(representation.fit(x[:n], "euclidean")) for n in (15, 16)]
        [False, True]
    """
    n, r = rows.sharp.shape
    return n >= _ROWS_PER_AXIS * r


def _nearest_pairs(means: NDArray, own: NDArray | None) -> list[tuple[int, int]]:
    """Returns each pair of which one is among the four nearest of the other, lower index first.

    Args:
        means: `[k, r]`, the means of clusters or pieces.
        own: int `[k]`, the cluster of each piece; only pairs of two clusters count. None: the means
            are those of clusters.
    """
    if own is None:
        near = knn.nearest(means, means, _NEAREST, exclude_self=True).indices
    else:
        apart = np.square(means[:, None] - means).sum(axis=2)
        apart[own[:, None] == own] = np.inf
        near = np.argsort(apart, axis=1)[:, :_NEAREST]
    pairs = {(min(i, j), max(i, j)) for i, others in enumerate(near.tolist()) for j in others}
    return sorted((i, j) for i, j in pairs if own is None or own[i] != own[j])


def _pieces(rows: NDArray, labels: NDArray) -> NDArray:
    """Returns the pieces of clusters, int64 `[n]`, 0 to the number of pieces - 1, by Ward's trees.

    Args:
        rows: smooth rows `[n, r]`.
        labels: int `[n]`, the clusters.
    """
    pieces = np.empty(len(labels), np.int64)
    count = 0
    for own in tree.members(labels):
        wanted = max(1, len(own) // _PIECE)
        pieces[own] = count + tree.cut_tree(tree.ward(rows[own]), wanted)
        count += wanted
    return pieces


def _drop(x: NDArray, rows: Smoother, first: NDArray, second: NDArray) -> float:
    """Returns the drop between two clusters, by the indices int `[m]` of the rows of each.

    It is the larger one of the sharp rows and the features, which are left out where the sharp
    rows are apart.
    """
    if min(len(first), len(second)) < 2:
        return 0.0
    counts = np.ones(len(x)) if rows.counts is None else rows.counts.astype(np.float64)
    weights = counts[first], counts[second]
    of_sharp = drop_between(rows.sharp[first], rows.sharp[second], *weights)
    if of_sharp >= LEAST_DROP:
        return of_sharp
    a, b = (
        representation.unit_rows(x[own]) if rows.is_cosine else x[own] for own in (first, second)
    )
    return max(of_sharp, drop_between(a, b, *weights))


def drop_between(
    first: NDArray, second: NDArray, first_counts: NDArray, second_counts: NDArray
) -> float:
    """Returns how much rarer rows are between two clusters of at least two rows than at their ends.

    Returns:
        The difference of the square roots of the two counts; 0 where rows are not rare in between.

    Args:
        first: `[m, r]`, the rows of one cluster.
        second: `[n, r]`, those of the other.
        first_counts: float64 `[m]`, number of original rows that each row stands for.
        second_counts: float64 `[n]`.

    Example:
        >>> rows, ones = np.random.default_rng(0).normal(size=(100, 2)), np.ones(100)
        >>> drops = [drop_between(rows, rows + far, ones, ones) for far in (9, 2)]
        >>> [drop >= LEAST_DROP for drop in drops]
        [True, False]
    """
    a, b = first.astype(np.float64), second.astype(np.float64)
    a_mean, b_mean = _mean(a, first_counts), _mean(b, second_counts)
    from_first = _along(a, first_counts, a_mean, b_mean)
    from_second = 1 - _along(b, second_counts, b_mean, a_mean)
    start = np.median(from_first)
    length = np.median(from_second) - start
    if not length > 0:
        return 0.0
    along = np.concatenate([from_first, from_second])
    counts = np.concatenate([first_counts, second_counts])
    order = np.argsort(along)
    middles = start + length * np.linspace(0, 1, _WINDOWS)
    low, high = (
        np.searchsorted(along[order], middles + side * _HALF_WIDTH * length) for side in (-1, 1)
    )
    below = np.concatenate([[0.0], np.cumsum(counts[order])])
    inside = below[high] - below[low]
    if inside.min() > _RARE * min(inside[0], inside[-1]):
        return 0.0
    # A micro-cluster is one place, however many rows are there.
    places = high - low
    return float(np.sqrt(min(places[0], places[-1])) - np.sqrt(places.min()))


def _mean(rows: NDArray, counts: NDArray) -> NDArray:
    """Returns the mean float64 `[r]` of rows float64 `[m, r]`, weighted by counts `[m]`."""
    return counts @ rows / counts.sum()


def _along(rows: NDArray, counts: NDArray, mean: NDArray, other: NDArray) -> NDArray:
    """Returns where rows are between their mean (0) and another mean (1), float64 `[m]`.

    For each row the mean is that of the other rows.

    Args:
        rows: float64 `[m, r]`, m at least 2.
        counts: float64 `[m]`, the weights of the rows.
        mean: float64 `[r]`, the mean of the rows.
        other: float64 `[r]`, the mean of the other cluster.
    """
    share = counts / (counts.sum() - counts)
    means = mean - (rows - mean) * share[:, None]
    line = other - means
    squares = np.einsum("ij,ij->i", line, line)
    along = np.einsum("ij,ij->i", rows - means, line)
    return np.divide(along, squares, out=np.zeros(len(rows)), where=squares > 0)


def share_apart(together: NDArray, labels: NDArray) -> tuple[float, NDArray]:
    """Returns the share of clusters, or of rows if that is higher, that are apart, and which rows.

    Args:
        together: int64 `[n]`, from `unions`.
        labels: the clusters, int64 `[n]`.

    Example:
        >>> share, is_alone = share_apart(np.array([0, 0, 0, 1]), np.array([0, 0, 1, 2]))
        >>> round(share, 2), is_alone.tolist()
        (0.33, [False, False, False, True])
    """
    _, first = np.unique(labels, return_index=True)
    is_alone = np.bincount(together[first])[together] == 1
    return max(float(is_alone.mean()), float(is_alone[first].mean())), is_alone
