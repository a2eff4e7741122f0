"""Clusters of smoothed features: their number, a tree of groups, and how sure the answer is.

`SmoothTree` answers "how many clusters?" on one page. `smooth.fit` gives sharp rows (denoised and
whitened) and smooth rows (averaged over neighbors). Then:

1. Candidates. For every k tried, Ward's tree of the smooth rows, cut into k groups, starts k-means
   on the smooth rows; then every row joins the nearest mean of sharp rows. Tried are 2 to 20, then
   numbers 12 % apart up to 300 or a fifth of the rows, then all on both sides of the best one.
2. Choice. The k of the highest score, which is the mean of two silhouettes, of the sharp rows and
   of the smooth rows. Each is a mean over rows with squared distances, which follow from means and
   mean squares of the clusters: `s_i = (b_i - a_i) / max(a_i, b_i)`, where `a_i` is the mean
   squared distance of row i to the others of its cluster and `b_i` the least one to another
   cluster [1].
3. Test. The gap [2] is the silhouette of the sharp rows at that k less the same silhouette of a
   Gaussian with the covariance of the features (in at most three axes: of uniform rows in their
   box), or 0 if that is negative. Below 0.1 the rows are one cluster. The answer is clear from 0.3
   of the largest possible gap on; between, the clusters are a best guess.
4. Shape. In two or three axes HDBSCAN [3] also runs, with 5 neighbors for the density: its
   clusters, which may be curved, are the answer if they hold 75 % of the rows, and a clear one if
   10 neighbors find as many. Else clusters that cut through a curved sheet are no clusters: unless
   90 % of the links between rows and their nearest neighbors stay inside, the rows are one cluster.
5. Level. Steps 1 to 4 inside each cluster. Where clusters with 90 % of the rows split, all parts
   become the clusters, and so on.

The tree holds all this: Ward's merges inside a cluster, then those of the clusters up to one of the
coarser level, then those of the levels above. `labels_` is one of its cuts. The probability of a
row's cluster is the share of its label after two rounds of averaging the labels over the neighbors,
as in label spreading [4]; a new row takes the label of most of its ten nearest sharp rows, weighted
by 1 / distance. Above 10,000 rows a random sample of 10,000 is clustered; every other row is
treated as a new one. The order of the rows changes nothing.

| constant | what it does |
|---|---|
| `MAX_AXES` 64 | principal axes at most |
| `AXES_PER_SIGNAL` 2 | axes kept for each that stands out from noise |
| `FEW_AXES` 3 | axes up to which rows keep their lengths, and HDBSCAN runs from two on |
| `N_NEIGHBORS` 10 | neighbors for the whitening, the averaging, and the votes |
| `N_ROUNDS` 2 | rounds of averaging |
| `SHRINKAGE` 0.1 | of the whitening towards none |
| `ROWS_PER_VALUE` 20 | rows for each value from which a column counts as rounded |
| `MAX_ROWS` 10,000 | rows that are clustered |
| `K_RATIO` 1.12, `MAX_K` 300 | numbers of clusters tried above 20 |
| `MIN_GAP` 0.1 | silhouette above that of a Gaussian from which there are clusters |
| `CLEAR_GAP` 0.3 | share of the largest possible gap from which the answer is clear |
| `NEARLY_ALL` 0.9 | rows in clusters that split, for their parts to count; links inside clusters |
| `MIN_CLUSTER_SIZE` 25 | of HDBSCAN; a twentieth of the rows where that is less, at least 5 |
| `DENSE_SHARE` 0.75 | rows that HDBSCAN's clusters must hold |

What changes when each is halved or doubled: `experiments/number_of_clusters/constants.md`.

References:
    [1] Rousseeuw 1987, Silhouettes.
    [2] Tibshirani, Walther and Hastie 2001, Estimating the number of clusters in a data set via the
        gap statistic (there of the dispersion).
    [3] Campello, Moulavi and Sander 2013, Density-based clustering based on hierarchical density
        estimates.
    [4] Zhou et al. 2004, Learning with local and global consistency.
"""

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.cluster import hierarchy
from scipy.spatial import distance
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.cluster import HDBSCAN
from sklearn.utils.validation import check_is_fitted, validate_data

from cluster_jax.clustering import knn, smooth, tree
from cluster_jax.clustering.gridshift import VERDICTS
from cluster_jax.clustering.smooth import FEW_AXES, METRICS, N_NEIGHBORS, Smoother
from cluster_jax.core import checks
from cluster_jax.core.arrays import blocks, numeric, stacked
from cluster_jax.core.checks import InputError

CLEAR, ONE, UNCLEAR = VERDICTS
# Rows that are clustered; the others are placed by them.
MAX_ROWS = 10_000
# Ratio of the numbers of clusters tried above 20, and the highest; at least five rows each.
K_RATIO, MAX_K = 1.12, 300
# Silhouette above that of one Gaussian from which there are clusters; share of what it can be above
# it from which they are clear.
MIN_GAP, CLEAR_GAP = 0.1, 0.3
# Rows that must be in clusters that split, for the parts to be the clusters; in few axes, links
# between neighbors that must stay inside clusters.
NEARLY_ALL = 0.9
# HDBSCAN's least cluster, and the rows that its clusters must hold.
MIN_CLUSTER_SIZE, DENSE_SHARE = 25, 0.75
# Rows of the Gaussian, at most: its silhouette hardly depends on them.
_NULL_ROWS = 1_500


class Membership(NamedTuple):
    """Clusters of n rows and how sure they are.

    Attributes:
        labels: int64 `[n]`.
        probabilities: float64 `[n]`, of the label.
        runners_up: int64 `[n]`, the second likeliest cluster, -1 where no other is likely.
        runner_up_probabilities: float64 `[n]`, 0 where there is none.
    """

    labels: NDArray
    probabilities: NDArray
    runners_up: NDArray
    runner_up_probabilities: NDArray


class Split(NamedTuple):
    """The clusters of n rows at one level.

    Attributes:
        labels: int64 `[n]`.
        gap: silhouette above that of one Gaussian; infinite for clusters of HDBSCAN.
        verdict: one of `VERDICTS`.
        scores: of each number of clusters that was tried.
    """

    labels: NDArray
    gap: float
    verdict: str
    scores: dict[int, float]


class SmoothTree(ClusterMixin, BaseEstimator):
    """Finds clusters of features, their number, and the groups above and below them.

    The algorithm, its constants and its sources are in the docstring of the module.

    Args:
        metric: `"cosine"`, for features of networks, or `"euclidean"`.
        n_clusters: number of clusters; None: found. Equal rows may part where it exceeds the
            number of distinct ones.
        random_state: seed of the sample, of the Gaussian that clusters are compared with, and of
            the noise on rounded columns.

    Attributes:
        labels_: int64 `[n]`, the largest cluster first.
        probabilities_: float64 `[n]`, of each row's cluster.
        runners_up_: int64 `[n]`, the second likeliest cluster of each row, -1 where no other is
            likely.
        runner_up_probabilities_: float64 `[n]`.
        n_clusters_: number of clusters.
        verdict_: `"clear"`, `"one cluster"`, or `"no clear answer"`, on the split of all rows,
            from which the levels below start.
        gap_: silhouette of that split above that of one Gaussian; infinite for clusters of
            HDBSCAN, NaN with `n_clusters`, for equal rows, or fewer rows than neighbors.
        scores_: mean of both silhouettes of that split, for each number of clusters that was tried.
        linkage_: float64 `[m - 1, 4]`, the tree of the rows `sample_` in SciPy's form.
        sample_: int64 `[m]`, the rows that were clustered: all up to 10,000.
        smoother_: the `smooth.Smoother` of these rows.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 8)) + 9 * (np.arange(300) % 3)[:, None]
        >>> model = SmoothTree(metric="euclidean").fit(x)
        >>> model.n_clusters_, model.verdict_, len(np.unique(model.cut(k=2)))
        (3, 'clear', 2)
    """

    scores_: dict[int, float]

    def __init__(
        self, metric: str = "cosine", n_clusters: int | None = None, random_state: int = 0
    ) -> None:
        self.metric = metric
        self.n_clusters = n_clusters
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: None = None) -> Self:
        """Clusters `X` float `[n, d]`; `y` is ignored.

        Raises:
            ValueError: an argument or the rows are invalid.
        """
        x = numeric(X, "X")
        validate_data(self, stacked(X, "X"), reset=True, skip_check_array=True)
        checks.one_of("metric", self.metric, METRICS)
        checks.whole("random_state", self.random_state, 0)
        if self.n_clusters is not None:
            checks.whole("n_clusters", self.n_clusters, 1, min(len(x), MAX_ROWS))
        rng = np.random.default_rng(self.random_state)
        order = _order(x)
        if len(order) > MAX_ROWS:
            order = order[np.sort(rng.choice(len(order), MAX_ROWS, replace=False))]
        self.sample_ = order
        rows = smooth.dequantize(x[order], self.random_state)
        self.smoother_ = smooth.fit(rows, self.metric)
        levels = self._find(rows, rng)
        self.linkage_ = _nested(self.smoother_.smooth, levels)
        self.n_clusters_ = int(levels[0].max()) + 1
        self._set_membership(x, _averaged(levels[0], self.smoother_.sharp))
        return self

    def cut(self, *, k: int | None = None, level: float | None = None) -> NDArray:
        """Labels int64 `[n]` at another cut of the tree; by default `labels_`.

        Groups of a coarser cut are unions of the clusters of `labels_`, those of a finer one parts
        of them.

        Args:
            k: number of groups, 1 to the number of rows in the tree.
            level: height, as a fraction of the highest merge, 0 to 1; merges above it are undone.
        """
        check_is_fitted(self)
        if k is None and level is None:
            return self.labels_
        return cut(self.linkage_, self.sample_, self.labels_, k=k, level=level)

    def smooth_rows(self, X: ArrayLike) -> NDArray:
        """Smooth rows float32 `[n, r]` of `X`, the rows of `fit`, on which k-means does best."""
        check_is_fitted(self)
        if len(x := numeric(X, "X", smooth.LARGEST)) != len(self.labels_):
            raise InputError(f"X must be the {len(self.labels_)} rows of fit; got {len(x)}")
        rows = np.empty((len(self.labels_), self.smoother_.smooth.shape[1]), np.float32)
        rows[self.sample_] = self.smoother_.smooth
        others = _others(len(rows), self.sample_)
        if len(others):
            rows[others] = self.smoother_.transform(x[others])
        return rows

    def predict(self, X: ArrayLike) -> NDArray:
        """Cluster of each row of `X` float `[m, d]` as in `labels_`, int64 `[m]`.

        By the votes of the nearest sharp rows; rows do not affect each other.
        """
        return self.predict_proba(X).argmax(axis=1)

    def predict_proba(self, X: ArrayLike) -> NDArray:
        """Share of each cluster in the votes on each row of `X`, float64 `[m, n_clusters_]`."""
        check_is_fitted(self)
        x = numeric(X, "X", smooth.LARGEST)
        validate_data(self, stacked(X, "X"), reset=False, skip_check_array=True)
        return votes(self.smoother_, self.labels_[self.sample_], x)

    @property
    def cluster_linkage_(self) -> NDArray:
        """The tree above the clusters, float64 `[n_clusters_ - 1, 4]`, see `cluster_linkage`."""
        check_is_fitted(self)
        return cluster_linkage(self.linkage_, self.labels_[self.sample_])

    @property
    def membership_(self) -> Membership:
        """`labels_` and their probabilities in one."""
        check_is_fitted(self)
        return Membership(
            self.labels_, self.probabilities_, self.runners_up_, self.runner_up_probabilities_
        )

    def _find(self, x: NDArray, rng: np.random.Generator) -> list[NDArray]:
        """Nested labels of the rows, the finest first; sets the verdict."""
        labels = np.zeros(len(x), np.int64)
        self.gap_, self.verdict_, self.scores_ = float("nan"), ONE, {}
        if self.n_clusters is not None:
            self.verdict_ = UNCLEAR
            if len(x) > 1:
                linkage = _ward(self.smoother_.smooth)
                labels = _partition(self.smoother_, linkage, self.n_clusters)
                if labels.max() + 1 < self.n_clusters:  # No sharp row is nearest to some mean.
                    labels = tree.cut_tree(linkage, self.n_clusters)
        elif len(x) >= N_NEIGHBORS and self.smoother_.sharp.any():
            labels, self.gap_, self.verdict_, self.scores_ = _split(x, self.smoother_, rng)
        levels = [labels]
        # Clusters of HDBSCAN are final.
        may_split = np.isfinite(self.gap_) and self.verdict_ != ONE
        while may_split and (parts := _deeper(x, levels[0], self.metric, rng)) is not None:
            levels.insert(0, parts)
        return levels

    def _set_membership(self, x: NDArray, member: Membership) -> None:
        """Sets the labels of the sample, and by their neighbors the labels of all other rows."""
        n = len(x)
        values = [np.empty(n, column.dtype) for column in member]
        for value, column in zip(values, member, strict=True):
            value[self.sample_] = column
        others = _others(n, self.sample_)
        for rows in blocks(len(others), x.shape[1]):
            shares = votes(self.smoother_, member.labels, x[others[rows]])
            placed = membership(shares.argmax(axis=1), shares)
            for value, column in zip(values, placed, strict=True):
                value[others[rows]] = column
        labels, self.probabilities_, runners_up, self.runner_up_probabilities_ = values
        rank = _by_size(labels, self.sample_)
        self.labels_ = rank[labels]
        self.runners_up_ = np.where(runners_up < 0, -1, rank[runners_up])


def cut(
    linkage: NDArray, sample: NDArray, labels: NDArray, *, k: int | None, level: float | None
) -> NDArray:
    """Labels of all rows at a cut of the tree of a sample of them, int64 `[n]`, largest first.

    Args:
        linkage: float `[m - 1, 4]`, `SmoothTree.linkage_`.
        sample: int `[m]`, `SmoothTree.sample_`.
        labels: int `[n]`, `SmoothTree.labels_`: rows outside the sample go with their cluster, and
            with the largest part of it where it is divided.
        k: number of groups, 1 to m.
        level: height, as a fraction of the highest merge, 0 to 1; merges above it are undone.

    Raises:
        ValueError: not one of `k` and `level` is given, or it is out of range.

    Example:
        >>> linkage = np.array([[0, 1, 1.0, 2], [2, 3, 4.0, 3]])
        >>> rows, labels = np.arange(3), np.array([0, 0, 1])
        >>> cut(linkage, rows, labels, k=1, level=None).tolist()
        [0, 0, 0]
        >>> cut(linkage, rows, labels, k=None, level=0.5).tolist()
        [0, 0, 1]
    """
    if level is not None and k is None:
        checks.between("level", level, 0, 1)
        k = 1 + int((linkage[:, 2] > level * linkage[:, 2].max(initial=0)).sum())
    elif k is None or level is not None:
        raise InputError(f"one of k and level must be given; got k={k} and level={level}")
    checks.whole("k", k, 1, len(sample))
    groups = tree.cut_tree(linkage, int(k))
    sizes = np.zeros((int(labels.max()) + 1, k), np.int64)
    np.add.at(sizes, (labels[sample], groups), 1)
    placed = sizes.argmax(axis=1)[labels]
    placed[sample] = groups
    return _by_size(placed, sample)[placed]


def cluster_linkage(linkage: NDArray, labels: NDArray) -> NDArray:
    """The tree above a cut into k groups as a linkage of these, float64 `[k - 1, 4]`.

    Args:
        linkage: float `[m - 1, 4]`.
        labels: int `[m]`, of the cut; leaf i is group i.

    Example:
        >>> linkage = np.array([[0, 1, 1.0, 2], [2, 3, 4.0, 3]])
        >>> cluster_linkage(linkage, np.array([0, 0, 1])).tolist()
        [[1.0, 0.0, 4.0, 2.0]]
    """
    m, k = len(labels), int(labels.max()) + 1
    groups = np.concatenate([labels, np.full(m - 1, -1)])
    sizes, merges = [1.0] * k, []
    for i, (first, second, height, _) in enumerate(linkage.tolist()):
        a, b = int(groups[int(first)]), int(groups[int(second)])
        if i < m - k:
            groups[m + i] = a
            continue
        groups[m + i] = len(sizes)
        sizes.append(sizes[a] + sizes[b])
        merges.append((a, b, height, sizes[-1]))
    return np.array(merges, np.float64).reshape(-1, 4)


def votes(rows: Smoother, labels: NDArray, x: NDArray) -> NDArray:
    """Votes of the nearest sharp rows on features: the one rule by which new rows are placed.

    Args:
        rows: the representation of the training rows.
        labels: int `[n]`, theirs.
        x: features `[m, d]`.

    Returns:
        Shares float64 `[m, k]`, weighted by 1 / distance; a training row keeps its label, unless it
        has rounded columns, whose values `fit` spreads.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(40, 3)) + 9 * (np.arange(40) % 2)[:, None]
        >>> votes(smooth.fit(x, "euclidean"), np.arange(40) % 2, x[:2]).round(3).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    return knn.vote(knn.nearest(rows.project(x), rows.sharp, N_NEIGHBORS), labels)


def silhouettes(rows: NDArray, labels: NDArray) -> NDArray:
    """Silhouette of each row with squared distances, float64 `[n]`; 0 for a cluster of one row.

    Mean squared distances follow from means and mean squares, so that no two rows are compared.

    Args:
        rows: `[n, r]`.
        labels: int `[n]`, 0 to k - 1, none of them empty.

    Example:
        >>> silhouettes(np.array([[0.0], [1.0], [4.0], [5.0]]), np.array([0, 0, 1, 1])).round(2)
        array([0.95, 0.92, 0.92, 0.95])
    """
    sizes, means, members = _means(rows, labels)
    if len(sizes) == 1:
        return np.zeros(len(rows))
    squares = np.square(rows).sum(axis=1)
    apart = squares[:, None] - 2 * rows @ means.T + (members @ squares / sizes)[None, :]
    apart = np.maximum(apart, 0)
    every, own_size = np.arange(len(rows)), sizes[labels]
    own = apart[every, labels] * own_size / np.maximum(own_size - 1, 1)
    apart[every, labels] = np.inf
    other = apart.min(axis=1)
    largest = np.maximum(np.maximum(own, other), np.finfo(np.float32).tiny)
    return np.where(own_size > 1, (other - own) / largest, 0.0).astype(np.float64)


def _split(x: NDArray, rows: Smoother, rng: np.random.Generator) -> Split:
    """Steps 1 to 4 for rows `[n, d]`."""
    labels, scores = _search(rows, _ward(rows.smooth))
    is_flat = 2 <= rows.sharp.shape[1] <= FEW_AXES
    dense = _dense(rows.sharp, 5) if is_flat else None
    if dense is not None:
        again = _dense(rows.sharp, 10)
        is_clear = again is not None and again.max() == dense.max()
        return Split(dense, float("inf"), CLEAR if is_clear else UNCLEAR, scores)
    null = _null(x, rows, rng)
    k = min(int(labels.max()) + 1, len(null.sharp) // 2)
    null_labels = _partition(null, _ward(null.smooth), k)
    expected = max(float(silhouettes(null.sharp, null_labels).mean()), 0.0)
    gap = float(silhouettes(rows.sharp, labels).mean()) - expected
    if gap < MIN_GAP or (is_flat and _links_inside(rows.sharp, labels) < NEARLY_ALL):
        return Split(np.zeros_like(labels), gap, ONE, scores)
    is_clear = gap >= CLEAR_GAP * (1 - expected)
    return Split(labels, gap, CLEAR if is_clear else UNCLEAR, scores)


def _search(rows: Smoother, linkage: NDArray) -> tuple[NDArray, dict[int, float]]:
    """Labels of the highest score, and the score of each k."""
    most = min(MAX_K, max(2, len(rows.sharp) // 5))
    grid, k = list(range(2, min(20, most) + 1)), 20
    while (k := round(k * K_RATIO)) <= most:
        grid.append(k)
    scores: dict[int, float] = {}
    for _ in range(2):  # The grid, then every number between the best one and the next.
        for k in grid:
            labels = _partition(rows, linkage, k)
            both = [silhouettes(own, labels).mean() for own in (rows.sharp, rows.smooth)]
            scores[k] = float(np.mean(both))
        best, tried = max(scores, key=scores.__getitem__), sorted(scores)
        place = tried.index(best)
        between = range(tried[max(place - 1, 0)], tried[min(place + 1, len(tried) - 1)] + 1)
        grid = [k for k in between if k not in scores]
    return _partition(rows, linkage, max(scores, key=scores.__getitem__)), scores


def _partition(rows: Smoother, linkage: NDArray, k: int) -> NDArray:
    """At most k clusters: Ward's groups of smooth rows, k-means, then the nearest sharp means."""
    labels = hierarchy.fcluster(linkage, k, "maxclust").astype(np.int64) - 1
    for _ in range(10):
        previous, labels = labels, _to_nearest_mean(rows.smooth, labels)
        if np.array_equal(labels, previous):
            break
    return _to_nearest_mean(rows.sharp, labels)


def _to_nearest_mean(rows: NDArray, labels: NDArray) -> NDArray:
    _, means, _ = _means(rows, labels)
    scores = 2 * rows @ means.T - np.square(means).sum(axis=1)
    return np.unique(scores.argmax(axis=1), return_inverse=True)[1]


def _null(x: NDArray, rows: Smoother, rng: np.random.Generator) -> Smoother:
    """Rows without clusters, in a representation of as many axes."""
    n, m, r = len(x), min(len(x), _NULL_ROWS), rows.sharp.shape[1]
    if r <= FEW_AXES:
        axes = np.linalg.svd(rows.sharp - rows.sharp.mean(axis=0), full_matrices=False)[2]
        turned = rows.sharp @ axes.T
        low, high = turned.min(axis=0), turned.max(axis=0)
        return smooth.fit(rng.uniform(low, high, (m, r)), "euclidean", n_axes=r)
    metric = "cosine" if rows.is_cosine else "euclidean"
    y = smooth.unit_rows(x) if rows.is_cosine else x / (np.abs(x).max() or 1)
    mean = y.mean(axis=0, dtype=np.float64)
    noise = rng.standard_normal((m, n), np.float32) @ (y - mean).astype(np.float32)
    return smooth.fit(noise / np.sqrt(n) + mean, metric, n_axes=r)


def _links_inside(rows: NDArray, labels: NDArray) -> float:
    """Share of the links between rows and their nearest neighbors that no cluster's edge cuts."""
    near = knn.nearest(rows, rows, N_NEIGHBORS, exclude_self=True).indices
    return float((labels[near] == labels[:, None]).mean())


def _dense(rows: NDArray, min_samples: int) -> NDArray | None:
    """HDBSCAN's clusters if they hold most rows; the others go to the nearest clustered row."""
    size = max(5, min(MIN_CLUSTER_SIZE, len(rows) // 20))
    search = HDBSCAN(min_cluster_size=size, min_samples=min_samples, copy=True)
    labels = search.fit_predict(rows.astype(np.float64)).astype(np.int64)
    held = labels >= 0
    if labels.max() < 1 or held.mean() < DENSE_SHARE:
        return None
    labels[~held] = labels[held][knn.nearest(rows[~held], rows[held], 1).indices[:, 0]]
    return labels


def _deeper(x: NDArray, labels: NDArray, metric: str, rng: np.random.Generator) -> NDArray | None:
    """Labels of the parts of all clusters; None unless clusters of nearly all rows split."""
    n = len(x)
    whole, parts, n_parts = 0, np.zeros(n, np.int64), 0
    for own in sorted(_members(labels), key=len, reverse=True):
        inside = np.zeros(len(own), np.int64)
        if len(own) >= 2 * N_NEIGHBORS:
            inside = _split(x[own], smooth.fit(x[own], metric), rng).labels
        whole += 0 if inside.any() else len(own)
        if whole > (1 - NEARLY_ALL) * n:
            return None
        parts[own] = n_parts + inside
        n_parts += int(inside.max()) + 1
    return parts


def _averaged(labels: NDArray, sharp: NDArray) -> Membership:
    """Labels with their shares after averaging twice over the neighbors."""
    k = int(labels.max()) + 1
    if k == 1 or len(labels) <= N_NEIGHBORS:
        zeros = np.zeros(len(labels))
        return Membership(labels, zeros + 1, np.full(len(labels), -1), zeros)
    near = knn.nearest(sharp, sharp, N_NEIGHBORS, exclude_self=True).indices
    shares = np.eye(k)[labels]
    for _ in range(smooth.N_ROUNDS):
        shares = (shares + sum(shares[column] for column in near.T)) / (near.shape[1] + 1)
    return membership(labels, shares)


def membership(labels: NDArray, shares: NDArray) -> Membership:
    """The label's share of `[n, k]` and the largest of the others."""
    every = np.arange(len(labels))
    others = shares.copy()
    others[every, labels] = -1
    second = others.argmax(axis=1)
    is_likely = others[every, second] > 0
    return Membership(
        labels,
        shares[every, labels],
        np.where(is_likely, second, -1),
        np.where(is_likely, others[every, second], 0.0),
    )


def _nested(rows: NDArray, levels: list[NDArray]) -> NDArray:
    """One linkage of all rows, float64 `[n - 1, 4]`, of which every level of labels is a cut.

    Args:
        rows: `[n, r]`.
        levels: nested labels, the finest first.
    """
    n = len(rows)
    merges: list[tuple[float, float, float, float]] = []
    highest = 0.0
    # The groups so far: their node in the tree, size, mean, and one of their rows.
    node, sizes, means, row = np.arange(n), np.ones(n), rows.astype(np.float64), np.arange(n)
    for labels in (*levels, np.zeros(n, np.int64)):
        members = _members(labels[row])
        trees = [_weighted_ward(sizes[own], means[own]) for own in members]
        nodes = [node[own].tolist() for own in members]
        steps = ((step[2], g, i) for g, merged in enumerate(trees) for i, step in enumerate(merged))
        for height, g, i in sorted(steps):
            first, second, _, size = trees[g][i]
            highest = max(highest, height)
            merges.append((nodes[g][int(first)], nodes[g][int(second)], highest, size))
            nodes[g].append(n + len(merges) - 1)
        node = np.array([own[-1] for own in nodes])
        means = np.stack([np.average(means[own], axis=0, weights=sizes[own]) for own in members])
        sizes = np.array([sizes[own].sum() for own in members])
        row = row[[own[0] for own in members]]
    return np.array(merges, np.float64).reshape(-1, 4)


def _weighted_ward(sizes: NDArray, means: NDArray) -> NDArray:
    """Ward's tree of means, with the heights and sizes that groups of those sizes have."""
    if len(means) == 1:
        return np.empty((0, 4))
    merges = _ward(means)
    all_sizes, all_means, highest = [*sizes], [*means], 0.0
    for merge in merges:
        i, j = int(merge[0]), int(merge[1])
        total = all_sizes[i] + all_sizes[j]
        gap = np.linalg.norm(all_means[i] - all_means[j])
        highest = max(highest, gap * np.sqrt(2 * all_sizes[i] * all_sizes[j] / total))
        merge[2:] = highest, total
        all_means.append((all_sizes[i] * all_means[i] + all_sizes[j] * all_means[j]) / total)
        all_sizes.append(total)
    return merges


def _ward(rows: NDArray) -> NDArray:
    return hierarchy.linkage(distance.pdist(rows.astype(np.float64)), "ward")


def _means(rows: NDArray, labels: NDArray) -> tuple[NDArray, NDArray, sparse.csr_array]:
    """Sizes float32 `[k]` and means `[k, r]` of clusters, and the matrix `[k, n]` of members."""
    n = len(labels)
    sizes = np.bincount(labels).astype(np.float32)
    members = sparse.csr_array(
        (np.ones(n, np.float32), (labels, np.arange(n))), shape=(len(sizes), n)
    )
    return sizes, members @ rows / sizes[:, None], members


def _members(labels: NDArray) -> list[NDArray]:
    """Rows of each cluster `[n]`, 0 to k - 1: k arrays int64."""
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.cumsum(np.bincount(labels))[:-1])


def _by_size(labels: NDArray, sample: NDArray) -> NDArray:
    """New number of each label, int64 `[k]`: the largest first, ties by the order of the sample."""
    _, first = np.unique(labels[sample], return_index=True)
    rank = np.empty(len(first), np.int64)
    rank[np.lexsort((first, -np.bincount(labels)))] = np.arange(len(first))
    return rank


def _others(n: int, sample: NDArray) -> NDArray:
    """The rows 0 to n - 1 outside a sample of them."""
    return np.setdiff1d(np.arange(n), sample, assume_unique=True)


def _order(x: NDArray) -> NDArray:
    """An order of rows `[n, d]` that does not depend on theirs, int64 `[n]`: by their bytes."""
    rows = np.ascontiguousarray(x + 0.0 if x.dtype.kind == "f" else x)  # one zero, not two
    return np.argsort(rows.view(f"V{rows.strides[0]}")[:, 0], kind="stable")
