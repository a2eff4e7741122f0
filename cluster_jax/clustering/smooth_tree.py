"""`SmoothTree`: clusters of features, their number, and a tree of coarser and finer groups.

The docstring of `tree_fit` describes the algorithm.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    TransformerMixin,
)
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from cluster_jax import __version__
from cluster_jax.clustering import membership, representation, stable_ids, tree, tree_fit
from cluster_jax.clustering.base import NO_CLUSTER, UNCLEAR, Assignment
from cluster_jax.clustering.representation import Smoother
from cluster_jax.clustering.stable_ids import Repeated
from cluster_jax.clustering.tree_fit import TreeFit
from cluster_jax.core import checks, io
from cluster_jax.core.arrays import Rows, numeric, rows_of
from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted

# Attributes of `TreeFit` that are stored as they are.
_STORED = ("leaves", "sample", "linkage", "seed", "verdict", "gap")


class SmoothTree(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):
    """Finds clusters of features, their number, and a tree of coarser and finer groups.

    `X` is `[n, d]`: finite numbers of at most 1e150, else methods raise a `ValueError`, or a
    `TypeError` if it is no array of numbers, such as a sparse matrix. New rows have the columns of
    the fit and do not affect each other. Before a fit, methods raise a `NotFittedError`.

    Args:
        metric: `"cosine"`, for features of networks; `"euclidean"`; or `"auto"`: Euclidean for at
            most three columns, else cosine.
        n_clusters: number of clusters; None: it is found.
        random_state: seed of everything that is drawn: an integer, a `RandomState`, or None for
            another seed in each fit.

    Attributes:
        labels_: int64 `[n]`, clusters by size, the largest is 0; after `partial_fit` the numbers
            stay. -1: the row is in no cluster, because it is zero and has no cosine.
        probabilities_: float64 `[n]`, of each row's cluster. `predict_proba` gives the same, but
            not if the fit has condensed the rows (above 16,000), or has added noise to columns of
            rounded numbers.
        second_labels_: int64 `[n]`, the most probable other cluster, -1 without one. It is the more
            probable one for 4 to 9 % of the rows of photos, which lie between two clusters.
        second_probabilities_: float64 `[n]`.
        n_clusters_: number of clusters.
        verdict_: a statement about `labels_`. `"clear"`: rows are rare between each cluster and its
            nearest ones, and no cluster has parts with rare rows between them, but for clusters
            of at most 5 % of the rows; parts of fewer than six rows are not looked for, nor those
            that lie closer together than they are wide: scale the columns first. `"one_cluster"`:
            there are no such parts. `"unclear"`: the clusters are a best guess;
            with `n_clusters` always, and after `partial_fit` unless the clusters are those of a
            new fit.
        gap_: silhouette of the first split of the rows, less that of rows without clusters;
            infinite for clusters of HDBSCAN; NaN with `n_clusters` and for fewer than 6 distinct
            rows.
        scores_: score of each number of clusters that was tried first; empty with `n_clusters`.
        linkage_: float64 `[m - 1, 4]`, the tree of m distinct rows or micro-clusters, as in SciPy.
        metric_: `"cosine"` or `"euclidean"`.
        changes_: the changes of clusters by the last `partial_fit`, see
            `cluster_jax.clustering.stable_ids.Event`.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 8)) + 9 * (np.arange(300) % 3)[:, None]
        >>> model = SmoothTree(metric="euclidean").fit(x)
        >>> model.n_clusters_, model.verdict_, len(np.unique(model.cut(n_clusters=2)))
        (3, 'clear', 2)
    """

    def __init__(
        self,
        metric: str = "auto",
        n_clusters: int | None = None,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.metric = metric
        self.n_clusters = n_clusters
        self.random_state = random_state

    def fit(self, X: ArrayLike | Rows, y: None = None) -> Self:
        """Clusters the rows of `X`; `y` is ignored. Rows in no cluster warn.

        Rows that need not fit into memory, such as `cluster_jax.data.arrays.Shards`, are read in
        blocks. They are not checked, their order matters, and rows of zeros are in clusters.

        Raises:
            ValueError: a parameter is out of range, or there are fewer distinct rows than
                `n_clusters`. Then the results of an earlier fit are gone.
        """
        self._forget()
        x = rows_of(X, "X", representation.LARGEST)
        fitted = tree_fit.fit(x, self.metric, self.n_clusters, self._seed())
        self._set_state(fitted, stable_ids.start(fitted.labels))
        validate_data(self, X, reset=True, skip_check_array=True)
        if without := int((self.labels_ == NO_CLUSTER).sum()):
            rows = counted(without, "row is", "rows are")
            checks.warn(f"{rows} in no cluster: zeros alone, which have no direction", 2)
        return self

    def _set_state(
        self, fitted: TreeFit, state: stable_ids.State, merges: NDArray | None = None
    ) -> Self:
        """Sets the results: a fit, but with the clusters of a state of its rows, and their tree."""
        pairs = np.unique(np.stack([fitted.labels, state.ids]), axis=1)
        is_same = all(len(np.unique(labels)) == pairs.shape[1] for labels in pairs)
        verdict = fitted.verdict if is_same else UNCLEAR  # It is about the clusters of the fit.
        shown: dict[str, Any] = {"labels": state.ids, "verdict": verdict, "earlier": merges}
        self._fit_ = fitted = dataclasses.replace(fitted, **shown)
        self._state_ = state
        self.n_features_in_ = fitted.known.shape[1]
        self.labels_ = state.ids
        self.changes_ = state.events
        self.n_clusters_ = len(fitted.ids)
        self.linkage_ = fitted.linkage
        self.metric_ = fitted.smoother.metric
        self.verdict_ = fitted.verdict
        self.gap_ = fitted.gap
        self.scores_ = fitted.scores
        _, *known = fitted.membership
        self.probabilities_, self.second_labels_, self.second_probabilities_ = known
        return self

    def partial_fit(self, X: ArrayLike, y: None = None) -> Self:
        """Adds rows; afterwards all results are of the old and the new rows. `y` is ignored.

        A call takes as long as a fit of all rows, however few are new: all rows are clustered
        again, in their order, and the clusters keep their numbers, see `stable_ids`. Above 16,000
        rows, one row of its micro-cluster replaces each earlier row, and counts as often. A new
        cluster is added even if `n_clusters` was given. Errors are those of `fit`, but the results
        of an earlier fit stay.
        """
        if not hasattr(self, "labels_"):
            return self.fit(X)
        every = self._fit_.known.joined(self._new(X))
        fitted = tree_fit.fit(every, self.metric, self.n_clusters, self._seed())
        before = self.labels_
        state = tree_fit.numbered(self._state_, every, fitted)
        stayed = np.stack([before, state.ids[: len(before)]])
        is_same = tree.are_same_clusters(before, stayed, state.ids)
        return self._set_state(fitted, state, self._fit_.merges if is_same else None)

    def __sklearn_tags__(self) -> Tags:
        """Returns the tags of scikit-learn; the result of `transform` is always float32."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags

    @property
    def _n_features_out(self) -> int:
        """Number of columns of `transform`, from which scikit-learn names them."""
        return self._fit_.smoother.smooth.shape[1]

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

        Fewer groups than clusters are unions of clusters, and a union has the lowest number of its
        clusters. As long as `partial_fit` only adds rows to the clusters, the unions and their
        numbers stay. More groups than clusters are
        parts of clusters, numbered by size, the largest is 0; after `partial_fit`, they are groups
        of the last fit, which may lie in several clusters. Rows in no cluster stay -1.

        Args:
            n_clusters: number of groups, 1 to m, else it is a `ValueError`.
        """
        check_is_fitted(self)
        if n_clusters is None:
            return self.labels_
        fitted = self._fit_
        checks.whole("n_clusters", n_clusters, 1, len(fitted.sample))
        if n_clusters <= self.n_clusters_:
            return fitted.unions(n_clusters)
        return tree.cut(self.linkage_, self.labels_, fitted.leaves, n_clusters)

    def transform(self, X: ArrayLike) -> NDArray:
        """Returns smooth rows, float32 `[n, r]`, in which clusters are denser, e.g. for k-means.

        Each is the mean of the smooth rows of the training rows, or micro-clusters, that are
        nearest to the row, see `cluster_jax.clustering.representation`. With the cosine, that of a
        row of zeros has no meaning.
        """
        x = self._new(X)
        return self._fit_.smoother.transform(x)

    def predict(self, X: ArrayLike) -> NDArray:
        """Returns the cluster of each row, int64 `[n]`; -1 for a row of zeros with the cosine."""
        x = self._new(X)
        return self._fit_.place(x)

    def predict_proba(self, X: ArrayLike) -> NDArray:
        """Returns the probability of each cluster for each row, float64 `[n, n_clusters_]`.

        The columns are the clusters of `labels_` in ascending order, without -1. The probabilities
        of a row of zeros mean nothing with the cosine.
        """
        x = self._new(X)
        fitted = self._fit_
        return membership.probabilities(fitted.smoother, fitted.ids, fitted.shares, x)

    def assign(self, X: ArrayLike, *, n_clusters: int | None = None) -> Assignment:
        """Returns the clusters of rows, their probabilities, and novelty.

        `n_clusters` selects another cut of the tree, see `cut`.
        """
        x = self._new(X)
        if n_clusters is None:
            return self._fit_.placer.place(x)
        return self._fit_.placer.place(x, self.cut(n_clusters=n_clusters))

    def score_samples(self, X: ArrayLike) -> NDArray:
        """Returns minus the novelty of rows, float64 `[n]`: at most 0, for a novel row below -1."""
        return -self.assign(X).novelty

    def save(self, path: str | os.PathLike) -> None:
        """Writes the fitted estimator to a `.npz` file, local or in a bucket; nothing is pickled.

        An existing file is replaced. A file that cannot be written is an `OSError`.
        """
        check_is_fitted(self)
        parameters = self.get_params()
        if not isinstance(parameters["random_state"], int | np.integer):
            parameters["random_state"] = None
        fitted = self._fit_
        smoother = fitted.smoother._asdict().items()
        stored = {
            "kind": type(self).__name__,
            "version": __version__,
            "parameters": json.dumps(parameters, default=int),
            "scores": np.array(list(self.scores_.items()), np.float64).reshape(-1, 2),
            **{name: getattr(fitted, name) for name in _STORED},
            "merges": fitted.merges,
            "known.rows": fitted.known.rows,
            "known.leaves": fitted.known.leaves,
            "columns": np.asarray(getattr(self, "feature_names_in_", ()), np.str_),
            **{f"smoother.{name}": part for name, part in smoother if part is not None},
            **{f"state.{k}": part for k, part in stable_ids.to_arrays(self._state_).items()},
        }
        io.write_arrays(path, {name: np.asarray(value) for name, value in stored.items()})

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Returns the fitted estimator in a file of `save`; a `RandomState` has become None.

        Raises:
            OSError: the file does not exist or cannot be read.
            ValueError: the file was not written by `save` of this version, or is damaged.
        """
        stored = io.read_arrays(path)
        if stored.get("kind", np.asarray("")).item() != cls.__name__:
            raise InputError(f"{path} must be a file of SmoothTree.save; got other arrays")
        try:
            model = cls(**json.loads(stored["parameters"].item()))
            plain: dict[str, Any] = {k: v if v.ndim else v.item() for k, v in stored.items()}
            smoother = {k.removeprefix("smoother."): plain[k] for k in plain if "smoother." in k}
            parts = {k.removeprefix("state."): v for k, v in stored.items() if "state." in k}
            state = stable_ids.from_arrays(parts)
            merges = stored["merges"]
            if len(columns := stored["columns"]):
                model.feature_names_in_ = columns.astype(object)
            fitted = TreeFit(
                labels=state.ids,
                known=Repeated(plain["known.rows"], plain["known.leaves"]),
                smoother=Smoother(**smoother),
                n_clusters=model.n_clusters,
                scores={int(k): score for k, score in stored["scores"].tolist()},
                **{name: plain[name] for name in _STORED},
            )
        except (KeyError, TypeError) as error:
            version = stored.get("version", np.asarray("an older version")).item()
            raise InputError(
                f"the stored clusters must be of cluster_jax {__version__}; got those of {version}"
                f" ({error}): fit again, or use that version"
            ) from error
        return model._set_state(fitted, state, merges)

    def _new(self, X: ArrayLike) -> NDArray:
        """Returns new rows as an array; errors are those of `predict`."""
        check_is_fitted(self)
        x = numeric(X, "X", representation.LARGEST)
        validate_data(self, X, reset=False, skip_check_array=True)
        return x
