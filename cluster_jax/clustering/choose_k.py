"""The number of clusters of one level: candidates, a choice, and a test for one cluster.

Pure functions. `representation.fit` gives sharp rows (denoised and whitened) and smooth rows
(averaged over neighbors). Then:

1. Candidates (`search`). For each number k, Ward's tree of the smooth rows is cut into k groups,
   from which k-means of the smooth rows starts; then every row joins the cluster of the nearest
   mean of sharp rows. The numbers are 2 to 20, 40, 80, and so on, up to a fifth of the rows (of few
   rows a third, at most 12); then those halfway between the best number and its neighbors in this
   list, until there are none. For more than 300 clusters, Ward's groups are scored without k-means,
   on 2,000 rows; k-means follows for the best number.
2. Choice (`score`). The number of the highest score, the mean silhouette [1] of the sharp rows
   averaged with that of the smooth rows. The silhouette of row i is
   `(b_i - a_i) / max(a_i, b_i)`, where `a_i` is the mean squared distance to the other rows of its
   cluster, and `b_i` the smallest mean squared distance to the rows of another cluster. Both follow
   from the mean and the mean square of each cluster, without distances between rows.
3. Test (`split`). The gap [2] is the silhouette of the sharp rows less its expectation without
   clusters: the mean of up to 12 sets of Gaussians with the covariance of the features (in at most
   three axes, of uniform rows in their box) at the same number of clusters, or 0 if that is
   negative. These sets have 1,500 rows together, and five rows for each cluster. The rows are one
   cluster if the gap is below 0.1, or if one of these sets has as high a silhouette.
4. Few axes (`split_curved`). In two or three axes HDBSCAN [3] runs as well, with 5 neighbors,
   among at least 20 rows: it finds no cluster of fewer than 5. Its clusters, which may be curved,
   are the answer if they hold 75 % of the rows. If HDBSCAN has no answer, clusters must not cut
   through a curved sheet: the rows are one cluster unless 90 % of the links between rows and their
   nearest neighbors stay inside clusters.

What the steps gain is in `experiments/log.md`.

References:
    [1] Rousseeuw 1987, Silhouettes.
    [2] Tibshirani, Walther and Hastie 2001, Estimating the number of clusters in a data set via the
        gap statistic (there of the dispersion).
    [3] Campello, Moulavi and Sander 2013, Density-based clustering based on hierarchical density
        estimates.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cluster_jax.clustering import representation, tree
from cluster_jax.clustering.representation import FEW_AXES, Smoother
from cluster_jax.core import knn
from cluster_jax.core.arrays import blocks

# Number of clusters above which Ward's groups are scored without k-means, on so many rows.
_MANY, _MANY_ROWS = 300, 2_000
# The smallest gap of clusters; share of the links between neighbors that must stay inside clusters
# in few axes.
MIN_GAP, MOST_LINKS = 0.1, 0.9
# Fewest rows that HDBSCAN is asked about; share of them that must be in its clusters; number of
# neighbors of its densities; and fewest rows of a cluster of many rows.
_DENSE_LEAST, DENSE_SHARE, _DENSE_NEIGHBORS, _DENSE_SIZE = 20, 0.75, 5, 25
# Rows without clusters: number in all sets together, number of sets, rows for each cluster (with
# two or three for each, the silhouette would differ), and most rows of one set: more clusters are
# compared with as many as have room in it.
_NULL_ROWS, _NULLS, PER_CLUSTER, MOST_NULL_ROWS = 1_500, 12, 5, 4_000


def of_number(rows: Smoother, sizes: NDArray, wanted: int) -> NDArray:
    """Returns `wanted` clusters, int64 `[n]`: a cut of Ward's tree or k-means, by the higher score.

    In two or three axes HDBSCAN's clusters of step 4, if there are any, are joined or divided by
    the tree. The clusters are 0 to `wanted` - 1, in no particular order.

    Args:
        rows: the representation of n leaves.
        sizes: int `[n]`, number of rows of each leaf.
        wanted: number of clusters, 1 to n.

    Raises:
        InputError: `wanted` is not a whole number from 1 to n.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 8)) + 9 * (np.arange(300) % 3)[:, None]
        >>> rows = representation.fit(x, "euclidean")
        >>> np.bincount(of_number(rows, np.ones(300), 2)).tolist()
        [200, 100]
    """
    if is_flat(rows) and (curved := split_curved(rows.sharp)) is not None:
        return tree.cut_tree(tree.nested(rows.smooth, sizes, curved), wanted)
    linkage = tree.ward(rows.smooth)
    options = [tree.cut_tree(linkage, wanted)]
    if len(rows.sharp) > 1:
        parts = partition(rows, linkage, wanted)
        options += [parts] if parts.max() + 1 == wanted else []
    return max(options, key=lambda labels: score(rows, labels))


def search(rows: Smoother) -> tuple[NDArray, dict[int, float]]:
    """Returns the labels of the highest score, and the score of each k that was tried.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 8)) + 9 * (np.arange(300) % 3)[:, None]
        >>> rows = representation.fit(x, "euclidean")
        >>> labels, scores = search(rows)
        >>> np.bincount(labels).tolist(), max(scores, key=lambda k: scores[k])
        ([100, 100, 100], 3)
    """
    linkage = tree.ward(rows.smooth)
    m = len(rows.sharp)
    n = m if rows.counts is None else int(rows.counts.sum())
    most = max(2, min(n // 5, m - 1), min(n // 3, 12))
    tried = [*range(2, 20), *(20 * 2**i for i in range(20))]
    grid = [*(k for k in tried if k < most), most]
    scores: dict[int, float] = {}
    labels = np.zeros(m, np.int64)
    best = 0
    while grid:  # The grid, then numbers halfway between the best one and the next.
        for k in grid:
            parts = partition(rows, linkage, k) if k <= _MANY else tree.cut_tree(linkage, k)
            scores[k] = score(rows, parts, 1 if k <= _MANY else -(-m // _MANY_ROWS))
            if best == 0 or scores[k] > scores[best]:
                labels, best = parts, k
        tried = sorted(scores)
        place = tried.index(best)
        low = tried[max(place - 1, 0)]
        high = tried[min(place + 1, len(tried) - 1)]
        grid = [k for k in ((low + best) // 2, (best + high) // 2) if k not in scores]
    return partition(rows, linkage, best) if best > _MANY else labels, scores


def partition(rows: Smoother, linkage: NDArray, k: int) -> NDArray:
    """Returns at most k clusters int64 `[n]`, see step 1; empty clusters are left out.

    `linkage` is Ward's tree of the smooth rows.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 8)) + 9 * (np.arange(300) % 3)[:, None]
        >>> rows = representation.fit(x, "euclidean")
        >>> np.bincount(partition(rows, tree.ward(rows.smooth), 3)).tolist()
        [100, 100, 100]
    """
    labels = tree.cut_tree(linkage, k)
    for _ in range(10):
        previous = labels
        labels = _to_nearest_mean(rows.smooth, labels, rows.counts)
        if np.array_equal(labels, previous):
            break
    return _to_nearest_mean(rows.sharp, labels, rows.counts)


def _to_nearest_mean(rows: NDArray, labels: NDArray, counts: NDArray | None) -> NDArray:
    """Returns the cluster of the nearest mean of each row, numbered without empty clusters."""
    _, means, _ = _means(rows, labels, counts)
    squares = np.square(means).sum(axis=1)
    nearest = np.empty(len(rows), np.int64)
    for part in blocks(len(rows), len(means)):
        nearest[part] = (2 * rows[part] @ means.T - squares).argmax(axis=1)
    return np.unique(nearest, return_inverse=True)[1]


def score(rows: Smoother, labels: NDArray, step: int = 1) -> float:
    """Returns the score of step 2, averaged over every `step`-th row.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 8)) + 9 * (np.arange(300) % 3)[:, None]
        >>> rows = representation.fit(x, "euclidean")
        >>> labels = partition(rows, tree.ward(rows.smooth), 3)
        >>> score(rows, labels) > score(rows, np.arange(300) % 2)
        True
    """
    # Inside a micro-cluster, smooth rows hardly differ.
    flat = rows._replace(sharp=rows.smooth, squares=None)
    return (silhouette(rows, labels, step) + silhouette(flat, labels, step)) / 2


def silhouette(rows: Smoother, labels: NDArray, step: int = 1) -> float:
    """Returns the mean silhouette of every `step`-th sharp row, weighted by its original rows.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 8)) + 9 * (np.arange(300) % 3)[:, None]
        >>> rows = representation.fit(x, "euclidean")
        >>> silhouette(rows, np.zeros(300, np.int64))
        0.0
    """
    chosen = slice(None, None, step)
    values = silhouettes(rows.sharp, labels, rows.counts, rows.squares, chosen)
    return float(np.average(values, weights=None if rows.counts is None else rows.counts[chosen]))


def silhouettes(
    rows: NDArray,
    labels: NDArray,
    counts: NDArray | None = None,
    squares: NDArray | None = None,
    chosen: slice | NDArray = slice(None),
) -> NDArray:
    """Returns the silhouettes of rows, computed from squared distances, float64 `[m]`.

    The silhouette is `(b - a) / max(a, b)`, where `a` is the mean squared Euclidean distance to the
    other rows of the cluster, and `b` the smallest mean squared distance to the rows of another
    cluster. It is 0 in a cluster of one original row, and for all rows if there is one cluster.

    Args:
        rows: `[n, r]`.
        labels: int `[n]`, clusters 0 to k - 1, none of them empty.
        counts: `[n]`, the number of original rows that each row is the mean of; None: one each.
        squares: `[n]`, the mean squared length of these original rows; None: that of the row.
        chosen: a slice, indices or a mask of the m rows whose silhouettes are returned.

    Example:
        >>> silhouettes(np.array([[0.0], [1.0], [4.0], [5.0]]), np.array([0, 0, 1, 1])).round(2)
        array([0.95, 0.92, 0.92, 0.95])
    """
    sizes, means, members = _means(rows, labels, counts)
    squares = np.square(rows).sum(axis=1) if squares is None else squares
    of_clusters = (members @ squares / sizes)[None, :]
    rows = rows[chosen]
    labels = labels[chosen]
    squares = squares[chosen]
    result = np.zeros(len(rows))
    for part in blocks(len(rows), len(sizes)) if len(sizes) > 1 else ():
        apart = squares[part, None] - 2 * rows[part] @ means.T + of_clusters
        apart = np.maximum(apart, 0)
        every = np.arange(len(apart))
        own_size = sizes[labels[part]]
        within = apart[every, labels[part]] * own_size / np.maximum(own_size - 1, 1)
        apart[every, labels[part]] = np.inf
        other = apart.min(axis=1)
        largest = np.maximum(np.maximum(within, other), np.finfo(np.float32).tiny)
        result[part] = np.where(own_size > 1, (other - within) / largest, 0.0)
    return result


def _means(
    rows: NDArray, labels: NDArray, counts: NDArray | None
) -> tuple[NDArray, NDArray, sparse.csc_array]:
    """Returns sizes float32 `[k]` and means `[k, r]` of clusters, and their members `[k, n]`.

    A size is the sum of the counts in the cluster. Entry (i, j) of the members is the count of row
    j if the row is in cluster i, else 0. For the arguments see `silhouettes`.
    """
    n = len(labels)
    counts = np.ones(n, np.float32) if counts is None else counts
    sizes = np.bincount(labels, counts).astype(np.float32)
    members = sparse.csc_array((counts, labels, np.arange(n + 1)), shape=(len(sizes), n))
    return sizes, members @ rows / sizes[:, None], members


def split(
    x: NDArray, rows: Smoother, labels: NDArray, rng: np.random.Generator
) -> tuple[NDArray, float]:
    """Returns the clusters of features `[n, d]` by steps 3 and 4, and the gap.

    `labels` are those of step 2.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 8)) + 9 * (np.arange(300) % 3)[:, None]
        >>> rows = representation.fit(x, "euclidean")
        >>> labels = partition(rows, tree.ward(rows.smooth), 3)
        >>> labels, gap = split(x, rows, labels, np.random.default_rng(0))
        >>> np.bincount(labels).tolist(), gap > MIN_GAP
        ([100, 100, 100], True)
    """
    if is_flat(rows) and (curved := split_curved(rows.sharp)) is not None:
        return curved, float("inf")
    gap, highest = gap_of(x, rows, labels, rng)
    inside = labels[rows.neighbors] == labels[:, None]
    is_one = gap < MIN_GAP or silhouette(rows, labels) <= highest
    if is_one or (is_flat(rows) and inside.mean() < MOST_LINKS):
        return np.zeros_like(labels), gap
    return labels, gap


def gap_of(
    x: NDArray, rows: Smoother, labels: NDArray, rng: np.random.Generator
) -> tuple[float, float]:
    """Returns the gap of clusters, and the highest silhouette of rows without clusters.

    See step 3.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 8)) + 9 * (np.arange(300) % 3)[:, None]
        >>> rows = representation.fit(x, "euclidean")
        >>> labels = partition(rows, tree.ward(rows.smooth), 3)
        >>> gap, highest = gap_of(x, rows, labels, np.random.default_rng(0))
        >>> gap > MIN_GAP, highest < silhouette(rows, labels)
        (True, True)
    """
    k = int(labels.max()) + 1
    expected = []
    size = min(max(_NULL_ROWS, PER_CLUSTER * k), MOST_NULL_ROWS)
    for _ in range(min(max(1, _NULL_ROWS // len(x)), _NULLS)):
        drawn = without_clusters(x, rows, size, rng)
        most = len(drawn.sharp) // (2 if len(drawn.sharp) == len(x) else PER_CLUSTER)
        parts = partition(drawn, tree.ward(drawn.smooth), min(k, most))
        expected.append(silhouette(drawn, parts))
    return silhouette(rows, labels) - max(float(np.mean(expected)), 0.0), max(expected)


def is_flat(rows: Smoother) -> bool:
    """Returns whether there are two or three axes, in which clusters may have any shape.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 8))
        >>> tables = (x, x[:, :2])
        >>> [is_flat(representation.fit(each, "euclidean")) for each in tables]
        [False, True]
    """
    return 2 <= rows.sharp.shape[1] <= FEW_AXES


def without_clusters(x: NDArray, rows: Smoother, most: int, rng: np.random.Generator) -> Smoother:
    """Returns the representation of rows drawn without clusters, see step 3.

    The number of rows is min(n, `most`), where n is that of the features `x` `[n, d]`. Their
    representation is `rows`; the result has as many axes.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 8)) + 9 * (np.arange(300) % 3)[:, None]
        >>> rows = representation.fit(x, "euclidean")
        >>> without_clusters(x, rows, 90, np.random.default_rng(0)).sharp.shape[0]
        90
    """
    n = len(x)
    m = min(n, most)
    r = rows.sharp.shape[1]
    if r <= FEW_AXES:
        axes = np.linalg.svd(rows.sharp - rows.sharp.mean(axis=0), full_matrices=False)[2]
        turned = rows.sharp @ axes.T
        low, high = turned.min(axis=0), turned.max(axis=0)
        return representation.fit(rng.uniform(low, high, (m, r)), "euclidean", n_axes=r)
    y = representation.unit_rows(x) if rows.is_cosine else x / (np.abs(x).max() or 1)
    mean = y.mean(axis=0, dtype=np.float64)
    noise = rng.standard_normal((m, n), np.float32) @ (y - mean).astype(np.float32)
    return representation.fit(noise / np.sqrt(n) + mean, rows.metric, n_axes=r)


def split_curved(rows: NDArray) -> NDArray | None:
    """Returns HDBSCAN's clusters of rows in few axes, int64 `[n]`; None if it has no answer.

    Noise, the rows that HDBSCAN puts into no cluster, gets the cluster of the nearest row that is
    in one. There is no answer for fewer than 20 rows, or if HDBSCAN finds fewer than two clusters,
    or if they hold less than 75 % of the rows.

    Args:
        rows: `[n, r]`.

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(90, 2)) + 9 * (np.arange(90) % 3)[:, None]
        >>> np.bincount(split_curved(rows)).tolist()
        [30, 30, 30]
    """
    if len(rows) < _DENSE_LEAST:
        return None
    from sklearn.cluster import HDBSCAN  # Not before: a service needs none.

    size = max(5, min(_DENSE_SIZE, len(rows) // 20))
    model = HDBSCAN(min_cluster_size=size, min_samples=_DENSE_NEIGHBORS, copy=True)
    labels = model.fit_predict(rows.astype(np.float64)).astype(np.int64)
    is_in = labels >= 0
    if labels.max() < 1 or is_in.mean() < DENSE_SHARE:
        return None
    labels[~is_in] = labels[is_in][knn.nearest(rows[~is_in], rows[is_in], 1).indices[:, 0]]
    return labels
