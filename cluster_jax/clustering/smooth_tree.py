"""Clusters of smoothed features: their number, a tree of groups, and how sure the answer is.

`SmoothTree` answers "how many clusters?" on one page. `copies.originals` leaves one row of each
group of copies, which take its cluster. `smooth.fit` gives sharp rows (denoised and whitened) and
smooth rows (averaged over neighbors). Then:

1. Candidates. For every k tried, Ward's tree of the smooth rows, cut into k groups, starts k-means
   on the smooth rows; then every row joins the nearest mean of sharp rows. Tried are 2 to 20, then
   twice as many, and so on, up to a fifth of the rows (of few rows a third, up to 12); then numbers
   halfway to the next ones on both sides of the best one, until none is left. More than 300 of
   Ward's groups are compared as they are, by 2,000 rows; k-means follows for the best number.
2. Choice. The k of the highest score, which is the mean of two silhouettes, of the sharp rows and
   of the smooth rows. Each is a mean over rows with squared distances, which follow from means and
   mean squares of the clusters: `s_i = (b_i - a_i) / max(a_i, b_i)`, where `a_i` is the mean
   squared distance of row i to the others of its cluster and `b_i` the least one to another
   cluster [1].
3. Test. The gap [2] is the silhouette of the sharp rows at that k less the same silhouette of
   Gaussians with the covariance of the features (in at most three axes: of uniform rows in their
   box), or 0 if that is negative: their mean over up to 12, of 1,500 rows together. Below 0.1, or
   two standard deviations over the Gaussians, the rows are one cluster. The answer is clear from
   0.3 of the largest possible gap on, with four deviations to spare, in more than 25 rows; between,
   the clusters are a best guess.
4. Shape. In two or three axes HDBSCAN [3] also runs, with 5 neighbors for the density: its
   clusters, which may be curved, are the answer if they hold 75 % of the rows, and a clear one if
   10 neighbors find as many and nearly the same (an adjusted Rand index of 0.95). Else clusters
   that cut through a curved sheet are no clusters: unless 90 % of the links between rows and their
   nearest neighbors stay inside, the rows are one cluster.
5. Level. Steps 1 to 4 inside each cluster. Where clusters with 95 % of the rows split, all parts
   become the clusters, and so on.
6. Rare kinds. A mean over all rows hardly notices a kind of few. Of the parts of Ward's tree inside
   a cluster, of 6 rows to a sixth of it, that keep 95 % of the links to their nearest rows inside,
   the one of the highest mean silhouette is a cluster of its own if this exceeds by 0.15 that of a
   Gaussian's best part.

The tree holds all this: Ward's merges inside a cluster, then those of the clusters up to one of the
coarser level, then those of the levels above. `labels_` is one of its cuts. The probability of a
row's cluster is the share of its label after two rounds of averaging the labels over the neighbors,
as in label spreading [4]; a new row has the probabilities of its nearest sharp rows, see
`membership`. The order of the rows changes nothing.

More than 16,000 rows are condensed into as many micro-clusters by k-means, see `smooth.fit_all`, as
BIRCH does with a tree [5]. They have the silhouettes of their rows, which follow from their counts,
means and mean squares; a row of each stands for it in steps 3, 5 and 6. Of two representations,
with rows or with micro-clusters as neighbors, the one of the higher best score is taken.

| constant | what it does |
|---|---|
| `MAX_AXES` 64 | principal axes at most |
| `FEW_AXES` 3 | axes up to which rows keep their lengths, and HDBSCAN runs from two on |
| `PER_ROOT` 0.6, `MAX_NEIGHBORS` 10 | neighbors for the square root of the rows, and at most |
| `N_ROUNDS` 2 | rounds of averaging |
| `SHRINKAGE` 0.1 | of the whitening towards none |
| `NEARNESS` 0.3 | of the distance to the last neighbor, below which rows are copies |
| `MAX_ROWS` 16,000 | rows, or micro-clusters, that are compared with each other |
| `MIN_ROWS` 6 | rows from which clusters are looked for, and of a rare kind; its share at most |
| `MIN_GAP` 0.1 | silhouette above that of a Gaussian from which there are clusters |
| `MIN_DEVIATIONS` 2 | the same in standard deviations of it; twice as many to be clear |
| `CLEAR_GAP` 0.3 | share of the largest possible gap of a clear answer; half: of a rare kind |
| `NEARLY_ALL` 0.95 | rows in clusters that split, for their parts to count; links in a rare kind |
| `MOST_LINKS` 0.9 | links inside clusters in few axes |
| `DENSE_SIZE` 25 | rows that are no copies, of a rounded value; of HDBSCAN's clusters, at most |
| `DENSE_SHARE` 0.75 | rows that HDBSCAN's clusters must hold |

What changed when constants of earlier rules were halved or doubled:
`experiments/number_of_clusters/constants.md`.

References:
    [1] Rousseeuw 1987, Silhouettes.
    [2] Tibshirani, Walther and Hastie 2001, Estimating the number of clusters in a data set via the
        gap statistic (there of the dispersion).
    [3] Campello, Moulavi and Sander 2013, Density-based clustering based on hierarchical density
        estimates.
    [4] Zhou et al. 2004, Learning with local and global consistency.
    [5] Zhang, Ramakrishnan and Livny 1996, BIRCH: an efficient data clustering method for very
        large databases.
"""

import functools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.cluster import hierarchy
from sklearn.base import BaseEstimator, ClusterMixin, clone
from sklearn.metrics import adjusted_rand_score
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from cluster_jax import __version__
from cluster_jax.clustering import copies, knn, living, membership, placing, smooth, tree
from cluster_jax.clustering.base import Assignment
from cluster_jax.clustering.gridshift import VERDICTS
from cluster_jax.clustering.membership import Membership
from cluster_jax.clustering.placing import ByTree
from cluster_jax.clustering.smooth import FEW_AXES, Smoother, n_neighbors
from cluster_jax.core import checks, io
from cluster_jax.core.arrays import Rows, blocks, numeric, stacked
from cluster_jax.core.checks import InputError

CLEAR, ONE, UNCLEAR = VERDICTS
METRICS = ("auto", *smooth.METRICS)
# Rows, of which all can be compared with each other; more are condensed into as many micro-clusters
# at most. Rows of a sample of these, from which the axes are learned.
MAX_ROWS, SAMPLE = 16_000, 10_000
# Rows from which clusters are looked for, inside a cluster as well.
MIN_ROWS, _MIN_SPLIT = 6, 20
# Above so many clusters Ward's groups are compared as they are, on so many rows.
_MANY, _MANY_ROWS = 300, 2_000
# Silhouette above that of one Gaussian from which there are clusters, also in standard deviations
# of it; share of what it can be above it from which they are clear.
MIN_GAP, MIN_DEVIATIONS, CLEAR_GAP = 0.1, 2.0, 0.3
# Rows that must be in clusters that split, for the parts to be the clusters; links between
# neighbors that must stay inside a rare kind, and, in few axes, inside clusters.
NEARLY_ALL, MOST_LINKS = 0.95, 0.9
# Rows that HDBSCAN's clusters must hold.
DENSE_SHARE = 0.75
# Attributes of the fitted estimator that are arrays or plain values.
_STORED = (
    *("labels_", "probabilities_", "runners_up_", "runner_up_probabilities_", "linkage_"),
    *("sample_", "leaves_", "rows_", "n_clusters_", "verdict_", "gap_", "metric_"),
    "n_features_in_",
)
# Rows of the Gaussians together, and their number, at most: the silhouette hardly depends on them.
_NULL_ROWS, _NULLS = 1_500, 12


class Split(NamedTuple):
    """The clusters of n rows at one level.

    Attributes:
        labels: int64 `[n]`.
        gap: silhouette above that of one Gaussian; infinite for clusters of HDBSCAN.
        verdict: one of `VERDICTS`.
    """

    labels: NDArray
    gap: float
    verdict: str


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
        labels_: int64 `[n]`, the largest cluster first.
        probabilities_: float64 `[n]`, of each row's cluster.
        runners_up_: int64 `[n]`, the likeliest other cluster of each row, -1 where no other is
            likely. For one row in twenty on photos it is likelier than its own: the tree has seen
            all rows, the probability only those around it. Such rows lie between two clusters;
            moved to the likelier one, photos gain 0.01 of ARI, while few photos, rare kinds and
            copies lose as much.
        runner_up_probabilities_: float64 `[n]`.
        n_clusters_: number of clusters.
        verdict_: `"clear"`, `"one cluster"`, or `"no clear answer"`, on the split of all rows,
            from which the levels below start.
        gap_: silhouette of that split above that of Gaussians; infinite for clusters of HDBSCAN,
            NaN with `n_clusters`, or for fewer than 6 distinct rows.
        scores_: mean of both silhouettes of that split, for each number of clusters that was tried.
        linkage_: float64 `[m - 1, 4]`, the tree of m leaves in SciPy's form: rows without their
            copies, or micro-clusters.
        sample_: int64 `[m]`, a row of each leaf.
        leaves_: int64 `[n]`, the leaf of each row.
        rows_: `[m, d]`, the rows of `sample_`, by which `locate` tells rows unlike all of them.
        metric_: `"cosine"` or `"euclidean"`.
        smoother_: the `smooth.Smoother` of the leaves.
        ids_: int64 `[n]`, after `update`: the cluster of all rows so far, in their order. An id
            keeps its meaning and is never used twice.
        events_: after `update`: what it has done to each cluster, see `living.Event`.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 8)) + 9 * (np.arange(300) % 3)[:, None]
        >>> model = SmoothTree(metric="euclidean").fit(x)
        >>> model.n_clusters_, model.verdict_, len(np.unique(model.cut(k=2)))
        (3, 'clear', 2)
    """

    scores_: dict[int, float]
    _living: living.State | None = None
    _grown: living.Repeated

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
        x = numeric(X, "X", smooth.LARGEST)
        validate_data(self, stacked(X, "X"), reset=True, skip_check_array=True)
        return self.fit_rows(x)

    def fit_rows(self, x: Rows, originals: NDArray | None = None) -> Self:
        """Clusters finite rows `[n, d]` that are read a part at a time, such as `Shards`.

        Args:
            x: the rows, which need not fit into memory; their order matters, if they are no array.
            originals: int `[n]`, the row that stands for each row, itself if it is no copy: copies
                that are known by something else than their rows. None: there are none.
        """
        n, self.n_features_in_ = x.shape
        self._living = None
        if originals is not None:
            kept, place = np.unique(originals, return_inverse=True)
            if len(kept) >= max(self.n_clusters or 1, self.min_cluster_size or 1):
                return self._fit(np.asarray(x[kept]), kept, place)
        return self._fit(x, np.arange(n), np.arange(n))

    def _fit(self, x: Rows, kept: NDArray, place: NDArray) -> Self:
        """Clusters rows that are the rows `kept` of all; `place` is where each of these stands."""
        n, d = x.shape
        checks.one_of("metric", self.metric, METRICS)
        for name in ("n_clusters", "min_cluster_size"):
            if (value := getattr(self, name)) is not None:
                checks.whole(name, value, 1, n)
        seed = self._seed()
        rng = np.random.default_rng(seed)
        is_few = self.metric == "auto" and d <= FEW_AXES
        self.metric_ = "cosine" if self.metric == "auto" else self.metric
        self.metric_ = "euclidean" if is_few else self.metric_
        if n <= MAX_ROWS:
            first, self.leaves_ = self._distinct(np.asarray(x[:]))
            rows = smooth.dequantize(x[first], seed)
            both: tuple[smooth.Smoother, ...] = (smooth.fit(rows, self.metric_),)
            self.sample_ = first
        else:
            order = copies.order_of(x) if isinstance(x, np.ndarray) else np.arange(n)
            how = (min(SAMPLE, n), min(MAX_ROWS, n // 2), self.metric_, seed)
            both, self.leaves_ = smooth.fit_all(x, order, *how)
            self.sample_ = order[np.unique(self.leaves_[order], return_index=True)[1]]
            rows = np.asarray(x[self.sample_])
        self.rows_ = np.asarray(x[self.sample_])
        self.sample_, self.leaves_ = kept[self.sample_], self.leaves_[place]
        levels = self._find(rows, both, rng)
        sizes = np.bincount(self.leaves_)
        self.linkage_ = _nested(self.smoother_, sizes, levels)
        self.n_clusters_ = int(levels[0].max()) + 1
        labels = _by_size(levels[0][self.leaves_], self.sample_)[levels[0]]
        self._shares = membership.shares(self.smoother_, labels)
        of_leaves = membership.membership(labels, self._shares)
        of_rows = (column[self.leaves_] for column in of_leaves)
        self.labels_, self.probabilities_, self.runners_up_, self.runner_up_probabilities_ = of_rows
        return self

    def update(self, X: ArrayLike) -> Self:
        """Adds the rows `X` float `[m, d]` to those so far, whose clusters keep their ids.

        The first rows are those of `fit`, or of the first call. Of these `labels_`, `predict` and
        `cut` tell, also later; `ids_` and `events_` are of all rows, see `living`. Of more than
        4,000 rows a sample and the new ones are clustered, and more than 16,000 rows of `fit` are
        those of their micro-clusters.

        Raises:
            ValueError: an argument or the rows are invalid.
        """
        is_empty = len(np.asarray(X)) == 0
        if not hasattr(self, "labels_"):
            self.fit(X)
            is_empty = True
        if self._living is None:
            self._living = living.start(self.labels_)
            self._grown = living.Repeated(self.rows_, self.leaves_)
        if not is_empty:
            self._grown = self._grown.joined(self._new(X))
            self._living = living.update(self._living, self._grown, self.look)
        elif self._living.updates:
            self._living = self._living._replace(events=())
        return self

    @property
    def ids_(self) -> NDArray:
        """See the class."""
        return self._updated.ids

    @property
    def events_(self) -> tuple[living.Event, ...]:
        """See the class."""
        return self._updated.events

    @property
    def _updated(self) -> living.State:
        if self._living is None:
            raise AttributeError("ids_ and events_ are there after update; got none yet")
        return self._living

    def look(self, x: NDArray) -> living.Look:
        """Clusters rows `[m, d]` by another estimator of these arguments, for `living.update`."""
        model = clone(self).fit(x)
        return living.Look(model.labels_, model.predict, model.smoother_.sharp, model.leaves_)

    def _seed(self) -> int:
        if isinstance(self.random_state, np.random.RandomState) or self.random_state is None:
            return int(check_random_state(self.random_state).randint(2**31))
        checks.whole("random_state", self.random_state, 0)
        return int(self.random_state)

    def _distinct(self, x: NDArray) -> tuple[NDArray, NDArray]:
        """Returns the rows without copies; near copies part if more clusters are asked for."""
        first, leaves = copies.originals(x, self.metric_)
        wanted = self.n_clusters or 1
        if len(first) < wanted:
            first, leaves = copies.originals(x, self.metric_, near=False)
            checks.at_most("n_clusters", wanted, len(first), "distinct rows")
        return first, leaves

    def cut(self, *, k: int | None = None, level: float | None = None) -> NDArray:
        """Returns the labels int64 `[n]` at another cut of the tree; by default `labels_`.

        Groups of a coarser cut are unions of the clusters of `labels_`, those of a finer one parts
        of them.

        Args:
            k: number of groups, 1 to the number of rows in the tree.
            level: height, as a fraction of the highest merge, 0 to 1; merges above it are undone.
        """
        check_is_fitted(self)
        if k is None and level is None:
            return self.labels_
        return cut(self.linkage_, self.sample_, self.leaves_, k=k, level=level)

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
        x, leaves = self._new(X), self.labels_[self.sample_]
        return membership.of_new_rows(self.smoother_, leaves, self._shares, x).labels

    def predict_proba(self, X: ArrayLike) -> NDArray:
        """Computes the probability of each cluster for each row of `X`, float64 `[m, n_clusters_]`.

        Of a training row it is that of `probabilities_`.
        """
        x = self._new(X)
        return membership.probabilities(self.smoother_, self._shares, x)

    def locate(
        self, X: ArrayLike, *, k: int | None = None, level: float | None = None
    ) -> Assignment:
        """Returns clusters of the rows of `X` float `[m, d]`, how sure they are, and what is novel.

        Rows do not affect each other. With `k` or `level` the groups are those of `cut`.
        """
        x = self._new(X)
        labels = None if k is None and level is None else self.cut(k=k, level=level)
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
        smoother = self.smoother_._asdict()
        stages = {f"stage_{i}": rows for i, rows in enumerate(smoother.pop("stages"))}
        parameters = self.get_params()
        if not isinstance(parameters["random_state"], int | np.integer):
            parameters["random_state"] = None
        tried = list(self.scores_.items())
        stored = {
            "kind": type(self).__name__,
            "version": __version__,
            "parameters": json.dumps(parameters, default=int),
            "scores_": np.array(tried, np.float64).reshape(-1, 2),
            **{name: getattr(self, name) for name in _STORED},
            **{f"smoother.{k}": v for k, v in {**smoother, **stages}.items() if v is not None},
        }
        if self._living is not None:
            of_state = living.to_arrays(self._living)
            stored |= {f"living.{name}": value for name, value in of_state.items()}
            stored |= {"living.x": self._grown.rows, "living.leaves": self._grown.leaves}
        return {name: np.asarray(value) for name, value in stored.items()}

    @classmethod
    def from_arrays(cls, stored: Mapping[str, NDArray]) -> Self:
        """Restores the estimator of `to_arrays`.

        Raises:
            InputError: another version of the package has stored something else.
        """
        try:
            model = cls(**json.loads(stored["parameters"].item()))
            for name in _STORED:
                value = stored[name]
                setattr(model, name, value if value.ndim else value.item())
            names = set(Smoother._fields) - {"stages"}
            fields: dict[str, Any] = {
                name: stored[f"smoother.{name}"] for name in names if f"smoother.{name}" in stored
            }
            fields |= {name: bool(fields[name]) for name in ("is_cosine", "by_mass")}
            stages = tuple(stored[f"smoother.stage_{i}"] for i in range(smooth.N_ROUNDS))
            model.smoother_ = Smoother(**fields, stages=stages)
            model.scores_ = {int(k): score for k, score in stored["scores_"].tolist()}
        except (KeyError, TypeError) as error:
            version = stored.get("version", np.asarray("an older version")).item()
            raise InputError(
                f"the stored clusters must be of cluster_jax {__version__}; got those of {version}"
                f" ({error}): fit again, or use that version"
            ) from error
        model._shares = membership.shares(model.smoother_, model.labels_[model.sample_])
        parts = {name.removeprefix("living."): stored[name] for name in stored if "living." in name}
        if parts:
            model._living = living.from_arrays(parts)
            model._grown = living.Repeated(parts["x"], parts["leaves"])
        return model

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "version": __version__}

    def _new(self, X: ArrayLike) -> NDArray:
        check_is_fitted(self)
        x = numeric(X, "X", smooth.LARGEST)
        validate_data(self, stacked(X, "X"), reset=False, skip_check_array=True)
        return x

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

    def _find(
        self, x: NDArray, both: Sequence[Smoother], rng: np.random.Generator
    ) -> list[NDArray]:
        """Finds nested labels of the leaves `[m, d]`, the finest first; sets the verdict.

        Of several representations the one of the highest score is taken.
        """
        sizes, wanted = np.bincount(self.leaves_), self.n_clusters
        labels, scores = np.zeros(len(x), np.int64), dict[int, float]()
        self.smoother_, self.gap_, self.verdict_ = both[0], float("nan"), ONE
        if len(x) > 1 if wanted else len(x) >= MIN_ROWS and both[0].sharp.any():
            searches = [(*_search(rows, wanted), rows) for rows in both]
            labels, scores, self.smoother_ = max(searches, key=lambda each: max(each[1].values()))
        self.scores_ = {} if wanted else scores
        if wanted:
            self.verdict_ = UNCLEAR
        elif scores:
            labels, self.gap_, self.verdict_ = _split(x, self.smoother_, labels, rng)
        levels = [labels]
        # Clusters of HDBSCAN are final.
        may_split = np.isfinite(self.gap_) and self.verdict_ != ONE
        while may_split and (parts := _deeper(x, levels[0], self.metric_, rng)) is not None:
            levels.insert(0, parts)
        if may_split:
            levels.insert(0, _with_rare(x, levels[0], self.metric_, rng))
        if self.min_cluster_size is not None:
            joined = _joined(self.smoother_.sharp, sizes, levels[0], self.min_cluster_size)
            levels = [joined, *(level for level in levels if _is_nested(joined, level))]
        return levels


def cut(
    linkage: NDArray, sample: NDArray, leaves: NDArray, *, k: int | None, level: float | None
) -> NDArray:
    """Returns the labels of all rows at a cut of the tree, int64 `[n]`, largest first.

    Args:
        linkage: float `[m - 1, 4]`, `SmoothTree.linkage_`.
        sample: int `[m]`, `SmoothTree.sample_`.
        leaves: int `[n]`, `SmoothTree.leaves_`.
        k: number of groups, 1 to m.
        level: height, as a fraction of the highest merge, 0 to 1; merges above it are undone.

    Raises:
        ValueError: not one of `k` and `level` is given, or it is out of range.

    Example:
        >>> linkage = np.array([[0, 1, 1.0, 2], [2, 3, 4.0, 3]])
        >>> rows = np.arange(3)
        >>> cut(linkage, rows, rows, k=1, level=None).tolist()
        [0, 0, 0]
        >>> cut(linkage, rows, rows, k=None, level=0.5).tolist()
        [0, 0, 1]
    """
    if level is not None and k is None:
        checks.between("level", level, 0, 1)
        k = 1 + int((linkage[:, 2] > level * linkage[:, 2].max(initial=0)).sum())
    elif k is None or level is not None:
        raise InputError(f"one of k and level must be given; got k={k} and level={level}")
    checks.whole("k", k, 1, len(sample))
    placed = tree.cut_tree(linkage, int(k))[leaves]
    return _by_size(placed, sample)[placed]


def cluster_linkage(linkage: NDArray, labels: NDArray) -> NDArray:
    """Returns the tree above a cut into k groups as a linkage of these, float64 `[k - 1, 4]`.

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


def silhouettes(
    rows: NDArray,
    labels: NDArray,
    counts: NDArray | None = None,
    squares: NDArray | None = None,
    step: int = 1,
) -> NDArray:
    """Computes each row's silhouette with squared distances, float64 `[n]`; 0 for a lone row.

    Mean squared distances follow from means and mean squares, so that no two rows are compared.

    Args:
        rows: `[n, r]`.
        labels: int `[n]`, 0 to k - 1, none of them empty.
        counts: how many rows each row is the mean of; None: one.
        squares: mean squares of these; None: the square of the row.
        step: of the rows, of which only every so many-th is looked at.

    Example:
        >>> silhouettes(np.array([[0.0], [1.0], [4.0], [5.0]]), np.array([0, 0, 1, 1])).round(2)
        array([0.95, 0.92, 0.92, 0.95])
    """
    sizes, means, members = _means(rows, labels, counts)
    squares = np.square(rows).sum(axis=1) if squares is None else squares
    of_clusters = (members @ squares / sizes)[None, :]
    rows, labels, squares = rows[::step], labels[::step], squares[::step]
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


def _silhouette(rows: Smoother, labels: NDArray, step: int = 1, *, smooth: bool = False) -> float:
    """Averages the silhouettes of every `step`-th sharp or smooth row."""
    x = rows.smooth if smooth else rows.sharp
    # Smooth rows have hardly any spread in a micro-cluster.
    values = silhouettes(x, labels, rows.counts, None if smooth else rows.squares, step)
    return float(np.average(values, weights=None if rows.counts is None else rows.counts[::step]))


def _split(x: NDArray, rows: Smoother, labels: NDArray, rng: np.random.Generator) -> Split:
    """Takes steps 3 and 4 with rows `[n, d]` and the labels of the highest score."""
    is_flat = 2 <= rows.sharp.shape[1] <= FEW_AXES
    dense = _dense(rows.sharp, 5) if is_flat else None
    if dense is not None:
        again = _dense(rows.sharp, 10)
        is_clear = again is not None and again.max() == dense.max()
        is_clear = is_clear and adjusted_rand_score(again, dense) >= NEARLY_ALL
        return Split(dense, float("inf"), CLEAR if is_clear else UNCLEAR)
    k, expected = int(labels.max()) + 1, []
    for _ in range(min(max(1, _NULL_ROWS // len(x)), _NULLS)):
        null = _null(x, rows, rng)
        parts = _partition(null, tree.ward(null.smooth), min(k, len(null.sharp) // 2))
        expected.append(_silhouette(null, parts))
    mean, deviation = max(float(np.mean(expected)), 0.0), float(np.std(expected))
    gap = _silhouette(rows, labels) - mean
    is_one = gap < max(MIN_GAP, MIN_DEVIATIONS * deviation)
    if is_one or (is_flat and _links_inside(rows.sharp, labels) < MOST_LINKS):
        return Split(np.zeros_like(labels), gap, ONE)
    is_clear = gap - 2 * MIN_DEVIATIONS * deviation >= CLEAR_GAP * (1 - mean)
    is_clear = is_clear and len(x) > smooth.DENSE_SIZE
    return Split(labels, gap, CLEAR if is_clear else UNCLEAR)


def _score(rows: Smoother, labels: NDArray, step: int = 1) -> float:
    """Averages both silhouettes."""
    return float(
        np.mean([_silhouette(rows, labels, step, smooth=smooth) for smooth in (False, True)])
    )


def _search(rows: Smoother, wanted: int | None = None) -> tuple[NDArray, dict[int, float]]:
    """Returns the labels of the highest score, or of so many clusters, and the score of each k."""
    linkage = tree.ward(rows.smooth)
    m = len(rows.sharp)
    n = m if rows.counts is None else int(rows.counts.sum())
    most = max(2, min(n // 5, m - 1), min(n // 3, 12))
    tried = [*range(2, 20), *(20 * 2**i for i in range(20))]
    grid = [wanted] if wanted else [*(k for k in tried if k < most), most]
    scores: dict[int, float] = {}
    labels, best = np.zeros(m, np.int64), 0
    while grid:  # The grid, then numbers halfway between the best one and the next.
        for k in grid:
            parts = _partition(rows, linkage, k) if k <= _MANY else _cut(linkage, k)
            score = _score(rows, parts, 1 if k <= _MANY else -(-m // _MANY_ROWS))
            if score > max(scores.values(), default=-np.inf):
                labels, best = parts, k
            scores[k] = score
        tried = sorted(scores)
        place = tried.index(best)
        low, high = tried[max(place - 1, 0)], tried[min(place + 1, len(tried) - 1)]
        grid = [k for k in ((low + best) // 2, (best + high) // 2) if k not in scores]
    labels = _partition(rows, linkage, best) if best > _MANY else labels
    if wanted and labels.max() + 1 < wanted:  # No sharp row is nearest to some mean.
        labels = tree.cut_tree(linkage, wanted)
    return labels, scores


def _partition(rows: Smoother, linkage: NDArray, k: int) -> NDArray:
    """Makes at most k clusters: Ward's groups of smooth rows, k-means, then nearest sharp means."""
    labels = _cut(linkage, k)
    for _ in range(10):
        previous, labels = labels, _to_nearest_mean(rows.smooth, labels, rows.counts)
        if np.array_equal(labels, previous):
            break
    return _to_nearest_mean(rows.sharp, labels, rows.counts)


def _cut(linkage: NDArray, k: int) -> NDArray:
    return hierarchy.fcluster(linkage, k, "maxclust").astype(np.int64) - 1


def _to_nearest_mean(rows: NDArray, labels: NDArray, counts: NDArray | None) -> NDArray:
    _, means, _ = _means(rows, labels, counts)
    nearest, squares = np.empty(len(rows), np.int64), np.square(means).sum(axis=1)
    for part in blocks(len(rows), len(means)):
        nearest[part] = (2 * rows[part] @ means.T - squares).argmax(axis=1)
    return np.unique(nearest, return_inverse=True)[1]


def _null(x: NDArray, rows: Smoother, rng: np.random.Generator) -> Smoother:
    """Draws rows without clusters, in a representation of as many axes."""
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
    """Computes the share of links between nearest neighbors that no cluster's edge cuts."""
    near = knn.nearest(rows, rows, n_neighbors(len(rows)), exclude_self=True).indices
    return float((labels[near] == labels[:, None]).mean())


def _dense(rows: NDArray, min_samples: int) -> NDArray | None:
    """Returns HDBSCAN's clusters if they hold most rows; others go to the nearest clustered row."""
    size = max(5, min(smooth.DENSE_SIZE, len(rows) // 20))
    from sklearn.cluster import HDBSCAN  # Not before: a service needs none.

    search = HDBSCAN(min_cluster_size=size, min_samples=min_samples, copy=True)
    labels = search.fit_predict(rows.astype(np.float64)).astype(np.int64)
    held = labels >= 0
    if labels.max() < 1 or held.mean() < DENSE_SHARE:
        return None
    labels[~held] = labels[held][knn.nearest(rows[~held], rows[held], 1).indices[:, 0]]
    return labels


def _deeper(x: NDArray, labels: NDArray, metric: str, rng: np.random.Generator) -> NDArray | None:
    """Splits all clusters and labels the parts; None unless clusters of nearly all rows split."""
    n = len(x)
    whole, parts, n_parts = 0, np.zeros(n, np.int64), 0
    for members in sorted(_members(labels), key=len, reverse=True):
        inside = np.zeros(len(members), np.int64)
        if len(members) >= _MIN_SPLIT:
            rows = smooth.fit(x[members], metric)
            inside = _split(x[members], rows, _search(rows)[0], rng).labels
        whole += 0 if inside.any() else len(members)
        if whole > (1 - NEARLY_ALL) * n:
            return None
        parts[members] = n_parts + inside
        n_parts += int(inside.max()) + 1
    return parts


def _with_rare(x: NDArray, labels: NDArray, metric: str, rng: np.random.Generator) -> NDArray:
    """Makes a small part of a cluster that stands apart a cluster of its own."""
    labels = labels.copy()
    for members in _members(labels):
        if len(members) >= MIN_ROWS**2:
            rows = smooth.fit(x[members], metric)
            score, part = _part_apart(rows, NEARLY_ALL)
            if part:
                nulls = [_part_apart(_null(x[members], rows, rng), 0)[0] for _ in range(2)]
                if score - max(float(np.mean(nulls)), 0.0) >= CLEAR_GAP / 2:
                    labels[members[part]] = labels.max() + 1
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
                score = silhouettes(rows.sharp, inside.astype(np.int64))[inside].mean()
                best = max(best, (float(score), part))
    return best


def _joined(sharp: NDArray, sizes: NDArray, labels: NDArray, least: int) -> NDArray:
    """Merges the smallest cluster with the nearest until each has at least `least` rows."""
    while True:
        counts, means, _ = _means(sharp, labels, sizes.astype(np.float32))
        small = int(counts.argmin())
        if counts[small] >= least or len(counts) == 1:
            return labels
        apart = np.square(means - means[small]).sum(axis=1)
        apart[small] = np.inf
        labels = np.where(labels == small, apart.argmin(), labels)
        labels = np.unique(labels, return_inverse=True)[1]


def _is_nested(fine: NDArray, coarse: NDArray) -> bool:
    """Returns whether every cluster of the finer labels is inside one of the coarser."""
    return len(np.unique(np.stack([fine, coarse]), axis=1).T) == fine.max() + 1


def _nested(rows: Smoother, sizes: NDArray, levels: list[NDArray]) -> NDArray:
    """Joins nested labels in one linkage of all leaves, float64 `[n - 1, 4]`: each level is a cut.

    Args:
        rows: of n leaves.
        sizes: int `[n]`, rows of each leaf.
        levels: nested labels, the finest first.
    """
    n = len(sizes)
    merges: list[tuple[float, float, float, float]] = []
    highest = 0.0
    # The groups so far: their node in the tree, size, mean, and one of their rows.
    node, means, row = np.arange(n), rows.smooth.astype(np.float64), np.arange(n)
    sizes = sizes.astype(np.float64)
    for labels in (*levels, np.zeros(n, np.int64)):
        members = _members(labels[row])
        trees = [_weighted_ward(sizes[part], means[part]) for part in members]
        nodes = [node[part].tolist() for part in members]
        steps = ((step[2], g, i) for g, merged in enumerate(trees) for i, step in enumerate(merged))
        for height, g, i in sorted(steps):
            first, second, _, size = trees[g][i]
            highest = max(highest, height)
            merges.append((nodes[g][int(first)], nodes[g][int(second)], highest, size))
            nodes[g].append(n + len(merges) - 1)
        node = np.array([part[-1] for part in nodes])
        means = np.stack([np.average(means[part], axis=0, weights=sizes[part]) for part in members])
        sizes = np.array([sizes[part].sum() for part in members])
        row = row[[part[0] for part in members]]
    return np.array(merges, np.float64).reshape(-1, 4)


def _weighted_ward(sizes: NDArray, means: NDArray) -> NDArray:
    """Builds Ward's tree of means, with the heights and sizes that groups of those sizes have."""
    if len(means) == 1:
        return np.empty((0, 4))
    merges = tree.ward(means)
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


def _means(
    rows: NDArray, labels: NDArray, counts: NDArray | None
) -> tuple[NDArray, NDArray, sparse.csr_array]:
    """Computes sizes float32 `[k]` and means `[k, r]` of clusters, and their members `[k, n]`."""
    n = len(labels)
    counts = np.ones(n, np.float32) if counts is None else counts
    sizes = np.bincount(labels, counts).astype(np.float32)
    members = sparse.csr_array((counts, (labels, np.arange(n))), shape=(len(sizes), n))
    return sizes, members @ rows / sizes[:, None], members


def _members(labels: NDArray) -> list[NDArray]:
    """Lists the rows of each cluster `[n]`, 0 to k - 1: k arrays int64."""
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.cumsum(np.bincount(labels))[:-1])


def _by_size(labels: NDArray, sample: NDArray) -> NDArray:
    """Numbers labels by size, int64 `[k]`: the largest first, ties by the order of the sample."""
    _, first = np.unique(labels[sample], return_index=True)
    rank = np.empty(len(first), np.int64)
    rank[np.lexsort((first, -np.bincount(labels)))] = np.arange(len(first))
    return rank
