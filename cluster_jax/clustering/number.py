"""The number of clusters: from smoothed rows to nested clusters, a gap, and a verdict.

Pure functions. `smooth.fit` gives sharp rows (denoised and whitened) and smooth rows (averaged over
neighbors). Then:

1. Candidates (`_search`). For every k tried, Ward's tree of the smooth rows, cut into k groups,
   starts k-means on the smooth rows; then every row joins the nearest mean of sharp rows. Tried are
   2 to 20, then twice as many, and so on, up to a fifth of the rows (of few rows a third, up to
   12); then numbers halfway to the next ones on both sides of the best one, until none is left.
   More than 300 of Ward's groups are compared as they are, by 2,000 rows; k-means follows for the
   best number.
2. Choice (`_score`). The k of the highest mean of two silhouettes, of the sharp rows and of the
   smooth rows. Each is a mean over rows with squared distances, which follow from means and mean
   squares of the clusters: `s_i = (b_i - a_i) / max(a_i, b_i)`, where `a_i` is the mean squared
   distance of row i to the others of its cluster and `b_i` the least one to another cluster [1].
3. Test (`_split`). The gap [2] is the silhouette of the sharp rows at that k less that of Gaussians
   with the covariance of the features (in at most three axes: of uniform rows in their box), or 0
   if that is negative: their mean over up to 12, of 1,500 rows together, and of five rows for each
   cluster at least. Below 0.1, or where one of the Gaussians does as well, the rows
   are one cluster. The answer is clear from 0.3 of the largest possible gap on, with four standard
   deviations of the Gaussians to spare, in more than 25 rows; between, it is a best guess.
4. Few axes (`_split_curved`). In two or three axes HDBSCAN [3] also runs, with 5 neighbors:
   its clusters, which may be curved, are the answer if they hold 75 % of the rows, and a clear one
   if 10 neighbors find as many and nearly the same (an adjusted Rand index of 0.95); those of 10
   neighbors are the answer where only they hold 95 % of the rows. Else clusters that cut through a
   curved sheet are no clusters: unless 90 % of the links between rows and their nearest neighbors
   stay inside, the rows are one cluster.
5. Levels (`_deeper`, `_finer`). Steps 1 to 4 inside each cluster. Where clusters with 95 % of the
   rows split, all parts become the clusters, and so on. Then a cluster splits alone if its parts
   are clear and its own rows have a higher silhouette with them: a mean over all rows is that of
   the huge clusters, which have no say in the number of the small ones.
6. Rare kinds (`_with_rare`). A mean over all rows hardly notices a kind of few. Of the parts of
   Ward's tree inside a cluster, of 6 rows to a sixth of it, that keep 95 % of the links to their
   nearest rows inside, the one of the highest mean silhouette is a cluster of its own if this
   exceeds by 0.15 that of a Gaussian's best part.

Without step 5's single splits 2 clusters of 51 are found, one of which is huge; without its levels
eight sets of clusters within clusters have an ARI of 0.365 in place of 0.906; without HDBSCAN 18
of curved shapes have 0.125 in place of 0.989; without step 6 few rare kinds are found: 0.45 in
place of 0.80 (`experiments/number_of_clusters/results.md`).

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
from sklearn.metrics import adjusted_rand_score

from cluster_jax.clustering import knn, smooth, tree
from cluster_jax.clustering.base import CLEAR, ONE, UNCLEAR
from cluster_jax.clustering.smooth import FEW_AXES, Smoother
from cluster_jax.core.arrays import blocks

# Rows from which clusters are looked for, at all and inside a cluster.
MIN_ROWS, _MIN_SPLIT = 6, 20
# Above so many clusters Ward's groups are compared as they are, on so many rows.
_MANY, _MANY_ROWS = 300, 2_000
# Silhouette above that of one Gaussian from which there are clusters; share of what it can be above
# it from which they are clear, and standard deviations of it to spare.
MIN_GAP, CLEAR_GAP, CLEAR_DEVIATIONS = 0.1, 0.3, 4.0
# Rows that must be in clusters that split, for the parts to be the clusters; links between
# neighbors that must stay inside a rare kind, and, in few axes, inside clusters.
NEARLY_ALL, MOST_LINKS = 0.95, 0.9
# Rows that HDBSCAN's clusters must hold.
DENSE_SHARE = 0.75
# Rows of the Gaussians together, and their number, at most: the silhouette hardly depends on them,
# but is another one of two or three rows a cluster. Rows for each cluster, and then at most; more
# clusters than have these rows are compared with as many as do.
_NULL_ROWS, _NULLS, _PER_CLUSTER, _MOST_NULL_ROWS = 1_500, 12, 5, 4_000


class Split(NamedTuple):
    """The clusters of n rows at one level.

    Attributes:
        labels: int64 `[n]`.
        gap: silhouette above that of one Gaussian; infinite for clusters of HDBSCAN.
        verdict: one of `base.VERDICTS`.
    """

    labels: NDArray
    gap: float
    verdict: str


class Found(NamedTuple):
    """Nested clusters of n rows.

    Attributes:
        levels: int64 `[n]` each, the finest first.
        gap: of the split of all rows, from which the levels below start; NaN without one.
        verdict: of that split.
        scores: of that split, for each number of clusters that was tried.
    """

    levels: list[NDArray]
    gap: float
    verdict: str
    scores: dict[int, float]


def find(x: NDArray, rows: Smoother, rng: np.random.Generator) -> Found:
    """Returns the clusters of rows `[n, d]`, whose representation is `rows`.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 8)) + 9 * (np.arange(300) % 3)[:, None]
        >>> found = find(x, smooth.fit(x, "euclidean"), np.random.default_rng(0))
        >>> np.bincount(found.levels[0]).tolist(), found.verdict
        ([100, 100, 100], 'clear')
    """
    if len(x) < MIN_ROWS or not rows.sharp.any():
        return Found([np.zeros(len(x), np.int64)], float("nan"), ONE, {})
    labels, scores = _search(rows)
    labels, gap, verdict = _split(x, rows, labels, rng)
    levels = [labels]
    if np.isfinite(gap) and verdict != ONE:  # Clusters of HDBSCAN are final.
        inside = _inside(x, rows, labels, rng)
        while (parts := _deeper(inside, len(x))) is not None:
            levels.insert(0, parts)
            inside = _inside(x, rows, parts, rng)
        levels.insert(0, _finer(inside, rows, levels[0]))
        levels.insert(0, _with_rare(_inside(x, rows, levels[0], rng), levels[0]))
    return Found(levels, gap, verdict, scores)


def of_number(rows: Smoother, sizes: NDArray, found: Found, wanted: int) -> NDArray:
    """Returns so many clusters, int64 `[n]`: a cut of the tree or k-means, by the higher score.

    Args:
        rows: of n leaves.
        sizes: int `[n]`, rows of each leaf.
        found: their clusters; those of HDBSCAN are only cut.
        wanted: number of clusters, at most n.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 8)) + 9 * (np.arange(300) % 3)[:, None]
        >>> rows = smooth.fit(x, "euclidean")
        >>> found = find(x, rows, np.random.default_rng(0))
        >>> np.bincount(of_number(rows, np.ones(300), found, 2)).tolist()
        [200, 100]
    """
    options = [tree.cut_tree(tree.nested(rows.smooth, sizes, found.levels), wanted)]
    if len(rows.sharp) > 1 and not np.isinf(found.gap):
        parts = _partition(rows, tree.ward(rows.smooth), wanted)
        options += [parts] if parts.max() + 1 == wanted else []
    return max(options, key=lambda labels: _score(rows, labels))


def _search(rows: Smoother) -> tuple[NDArray, dict[int, float]]:
    """Returns the labels of the highest score, and the score of each k that was tried."""
    linkage, m = tree.ward(rows.smooth), len(rows.sharp)
    n = m if rows.counts is None else int(rows.counts.sum())
    most = max(2, min(n // 5, m - 1), min(n // 3, 12))
    tried = [*range(2, 20), *(20 * 2**i for i in range(20))]
    grid = [*(k for k in tried if k < most), most]
    scores: dict[int, float] = {}
    labels, best = np.zeros(m, np.int64), 0
    while grid:  # The grid, then numbers halfway between the best one and the next.
        for k in grid:
            parts = _partition(rows, linkage, k) if k <= _MANY else tree.cut_tree(linkage, k)
            scores[k] = _score(rows, parts, 1 if k <= _MANY else -(-m // _MANY_ROWS))
            if best == 0 or scores[k] > scores[best]:
                labels, best = parts, k
        tried = sorted(scores)
        place = tried.index(best)
        low, high = tried[max(place - 1, 0)], tried[min(place + 1, len(tried) - 1)]
        grid = [k for k in ((low + best) // 2, (best + high) // 2) if k not in scores]
    return _partition(rows, linkage, best) if best > _MANY else labels, scores


def _partition(rows: Smoother, linkage: NDArray, k: int) -> NDArray:
    """Makes at most k clusters: Ward's groups of smooth rows, k-means, then nearest sharp means."""
    labels = tree.cut_tree(linkage, k)
    for _ in range(10):
        previous, labels = labels, _to_nearest_mean(rows.smooth, labels, rows.counts)
        if np.array_equal(labels, previous):
            break
    return _to_nearest_mean(rows.sharp, labels, rows.counts)


def _to_nearest_mean(rows: NDArray, labels: NDArray, counts: NDArray | None) -> NDArray:
    _, means, _ = _means(rows, labels, counts)
    nearest, squares = np.empty(len(rows), np.int64), np.square(means).sum(axis=1)
    for part in blocks(len(rows), len(means)):
        nearest[part] = (2 * rows[part] @ means.T - squares).argmax(axis=1)
    return np.unique(nearest, return_inverse=True)[1]


def _score(rows: Smoother, labels: NDArray, step: int = 1) -> float:
    """Averages the silhouettes of every `step`-th row, sharp and smooth."""
    # Smooth rows have hardly any spread in a micro-cluster.
    flat = rows._replace(sharp=rows.smooth, squares=None)
    return (_silhouette(rows, labels, step) + _silhouette(flat, labels, step)) / 2


def _silhouette(rows: Smoother, labels: NDArray, step: int = 1) -> float:
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
    """Computes silhouettes with squared distances, float64 `[m]`; 0 for a lone row.

    Mean squared distances follow from means and mean squares, so that no two rows are compared.

    Args:
        rows: `[n, r]`.
        labels: int `[n]`, 0 to k - 1, none of them empty.
        counts: how many rows each row is the mean of; None: one.
        squares: mean squares of these; None: the square of the row.
        chosen: the m rows whose silhouettes are wanted.

    Example:
        >>> silhouettes(np.array([[0.0], [1.0], [4.0], [5.0]]), np.array([0, 0, 1, 1])).round(2)
        array([0.95, 0.92, 0.92, 0.95])
    """
    sizes, means, members = _means(rows, labels, counts)
    squares = np.square(rows).sum(axis=1) if squares is None else squares
    of_clusters = (members @ squares / sizes)[None, :]
    rows, labels, squares = rows[chosen], labels[chosen], squares[chosen]
    result = np.zeros(len(rows))
    for part in blocks(len(rows), len(sizes)) if len(sizes) > 1 else ():
        apart = squares[part, None] - 2 * rows[part] @ means.T + of_clusters
        apart = np.maximum(apart, 0)
        every, own_size = np.arange(len(apart)), sizes[labels[part]]
        within = apart[every, labels[part]] * own_size / np.maximum(own_size - 1, 1)
        apart[every, labels[part]] = np.inf
        other = apart.min(axis=1)
        largest = np.maximum(np.maximum(within, other), np.finfo(np.float32).tiny)
        result[part] = np.where(own_size > 1, (other - within) / largest, 0.0)
    return result


def _means(
    rows: NDArray, labels: NDArray, counts: NDArray | None
) -> tuple[NDArray, NDArray, sparse.csr_array]:
    """Computes sizes float32 `[k]` and means `[k, r]` of clusters, and their members `[k, n]`."""
    n = len(labels)
    counts = np.ones(n, np.float32) if counts is None else counts
    sizes = np.bincount(labels, counts).astype(np.float32)
    members = sparse.csr_array((counts, (labels, np.arange(n))), shape=(len(sizes), n))
    return sizes, members @ rows / sizes[:, None], members


def _split(x: NDArray, rows: Smoother, labels: NDArray, rng: np.random.Generator) -> Split:
    """Takes steps 3 and 4 with rows `[n, d]` and the labels of the highest score."""
    is_flat = 2 <= rows.sharp.shape[1] <= FEW_AXES
    curved = _split_curved(rows.sharp) if is_flat else None
    if curved is not None:
        return curved
    k, expected = int(labels.max()) + 1, []
    for _ in range(min(max(1, _NULL_ROWS // len(x)), _NULLS)):
        drawn = _null(x, rows, min(max(_NULL_ROWS, _PER_CLUSTER * k), _MOST_NULL_ROWS), rng)
        most = len(drawn.sharp) // (2 if len(drawn.sharp) == len(x) else _PER_CLUSTER)
        parts = _partition(drawn, tree.ward(drawn.smooth), min(k, most))
        expected.append(_silhouette(drawn, parts))
    each = silhouettes(rows.sharp, labels, rows.counts, rows.squares)
    own, mean = float(np.average(each, weights=rows.counts)), max(float(np.mean(expected)), 0.0)
    gap, error = own - mean, float(np.hypot(np.std(expected), np.std(each) / np.sqrt(len(each))))
    inside = labels[rows.neighbors] == labels[:, None]
    is_one = gap < MIN_GAP or own <= max(expected)
    if is_one or (is_flat and inside.mean() < MOST_LINKS):
        return Split(np.zeros_like(labels), gap, ONE)
    is_clear = gap - CLEAR_DEVIATIONS * error >= CLEAR_GAP * (1 - mean)
    return Split(labels, gap, CLEAR if is_clear else UNCLEAR)


def _null(x: NDArray, rows: Smoother, most: int, rng: np.random.Generator) -> Smoother:
    """Draws rows without clusters, in a representation of as many axes, `most` rows at most."""
    n, m, r = len(x), min(len(x), most), rows.sharp.shape[1]
    if r <= FEW_AXES:
        axes = np.linalg.svd(rows.sharp - rows.sharp.mean(axis=0), full_matrices=False)[2]
        turned = rows.sharp @ axes.T
        low, high = turned.min(axis=0), turned.max(axis=0)
        return smooth.fit(rng.uniform(low, high, (m, r)), "euclidean", n_axes=r)
    y = smooth.unit_rows(x) if rows.is_cosine else x / (np.abs(x).max() or 1)
    mean = y.mean(axis=0, dtype=np.float64)
    noise = rng.standard_normal((m, n), np.float32) @ (y - mean).astype(np.float32)
    return smooth.fit(noise / np.sqrt(n) + mean, rows.metric, n_axes=r)


def _split_curved(rows: NDArray) -> Split | None:
    """Returns HDBSCAN's clusters of rows in few axes, or None if they hold too few of them."""
    (share, labels), (more, again) = (_dense(rows, count) for count in (5, 10))
    if share < NEARLY_ALL <= more:
        share, labels = more, again
    if not share:
        return None
    is_clear = again.max() == labels.max() and adjusted_rand_score(again, labels) >= NEARLY_ALL
    return Split(labels, float("inf"), CLEAR if is_clear else UNCLEAR)


def _dense(rows: NDArray, min_samples: int) -> tuple[float, NDArray]:
    """Returns the share of rows in clusters, and these; 0 where they are not most, or one cluster.

    Other rows join the nearest clustered one.
    """
    from sklearn.cluster import HDBSCAN  # Not before: a service needs none.

    size = max(5, min(smooth.DENSE_SIZE, len(rows) // 20))
    model = HDBSCAN(min_cluster_size=size, min_samples=min(min_samples, len(rows)), copy=True)
    labels = model.fit_predict(rows.astype(np.float64)).astype(np.int64)
    held = labels >= 0
    if labels.max() < 1 or held.mean() < DENSE_SHARE:
        return 0.0, np.zeros_like(labels)
    labels[~held] = labels[held][knn.nearest(rows[~held], rows[held], 1).indices[:, 0]]
    return float(held.mean()), labels


@dataclasses.dataclass
class _Inside:
    """One cluster as a set of its own. What steps 5 and 6 ask of it is computed once.

    Attributes:
        members: int64 `[m]`, its rows.
        x: `[n, d]`, all rows.
        metric: `"cosine"` or `"euclidean"`.
        rng: of the Gaussians.
    """

    members: NDArray
    x: NDArray
    metric: str
    rng: np.random.Generator

    @functools.cached_property
    def rows(self) -> Smoother:
        """Their representation."""
        return smooth.fit(self.x[self.members], self.metric)

    @functools.cached_property
    def parts(self) -> NDArray:
        """Labels of the highest score, int64 `[m]`."""
        return _search(self.rows)[0]

    @functools.cached_property
    def split(self) -> Split:
        """The clusters in it; one in few rows."""
        if len(self.members) < _MIN_SPLIT:
            return Split(np.zeros(len(self.members), np.int64), 0.0, ONE)
        return _split(self.x[self.members], self.rows, self.parts, self.rng)


def _inside(x: NDArray, rows: Smoother, labels: NDArray, rng: np.random.Generator) -> list[_Inside]:
    return [_Inside(members, x, rows.metric, rng) for members in tree.members(labels)]


def _deeper(inside: list[_Inside], n: int) -> NDArray | None:
    """Splits all clusters of n rows, int64 `[n]`; None unless those of nearly all rows split."""
    whole, n_parts, result = 0, 0, np.zeros(n, np.int64)
    for cluster in sorted(inside, key=lambda each: len(each.members), reverse=True):
        parts = cluster.split.labels
        whole += 0 if parts.any() else len(parts)
        if whole > (1 - NEARLY_ALL) * n:
            return None
        result[cluster.members] = n_parts + parts
        n_parts += int(parts.max()) + 1
    return result


def _finer(inside: list[_Inside], rows: Smoother, labels: NDArray) -> NDArray:
    """Splits each cluster of clear parts, with which its own rows have a higher silhouette."""
    result = labels
    for cluster in inside:
        if len(cluster.members) >= _MIN_SPLIT:
            before, after = (
                silhouettes(rows.sharp, each, rows.counts, rows.squares, cluster.members).mean()
                for each in (labels, _parted(labels, cluster.members, cluster.parts))
            )
            if after > before and cluster.split.verdict == CLEAR:
                result = _parted(result, cluster.members, cluster.split.labels)
    return result


def _parted(labels: NDArray, members: NDArray, parts: NDArray) -> NDArray:
    """Returns labels in which the rows of a cluster have those of its parts."""
    result = labels.copy()
    result[members] = np.where(parts > 0, labels.max() + parts, labels[members])
    return result


def _with_rare(inside: list[_Inside], labels: NDArray) -> NDArray:
    """Makes a small part of a cluster that stands apart a cluster of its own."""
    labels = labels.copy()
    for cluster in inside:
        if len(cluster.members) < MIN_ROWS**2:
            continue
        own, part = _part_apart(cluster.rows, NEARLY_ALL)
        if part:
            x = cluster.x[cluster.members]
            nulls = [_null(x, cluster.rows, _NULL_ROWS, cluster.rng) for _ in range(2)]
            expected = float(np.mean([_part_apart(null, 0)[0] for null in nulls]))
            if own - max(expected, 0.0) >= CLEAR_GAP / 2:
                labels[cluster.members[part]] = labels.max() + 1
    return labels


def _part_apart(rows: Smoother, least: float) -> tuple[float, list[int]]:
    """Finds the part of Ward's tree with the highest mean silhouette, and its rows.

    The part has 6 rows to a sixth of all, and inside it at least such a share of the links from its
    rows to their nearest ones.
    """
    n, best = len(rows.sharp), (-1.0, list[int]())
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
