"""Clusters of smoothed features: their number, a tree of groups, and how sure the answer is.

`SmoothTree` answers "how many clusters?". `copies.originals` leaves one row of each group of
copies, which take its cluster. `smooth.fit` gives sharp rows (denoised and whitened) and smooth
rows (averaged over neighbors); `number.find` finds the clusters and their levels.

The tree holds all levels: Ward's merges inside a cluster, then those of the clusters up to one of
the coarser level, then those of the levels above. `labels_` is one of its cuts. The probability of
a row's cluster is the share of its label after two rounds of averaging the labels over the
neighbors, as in label spreading [1]; a new row has the probabilities of its nearest sharp rows, see
`membership`. The order of the rows changes nothing. A number of clusters that is asked for is that
of a cut of this tree or of k-means, whichever has the higher score.

More than 16,000 distinct rows are condensed into as many micro-clusters by k-means, see
`smooth.fit_all`, as BIRCH does with a tree [2]. They have the silhouettes of their rows, which
follow from their counts, means and mean squares; a row of each stands for it where rows are
compared.

| constant | what it does |
|---|---|
| `smooth.MAX_AXES` 64 | principal axes at most |
| `smooth.FEW_AXES` 3 | axes up to which rows keep their lengths, and HDBSCAN runs from two on |
| `smooth.PER_ROOT` 0.6, `MAX_NEIGHBORS` 10 | neighbors for the square root of the rows; at most |
| `smooth.N_ROUNDS` 2 | rounds of averaging |
| `smooth.SHRINKAGE` 0.1 | of the whitening towards none |
| `smooth.DENSE_SIZE` 25 | rows that are no copies, of a rounded value; of HDBSCAN's clusters |
| `copies.NEARNESS` 0.3 | of the distance to the last neighbor, below which rows are copies |
| `MAX_ROWS` 16,000 | rows, or micro-clusters, that are compared with each other |
| `number.MIN_ROWS` 6 | rows from which clusters are looked for, and of a rare kind |
| `number.MIN_GAP` 0.1 | silhouette above that of a Gaussian from which there are clusters |
| `number.CLEAR_GAP` 0.3 | share of the largest possible gap of a clear answer |
| `number.CLEAR_DEVIATIONS` 4 | standard deviations of it that a clear answer has to spare |
| `number.NEARLY_ALL` 0.95 | rows in clusters that split, for their parts to count |
| `number.MOST_LINKS` 0.9 | links inside clusters in few axes |
| `number.DENSE_SHARE` 0.75 | rows that HDBSCAN's clusters must hold |

What changed when they were halved or doubled: `experiments/log.md`.

References:
    [1] Zhou et al. 2004, Learning with local and global consistency.
    [2] Zhang, Ramakrishnan and Livny 1996, BIRCH: an efficient data clustering method for very
        large databases.
"""

import functools
import json
import os
from collections.abc import Mapping
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
# Rows, of which all can be compared with each other; more are condensed into as many micro-clusters
# at most. Rows of a sample of these, from which the axes are learned.
MAX_ROWS, SAMPLE = 16_000, 10_000
# Attributes of the fitted estimator that are arrays or plain values.
_STORED = (
    *("labels_", "probabilities_", "second_labels_", "second_probabilities_", "linkage_"),
    *("sample_", "leaves_", "rows_", "n_clusters_", "verdict_", "gap_", "metric_"),
    "n_features_in_",
)


class SmoothTree(ClusterMixin, BaseEstimator):
    """Finds clusters of features, their number, and the groups above and below them.

    The algorithm, its constants and its sources are in the docstring of the module.

    Args:
        metric: `"cosine"`, for features of networks; `"euclidean"`; `"auto"`: Euclidean for up to
            three columns, else cosine.
        n_clusters: number of clusters, at most that of distinct rows; None: found.
        min_cluster_size: rows of a cluster, at least: smaller clusters join the nearest one, also
            where `n_clusters` is given. None: as they are found.
        random_state: seed of samples, of the Gaussians that clusters are compared with, and of the
            noise on rounded columns: an integer, a `RandomState`, or None for another one each
            time.

    Attributes:
        labels_: int64 `[n]`, the largest cluster first; -1 for zeros under the cosine.
        probabilities_: float64 `[n]`, of each row's cluster: that of its leaf of the tree, which
            `predict_proba` gives for the leaf itself, not for the other rows of a micro-cluster nor
            in columns of rounded values, which are spread for the fit.
        second_labels_: int64 `[n]`, the likeliest other cluster of each row, -1 where no other is
            likely. For one row in twenty on photos it is likelier than its own: the tree has seen
            all rows, the probability only those around it. Such rows lie between two clusters;
            moved to the likelier one, photos gain 0.01 of ARI, while few photos, rare kinds and
            copies lose as much.
        second_probabilities_: float64 `[n]`.
        n_clusters_: number of clusters.
        verdict_: `"clear"`, `"one_cluster"`, or `"unclear"`, on the split of all rows,
            from which the levels below start.
        gap_: silhouette of that split above that of Gaussians; infinite for clusters of HDBSCAN,
            NaN with `n_clusters`, or for fewer than 6 distinct rows.
        scores_: mean of both silhouettes of that split, for each number of clusters that was tried.
        linkage_: float64 `[m - 1, 4]`, the tree of m leaves in SciPy's form: rows without their
            copies, or micro-clusters.
        sample_: int64 `[m]`, a row of each leaf.
        leaves_: int64 `[n]`, the leaf of each row; 0 where there is none.
        rows_: `[m, d]`, the rows of `sample_`, by which `locate` tells rows unlike all of them.
        metric_: `"cosine"` or `"euclidean"`.
        smoother_: the `smooth.Smoother` of the leaves.
        ids_: int64 `[n]`, after `update`: the cluster of all rows so far, in their order. An id
            keeps its meaning and is never used twice.
        events_: after `update`: what it has done to each cluster, see `numbering.Event`.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 8)) + 9 * (np.arange(300) % 3)[:, None]
        >>> model = SmoothTree(metric="euclidean").fit(x)
        >>> model.n_clusters_, model.verdict_, len(np.unique(model.cut(n_clusters=2)))
        (3, 'clear', 2)
    """

    scores_: dict[int, float]
    _living_: numbering.State
    _grown_: numbering.Repeated

    def __init__(
        self,
        metric: str = "auto",
        n_clusters: int | None = None,
        min_cluster_size: int | None = None,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.metric = metric
        self.n_clusters = n_clusters
        self.min_cluster_size = min_cluster_size
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: None = None) -> Self:
        """Clusters `X` float `[n, d]`; `y` is ignored.

        Raises:
            ValueError: an argument or the rows are invalid.
        """
        self._forget()
        x = numeric(X, "X", smooth.LARGEST)
        validate_data(self, X, reset=True, skip_check_array=True)
        self._fit_all(x, None)
        if without := int((self.labels_ == NO_CLUSTER).sum()):
            rows = counted(without, "row is", "rows are")
            checks.warn(f"{rows} in no cluster: zeros alone, which have no direction", 2)
        return self

    def fit_rows(self, x: Rows, originals: NDArray | None = None) -> Self:
        """Clusters finite rows `[n, d]` that are read a part at a time, such as `Shards`.

        Args:
            x: the rows, which need not fit into memory; their order matters, if they are no array,
                and rows of zeros are in clusters.
            originals: int `[n]`, the row that stands for each row, itself if it is no copy: copies
                that are known by something else than their rows. None: there are none.
        """
        self._forget()
        self.n_features_in_ = x.shape[1]
        return self._fit_all(x, originals)

    def _fit_all(self, x: Rows, originals: NDArray | None) -> Self:
        """Clusters the rows that have a direction, if they are compared by it.

        An original stands for its copies; where it has no direction, the first copy with one does.
        """
        n = x.shape[0]
        has_direction = np.ones(n, bool)
        if isinstance(x, np.ndarray) and x.any() and self._metric(x) == "cosine":
            has_direction = np.asarray(x.any(axis=1))
        itself = np.arange(n)
        stands = itself
        if originals is not None:
            first, backwards = itself.copy(), np.flatnonzero(has_direction)[::-1]
            first[originals[backwards]] = backwards
            stands = np.where(has_direction[originals], originals, first[originals])
        is_in = has_direction[stands]
        kept = np.unique(stands[is_in])
        if len(kept) < max(self.n_clusters or 1, self.min_cluster_size or 1):
            stands = np.where(has_direction, itself, stands)
            kept = np.flatnonzero(has_direction)
        place = np.full(n, NO_CLUSTER)
        place[is_in] = np.searchsorted(kept, stands[is_in])
        return self._fit(x if len(kept) == n else np.asarray(x[kept]), kept, place)

    def _fit(self, x: Rows, kept: NDArray, place: NDArray) -> Self:
        """Clusters rows that are the rows `kept` of all.

        Args:
            x: `[m, d]`.
            kept: int `[m]`.
            place: int `[n]`, which of them stands for each row, -1 for a row in no cluster.
        """
        n = x.shape[0]
        checks.one_of("metric", self.metric, METRICS)
        for name in ("n_clusters", "min_cluster_size"):
            if (value := getattr(self, name)) is not None:
                checks.whole(name, value, 1, n)
        seed = self._seed()
        self.metric_ = self._metric(x)
        first, leaves = copies.originals(x, self.metric_, self.n_clusters or 1)
        checks.at_most("n_clusters", self.n_clusters or 1, len(first), "distinct rows")
        if (m := len(first)) <= MAX_ROWS:
            rows = smooth.dequantize(np.asarray(x[first]), seed)
            self.sample_, self.smoother_ = first, smooth.fit(rows, self.metric_)
        else:
            how = (min(SAMPLE, m), min(MAX_ROWS, m // 2), self.metric_, seed)
            self.smoother_, groups = smooth.fit_all(x, first, *how)
            leaves = groups[leaves]
            self.sample_ = first[np.unique(groups, return_index=True)[1]]
            rows = np.asarray(x[self.sample_])
            checks.at_most(
                "n_clusters", self.n_clusters or 1, len(rows), f"micro-clusters of {m:,} rows"
            )
        self.rows_ = np.asarray(x[self.sample_])
        is_in = place != NO_CLUSTER
        self.sample_, self.leaves_ = kept[self.sample_], np.where(is_in, leaves[place], 0)
        sizes = np.bincount(self.leaves_[is_in])
        levels = self._find(rows, sizes, np.random.default_rng(seed))
        self.linkage_ = tree.nested(self.smoother_.smooth, sizes, levels)
        self.n_clusters_ = int(levels[0].max()) + 1
        labels = tree.by_size(levels[0][self.leaves_[is_in]], levels[0])[levels[0]]
        self._shares_ = membership.shares(self.smoother_, labels)
        of_leaves = membership.membership(labels, self._shares_)
        self.labels_, self.probabilities_, self.second_labels_, self.second_probabilities_ = (
            np.where(is_in, column[self.leaves_], empty)
            for column, empty in zip(of_leaves, (NO_CLUSTER, 0.0) * 2, strict=True)
        )
        return self

    def _metric(self, x: Rows) -> str:
        if self.metric != "auto":
            return self.metric
        return "euclidean" if x.shape[1] <= FEW_AXES else "cosine"

    def _find(self, x: NDArray, sizes: NDArray, rng: np.random.Generator) -> list[NDArray]:
        """Finds nested labels of the leaves `[m, d]`, the finest first; sets the verdict."""
        rows = self.smoother_
        found = number.find(x, rows, rng)
        self.gap_, self.verdict_, self.scores_ = found.gap, found.verdict, found.scores
        levels = found.levels
        if self.n_clusters is not None:
            levels = [number.of_number(rows, sizes, found, self.n_clusters)]
            self.gap_, self.verdict_, self.scores_ = float("nan"), UNCLEAR, {}
        if self.min_cluster_size is not None:
            levels = tree.joined(rows.sharp, sizes, levels, self.min_cluster_size)
        return levels

    def update(self, X: ArrayLike) -> Self:
        """Adds the rows `X` float `[m, d]` to those so far, whose clusters keep their ids.

        The first rows are those of `fit`, or of the first call. Of these `labels_`, `predict` and
        `cut` tell, also later; `ids_` and `events_` are of all rows, see `numbering`. Of more than
        4,000 rows a sample and the new ones are clustered, and more than 16,000 rows of `fit` are
        those of their micro-clusters.

        Raises:
            ValueError: an argument or the rows are invalid.
        """
        is_empty = len(np.asarray(X)) == 0
        if not hasattr(self, "labels_"):
            self.fit(X)
            is_empty = True
        if not hasattr(self, "_living_"):
            self._living_ = numbering.start(self.labels_)
            is_zero = self.labels_ == NO_CLUSTER
            rows = np.concatenate([self.rows_, np.zeros_like(self.rows_[:1])])
            leaves = np.where(is_zero, len(self.rows_), self.leaves_)
            self._grown_ = numbering.Repeated(rows, leaves)
        if not is_empty:
            self._grown_ = self._grown_.joined(self._new(X))
            self._living_ = numbering.update(self._living_, self._grown_, self.look)
        elif self._living_.updates:
            self._living_ = self._living_._replace(events=())
        self.ids_, self.events_ = self._living_.ids, self._living_.events
        return self

    def look(self, x: NDArray) -> numbering.Look:
        """Clusters rows `[m, d]` by another estimator of these arguments, for `update`."""
        return clone(self).fit_rows(x).as_look()

    def as_look(self) -> numbering.Look:
        """Returns what `numbering.update` needs of a fit."""
        rows = self.smoother_
        sharp = rows.sharp[self.leaves_]
        return numbering.Look(self.labels_, sharp, lambda x: (self._placed(x), rows.project(x)))

    def _forget(self) -> None:
        """Removes what an earlier fit has left."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)

    def _seed(self) -> int:
        if isinstance(self.random_state, np.random.RandomState) or self.random_state is None:
            return int(check_random_state(self.random_state).randint(2**31))
        checks.whole("random_state", self.random_state, 0)
        return int(self.random_state)

    def cut(self, *, n_clusters: int | None = None, level: float | None = None) -> NDArray:
        """Returns the labels int64 `[n]` at another cut of the tree; by default `labels_`.

        Groups of a coarser cut are unions of the clusters of `labels_`, those of a finer one parts
        of them.

        Args:
            n_clusters: number of groups, 1 to the number of rows in the tree.
            level: height, as a fraction of the highest merge, 0 to 1; merges above it are undone.
        """
        check_is_fitted(self)
        if n_clusters is None and level is None:
            return self.labels_
        return tree.cut(
            self.linkage_, self.labels_, self.leaves_, n_clusters=n_clusters, level=level
        )

    def smooth_rows(self, X: ArrayLike) -> NDArray:
        """Returns smooth rows float32 `[n, r]` of `X`, the rows of `fit`: best for k-means."""
        check_is_fitted(self)
        if len(x := numeric(X, "X", smooth.LARGEST)) != len(self.labels_):
            raise InputError(f"X must be the {len(self.labels_)} rows of fit; got {len(x)}")
        if self.smoother_.counts is not None:
            return self.smoother_.transform(x)
        return self.smoother_.smooth[self.leaves_]

    def predict(self, X: ArrayLike) -> NDArray:
        """Returns the cluster of each row of `X` float `[m, d]` as in `labels_`, int64 `[m]`.

        See `membership.of_new_rows`; rows do not affect each other.
        """
        return self._placed(self._new(X))

    def _placed(self, x: NDArray) -> NDArray:
        leaves, rows = self.labels_[self.sample_], self.smoother_
        labels = membership.of_new_rows(rows, leaves, self._shares_, x).labels
        return np.where(rows.has_direction(x), labels, NO_CLUSTER)

    def predict_proba(self, X: ArrayLike) -> NDArray:
        """Computes the probability of each cluster for each row of `X`, float64 `[m, n_clusters_]`.

        Of a training row that is a leaf of the tree it is that of `probabilities_`.
        """
        x = self._new(X)
        return membership.probabilities(self.smoother_, self._shares_, x)

    def locate(
        self, X: ArrayLike, *, n_clusters: int | None = None, level: float | None = None
    ) -> Assignment:
        """Returns clusters of the rows of `X` float `[m, d]`, how sure they are, and what is novel.

        Rows do not affect each other. With `n_clusters` or `level` the groups are those of `cut`.
        """
        x = self._new(X)
        labels = (
            None
            if n_clusters is None and level is None
            else self.cut(n_clusters=n_clusters, level=level)
        )
        return self.clusterer_.place(x, labels)

    @functools.cached_property
    def clusterer_(self) -> ByTree:
        """What places new rows; computed when it is first asked for."""
        check_is_fitted(self)
        parts = self.smoother_, self.labels_, self.sample_, self.leaves_
        return ByTree(*parts, placing.voters(self.rows_, self.metric_))

    def save(self, path: str | os.PathLike) -> None:
        """Writes the fitted estimator to a file of arrays, which `load` reads; nothing is pickled.

        Args:
            path: a `.npz` file, local or in a bucket.
        """
        io.write_arrays(path, self.to_arrays())

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Reads what `save` has written.

        Raises:
            InputError: it is another file, damaged, or of another version that stored something
                else.
        """
        stored = io.read_arrays(path)
        if stored.get("kind", np.asarray("")).item() != cls.__name__:
            raise InputError(f"{path} must be a file of SmoothTree.save; got other arrays")
        return cls.from_arrays(stored)

    def to_arrays(self) -> dict[str, NDArray]:
        """Returns the fitted estimator as arrays by name, with the version of the package."""
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
        }
        if hasattr(self, "_living_"):
            of_state = numbering.to_arrays(self._living_)
            stored |= {f"living.{name}": value for name, value in of_state.items()}
            stored |= {"living.x": self._grown_.rows, "living.leaves": self._grown_.leaves}
        return {name: np.asarray(value) for name, value in stored.items()}

    @classmethod
    def from_arrays(cls, stored: Mapping[str, NDArray]) -> Self:
        """Restores the estimator of `to_arrays`.

        Raises:
            InputError: another version of the package has stored something else.
        """
        try:
            model = cls(**json.loads(stored["parameters"].item()))
            plain: dict[str, Any] = {k: v if v.ndim else v.item() for k, v in stored.items()}
            for name in _STORED:
                setattr(model, name, plain[name])
            names = {f"smoother.{name}": name for name in Smoother._fields}
            model.smoother_ = Smoother(**{names[k]: v for k, v in plain.items() if k in names})
            model.scores_ = {int(k): score for k, score in stored["scores_"].tolist()}
        except (KeyError, TypeError) as error:
            version = stored.get("version", np.asarray("an older version")).item()
            raise InputError(
                f"the stored clusters must be of cluster_jax {__version__}; got those of {version}"
                f" ({error}): fit again, or use that version"
            ) from error
        model._shares_ = membership.shares(model.smoother_, model.labels_[model.sample_])
        parts = {name.removeprefix("living."): stored[name] for name in stored if "living." in name}
        if parts:
            model._living_ = numbering.from_arrays(parts)
            model._grown_ = numbering.Repeated(parts["x"], parts["leaves"])
            model.ids_, model.events_ = model._living_.ids, model._living_.events
        return model

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "version": __version__}

    def _new(self, X: ArrayLike) -> NDArray:
        check_is_fitted(self)
        x = numeric(X, "X", smooth.LARGEST)
        validate_data(self, X, reset=False, skip_check_array=True)
        return x

    @property
    def cluster_linkage_(self) -> NDArray:
        """The tree above the clusters, float64 `[k - 1, 4]`, see `tree.cluster_linkage`."""
        check_is_fitted(self)
        return tree.cluster_linkage(self.linkage_, self.labels_[self.sample_])

    @property
    def membership_(self) -> Membership:
        """`labels_` and their probabilities in one."""
        check_is_fitted(self)
        return Membership(
            self.labels_, self.probabilities_, self.second_labels_, self.second_probabilities_
        )
