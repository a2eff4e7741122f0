"""`SmoothTree`: clusters of features, their number, and a tree of coarser and finer groups.

The algorithm takes five steps:

1. Of each group of copies one row is kept; the others get its cluster, see `copies`.
2. Rows are denoised and whitened ("sharp rows"), and then averaged over their nearest neighbors
   ("smooth rows"), see `smooth`. More than 16,000 distinct rows are condensed by k-means into at
   most as many micro-clusters before, as BIRCH condenses rows by a tree [2].
3. The number of clusters is chosen by silhouettes, and compared with rows that have no clusters,
   see `number`. If the number is set, the clusters are a cut of the tree or those of k-means,
   whichever have the higher score.
4. The tree has Ward's merges of the rows of each cluster, and above them those of the clusters. So
   `labels_` is one of its cuts.
5. The probability of a cluster is its share among a row and its neighbors, after two rounds of
   averaging as in label spreading [1], see `membership`.

The order of the rows does not matter. Each constant is explained where it is defined;
`experiments/log.md` lists the effects of halving or doubling it.

References:
    [1] Zhou et al. 2004, Learning with local and global consistency.
    [2] Zhang, Ramakrishnan and Livny 1996, BIRCH: an efficient data clustering method for very
        large databases.
"""

from __future__ import annotations

import functools
import json
import os
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClusterMixin, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from cluster_jax import __version__
from cluster_jax.clustering import copies, membership, number, numbering, placing, smooth, tree
from cluster_jax.clustering.base import NO_CLUSTER, UNCLEAR, Assignment
from cluster_jax.clustering.membership import Membership
from cluster_jax.clustering.placing import ByTree
from cluster_jax.clustering.smooth import FEW_AXES, Smoother
from cluster_jax.core import checks, io
from cluster_jax.core.arrays import Rows, numeric
from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted

METRICS = ("auto", *smooth.METRICS)
# Distinct rows above which they are condensed into at most as many micro-clusters: all pairs are
# compared. Rows of the sample from which the axes are then learned.
MAX_ROWS, SAMPLE = 16_000, 10_000
# Attributes of the fitted estimator that are arrays or plain values.
_STORED = ("linkage_", "sample_", "leaves_", "_rows_", "verdict_", "gap_", "n_features_in_")


class SmoothTree(ClusterMixin, BaseEstimator):
    """Finds clusters of features, their number, and a tree of coarser and finer groups.

    The docstring of the module describes the algorithm.

    Args:
        metric: `"cosine"`, for features of networks; `"euclidean"`; or `"auto"`: Euclidean for at
            most three columns, else cosine.
        n_clusters: number of clusters; None: it is found.
        random_state: seed of everything that is drawn: an integer, a `RandomState`, or None for
            another seed in each fit.

    Attributes:
        labels_: int64 `[n]`, clusters by size, the largest is 0; after `partial_fit` the numbers
            stay. -1: the row is in no cluster, because it is zero and has no cosine.
        probabilities_: float64 `[n]`, of each row's cluster. `predict_proba` gives the same, except
            for rows that the fit has changed: rows of micro-clusters, and of rounded columns.
        second_labels_: int64 `[n]`, the most probable other cluster, -1 without one. For about 5 %
            of the rows of photos, between two clusters, it is more probable than the row's own
            cluster, because the tree uses all rows and the probability only the neighbors.
        second_probabilities_: float64 `[n]`.
        n_clusters_: number of clusters.
        verdict_: `"clear"`, `"one_cluster"`, or `"unclear"`, when the clusters are a best
            guess; always `"unclear"` with `n_clusters`.
        gap_: silhouette of the first split of the rows, less that of rows without clusters;
            infinite for clusters of HDBSCAN; NaN with `n_clusters`, for fewer than 6 rows without
            copies, and for equal rows.
        scores_: score of each number of clusters that was tried for the first split; empty with
            `n_clusters`.
        linkage_: float64 `[m - 1, 4]`, the tree as in SciPy. Its m leaves are the distinct rows, or
            the micro-clusters.
        sample_: int64 `[m]`, the index of one row of each leaf.
        leaves_: int64 `[n]`, the leaf of each row.
        metric_: `"cosine"` or `"euclidean"`.
        smoother_: the `smooth.Smoother` of the leaves.
        events_: the changes of clusters by the last `partial_fit`, see `numbering.Event`.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 8)) + 9 * (np.arange(300) % 3)[:, None]
        >>> model = SmoothTree(metric="euclidean").fit(x)
        >>> model.n_clusters_, model.verdict_, len(np.unique(model.cut(n_clusters=2)))
        (3, 'clear', 2)
    """

    scores_: dict[int, float]
    _state_: numbering.State

    def __init__(
        self,
        metric: str = "auto",
        n_clusters: int | None = None,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.metric = metric
        self.n_clusters = n_clusters
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: None = None) -> Self:
        """Clusters `X` float `[n, d]`; `y` is ignored.

        Rows in no cluster warn. If `fit` raises an error, the results of an earlier fit are gone.

        Raises:
            ValueError: a parameter is out of range, or `X` has no rows, is not finite or has
                numbers beyond 1e150; or there are fewer distinct rows than `n_clusters`.
            TypeError: `X` cannot be converted to an array of numbers, such as a sparse matrix.
        """
        self._forget()
        self.fit_rows(numeric(X, "X", smooth.LARGEST))
        validate_data(self, X, reset=True, skip_check_array=True)
        if without := int((self.labels_ == NO_CLUSTER).sum()):
            rows = counted(without, "row is", "rows are")
            checks.warn(f"{rows} in no cluster: zeros alone, which have no direction", 2)
        return self

    def fit_rows(self, x: Rows, originals: NDArray | None = None) -> Self:
        """Clusters rows that need not fit into memory, such as `Shards`, or have known copies.

        Known copies and, with the cosine, rows of zeros are left out: they get the cluster of their
        original, and none. If an original is zero, its first copy that is not zero replaces it. If
        fewer rows than `n_clusters` are left, known copies are clustered too.

        Args:
            x: finite numbers `[n, d]`, read in blocks. Unless they are an array, the order of the
                rows matters, and rows of zeros are in clusters.
            originals: int `[n]`, the index of the row that each row is a copy of, or of the row
                itself: copies that are known by other means than their features. An original is no
                copy. None: there are no known copies.

        Raises:
            InputError: see the `ValueError` of `fit`.
        """
        self._forget()
        n, self.n_features_in_ = x.shape
        has_direction = np.ones(n, bool)
        if isinstance(x, np.ndarray) and x.any() and self._metric(x) == "cosine":
            has_direction = np.asarray(x.any(axis=1))
        itself = np.arange(n)
        stands = itself
        if originals is not None:
            first = itself.copy()
            backwards = np.flatnonzero(has_direction)[::-1]
            first[originals[backwards]] = backwards
            stands = np.where(has_direction[originals], originals, first[originals])
        is_in = has_direction[stands]
        kept = np.unique(stands[is_in])
        if self.n_clusters is not None:
            checks.whole("n_clusters", self.n_clusters, 1, n)
        if len(kept) < (self.n_clusters or 1):
            stands = np.where(has_direction, itself, stands)
            kept = np.flatnonzero(has_direction)
        place = np.full(n, NO_CLUSTER)
        place[is_in] = np.searchsorted(kept, stands[is_in])
        return self._fit(x if len(kept) == n else np.asarray(x[kept]), kept, place)

    def _fit(self, x: Rows, kept: NDArray, place: NDArray) -> Self:
        """Clusters some of the rows; each other row gets the cluster of the row that represents it.

        Args:
            x: `[m, d]`, the rows that are clustered.
            kept: int `[m]`, their indices among all n rows.
            place: int `[n]`, which of the m rows represents each row, -1 for a row in no cluster.
        """
        checks.one_of("metric", self.metric, METRICS)
        seed = self._seed()
        self.metric_ = self._metric(x)
        first, leaves = copies.originals(x, self.metric_, self.n_clusters or 1)
        checks.at_most("n_clusters", self.n_clusters or 1, len(first), "distinct rows")
        if (m := len(first)) <= MAX_ROWS:
            rows = smooth.dequantize(numeric(x[first], "X", smooth.LARGEST), seed)
            self.sample_ = first
            self.smoother_ = smooth.fit(rows, self.metric_)
        else:
            how = (min(SAMPLE, m), min(MAX_ROWS, m // 2), self.metric_, seed)
            self.smoother_, groups = smooth.fit_all(x, first, *how)
            leaves = groups[leaves]
            self.sample_ = first[np.unique(groups, return_index=True)[1]]
            rows = np.asarray(x[self.sample_])
            checks.at_most(
                "n_clusters", self.n_clusters or 1, len(rows), f"micro-clusters of {m:,} rows"
            )
        self._rows_ = np.asarray(x[self.sample_])
        is_in = place != NO_CLUSTER
        self.sample_ = kept[self.sample_]
        self.leaves_ = np.where(is_in, leaves[place], 0)
        sizes = np.bincount(self.leaves_[is_in])
        levels = self._find(rows, sizes, np.random.default_rng(seed))
        self.linkage_ = tree.nested(self.smoother_.smooth, sizes, levels)
        labels = tree.cut(self.linkage_, place, self.leaves_, int(levels[0].max()) + 1)
        return self._set_state(numbering.start(labels))

    def _set_state(self, state: numbering.State) -> Self:
        """Sets the clusters of all rows and their probabilities."""
        self._state_ = state
        self.events_ = state.events
        self.labels_ = state.ids
        self._ids_, leaves = np.unique(self.labels_[self.sample_], return_inverse=True)
        self._shares_ = membership.shares(self.smoother_, leaves)
        self.n_clusters_ = len(self._ids_)
        around = self._shares_[self.leaves_]
        _, *known = membership.of_known_rows(self._ids_, self.labels_, around)
        self.probabilities_, self.second_labels_, self.second_probabilities_ = known
        return self

    def _metric(self, x: Rows) -> str:
        """Returns the metric for rows `[n, d]`, in which `"auto"` depends on d."""
        if self.metric != "auto":
            return self.metric
        return "euclidean" if x.shape[1] <= FEW_AXES else "cosine"

    def _find(self, x: NDArray, sizes: NDArray, rng: np.random.Generator) -> list[NDArray]:
        """Returns the labels of the leaves at each level, int64 `[m]` each, the finest first.

        With `n_clusters` there is one level. Sets `verdict_`, `gap_` and `scores_`.

        Args:
            x: `[m, d]`, the features of one row of each leaf.
            sizes: int `[m]`, the number of rows of each leaf.
            rng: source of randomness.
        """
        rows = self.smoother_
        found = number.find(x, rows, rng)
        if self.n_clusters is None:
            self.gap_ = found.gap
            self.verdict_ = found.verdict
            self.scores_ = found.scores
            return found.levels
        self.gap_ = float("nan")
        self.verdict_ = UNCLEAR
        self.scores_ = {}
        return [number.of_number(rows, sizes, found, self.n_clusters)]

    def partial_fit(self, X: ArrayLike, y: None = None) -> Self:
        """Adds the rows `X` float `[m, d]` to those so far; `y` is ignored.

        All rows are clustered again, in their order, and the clusters keep their numbers, see
        `numbering`. All attributes and methods are of all rows. Without an earlier fit, the call is
        the same as `fit`. Above 16,000 rows, earlier rows are represented by their micro-clusters.
        A new cluster is added even if `n_clusters` was given.

        Raises:
            ValueError: see `fit`; or `X` has another number of columns than the rows so far.
            TypeError: see `fit`.
        """
        if not hasattr(self, "labels_"):
            return self.fit(X)
        state = self._state_
        new = self._new(X)
        n_leaves = len(self._rows_)
        # The row of zeros stands for all that are in no cluster.
        rows = np.concatenate([self._rows_, np.zeros_like(self._rows_[:1]), new])
        known = np.where(self.labels_ == NO_CLUSTER, n_leaves, self.leaves_)
        leaves = np.concatenate([known, np.arange(n_leaves + 1, len(rows))])
        # Each row that occurs is clustered once.
        used, first = np.unique(leaves, return_index=True)
        if rows.any() and self._metric(rows) == "cosine":
            has_direction = rows[used].any(axis=1)
            used = used[has_direction]
            first = first[has_direction]
        place = np.full(len(rows), NO_CLUSTER)
        place[used] = np.arange(len(used))
        self._forget()
        self.n_features_in_ = rows.shape[1]
        self._fit(rows[used], first, place[leaves])
        return self._set_state(self.numbered(state, numbering.Repeated(rows, leaves)))

    def numbered(
        self, state: numbering.State, x: Rows, is_fixed: NDArray | None = None
    ) -> numbering.State:
        """Returns the state of the rows `x` in which clusters keep their ids.

        The estimator must be fitted with `x`, and is not changed.

        Args:
            state: the state of the n old rows.
            x: all rows `[m, d]`, the old ones in their order, then the new ones.
            is_fixed: see `numbering.update`.
        """

        def look(some: NDArray) -> numbering.Look:
            model = self if len(some) == x.shape[0] else clone(self).fit_rows(some)
            rows = model.smoother_
            sharp = rows.sharp[model.leaves_]
            return numbering.Look(
                model.labels_, sharp, lambda new: (model._placed(new), rows.project(new))
            )

        return numbering.update(state, x, look, is_fixed)

    def _forget(self) -> None:
        """Removes the results of an earlier fit."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)

    def _seed(self) -> int:
        """Returns the seed of one fit; raises an `InputError` if `random_state` is none."""
        if isinstance(self.random_state, np.random.RandomState) or self.random_state is None:
            return int(check_random_state(self.random_state).randint(2**31))
        checks.whole("random_state", self.random_state, 0)
        return int(self.random_state)

    def cut(self, *, n_clusters: int | None = None) -> NDArray:
        """Returns the labels int64 `[n]` of another cut of the tree; without arguments `labels_`.

        Groups are numbered by size, the largest is 0; only unions of clusters after `partial_fit`
        are numbered by their cluster of the lowest number. Rows in no cluster stay -1.

        Args:
            n_clusters: number of groups, 1 to the number of leaves. Fewer groups than clusters
                are unions of clusters. More groups are parts of clusters; after `partial_fit`, they
                are groups of the last fit, which may lie in several clusters.

        Raises:
            NotFittedError: the estimator is not fitted.
            InputError: `n_clusters` is out of range.
        """
        check_is_fitted(self)
        if n_clusters is None:
            return self.labels_
        if self._state_.updates and 0 < n_clusters <= self.n_clusters_:
            groups = tree.cut_tree(self.cluster_linkage_, n_clusters)
            is_in = self.labels_ != NO_CLUSTER
            place = np.searchsorted(self._ids_, self.labels_)
            return np.where(is_in, groups[place * is_in], NO_CLUSTER)
        return tree.cut(self.linkage_, self.labels_, self.leaves_, n_clusters)

    def smooth_rows(self, X: ArrayLike) -> NDArray:
        """Returns the smooth rows of the training rows, float32 `[n, r]`, e.g. for k-means.

        The smooth rows are those of the fit; all copies of a row have the same one. With
        micro-clusters (more than 16,000 distinct rows), the smooth rows are computed from `X`, as
        means of the smooth rows of the nearest micro-clusters. The smooth row of a row in no
        cluster has no meaning.

        Args:
            X: the training rows `[n, d]` in their order, including those of `partial_fit`.

        Raises:
            NotFittedError: the estimator is not fitted.
            InputError, TypeError: `X` has another number of rows than in the fit, or is not an
                array of finite numbers of at most 1e150.
        """
        check_is_fitted(self)
        if len(x := numeric(X, "X", smooth.LARGEST)) != len(self.labels_):
            raise InputError(f"X must be the {len(self.labels_)} rows of fit; got {len(x)}")
        if self.smoother_.counts is not None:
            return self.smoother_.transform(x)
        return self.smoother_.smooth[self.leaves_]

    def predict(self, X: ArrayLike) -> NDArray:
        """Returns the cluster of each row of `X` float `[m, d]`, int64 `[m]`.

        Rows do not affect each other. With the cosine, a row of zeros is in no cluster, -1.

        Raises:
            NotFittedError: the estimator is not fitted.
            ValueError: `X` is not finite, has numbers beyond 1e150, or has another number of
                columns than in the fit.
            TypeError: `X` cannot be converted to an array of numbers.
        """
        return self._placed(self._new(X))

    def _placed(self, x: NDArray) -> NDArray:
        """Returns the clusters of rows that are checked already, see `predict`."""
        leaves = np.searchsorted(self._ids_, self.labels_[self.sample_])
        placed = membership.of_new_rows(self.smoother_, leaves, self._shares_, x).labels
        return np.where(self.smoother_.has_direction(x), self._ids_[placed], NO_CLUSTER)

    def predict_proba(self, X: ArrayLike) -> NDArray:
        """Returns the probability of each cluster for rows of `X`, float64 `[m, n_clusters_]`.

        The columns are the clusters of `labels_` in ascending order, without -1. A row of zeros has
        probabilities like any other, which mean nothing with the cosine. Errors are those of
        `predict`.
        """
        x = self._new(X)
        return membership.probabilities(self.smoother_, self._shares_, x)

    def locate(self, X: ArrayLike, *, n_clusters: int | None = None) -> Assignment:
        """Returns clusters of the rows of `X` float `[m, d]`, their probabilities, and novelty.

        Rows do not affect each other. `n_clusters` selects another cut of the tree, see `cut`.
        Errors are those of `predict` and `cut`.
        """
        x = self._new(X)
        if n_clusters is None:
            return self.clusterer_.place(x)
        return self.clusterer_.place(x, self.cut(n_clusters=n_clusters))

    def score_samples(self, X: ArrayLike) -> NDArray:
        """Returns the similarity of `X` to the training rows, float64 `[m]`: minus the novelty.

        It is at most 0, and below -1 for a novel row. Errors are those of `predict`.
        """
        return -self.locate(X).novelty

    @functools.cached_property
    def clusterer_(self) -> ByTree:
        """The model that assigns new rows; computed at its first use."""
        check_is_fitted(self)
        parts = self.smoother_, self.labels_, self.sample_, self.leaves_
        return ByTree(*parts, placing.voters(self._rows_, self.metric_))

    def save(self, path: str | os.PathLike) -> None:
        """Writes the fitted estimator to a file of arrays, which `load` reads; nothing is pickled.

        Args:
            path: a `.npz` file, local or in a bucket; an existing file is replaced.

        Raises:
            NotFittedError: the estimator is not fitted.
            OSError: the file cannot be written.
        """
        check_is_fitted(self)
        parameters = self.get_params()
        if not isinstance(parameters["random_state"], int | np.integer):
            parameters["random_state"] = None
        smoother = self.smoother_._asdict().items()
        stored = {
            "kind": type(self).__name__,
            "version": __version__,
            "parameters": json.dumps(parameters, default=int),
            "scores_": np.array(list(self.scores_.items()), np.float64).reshape(-1, 2),
            **{name: getattr(self, name) for name in _STORED},
            **{f"smoother.{name}": part for name, part in smoother if part is not None},
            **{f"state.{k}": part for k, part in numbering.to_arrays(self._state_).items()},
        }
        io.write_arrays(path, {name: np.asarray(value) for name, value in stored.items()})

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Returns the fitted estimator in a file of `save`.

        A `random_state` that was not an integer is None.

        Raises:
            OSError: the file does not exist or cannot be read.
            InputError: the file was not written by `save`, is damaged, or lacks a value that this
                version of cluster_jax needs: another version has written it.
        """
        stored = io.read_arrays(path)
        if stored.get("kind", np.asarray("")).item() != cls.__name__:
            raise InputError(f"{path} must be a file of SmoothTree.save; got other arrays")
        try:
            model = cls(**json.loads(stored["parameters"].item()))
            plain: dict[str, Any] = {k: v if v.ndim else v.item() for k, v in stored.items()}
            for name in _STORED:
                setattr(model, name, plain[name])
            smoother = {k.removeprefix("smoother."): plain[k] for k in plain if "smoother." in k}
            model.smoother_ = Smoother(**smoother)
            model.metric_ = model.smoother_.metric
            model.scores_ = {int(k): score for k, score in stored["scores_"].tolist()}
            parts = {k.removeprefix("state."): v for k, v in stored.items() if "state." in k}
            state = numbering.from_arrays(parts)
        except (KeyError, TypeError) as error:
            version = stored.get("version", np.asarray("an older version")).item()
            raise InputError(
                f"the stored clusters must be of cluster_jax {__version__}; got those of {version}"
                f" ({error}): fit again, or use that version"
            ) from error
        return model._set_state(state)

    def _new(self, X: ArrayLike) -> NDArray:
        """Returns new rows as an array; errors are those of `predict`."""
        check_is_fitted(self)
        x = numeric(X, "X", smooth.LARGEST)
        validate_data(self, X, reset=False, skip_check_array=True)
        return x

    @property
    def cluster_linkage_(self) -> NDArray:
        """The tree above the clusters, float64 `[k - 1, 4]`, as in SciPy.

        Leaf i is the i-th cluster of `labels_` in ascending order, without -1. After `partial_fit`
        the tree is not a part of `linkage_`, but that of `tree.linkage_of_means`.
        """
        check_is_fitted(self)
        labels = self.labels_[self.sample_]
        if self._state_.updates:  # The clusters are no cut of the tree.
            return tree.linkage_of_means(self.smoother_.smooth, labels)
        return tree.cluster_linkage(self.linkage_, labels)

    @property
    def membership_(self) -> Membership:
        """`labels_` and their probabilities as one record."""
        check_is_fitted(self)
        return Membership(
            self.labels_, self.probabilities_, self.second_labels_, self.second_probabilities_
        )
