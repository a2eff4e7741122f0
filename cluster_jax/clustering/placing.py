"""Clusterers: training rows in clusters, and how each kind places new rows."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cluster_jax.clustering import knn, membership, out_of_sample
from cluster_jax.clustering.base import NO_CLUSTER, Assignment
from cluster_jax.clustering.knn import Neighbors
from cluster_jax.clustering.smooth import Smoother
from cluster_jax.core import arrays


class Voters(NamedTuple):
    """Training rows that new rows are compared with.

    Attributes:
        rows: float `[n, d]`, for cosine of length one or zero.
        metric: `"cosine"` or `"euclidean"`.
        threshold: see `out_of_sample.novelty_threshold`.
    """

    rows: NDArray
    metric: str
    threshold: float

    def nearest(self, x: NDArray, count: int = 1) -> Neighbors:
        """Finds the nearest training rows of new rows `[m, d]`."""
        x = arrays.normalize_rows(x) if self.metric == "cosine" else x
        return out_of_sample.neighbors(x, self.rows, count, self.metric)

    def is_novel(self, near: Neighbors) -> NDArray:
        """Returns which new rows are farther from every training row than these from each other."""
        return near.distances[:, 0] > self.threshold


def voters(x: NDArray, metric: str) -> Voters:
    """Returns the training rows `[n, d]` with the threshold of novelty among them.

    Example:
        >>> known = voters(np.array([[3.0, 0.0], [2.0, 0.1]]), "cosine")
        >>> known.is_novel(known.nearest(np.array([[1.0, 0.0], [0.0, 1.0]]))).tolist()
        [False, True]
    """
    rows = arrays.normalize_rows(x) if metric == "cosine" else x
    return Voters(rows, metric, out_of_sample.novelty_threshold(rows, metric))


class _Groups(NamedTuple):
    """Labels of the m leaves of a tree, ready to place new rows.

    Attributes:
        ids: int64 `[k]`, the labels of leaves.
        leaves: int `[m]`, the place of each leaf's label among them.
        centers: float64 `[k, r]`, means of the sharp rows.
        around: `[m, k]`, see `membership.shares`.
    """

    ids: NDArray
    leaves: NDArray
    centers: NDArray
    around: sparse.csr_array


@dataclasses.dataclass(frozen=True, eq=False)
class ByTree:
    """Clusters of `SmoothTree`: a new row has the probabilities of the nearest sharp rows.

    Attributes:
        smoother: the representation of m leaves.
        labels: int `[n]`, of all training rows.
        sample: int `[m]`, a training row of each leaf.
        leaves: int `[n]`, the leaf of each row.
        voters: the training rows.
    """

    smoother: Smoother
    labels: NDArray
    sample: NDArray
    leaves: NDArray
    voters: Voters

    def place(self, x: NDArray, labels: NDArray | None = None) -> Assignment:
        """See `base.Clusterer`."""
        ids, leaves, centers, around = self._own if labels is None else self._groups(labels)
        member = membership.of_new_rows(self.smoother, leaves, around, x)
        distances = arrays.distances_to_centers(self.smoother.project(x), centers, member.labels)
        second = np.where(member.second_labels < 0, NO_CLUSTER, ids[member.second_labels])
        is_novel = self.voters.is_novel(self.voters.nearest(x))
        sure = member.probabilities, second, member.second_probabilities
        placed = Assignment(ids[member.labels], distances, is_novel, *sure)
        has_direction = self.smoother.has_direction(x)
        return placed if has_direction.all() else without_cluster(placed, ~has_direction)

    def probabilities(self, x: NDArray, labels: NDArray | None = None) -> NDArray:
        """Computes probabilities of the distinct labels, ascending, for new rows: float64 `[m, k]`.

        `labels` is that of `place`.
        """
        ids, _, _, around = self._own if labels is None else self._groups(labels)
        every = np.unique(self.labels if labels is None else labels)
        result = np.zeros((len(x), len(every)))
        result[:, np.searchsorted(every, ids)] = membership.probabilities(self.smoother, around, x)
        return result

    @functools.cached_property
    def _own(self) -> _Groups:
        return self._groups(self.labels)

    def _groups(self, labels: NDArray) -> _Groups:
        # A person may have moved all rows of a label but copies, which are no leaves.
        ids, leaves = coded(labels[self.sample])
        counted = self.leaves[self.labels != NO_CLUSTER]
        centers = centers_of_leaves(self.smoother.sharp, leaves, counted)
        return _Groups(ids, leaves, centers, membership.shares(self.smoother, leaves))


def without_cluster(placed: Assignment, rows: NDArray) -> Assignment:
    """Returns an assignment in which some rows, bool `[m]`, are in no cluster.

    Example:
        >>> one, sure = np.array([3]), np.array([0.9])
        >>> placed = Assignment(one, sure, np.array([False]), sure, one, 1 - sure)
        >>> without_cluster(placed, np.array([True]))[:4:3]
        (array([-1]), array([0.]))
    """
    assert placed.probabilities is not None
    assert placed.second_labels is not None
    assert placed.second_probabilities is not None
    return placed._replace(
        labels=np.where(rows, NO_CLUSTER, placed.labels),
        is_novel=placed.is_novel | rows,
        probabilities=np.where(rows, 0.0, placed.probabilities),
        second_labels=np.where(rows, NO_CLUSTER, placed.second_labels),
        second_probabilities=np.where(rows, 0.0, placed.second_probabilities),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class ByVotes:
    """Labels of training rows: a new row has that of most of the nearest ones, by 1 / distance.

    Attributes:
        labels: int `[n]`.
        n_neighbors: rows that vote.
        voters: the training rows.
        points: float `[n, c]`, a map of them, in which a new row lies at the mean of its voters;
            None: distances are between rows.
        centers: float `[k, c]`, of the clusters in the map; None: their means.
        bandwidth: unit of the distances.
    """

    labels: NDArray
    n_neighbors: int
    voters: Voters
    points: NDArray | None = None
    centers: NDArray | None = None
    bandwidth: float = 1.0

    def place(self, x: NDArray, labels: NDArray | None = None) -> Assignment:
        """See `base.Clusterer`."""
        ids, codes = coded(self.labels if labels is None else labels)
        near = self.voters.nearest(x, self.n_neighbors)
        assigned = knn.vote(near, codes).argmax(axis=1)
        members, rows = self.points, x
        if members is not None:
            rows = out_of_sample.position(near, codes, assigned, members)
        else:
            members = self.voters.rows
            rows = arrays.normalize_rows(x) if self.voters.metric == "cosine" else x
        centers = self.centers if labels is None else None
        centers = arrays.cluster_means(members, codes) if centers is None else centers
        distances = arrays.distances_to_centers(rows, centers, assigned) / self.bandwidth
        return Assignment(ids[assigned], distances, self.voters.is_novel(near))


@dataclasses.dataclass(frozen=True, eq=False)
class ByCenters:
    """Clusters of k-means: a new row has the nearest center.

    Attributes:
        centers: float `[k, d]`.
        labels: int `[n]`, of training rows.
        is_spherical: whether rows and centers are compared by cosine.
        voters: training rows, which need not be those of the labels.
    """

    centers: NDArray
    labels: NDArray
    is_spherical: bool
    voters: Voters

    def place(self, x: NDArray, labels: NDArray | None = None) -> Assignment:
        """See `base.Clusterer`."""
        # After corrections a center has the label of most of its rows: one without rows has none.
        known = np.arange(len(self.centers)) if labels is None else np.unique(self.labels)
        rows, centers = x, self.centers[known]
        if self.is_spherical:
            rows, centers = map(arrays.normalize_rows, (rows, centers))
        near = knn.nearest(rows, centers, 1)
        # Half the squared distance of unit rows is 1 - cosine.
        distances = near.distances[:, 0] ** 2 / 2 if self.is_spherical else near.distances[:, 0]
        nearest = known[near.indices[:, 0]]
        if labels is not None:
            nearest = _renamed(self.labels, labels)[nearest]
        return Assignment(nearest, distances, self.voters.is_novel(self.voters.nearest(x)))


def coded(labels: NDArray) -> tuple[NDArray, NDArray]:
    """Returns the distinct labels, ascending, `NO_CLUSTER` last (it loses ties), and each's index.

    Example:
        >>> ids, places = coded(np.array([4, -1, 2]))
        >>> ids.tolist(), places.tolist()
        ([2, 4, -1], [1, 2, 0])
    """
    ids, codes = np.unique(labels, return_inverse=True)
    is_first = int(ids[0] == NO_CLUSTER)
    return np.roll(ids, -is_first).astype(np.int64), (codes - is_first) % len(ids)


def centers_of_leaves(rows: NDArray, labels: NDArray, leaves: NDArray) -> NDArray:
    """Computes means float64 `[k, r]` of clusters `[m]` of leaves `[m, r]`, weighted by leaf sizes.

    Example:
        >>> rows, leaves = np.array([[0.0], [3.0], [9.0]]), np.array([0, 0, 1, 2])
        >>> centers_of_leaves(rows, np.array([0, 0, 1]), leaves).tolist()
        [[1.0], [9.0]]
    """
    counts = np.bincount(leaves, minlength=len(rows))
    sums = np.stack([np.bincount(labels, counts * column) for column in rows.T], axis=1)
    return sums / np.maximum(np.bincount(labels, counts), 1)[:, None]  # One may have no row.


def _renamed(labels: NDArray, now: NDArray) -> NDArray:
    """Returns the present label of most rows of each found cluster, int64 `[k]`."""
    ids, codes = coded(now)
    count = int(labels.max()) + 1
    votes = np.bincount(labels * len(ids) + codes, minlength=count * len(ids))
    return ids[votes.reshape(count, len(ids)).argmax(axis=1)]


Placing = ByTree | ByVotes | ByCenters
_KINDS: tuple[Callable[..., Placing], ...] = (ByTree, ByVotes, ByCenters)
_PARTS: dict[str, Any] = {"voters": Voters, "smoother": Smoother}


def to_arrays(clusterer: Placing) -> dict[str, NDArray]:
    """Returns a clusterer as arrays by name; nothing is pickled.

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
    """Restores the clusterer of `to_arrays`.

    Example:
        >>> known = ByVotes(np.arange(2), 1, voters(np.eye(2), "cosine"))
        >>> from_arrays(to_arrays(known)).place(np.array([[1.0, 0.5]])).labels.tolist()
        [0]
    """
    kind = next(kind for kind in _KINDS if kind.__name__ == stored["kind"].item())
    fields: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}
    for name, value in stored.items():
        plain = value.item() if value.ndim == 0 else value
        field, _, part = name.partition(".")
        if part:
            parts.setdefault(field, {})[part] = plain
        elif name != "kind":
            fields[name] = plain
    for name, values in parts.items():
        kind_of = _PARTS[name]
        known = {part: value for part, value in values.items() if part in kind_of._fields}
        fields[name] = kind_of(**known)
    return kind(**fields)
