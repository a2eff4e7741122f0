"""Clusters at the modes of the density, their number found: the default of `cluster`."""

import itertools
import numbers
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.validation import check_is_fitted, validate_data

from cluster_jax.clustering import answer, levels
from cluster_jax.clustering.bandwidth import VERDICTS
from cluster_jax.clustering.gridshift import GridShift
from cluster_jax.clustering.grouping import (
    SampledTree,
    assign,
    at_level,
    find,
    prepare,
    scaled,
    undone,
    vote,
)
from cluster_jax.clustering.levels import Tree
from cluster_jax.clustering.membership import Membership
from cluster_jax.clustering.reduce import MAP_COLUMNS, METHODS, reduce
from cluster_jax.clustering.signal import Signal
from cluster_jax.clustering.validation import numeric

METRICS = ("cosine", "euclidean")
# Sums of larger numbers would leave the range of float64.
_LARGEST = 1e303
# Levels at which halves are compared, at most: each takes a vote of all rows.
_MOST_LEVELS = 40
# Agreement (adjusted Rand index) of halves of the rows from which an answer is clear.
_CLEAR = 0.9


class Stability(NamedTuple):
    """What independent halves of the rows agree about.

    Attributes:
        agreement: adjusted Rand index of `labels_` and of the answers of both halves, the lowest of
            the three; at most 1, NaN for fewer than four rows.
        stable_k: the finest cut into at most that many groups (but at least two) about which they
            agree with an index of 0.9; None if there is none.
    """

    agreement: float
    stable_k: int | None


def _numbers(values: ArrayLike) -> NDArray:
    """`numeric`, of a size that can be summed."""
    x = numeric(values, "X")
    largest = max(float(x.max()), -float(x.min()))
    if largest > _LARGEST:
        raise ValueError(f"X must have numbers of at most {_LARGEST:g}; got {largest:g}")
    return x


def verdict(model: "ModeTree", agreement: float) -> str:
    """One of `bandwidth.VERDICTS`.

    Args:
        model: fitted.
        agreement: of halves, see `ModeTree.stability`; below 0.9 there is no clear answer. One
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
    curve = GridShift().fit(model.embedding_[:, :MAP_COLUMNS]).bandwidth_curve_
    return one if curve is not None and curve.verdict == one else no_answer


class ModeTree(ClusterMixin, BaseEstimator):
    """Finds clusters, their number, and the groups above and below them.

    Rows are projected to the components that stand out from noise (`signal`), mapped, and grouped
    by the peaks of the density in the map. The groups merge to a tree, each split of which has a
    certainty (`levels`); one cut is the answer. Of more than 10,000 rows that many are grouped, and
    the others take the cluster of the nearest of them in the map. Groups of five to ten rows are
    found where they lie apart (`islands`), smaller ones are not.

    Args:
        metric: `"cosine"`, for features of networks, or `"euclidean"`.
        method: of the map, one of `reduce.METHODS`; up to three columns are their own map.
        n_neighbors: of UMAP.
        n_components: dimensions of the map.
        min_dist: of UMAP.
        seed: of the map.

    Attributes:
        labels_: int64 `[n]`, in the order of the sizes of the tree's groups, the largest first.
        probabilities_: float64 `[n]`, of each row's cluster.
        runners_up_: int64 `[n]`, the second likeliest cluster of each row, -1 where no other is
            likely.
        runner_up_probabilities_: float64 `[n]`.
        n_clusters_: number of clusters.
        tree_: the `levels.Tree` of the rows `sample_`.
        sample_: int64 `[m]`, the rows that the tree has: all up to 10,000, in an order of its own.
        embedding_: float64 `[n, c]`, the map. Where it is rows that lie farther from their center
            than 2^40, or nearer than 2^-40, they are divided by a power of two.

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
    sample_: NDArray
    _projection: Signal
    _rows: NDArray

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
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}; got {self.method!r}")
        if not isinstance(self.seed, numbers.Integral) or self.seed < 0:
            raise ValueError(f"seed must be a whole number from 0 up; got {self.seed!r}")
        x = _numbers(X)
        validate_data(self, X, reset=True, skip_check_array=True)
        self._projection, self._rows, order = prepare(x, self.metric)
        # Maps and samples depend on the order of the rows.
        rows = self._rows[order]
        points = self._map(rows)
        sampled = find(rows, points)
        k = answer.choose(sampled.tree, rows[sampled.sample])
        member = assign(rows, points, sampled, levels.cut(sampled.tree, k=k))
        self.embedding_ = undone(points, order)
        self.tree_, self.sample_ = sampled.tree, order[sampled.sample]
        self.labels_, self.probabilities_, self.runners_up_, self.runner_up_probabilities_ = (
            undone(values, order) for values in member
        )
        self.n_clusters_ = len(np.unique(self.labels_))
        return self

    def cut(self, *, k: int | None = None, level: float | None = None) -> NDArray:
        """Labels int64 `[n]` at another cut of the tree, see `levels.cut`; by default `labels_`.

        Groups of a coarser cut are unions of the clusters of `labels_`. At a finer one rows in
        doubt are assigned anew, so that a few may leave their cluster.

        Args:
            k: number of groups.
            level: certainty from which splits are kept.
        """
        check_is_fitted(self)
        return at_level(
            self._sampled, self.labels_, lambda: (self._rows, self.embedding_), k=k, level=level
        )

    def predict(self, X: ArrayLike) -> NDArray:
        """Cluster of each row of `X` float `[m, d]` as in `labels_`, int64 `[m]`.

        By the votes of the nearest rows among the components that stand out; rows do not affect
        each other.
        """
        check_is_fitted(self)
        x = _numbers(X)
        validate_data(self, X, reset=False, skip_check_array=True)
        return vote(self._rows, self._sampled, self.labels_, self._project(x))

    def stability(self, X: ArrayLike) -> Stability:
        """What independent halves of the rows agree about.

        Each half is projected and mapped by itself, with a seed of its own, and votes for all rows.
        Of more than 10,000 rows those of the sample are halved. It takes about as long as `fit`
        does for them.

        Args:
            X: the rows of `fit`.
        """
        check_is_fitted(self)
        x, order = numeric(X, "X"), self.sample_
        if len(x) != len(self.labels_):
            raise ValueError(f"X must be the {len(self.labels_)} rows of fit; got {len(x)}")
        if len(order) < 4:
            return Stability(float("nan"), None)
        is_first = np.random.default_rng(2).permutation(len(order)) % 2 == 0
        halves = []
        for i, members in enumerate((order[is_first], order[~is_first]), start=1):
            seed = (self.seed + i) % 2**32  # UMAP takes no larger one.
            half = ModeTree(**{**self.get_params(), "seed": seed}).fit(x[members])
            halves.append((half, half._project(x[order])))

        def agreement(k: int | None) -> float:
            """The lowest adjusted Rand index of two of the three cuts into k groups."""
            cuts = [(self.labels_ if k is None else self.cut(k=k))[order]]
            for half, queries in halves:
                most = len(half.tree_.merges) + 1
                labels = half.labels_ if k is None else half.cut(k=min(k, most))
                cuts.append(vote(half._rows, half._sampled, labels, queries))
            return min(float(adjusted_rand_score(*p)) for p in itertools.combinations(cuts, 2))

        found = agreement(None)
        if found >= _CLEAR:
            return Stability(found, self.n_clusters_ if self.n_clusters_ > 1 else None)
        finest = min(self.n_clusters_, self.tree_.n_clusters, _MOST_LEVELS)
        stable = (k for k in range(finest, 1, -1) if agreement(k) >= _CLEAR)
        return Stability(found, next(stable, None))

    @property
    def membership_(self) -> Membership:
        """`labels_` and their probabilities in one."""
        check_is_fitted(self)
        return Membership(
            self.labels_, self.probabilities_, self.runners_up_, self.runner_up_probabilities_
        )

    @property
    def _sampled(self) -> SampledTree:
        return SampledTree(self.tree_, self.sample_)

    def _project(self, x: NDArray) -> NDArray:
        return self._projection.project(scaled(x, self.metric))

    def _map(self, rows: NDArray) -> NDArray:
        if rows.shape[1] <= MAP_COLUMNS or self.method == "none":
            return rows
        points = reduce(
            rows.astype(np.float32),
            method=self.method,
            n_components=self.n_components,
            n_neighbors=self.n_neighbors,
            min_dist=self.min_dist,
            metric="euclidean",
            seed=self.seed,
        )
        return points.astype(np.float64)
