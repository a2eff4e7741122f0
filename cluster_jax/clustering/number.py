"""The number of clusters: from smoothed rows to clusters, and a verdict on them.

Pure functions. `smooth.fit` gives sharp rows (denoised and whitened) and smooth rows (averaged over
neighbors). Then:

1. Candidates (`_search`). For each number k, Ward's tree of the smooth rows is cut into k groups,
   from which k-means of the smooth rows starts; then every row joins the cluster of the nearest
   mean of sharp rows. The numbers are 2 to 20, 40, 80, and so on, up to a fifth of the rows (of few
   rows a third, at most 12); then those halfway between the best number and its neighbors in this
   list, until there are none. For more than 300 clusters, Ward's groups are scored without k-means,
   on 2,000 rows; k-means follows for the best number.
2. Choice (`_score`). The number of the highest score, the mean silhouette [1] of the sharp rows
   averaged with that of the smooth rows. The silhouette of row i is
   `(b_i - a_i) / max(a_i, b_i)`, where `a_i` is the mean squared distance to the other rows of its
   cluster, and `b_i` the smallest mean squared distance to the rows of another cluster. Both follow
   from the mean and the mean square of each cluster, without distances between rows.
3. Test (`_split`). The gap [2] is the silhouette of the sharp rows less its expectation without
   clusters: the mean of up to 12 sets of Gaussians with the covariance of the features (in at most
   three axes, of uniform rows in their box) at the same number of clusters, or 0 if that is
   negative. These sets have 1,500 rows together, and five rows for each cluster. The rows are one
   cluster if the gap is below 0.1, or if one of these sets has as high a silhouette.
4. Few axes (`_split_curved`). In two or three axes HDBSCAN [3] runs as well, with 5 neighbors,
   among at least 20 rows: it finds no cluster of fewer than 5. Its clusters, which may be curved,
   are the answer if they hold 75 % of the rows. If HDBSCAN has no answer, clusters must not cut
   through a curved sheet: the rows are one cluster unless 90 % of the links between rows and their
   nearest neighbors stay inside clusters.
5. Levels (`_deeper`). Steps 1 to 4 are repeated inside each cluster. If clusters with 95 % of the
   rows split, the parts of all are the next level, and so on. The clusters are those of the deepest
   level of which 25 % of the clusters, or of the rows, are apart, else those of the first: rows
   along a curve split again and again, and their parts touch.
6. Verdict (`_divided`, `_judged`). A cluster that has parts that are apart, by `separation`, is
   replaced by them, as long as there are such clusters. The answer is clear if all clusters are
   then apart, by the same test, and those with 95 % of the rows have no parts: the test needs eight
   rows to say that two parts are apart, and six or seven may be a part, too. With the
   cosine they must be apart by the Euclidean distance, too, since the directions of one long
   Gaussian are two clusters. It is one cluster if there is one, with the cosine only if there are
   no parts by the Euclidean distance.
7. Best guess (`_is_too_many`), of an answer that is not clear. If less than 75 % of the clusters,
   and of the rows, are apart, it is that of step 5. More than 12 clusters must have 14 rows on
   average, and a silhouette that exceeds that of as many clusters of rows whose columns are
   shuffled, each on its own, by 0.1 and by half of their own gap: columns with long tails have
   corners, as outputs of a softmax do, and a Gaussian has none. Otherwise the best number up to 12
   is taken, or HDBSCAN's clusters are joined to 12 (not of micro-clusters).
8. Rare kinds (`_with_rare`), in a best guess. The silhouette of all rows hardly changes with a
   cluster of few rows. So the parts of Ward's tree inside each cluster are compared, those of 6
   rows to a sixth of the cluster of which 95 % of the links to nearest rows stay inside. The part
   of the highest mean silhouette becomes a cluster if it exceeds that of the best part of a
   Gaussian by 0.15.

What the steps gain is in `experiments/log.md`.

References:
    [1] Rousseeuw 1987, Silhouettes.
    [2] Tibshirani, Walther and Hastie 2001, Estimating the number of clusters in a data set via the
        gap statistic (there of the dispersion).
    [3] Campello, Moulavi and Sander 2013, Density-based clustering based on hierarchical density
        estimates.
"""

import dataclasses
import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cluster_jax.clustering import knn, separation, smooth, tree
from cluster_jax.clustering.base import CLEAR, ONE, UNCLEAR
from cluster_jax.clustering.smooth import FEW_AXES, Smoother
from cluster_jax.core.arrays import blocks

# Fewest rows among which clusters are searched for: in all, and inside a cluster or by HDBSCAN.
MIN_ROWS, _MIN_SPLIT = 6, 20
# Number of clusters above which Ward's groups are scored without k-means, on so many rows.
_MANY, _MANY_ROWS = 300, 2_000
# The smallest gap of clusters; the smallest excess of the silhouette of a rare kind.
MIN_GAP, _RARE_GAP = 0.1, 0.15
# Share of the rows that must be in clusters that split, for all parts to become the clusters, or in
# clusters that surely have no parts, for a clear answer; share of the links between neighbors that
# must stay inside clusters in few axes.
NEARLY_ALL, MOST_LINKS = 0.95, 0.9
# Share of the clusters, or of the rows, that must be apart, so that parts that are apart become
# clusters.
MOST_APART = 0.75
# Numbers of parts into which a cluster is divided.
_PART_NUMBERS = (2, 3, 4)
# An unclear answer has so many clusters at most, unless it has so many rows for each.
_FEW, _ROWS_EACH = 12, 14
# Share of the rows that must be in HDBSCAN's clusters, number of neighbors of its densities, and
# fewest rows of a cluster of many rows.
DENSE_SHARE, _DENSE_NEIGHBORS, _DENSE_SIZE = 0.75, 5, 25
# Rows without clusters: number in all sets together, number of sets, rows for each cluster (with
# two or three for each, the silhouette would differ), and most rows of one set: more clusters are
# compared with as many as have room in it.
_NULL_ROWS, _NULLS, _PER_CLUSTER, _MOST_NULL_ROWS = 1_500, 12, 5, 4_000


class Found(NamedTuple):
    """Clusters of n rows.

    Attributes:
        labels: int64 `[n]`, 0 to k - 1.
        gap: see step 3, of the first clusters; infinite for clusters of HDBSCAN, NaN if there are
            fewer than 6 rows, or all are equal.
        verdict: one of `base.VERDICTS`.
        scores: score of each number of clusters that was tried.
        is_guess: whether less than 75 % of the clusters, and of the rows, are apart.
    """

    labels: NDArray
    gap: float
    verdict: str
    scores: dict[int, float]
    is_guess: bool = False


def find(x: NDArray, rows: Smoother, rng: np.random.Generator) -> Found:
    """Returns the clusters of features `[n, d]`, whose representation is `rows`.

    Fewer than 6 rows, or equal ones, are one cluster.

    Args:
        x: the features, one row for each of the n rows or micro-clusters of `rows`.
        rows: the result of `smooth.fit` or `smooth.fit_all`.
        rng: draws the sets without clusters.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 8)) + 9 * (np.arange(300) % 3)[:, None]
        >>> found = find(x, smooth.fit(x, "euclidean"), np.random.default_rng(0))
        >>> np.bincount(found.labels).tolist(), found.verdict
        ([100, 100, 100], 'clear')
    """
    if len(x) < MIN_ROWS or not rows.sharp.any():
        return Found(np.zeros(len(x), np.int64), float("nan"), ONE, {})
    labels, scores = _search(rows)
    labels, gap = _split(x, rows, labels, rng)
    is_curved = np.isinf(gap)
    if labels.any() and not is_curved:
        labels = _with_levels(x, rows, labels, rng)
    divided, is_sure = _divided(x, rows.metric, labels)
    share, verdict = _judged(x, rows, divided, is_curved)
    if verdict != UNCLEAR:
        return Found(divided, gap, verdict if is_sure else UNCLEAR, scores)
    is_guess = share < MOST_APART and not is_curved
    guess = labels if is_guess else divided
    if _is_too_many(x, rows, guess, is_curved, rng):
        guess = _fewer(rows, guess, scores, is_curved)
    elif is_guess and guess.any():
        guess = _with_rare(_inside(x, rows, guess, rng), guess)
    return Found(guess, gap, UNCLEAR, scores, is_guess)


def _with_levels(x: NDArray, rows: Smoother, labels: NDArray, rng: np.random.Generator) -> NDArray:
    """Returns the clusters of the deepest level, see step 5."""
    deepest = labels
    while (parts := _deeper(_inside(x, rows, labels, rng), len(x))) is not None:
        labels = parts
        if _share_apart(separation.joined(x, rows, labels), labels)[0] >= 1 - MOST_APART:
            deepest = labels
    return deepest


def _divided(x: NDArray, metric: str, labels: NDArray) -> tuple[NDArray, bool]:
    """Returns labels in which clusters are replaced by their parts, while they have any.

    The second result is whether at most 5 % of the rows are in clusters that may have parts: by
    chance, some of many clusters always may.
    """
    labels = labels.copy()
    waiting = tree.members(labels)
    doubtful = 0
    while waiting:
        own = waiting.pop()
        parts, may_have_parts = _parts(x[own], metric)
        doubtful += len(own) if may_have_parts else 0
        if parts.any():
            # Part 0 keeps the label of the cluster.
            labels[own] = np.where(parts > 0, labels.max() + parts, labels[own])
            waiting += [own[part] for part in tree.members(parts)]
    return labels, doubtful <= (1 - NEARLY_ALL) * len(labels)


def _parts(x: NDArray, metric: str) -> tuple[NDArray, bool]:
    """Returns the parts of a cluster that are apart, int64 `[m]`; all 0 if there are none.

    The second result is whether there may be two parts nevertheless: rows are rare between them,
    but only six or seven rows at one end say so.

    Args:
        x: `[m, d]`, the features of the rows of the cluster.
        metric: `"cosine"` or `"euclidean"`.
    """
    whole = np.zeros(len(x), np.int64)
    if len(x) < 2 * MIN_ROWS:
        return whole, False
    rows = smooth.fit(x, metric)
    linkage = tree.ward(rows.smooth)
    # Both halves of a ring would be apart as a whole.
    joined = functools.partial(separation.joined, x, rows, is_curved=_is_flat(rows))
    for k in _PART_NUMBERS:
        parts = joined(_partition(rows, linkage, k))
        if parts.any():
            return parts, False
    halves = _partition(rows, linkage, 2)
    return whole, bool(joined(halves, least_drop=np.sqrt(MIN_ROWS)).any())


def _judged(x: NDArray, rows: Smoother, labels: NDArray, is_curved: bool) -> tuple[float, str]:
    """Returns the share of clusters, or of rows if that is higher, that are apart; and a verdict.

    See step 6. No cluster has parts that are apart, which is not checked here.
    """
    if not labels.any():
        # The cosine may not see what the distance sees.
        is_whole = not rows.is_cosine or not _divided(x, "euclidean", labels)[0].any()
        return 1.0, ONE if is_whole else UNCLEAR
    together = separation.joined(x, rows, labels)
    if is_curved and together.max() < labels.max():  # Some may be round one another.
        together = separation.joined(x, rows, labels, is_curved=True)
    share, is_alone = _share_apart(together, labels)
    if share == 1 and rows.is_cosine:
        plain = smooth.fit(x, "euclidean")
        is_alone &= separation.joined(x, plain, labels, is_curved=is_curved).max() == labels.max()
    return share, CLEAR if is_alone.all() else UNCLEAR


def _share_apart(together: NDArray, labels: NDArray) -> tuple[float, NDArray]:
    """Returns the share of clusters, or of rows if that is higher, that are apart, and which rows.

    Args:
        together: int64 `[n]`, from `separation.joined`.
        labels: the clusters, int64 `[n]`.
    """
    _, first = np.unique(labels, return_index=True)
    is_alone = np.bincount(together[first])[together] == 1
    return max(float(is_alone.mean()), float(is_alone[first].mean())), is_alone


def _is_too_many(
    x: NDArray, rows: Smoother, labels: NDArray, is_curved: bool, rng: np.random.Generator
) -> bool:
    """Returns whether an unclear answer has more clusters than the rows can show, see step 7.

    The arguments are those of `find`, the clusters, and whether they are those of HDBSCAN.
    """
    n = len(labels)
    k = int(labels.max()) + 1
    if rows.counts is not None or k <= _FEW:
        return False
    if k * _ROWS_EACH > n:
        return True
    m = min(n, _MOST_NULL_ROWS)
    shuffled = np.stack([rng.permutation(column)[:m] for column in x.T], axis=1)
    null = smooth.fit(shuffled, rows.metric, n_axes=rows.sharp.shape[1])
    parts = _partition(null, tree.ward(null.smooth), min(k, m // _PER_CLUSTER))
    gap = 0.0 if is_curved else _gap(x, rows, labels, rng)[0]
    least = max(MIN_GAP, gap / 2)
    return _silhouette(rows, labels) - _silhouette(null, parts) < least


def _fewer(rows: Smoother, labels: NDArray, scores: dict[int, float], is_curved: bool) -> NDArray:
    """Returns at most twelve clusters, int64 `[n]`: the best of step 2, or unions of curved ones.

    The arguments are the representation, the clusters, the scores of `_search`, and whether the
    clusters are those of HDBSCAN.
    """
    if is_curved:
        return tree.cut_tree(tree.nested(rows.smooth, np.ones(len(labels)), labels), _FEW)
    few = max((k for k in scores if k <= _FEW), key=lambda k: scores[k])
    return _partition(rows, tree.ward(rows.smooth), few)


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
        >>> rows = smooth.fit(x, "euclidean")
        >>> np.bincount(of_number(rows, np.ones(300), 2)).tolist()
        [200, 100]
    """
    if _is_flat(rows) and (curved := _split_curved(rows.sharp)) is not None:
        return tree.cut_tree(tree.nested(rows.smooth, sizes, curved), wanted)
    linkage = tree.ward(rows.smooth)
    options = [tree.cut_tree(linkage, wanted)]
    if len(rows.sharp) > 1:
        parts = _partition(rows, linkage, wanted)
        options += [parts] if parts.max() + 1 == wanted else []
    return max(options, key=lambda labels: _score(rows, labels))


def _search(rows: Smoother) -> tuple[NDArray, dict[int, float]]:
    """Returns the labels of the highest score, and the score of each k that was tried."""
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
            parts = _partition(rows, linkage, k) if k <= _MANY else tree.cut_tree(linkage, k)
            scores[k] = _score(rows, parts, 1 if k <= _MANY else -(-m // _MANY_ROWS))
            if best == 0 or scores[k] > scores[best]:
                labels, best = parts, k
        tried = sorted(scores)
        place = tried.index(best)
        low = tried[max(place - 1, 0)]
        high = tried[min(place + 1, len(tried) - 1)]
        grid = [k for k in ((low + best) // 2, (best + high) // 2) if k not in scores]
    return _partition(rows, linkage, best) if best > _MANY else labels, scores


def _partition(rows: Smoother, linkage: NDArray, k: int) -> NDArray:
    """Returns at most k clusters int64 `[n]`, see step 1; empty clusters are left out.

    `linkage` is Ward's tree of the smooth rows.
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


def _score(rows: Smoother, labels: NDArray, step: int = 1) -> float:
    """Returns the score of step 2, averaged over every `step`-th row."""
    # Inside a micro-cluster, smooth rows hardly differ.
    flat = rows._replace(sharp=rows.smooth, squares=None)
    return (_silhouette(rows, labels, step) + _silhouette(flat, labels, step)) / 2


def _silhouette(rows: Smoother, labels: NDArray, step: int = 1) -> float:
    """Returns the mean silhouette of every `step`-th sharp row, weighted by its original rows."""
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
) -> tuple[NDArray, NDArray, sparse.csr_array]:
    """Returns sizes float32 `[k]` and means `[k, r]` of clusters, and their members `[k, n]`.

    A size is the sum of the counts in the cluster. Entry (i, j) of the members is the count of row
    j if the row is in cluster i, else 0. For the arguments see `silhouettes`.
    """
    n = len(labels)
    counts = np.ones(n, np.float32) if counts is None else counts
    sizes = np.bincount(labels, counts).astype(np.float32)
    members = sparse.csr_array((counts, (labels, np.arange(n))), shape=(len(sizes), n))
    return sizes, members @ rows / sizes[:, None], members


def _split(
    x: NDArray, rows: Smoother, labels: NDArray, rng: np.random.Generator
) -> tuple[NDArray, float]:
    """Returns the clusters of features `[n, d]` by steps 3 and 4, and the gap.

    `labels` are those of step 2.
    """
    if _is_flat(rows) and (curved := _split_curved(rows.sharp)) is not None:
        return curved, float("inf")
    gap, highest = _gap(x, rows, labels, rng)
    inside = labels[rows.neighbors] == labels[:, None]
    is_one = gap < MIN_GAP or _silhouette(rows, labels) <= highest
    if is_one or (_is_flat(rows) and inside.mean() < MOST_LINKS):
        return np.zeros_like(labels), gap
    return labels, gap


def _gap(
    x: NDArray, rows: Smoother, labels: NDArray, rng: np.random.Generator
) -> tuple[float, float]:
    """Returns the gap of clusters, and the highest silhouette of rows without clusters.

    See step 3.
    """
    k = int(labels.max()) + 1
    expected = []
    for _ in range(min(max(1, _NULL_ROWS // len(x)), _NULLS)):
        drawn = _null(x, rows, min(max(_NULL_ROWS, _PER_CLUSTER * k), _MOST_NULL_ROWS), rng)
        most = len(drawn.sharp) // (2 if len(drawn.sharp) == len(x) else _PER_CLUSTER)
        parts = _partition(drawn, tree.ward(drawn.smooth), min(k, most))
        expected.append(_silhouette(drawn, parts))
    return _silhouette(rows, labels) - max(float(np.mean(expected)), 0.0), max(expected)


def _is_flat(rows: Smoother) -> bool:
    """Returns whether there are two or three axes, in which clusters may have any shape."""
    return 2 <= rows.sharp.shape[1] <= FEW_AXES


def _null(x: NDArray, rows: Smoother, most: int, rng: np.random.Generator) -> Smoother:
    """Returns the representation of rows drawn without clusters, see step 3.

    The number of rows is min(n, `most`), where n is that of the features `x` `[n, d]`. Their
    representation is `rows`; the result has as many axes.
    """
    n = len(x)
    m = min(n, most)
    r = rows.sharp.shape[1]
    if r <= FEW_AXES:
        axes = np.linalg.svd(rows.sharp - rows.sharp.mean(axis=0), full_matrices=False)[2]
        turned = rows.sharp @ axes.T
        low, high = turned.min(axis=0), turned.max(axis=0)
        return smooth.fit(rng.uniform(low, high, (m, r)), "euclidean", n_axes=r)
    y = smooth.unit_rows(x) if rows.is_cosine else x / (np.abs(x).max() or 1)
    mean = y.mean(axis=0, dtype=np.float64)
    noise = rng.standard_normal((m, n), np.float32) @ (y - mean).astype(np.float32)
    return smooth.fit(noise / np.sqrt(n) + mean, rows.metric, n_axes=r)


def _split_curved(rows: NDArray) -> NDArray | None:
    """Returns HDBSCAN's clusters of rows in few axes, int64 `[n]`; None if it has no answer.

    Noise, the rows that HDBSCAN puts into no cluster, gets the cluster of the nearest row that is
    in one. There is no answer for fewer than 20 rows, or if HDBSCAN finds fewer than two clusters,
    or if they hold less than 75 % of the rows.

    Args:
        rows: `[n, r]`.
    """
    if len(rows) < _MIN_SPLIT:
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


@dataclasses.dataclass
class _Inside:
    """The m rows of one cluster, for steps 5 and 8.

    Attributes:
        members: int64 `[m]`, the indices of these rows.
        x: `[n, d]`, features of all rows.
        metric: `"cosine"` or `"euclidean"`.
        rng: draws the rows without clusters.
    """

    members: NDArray
    x: NDArray
    metric: str
    rng: np.random.Generator

    @functools.cached_property
    def rows(self) -> Smoother:
        """The representation of the rows."""
        return smooth.fit(self.x[self.members], self.metric)

    @functools.cached_property
    def parts(self) -> NDArray:
        """The clusters inside, int64 `[m]`; one if there are fewer than 20 rows."""
        if len(self.members) < _MIN_SPLIT:
            return np.zeros(len(self.members), np.int64)
        labels, _ = _search(self.rows)
        return _split(self.x[self.members], self.rows, labels, self.rng)[0]


def _inside(x: NDArray, rows: Smoother, labels: NDArray, rng: np.random.Generator) -> list[_Inside]:
    """Returns the rows of each cluster, in the order of the labels."""
    return [_Inside(members, x, rows.metric, rng) for members in tree.members(labels)]


def _deeper(inside: list[_Inside], n: int) -> NDArray | None:
    """Returns the parts of all clusters, int64 `[n]`; None unless clusters of 95 % of rows split.

    A cluster that does not split is one part.
    """
    whole = n_parts = 0
    result = np.zeros(n, np.int64)
    for cluster in sorted(inside, key=lambda each: len(each.members), reverse=True):
        parts = cluster.parts
        whole += 0 if parts.any() else len(parts)
        if whole > (1 - NEARLY_ALL) * n:
            return None
        result[cluster.members] = n_parts + parts
        n_parts += int(parts.max()) + 1
    return result


def _with_rare(inside: list[_Inside], labels: NDArray) -> NDArray:
    """Returns labels in which a small, well separated part of a cluster is one itself, see step 8.

    At most one part of each cluster becomes a cluster. `inside` are the clusters of `labels`.
    """
    labels = labels.copy()
    for cluster in inside:
        if len(cluster.members) < MIN_ROWS**2:
            continue
        own, part = _part_apart(cluster.rows, NEARLY_ALL)
        if part:
            x = cluster.x[cluster.members]
            nulls = [_null(x, cluster.rows, _NULL_ROWS, cluster.rng) for _ in range(2)]
            expected = float(np.mean([_part_apart(null, 0)[0] for null in nulls]))
            if own - max(expected, 0.0) >= _RARE_GAP:
                labels[cluster.members[part]] = labels.max() + 1
    return labels


def _part_apart(rows: Smoother, least: float) -> tuple[float, list[int]]:
    """Returns the highest mean silhouette of a part of Ward's tree, see step 8, and its rows.

    At least the share `least` of the links of its rows to their nearest rows must stay inside the
    part. Without such a part, the result is -1 and no rows.
    """
    n = len(rows.sharp)
    best = (-1.0, list[int]())
    near = knn.nearest(rows.sharp, rows.sharp, smooth.MAX_NEIGHBORS, exclude_self=True).indices
    parts = [[i] for i in range(n)]
    for first, second in tree.ward(rows.smooth)[:, :2].astype(np.int64):
        part = parts[first] + parts[second] if parts[first] and parts[second] else []
        parts.append(part if len(part) <= n / MIN_ROWS else [])
        if len(parts[-1]) >= MIN_ROWS:
            inside = np.isin(np.arange(n), part)
            if inside[near[part, : len(part) - 1]].mean() >= least:
                own = silhouettes(rows.sharp, inside.astype(np.int64), chosen=inside).mean()
                best = max(best, (float(own), part))
    return best
