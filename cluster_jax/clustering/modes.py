"""Clusters at the modes of the density, their number found: the default of `cluster`."""

import itertools
import numbers
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.validation import check_is_fitted, validate_data

from cluster_jax.clustering import basins, levels, membership, signal
from cluster_jax.clustering.bandwidth import VERDICTS
from cluster_jax.clustering.gridshift import GridShift
from cluster_jax.clustering.levels import Tree
from cluster_jax.clustering.membership import Membership
from cluster_jax.clustering.reduce import reduce
from cluster_jax.clustering.signal import Signal
from cluster_jax.clustering.validation import numeric
from cluster_jax.core.arrays import normalize_rows

METRICS = ("cosine", "euclidean")
# Rows of which the tree is built, at most: its cost does not grow with the set.
_SAMPLE = 10_000
# Rows that vote for the cluster of a new one.
_VOTERS = 15
# Columns up to which rows are their own map.
_MAP_COLUMNS = 3
# Agreement (adjusted Rand index) of halves of the rows from which an answer is clear.
_CLEAR = 0.9


class Found(NamedTuple):
    """The tree of a sample of the rows.

    Attributes:
        tree: nested groups of the sample.
        sample: int64 `[m]`, the rows it has, in an order that does not depend on theirs.
    """

    tree: Tree
    sample: NDArray


def prepare(x: NDArray, metric: str) -> tuple[Signal, NDArray]:
    """The projection of features, and the rows of which the map is made and clusters are found.

    Args:
        x: float `[n, d]`.
        metric: `"cosine"` scales rows to length one first.

    Returns:
        The projection, of rows as `scaled` has them, and float64 `[n, r]`.

    Example:
        >>> prepare(np.array([[0.0, 2.0], [4.0, 2.0]]), "euclidean")[1].tolist()
        [[-2.0, 0.0], [2.0, 0.0]]
    """
    spread = scaled(signal.dequantize(x), metric)
    projection = signal.fit(spread)
    return projection, projection.project(spread)


def scaled(x: NDArray, metric: str) -> NDArray:
    """Rows `[n, d]` as floating-point numbers, of length one for `"cosine"`.

    Example:
        >>> scaled(np.array([[3, 4]]), "cosine").tolist()
        [[0.6, 0.8]]
    """
    x = x if x.dtype.kind == "f" else x.astype(np.float64)
    return normalize_rows(x) if metric == "cosine" else x


def find(rows: NDArray, points: NDArray) -> Found:
    """The tree of at most 10,000 of the rows, independent of their order.

    Args:
        rows: float64 `[n, r]`, from `prepare`.
        points: float64 `[n, c]`, their map.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(200, 2)) + 9 * (np.arange(200) % 2)[:, None]
        >>> find(x, x).tree.n_clusters
        2
    """
    rng = np.random.default_rng(0)
    direction = rng.normal(size=(points.shape[1],))
    projected = np.zeros(len(points))
    for column, weight in zip(points.T, direction, strict=True):
        projected += column * weight
    order = np.argsort(projected, kind="stable")
    if len(order) > _SAMPLE:
        order = order[np.sort(rng.choice(len(order), _SAMPLE, replace=False))]
    return Found(levels.build(rows[order], points[order]), order)


def assign(rows: NDArray, points: NDArray, found: Found, groups: NDArray) -> Membership:
    """Labels of all rows, and their probabilities, from the groups of the sample.

    Args:
        rows: float64 `[n, r]`.
        points: float64 `[n, c]`.
        found: from `find`.
        groups: int64 `[m]`, a cut of its tree.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(200, 2)) + 9 * (np.arange(200) % 2)[:, None]
        >>> found = find(x, x)
        >>> np.bincount(assign(x, x, found, levels.cut(found.tree)).labels).tolist()
        [100, 100]
    """
    sample = found.sample
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
        nearest[others] = cKDTree(points[sample]).query(points[others])[1]
    return Membership(*(values[nearest] for values in of_sample))


def vote(rows: NDArray, found: Found, labels: NDArray, queries: NDArray) -> NDArray:
    """Labels of new rows by the nearest rows of the sample, weighted by 1 / distance.

    Args:
        rows: float64 `[n, r]`.
        found: from `find`.
        labels: int64 `[n]`.
        queries: float64 `[q, r]`, projected like the rows.

    Returns:
        int64 `[q]`; a row of the sample keeps its label.

    Example:
        >>> x = np.array([[0.0], [1.0], [8.0], [9.0]])
        >>> found = Found(levels.build(x, x), np.arange(4))
        >>> vote(x, found, np.array([0, 0, 1, 1]), np.array([[0.9], [8.2]])).tolist()
        [0, 1]
    """
    sample = found.sample
    count = min(_VOTERS, len(sample))
    distances, nearest = cKDTree(rows[sample]).query(queries, count)
    distances, nearest = distances.reshape(-1, count), nearest.reshape(-1, count)
    closest = distances[:, :1]
    # At distance 0 only equal rows vote.
    weights = np.divide(closest, distances, out=np.ones_like(distances), where=distances > 0)
    votes = np.zeros((len(queries), int(labels.max()) + 1))
    for column, weight in zip(labels[sample][nearest].T, weights.T, strict=True):
        votes[np.arange(len(queries)), column] += weight
    return votes.argmax(axis=1)


def verdict(model: "ModeTree", agreement: float) -> str:
    """One of `bandwidth.VERDICTS`.

    Args:
        model: fitted.
        agreement: of halves, see `ModeTree.agreement`; below 0.9 there is no clear answer. One
            cluster is one for GridShift's scan too, in which uniform noise does not hold together.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(200, 2)) + 9 * (np.arange(200) % 2)[:, None]
        >>> model = ModeTree(metric="euclidean").fit(x)
        >>> verdict(model, 1.0), verdict(model, 0.5)
        ('clear', 'no clear answer')
    """
    clear, one, no_answer = VERDICTS
    if not agreement >= _CLEAR:
        return no_answer
    if model.n_clusters_ > 1:
        return clear
    curve = GridShift().fit(model.embedding_[:, :_MAP_COLUMNS]).bandwidth_curve_
    return one if curve is not None and curve.verdict == one else no_answer


class ModeTree(ClusterMixin, BaseEstimator):
    """Finds clusters, their number, and the groups above and below them.

    Rows are projected to the components that stand out from noise (`signal`), mapped, and grouped
    by the peaks of the density in the map. The groups merge to a tree, each split of which has a
    certainty (`levels`); one cut is the answer. Of more than 10,000 rows that many are grouped, and
    the others take the cluster of the nearest of them in the map.

    Args:
        metric: `"cosine"`, for features of networks, or `"euclidean"`.
        method: of the map, one of `reduce.METHODS`; up to three columns are their own map.
        n_neighbors: of UMAP.
        n_components: dimensions of the map.
        min_dist: of UMAP.
        seed: of the map.

    Attributes:
        labels_: int64 `[n]`, the largest cluster first.
        probabilities_: float64 `[n]`, of each row's cluster.
        runners_up_: int64 `[n]`, the second likeliest cluster of each row.
        runner_up_probabilities_: float64 `[n]`.
        n_clusters_: number of clusters.
        tree_: the `levels.Tree`; of a sample if there are more than 10,000 rows.
        embedding_: float64 `[n, c]`, the map.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 2)) + 9 * (np.arange(300) % 3)[:, None]
        >>> model = ModeTree(metric="euclidean").fit(x)
        >>> model.n_clusters_, model.predict([[0.0, 0.0]]) == model.labels_[0]
        (3, array([ True]))
    """

    labels_: NDArray
    n_clusters_: int
    probabilities_: NDArray
    runners_up_: NDArray
    runner_up_probabilities_: NDArray
    embedding_: NDArray
    tree_: Tree
    _projection: Signal
    _rows: NDArray
    _found: Found

    def __init__(
        self,
        metric: str = "cosine",
        method: str = "umap",
        n_neighbors: int = 15,
        n_components: int = 3,
        min_dist: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.metric = metric
        self.method = method
        self.n_neighbors = n_neighbors
        self.n_components = n_components
        self.min_dist = min_dist
        self.seed = seed

    def fit(self, X: ArrayLike, y: None = None) -> Self:
        """Clusters `X` float `[n, d]`; `y` is ignored.

        Raises:
            ValueError: an argument or the rows are invalid.
        """
        if self.metric not in METRICS:
            raise ValueError(f"metric must be one of {', '.join(METRICS)}; got {self.metric!r}")
        if not isinstance(self.seed, numbers.Integral) or self.seed < 0:
            raise ValueError(f"seed must be a whole number from 0 up; got {self.seed!r}")
        x = numeric(X, "X")
        validate_data(self, X, reset=True, skip_check_array=True)
        self._projection, self._rows = prepare(x, self.metric)
        self.embedding_ = self._map()
        self._found = find(self._rows, self.embedding_)
        self.tree_ = self._found.tree
        member = assign(self._rows, self.embedding_, self._found, levels.cut(self.tree_))
        self.labels_, self.probabilities_ = member.labels, member.probabilities
        self.runners_up_ = member.runners_up
        self.runner_up_probabilities_ = member.runner_up_probabilities
        self.n_clusters_ = len(np.unique(self.labels_))
        return self

    def cut(self, *, k: int | None = None, level: float | None = None) -> NDArray:
        """Labels int64 `[n]` at another cut of the tree, see `levels.cut`.

        Args:
            k: number of groups.
            level: certainty from which splits are kept.
        """
        check_is_fitted(self)
        groups = levels.cut(self.tree_, k=k, level=level)
        return assign(self._rows, self.embedding_, self._found, groups).labels

    def predict(self, X: ArrayLike) -> NDArray:
        """Cluster of each row of `X` float `[m, d]` as in `labels_`, int64 `[m]`.

        By the votes of the nearest rows among the components that stand out; rows do not affect
        each other.
        """
        check_is_fitted(self)
        x = numeric(X, "X")
        validate_data(self, X, reset=False, skip_check_array=True)
        queries = self._projection.project(scaled(x, self.metric))
        return vote(self._rows, self._found, self.labels_, queries)

    def agreement(self, X: ArrayLike) -> float:
        """Agreement of independent halves of the rows, and of both with `labels_`; at most 1.

        Each half is projected and mapped by itself, with a seed of its own, and votes for all rows;
        the lowest of the three adjusted Rand indices counts. Of more than 10,000 rows those of the
        sample are halved. It takes about as long as `fit` does for them.

        Args:
            X: the rows of `fit`.

        Returns:
            The index; NaN for fewer than four rows.
        """
        check_is_fitted(self)
        x, order = numeric(X, "X"), self._found.sample
        if len(x) != len(self.labels_):
            raise ValueError(f"X must be the {len(self.labels_)} rows of fit; got {len(x)}")
        if len(order) < 4:
            return float("nan")
        is_first = np.random.default_rng(2).permutation(len(order)) % 2 == 0
        answers = [self.labels_[order]]
        for seed, members in ((self.seed + 1, order[is_first]), (self.seed + 2, order[~is_first])):
            half = ModeTree(**{**self.get_params(), "seed": seed}).fit(x[members])
            answers.append(half.predict(x[order]))
        pairs = itertools.combinations(answers, 2)
        return min(float(adjusted_rand_score(*pair)) for pair in pairs)

    def _map(self) -> NDArray:
        if self._rows.shape[1] <= _MAP_COLUMNS or self.method == "none":
            return self._rows
        points = reduce(
            self._rows.astype(np.float32),
            method=self.method,
            n_components=self.n_components,
            n_neighbors=self.n_neighbors,
            min_dist=self.min_dist,
            metric="euclidean",
            seed=self.seed,
        )
        return points.astype(np.float64)
