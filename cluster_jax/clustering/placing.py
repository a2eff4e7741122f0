"""How new rows get a cluster: by the tree, by votes of training rows, or by centers."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cluster_jax.clustering import membership
from cluster_jax.clustering.base import NO_CLUSTER, Assignment
from cluster_jax.clustering.representation import Smoother
from cluster_jax.core import arrays, knn
from cluster_jax.core.checks import InputError
from cluster_jax.core.knn import Neighbors

# Share of the training rows that are within the threshold of another one; number of rows by which
# it is set, at most: by 5,000 rows the share has a standard error of 0.3 %.
_WITHIN, _SAMPLE = 0.95, 5_000
# Largest 1 - cosine of a row and its copy, whose lengths are rounded to one in float32.
_ROUNDING = 1e-12


class Voters(NamedTuple):
    """Training rows, ready to be compared with new rows.

    Attributes:
        rows: float `[n, d]`, for cosine of length one or zero.
        metric: `"cosine"` or `"euclidean"`.
        threshold: see `novelty_threshold`.
    """

    rows: NDArray
    metric: str
    threshold: float

    def nearest(self, x: NDArray, count: int = 1) -> Neighbors:
        """Returns the `count` nearest training rows of new rows `[m, d]`, see `knn.nearest`.

        With the cosine, the new rows may have any length.

        Raises:
            InputError: the new rows are not finite.
        """
        if not np.isfinite(x).all():
            must = "rows must be finite; got NaN or infinity"
            raise InputError(f"{must}: the network may not suit these images")
        if self.metric == "cosine":
            x = arrays.normalize_rows(x).astype(self.rows.dtype)
        return knn.nearest(x, self.rows, count, metric=self.metric)

    def novelty(self, near: Neighbors) -> NDArray:
        """Returns the novelty of new rows, float64 `[m]`, from the result of `nearest`.

        A copy of a training row has the novelty 0. If the threshold is 0, all other rows have an
        infinite novelty.
        """
        nearest = near.distances[:, 0].astype(np.float64)
        least = _ROUNDING if self.metric == "cosine" else 0.0
        with np.errstate(divide="ignore", invalid="ignore"):  # All training rows may be copies.
            return np.where(nearest > least, nearest / self.threshold, 0.0)


def voters(x: NDArray, metric: str) -> Voters:
    """Returns training rows, finite float `[n, d]` of any length, with their novelty threshold.

    Example:
        >>> known = voters(np.array([[3.0, 0.0], [2.0, 0.1]]), "cosine")
        >>> (known.novelty(known.nearest(np.array([[1.0, 0.0], [0.0, 1.0]]))) > 1).tolist()
        [False, True]
    """
    rows = arrays.normalize_rows(x) if metric == "cosine" else x
    return Voters(rows, metric, novelty_threshold(rows, metric))


def novelty_threshold(features: NDArray, metric: str = "cosine") -> float:
    """Returns the 95 % quantile of the distances from training rows to their nearest other row.

    A new row is novel if its distance to the nearest training row is larger. The quantile is that
    of at most 5,000 evenly spaced rows; their nearest rows are looked up among all rows. A copy of
    a row is at distance 0. The threshold of a single row is 0.

    On 24 draws of photos by two networks (4 to 20 kinds of 12 to 45 photos, and five other kinds),
    39 % of the photos of unseen kinds are novel, and 5 % of the others. With the 99 % quantile
    these are 21 % and 1.4 %. The distance has an AUC of 0.83; the distance to the fifth nearest
    row, and that between smooth rows, have the same.

    Args:
        features: finite float `[n, d]`, n at least 1; for the cosine, rows of length one or zero.
        metric: `"cosine"`, whose distance is 1 - cosine, or `"euclidean"`.

    Example:
        >>> novelty_threshold(np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]))
        1.0
    """
    n = len(features)
    count = min(n, _SAMPLE)
    some = features[np.arange(count) * n // count]
    nearest = knn.nearest(some, features, 2, metric=metric)
    # The smaller of the two distances is that of the row to itself.
    return float(np.quantile(nearest.distances[:, -1], _WITHIN))


@dataclasses.dataclass(frozen=True, eq=False)
class ByTree:
    """Assigns new rows by the nearest sharp rows of a `SmoothTree`, see `membership`.

    Attributes:
        smoother: the representation of m leaves.
        labels: int `[n]`, the clusters of all training rows, -1 for none.
        sample: int `[m]`, the index of a training row of each leaf.
        leaves: int `[n]`, the leaf of each row.
        voters: the rows from which novelty is measured: all training rows, or one of each leaf.
    """

    smoother: Smoother
    labels: NDArray
    sample: NDArray
    leaves: NDArray
    voters: Voters

    def place(self, x: NDArray, labels: NDArray | None = None) -> Assignment:
        """Returns the clusters of new rows `[m, d]`; rows do not affect each other.

        Args:
            x: the new rows, finite numbers with the columns of the training rows.
            labels: int `[n]`, the labels of the training rows: of another cut of the tree, or as
                corrected by a person, -1 for none. None: the labels that were found.

        Raises:
            InputError: the new rows are not finite.
        """
        ids, leaves, centers, around = self._own if labels is None else self.groups(labels)
        places = membership.of_new_rows(self.smoother, ids, leaves, around, x)
        distances = arrays.distances_to_centers(self.smoother.project(x), centers, places.labels)
        is_in = self.smoother.has_direction(x)
        novelty = np.where(is_in, self.voters.novelty(self.voters.nearest(x)), np.inf)
        own_labels, *others = membership.of_ids(ids, places, is_in)
        return Assignment(own_labels, distances, novelty, *others)

    def probabilities(self, x: NDArray, labels: NDArray | None = None) -> NDArray:
        """Returns probabilities of the distinct labels, ascending, for new rows: float64 `[m, k]`.

        The arguments are those of `place`. If a training row is in no cluster, the first column is
        that of -1, and 0: the probabilities are those of clusters. A row of zeros has probabilities
        like any other. Unlike `place`, this does not check that the rows are finite.
        """
        ids, _, _, around = self._own if labels is None else self.groups(labels)
        every = np.unique(self.labels if labels is None else labels)
        result = np.zeros((len(x), len(every)))
        known = membership.probabilities(self.smoother, ids, around, x)
        result[:, np.searchsorted(every, ids)] = known
        return result

    @functools.cached_property
    def _own(self) -> tuple[NDArray, NDArray, NDArray, sparse.csr_array]:
        """The result of `groups` for the labels that were found."""
        return self.groups(self.labels)

    def groups(self, labels: NDArray) -> tuple[NDArray, NDArray, NDArray, sparse.csr_array]:
        """Returns the clusters of labels int `[n]` of the training rows, as `place` needs them.

        Returns:
            The k distinct labels of the leaves, as of `coded`; int `[m]`, the index of each leaf's
            label there; the center of each label, float64 `[k, r]`; and `membership.shares`.
        """
        # Labels of leaves only: a person may have left a label to nothing but copies.
        ids, leaves = coded(labels[self.sample])
        # A leaf counts as often as training rows in a cluster belong to it.
        counted = self.leaves[self.labels != NO_CLUSTER]
        sizes = np.bincount(counted, minlength=len(leaves))
        centers = arrays.cluster_means(self.smoother.sharp, leaves, sizes)
        return ids, leaves, centers, membership.shares(self.smoother, leaves)


@dataclasses.dataclass(frozen=True, eq=False)
class ByVotes:
    """Assigns new rows by votes of the nearest training rows, weighted by 1 / distance.

    Attributes:
        labels: int `[n]`, the clusters of the training rows, -1 for none.
        n_neighbors: number of rows that vote.
        voters: the training rows, in the order of `labels`.
    """

    labels: NDArray
    n_neighbors: int
    voters: Voters

    def place(self, x: NDArray, labels: NDArray | None = None) -> Assignment:
        """See `ByTree.place`; but there are no probabilities, and zeros are in a cluster too.

        Of equal votes the lowest label wins, -1 only if no other has as many.
        """
        ids, codes = coded(self.labels if labels is None else labels)
        near = self.voters.nearest(x, self.n_neighbors)
        assigned = knn.vote(near, codes).argmax(axis=1)
        centers = arrays.cluster_means(self.voters.rows, codes)
        rows = arrays.normalize_rows(x) if self.voters.metric == "cosine" else x
        distances = arrays.distances_to_centers(rows, centers, assigned)
        return Assignment(ids[assigned], distances, self.voters.novelty(near))


@dataclasses.dataclass(frozen=True, eq=False)
class ByCenters:
    """Assigns new rows to the nearest center of k-means.

    On ten sets of photos it has a mean ARI of 0.446, votes of 15 training rows 0.422.

    Attributes:
        centers: float `[k, d]`.
        labels: int `[n]`, the center of each training row, 0 to k - 1.
        voters: the rows from which novelty is measured, all training rows or a sample; by their
            metric, rows are compared with centers.
    """

    centers: NDArray
    labels: NDArray
    voters: Voters

    def place(self, x: NDArray, labels: NDArray | None = None) -> Assignment:
        """See `ByTree.place`; but there are no probabilities, and zeros are in a cluster too.

        With `labels`, a center gives the label that most of its training rows have, and a center
        without training rows is not used.
        """
        # After corrections a center has the label of most of its rows, and none without rows.
        known = np.arange(len(self.centers)) if labels is None else np.unique(self.labels)
        near = knn.nearest(x, self.centers[known], 1, metric=self.voters.metric)
        nearest = known[near.indices[:, 0]]
        if labels is not None:
            nearest = _renamed(self.labels, labels)[nearest]
        novelty = self.voters.novelty(self.voters.nearest(x))
        return Assignment(nearest, near.distances[:, 0], novelty)


def coded(labels: NDArray) -> tuple[NDArray, NDArray]:
    """Returns the distinct labels, ascending but `NO_CLUSTER` last, and the index of each label.

    `NO_CLUSTER` comes last, so that it loses ties in votes. `labels` is int `[n]`, -1 or more, with
    at least one label.

    Example:
        >>> ids, places = coded(np.array([4, -1, 2]))
        >>> ids.tolist(), places.tolist()
        ([2, 4, -1], [1, 2, 0])
    """
    ids, codes = np.unique(labels, return_inverse=True)
    is_first = int(ids[0] == NO_CLUSTER)
    return np.roll(ids, -is_first).astype(np.int64), (codes - is_first) % len(ids)


def _renamed(labels: NDArray, now: NDArray) -> NDArray:
    """Returns the most frequent present label of each found cluster, int64 `[k]`.

    Of equally frequent labels the lowest is taken, -1 last. For a cluster without rows the result
    has no meaning.

    Args:
        labels: int `[n]`, the found clusters, 0 to k - 1.
        now: int `[n]`, the present labels, -1 for none.
    """
    ids, codes = coded(now)
    count = int(labels.max()) + 1
    votes = np.bincount(labels * len(ids) + codes, minlength=count * len(ids))
    return ids[votes.reshape(count, len(ids)).argmax(axis=1)]


Placing = ByTree | ByVotes | ByCenters
_KINDS: tuple[Any, ...] = (ByTree, ByVotes, ByCenters)
_PARTS: dict[str, Any] = {"voters": Voters, "smoother": Smoother}


def to_arrays(clusterer: Placing) -> dict[str, NDArray]:
    """Returns a clusterer as arrays by name; nothing is pickled.

    The names are "kind", of which the array is the name of the class, and those of the attributes;
    a part of an attribute is named as in "voters.rows".

    Example:
        >>> list(to_arrays(ByVotes(np.arange(2), 1, voters(np.eye(2), "cosine"))))[:4]
        ['kind', 'labels', 'n_neighbors', 'voters.rows']
    """
    stored = {"kind": np.asarray(type(clusterer).__name__)}
    for field in dataclasses.fields(clusterer):
        value = getattr(clusterer, field.name)
        parts = value._asdict() if field.name in _PARTS else {"": value}
        for name, part in parts.items():
            if part is not None:
                stored[f"{field.name}.{name}".removesuffix(".")] = np.asarray(part)
    return stored


def from_arrays(stored: Mapping[str, NDArray]) -> Placing:
    """Returns the clusterer from the arrays of `to_arrays`.

    Raises:
        KeyError, StopIteration: "kind" is missing, or is no class of this module.
        TypeError: another array is missing.

    Example:
        >>> known = ByVotes(np.arange(2), 1, voters(np.eye(2), "cosine"))
        >>> from_arrays(to_arrays(known)).place(np.array([[1.0, 0.5]])).labels.tolist()
        [0]
    """
    kind = next(kind for kind in _KINDS if kind.__name__ == stored["kind"].item())
    plain = {name: value if value.ndim else value.item() for name, value in stored.items()}
    names = {field.name for field in dataclasses.fields(kind)}
    fields = {name: value for name, value in plain.items() if name in names}
    for field in _PARTS.keys() & names:
        parts = {k.partition(".")[2]: v for k, v in plain.items() if k.startswith(f"{field}.")}
        fields[field] = _PARTS[field](**parts)
    return kind(**fields)
