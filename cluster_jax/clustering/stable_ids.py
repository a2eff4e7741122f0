"""Ids of clusters that keep their meaning while rows come and go.

An update fits the rows again, and compares the clusters that it finds with those that are known. A
row keeps its cluster, and a new row gets the cluster that most of its nearest known rows have,
except in these cases ("most" is a plurality in 1, and 70 % in 2 to 4):

1. Owners. A found cluster belongs to the known one that has most rows in it, among those whose
   largest part it is. Without one it belongs to the known cluster of most of its fixed rows, at
   least five: rows that a person has decided about stay together.
2. Births. A found cluster without an owner of which most rows have come in the last four updates is
   a new cluster, of these rows.
3. Splits. Any other found cluster without an owner is a part of the known cluster that has the
   largest number of rows in it. It becomes a new cluster when three updates in a row have found
   most of its rows apart, unless it has less than a fifth of the rows of the largest part.
4. Merges. Rows of a known cluster that five updates in a row have found in a cluster of another
   owner join that owner: all of them in a merge, some of them in a split.

The waiting keeps ids stable: the next fit undoes most of what one fit changes. Of more than 4,000
rows the new ones are fitted with a sample of each cluster, so that the cost of an update depends on
its new rows; the sample stays the same while a cluster grows. An id is never used twice, and
events are named as in MONIC [1]. `experiments/living.py` measures them.

References:
    [1] Spiliopoulou, Ntoutsi, Theodoridis and Schult 2006, MONIC: modeling and monitoring cluster
        transitions.
"""

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from cluster_jax.clustering import representation
from cluster_jax.clustering.base import NO_CLUSTER
from cluster_jax.core import knn
from cluster_jax.core.arrays import Rows

SURVIVED, GREW, SPLIT, MERGED = "survived", "grew", "split", "merged"
EMERGED, SHRANK, DISAPPEARED, RETURNED = "emerged", "shrank", "disappeared", "returned"
NEW = -2  # label of a row that has none yet
# Most rows that an update fits; fewest rows of the sample of a cluster, if there is room for all.
LOOK, _SAMPLE = 4_000, 20
LEAST, MOST = 5, 0.7  # rows of a birth or a split; share of rows for which a condition must hold
RECENT = 4  # updates after which a row is no longer recent
SPLIT_SHARE = 0.2  # rows that a split takes for each of the largest part
SPLIT_LOOKS, JOIN_LOOKS = 2, 4  # updates before this one that have found rows apart
SAME = 0.5  # Jaccard index from which a cluster of a refit is the old one


class Event(NamedTuple):
    """A change of a cluster in an update.

    Attributes:
        kind: one of "survived", "grew", "shrank", "split", "merged", "emerged", "disappeared",
            "returned".
        id: id of the cluster.
        rows: number of rows that the cluster has ("survived", "emerged", "returned"), has gained
            ("grew"), has lost ("shrank"), or has lost to `into` ("split", "merged"); 0 if it has
            disappeared.
        into: ids of the clusters in which the lost rows are now.
    """

    kind: str
    id: int
    rows: int
    into: tuple[int, ...] = ()


class State(NamedTuple):
    """The clusters of n rows.

    Attributes:
        ids: int64 `[n]`, the cluster of each row, -1 for none, `NEW` for a row without one yet.
        since: int64 `[n]`, the update in which the row came; 0: the first fit.
        apart: int64 `[n]`, how many updates in a row have found it apart from its cluster.
        next_id: the lowest id that no cluster has had.
        updates: number of updates.
        events: events of the last update.
    """

    ids: NDArray
    since: NDArray
    apart: NDArray
    next_id: int
    updates: int
    events: tuple[Event, ...] = ()

    @property
    def is_recent(self) -> NDArray:
        """Whether each row came in one of the last four updates (not the first fit), bool `[n]`."""
        return self.since > max(self.updates - RECENT, 0)

    def of(self, rows: NDArray) -> "State":
        """Returns the state of some of the rows, indices or a mask, without events."""
        columns = self.ids[rows], self.since[rows], self.apart[rows]
        return State(*columns, self.next_id, self.updates)


@dataclasses.dataclass(frozen=True, eq=False)
class Repeated:
    """Rows `[n, d]` of which many may be equal: `rows[leaves]`, read a part at a time.

    Attributes:
        rows: `[m, d]`.
        leaves: int `[n]`, for each of the n rows its index in `rows`.
    """

    rows: NDArray
    leaves: NDArray

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns."""
        return len(self.leaves), self.rows.shape[1]

    @property
    def dtype(self) -> np.dtype:
        """Type of the numbers."""
        return self.rows.dtype

    def __getitem__(self, index: Any) -> NDArray:
        return self.rows[self.leaves[index]]

    def joined(self, x: NDArray) -> "Repeated":
        """Returns these rows, and after them new rows `[l, d]`."""
        leaves = np.concatenate([self.leaves, len(self.rows) + np.arange(len(x))])
        return Repeated(np.concatenate([self.rows, x]), leaves)


class Look(NamedTuple):
    """Clusters of the rows of a fit.

    Attributes:
        labels: int `[m]`, 0 to k - 1, -1 for none.
        rows: `[m, r]`, the representation in which rows are compared by Euclidean distances.
        place: other rows `[l, d]` -> their labels int `[l]` and their representation `[l, r]`.
    """

    labels: NDArray
    rows: NDArray
    place: Callable[[NDArray], tuple[NDArray, NDArray]]


def start(labels: NDArray) -> State:
    """Returns the state after a first fit with the clusters `labels` int `[n]`, -1 for none.

    The labels become the ids of the clusters; each cluster has the event "emerged".

    Example:
        >>> start(np.array([0, 0, 1])).events
        (Event(kind='emerged', id=0, rows=2, into=()), Event(kind='emerged', id=1, rows=1, into=()))
    """
    ids = labels.astype(np.int64)
    none = np.zeros(len(labels), np.int64)
    next_id = int(ids.max(initial=-1)) + 1
    return State(ids, none, none, next_id, 0, events(none[:0], ids, range(next_id)))


def update(
    state: State, x: Rows, fit: Callable[[NDArray], Look], is_fixed: NDArray | None = None
) -> State:
    """Returns the state of all rows after new rows have come; old rows may change their cluster.

    The docstring of the module has the rules.

    Args:
        state: the state of the n old rows.
        x: the n old rows in their order, then the new ones, `[m, d]`.
        fit: function that clusters an array of rows. It is called once: with all rows, or, if there
            are more than 4,000, with 4,000 rows: at most 2,000 new ones, and a sample of each
            cluster.
        is_fixed: bool `[n]`, old rows that keep their cluster, because a person has decided about
            the row or about its cluster. None: no row is fixed.

    Returns:
        The state of the m rows, one update later. If there are no new rows, it is `state` without
        events, and the update does not count.

    Example:
        >>> def fit(x):
        ...     high = lambda rows: ((rows[:, 0] > 5) * 1, rows)
        ...     return Look(*high(x), high)
        >>> x = np.array([[0.0], [1.0], [9.0], [8.0], [7.0], [1.5]])
        >>> update(start(np.array([0, 0, 1, 1])), x, fit).ids.tolist()
        [0, 0, 1, 1, 1, 0]
    """
    n, m = len(state.ids), x.shape[0]
    if m == n:
        return state._replace(events=())
    after = _grown(state, m - n)
    rows = _sample(state, m)
    fixed = np.zeros(m, bool)
    if is_fixed is not None:
        fixed[:n] = is_fixed
    seen = after.of(rows)
    look = fit(np.asarray(x[rows]))
    is_new = seen.ids == NEW
    is_in = look.labels != NO_CLUSTER
    ids = seen.ids.copy()
    ids[is_new] = _votes(look, is_in & ~is_new, ids, look.labels[is_new], look.rows[is_new])
    ids, apart, next_id, born = follow(seen, ids, look.labels, fixed[rows])
    after.ids[rows] = ids
    after.apart[rows] = apart
    # Changes of the sample of a cluster apply to all its rows.
    is_left = ~fixed
    is_left[rows] = False
    for cluster in np.unique(seen.ids[ids != seen.ids]).tolist():
        left = np.flatnonzero(is_left & (after.ids == cluster))
        voters = is_in if cluster == NEW else is_in & (seen.ids == cluster)
        for begin in range(0, len(left), LOOK):
            part = left[begin : begin + LOOK]
            after.ids[part] = _votes(look, voters, ids, *look.place(np.asarray(x[part])))
    return after._replace(next_id=next_id, events=events(state.ids, after.ids, born))


def _grown(state: State, count: int) -> State:
    """Returns a state with `count` more rows, which have no cluster yet."""
    now = state.updates + 1
    ids = np.concatenate([state.ids, np.full(count, NEW)])
    since = np.concatenate([state.since, np.full(count, now)])
    apart = np.concatenate([state.apart, np.zeros(count, np.int64)])
    return State(ids, since, apart, state.next_id, now)


def _sample(state: State, m: int) -> NDArray:
    """Returns which of m rows are fitted, int64: all, or new ones and a sample of each cluster.

    `state` is that of the old rows, the first n of the m. The result is ascending.
    """
    n = len(state.ids)
    if m <= LOOK:
        return np.arange(m)
    new = np.arange(n, m)
    new = new[np.argsort(_priority(new), kind="stable")[: LOOK // 2]]
    room = LOOK - len(new)
    priority = _priority(np.arange(n))
    order = np.lexsort((priority, state.ids))
    _, first, sizes = np.unique(state.ids[order], return_index=True, return_counts=True)
    rank = np.arange(n) - np.repeat(first, sizes)
    # Proportional to the sizes, except for small clusters; some of these if not all have room.
    share = rank / np.repeat(np.maximum(_SAMPLE, room * sizes / n), sizes)
    return np.sort(np.concatenate([order[np.lexsort((priority[order], share))[:room]], new]))


def _priority(rows: NDArray) -> NDArray:
    """Returns a sort key for each row, by which the order looks random and is always the same."""
    return rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def _votes(look: Look, voters: NDArray, ids: NDArray, found: NDArray, x: NDArray) -> NDArray:
    """Returns the cluster of each new row by a vote, int64 `[l]`.

    The result is -1 where `found` is -1. Without voters all other results are `NEW`.

    Args:
        look: the fit of m rows.
        voters: bool `[m]`, the rows that vote.
        ids: int64 `[m]`, the clusters for which the m rows vote.
        found: int `[l]`, the label of each new row by the fit.
        x: `[l, r]`, the new rows in the representation of the fit.
    """
    if not voters.any():
        return np.where(found == NO_CLUSTER, NO_CLUSTER, NEW)
    known, codes = np.unique(ids[voters], return_inverse=True)
    near = knn.nearest(x, look.rows[voters], max(1, representation.n_neighbors(len(codes))))
    return np.where(found == NO_CLUSTER, NO_CLUSTER, known[knn.vote(near, codes).argmax(axis=1)])


def follow(
    state: State, ids: NDArray, found: NDArray, is_fixed: NDArray
) -> tuple[NDArray, NDArray, int, set[int]]:
    """Returns ids of rows after a fit, for how many updates they are apart, next id, and births.

    Args:
        state: the state of the n rows; the id of new rows is `NEW`.
        ids: int64 `[n]`, the cluster of every row before rules 2 to 4: old rows have their own, new
            rows that of their neighbors.
        found: int `[n]`, the clusters of the fit, 0 to k - 1, none of them empty; -1 for none, but
            not for all rows.
        is_fixed: bool `[n]`, rows that keep their cluster.

    Returns:
        ids int64 `[n]`; `State.apart` int64 `[n]`; `State.next_id`; and the ids of births, without
        those of splits.

    Example:
        >>> state = _grown(start(np.repeat([0, 1], 9)), 6)
        >>> ids, found = np.repeat([0, 1, 0], [9, 9, 6]), np.repeat([1, 0, 2], [9, 9, 6])
        >>> after, _, _, born = follow(state, ids, found, np.zeros(24, bool))
        >>> after[-1], born
        (np.int64(2), {2})
    """
    before = state.ids
    ids = ids.copy()
    next_id = state.next_id
    born = set[int]()
    counts, owner = _owners(before, found, is_fixed)
    for cluster in np.flatnonzero(owner == NO_CLUSTER).tolist():
        rows = (found == cluster) & ~is_fixed
        is_birth = not counts or state.is_recent[found == cluster].mean() >= MOST
        part = rows & state.is_recent if is_birth else _split(state, ids, rows, counts, cluster)
        if part.sum() >= (LEAST if counts else 1):
            ids[part] = owner[cluster] = next_id
            if is_birth:
                born.add(next_id)
            next_id += 1
    for label, of_label in counts.items():
        for cluster in np.flatnonzero(of_label).tolist():
            rows = (found == cluster) & (before == label) & (ids == before) & ~is_fixed
            is_due = rows.any() and (state.apart[rows] >= JOIN_LOOKS).mean() >= MOST
            # A cluster without most of its rows would have changed its meaning.
            is_main = cluster == of_label.argmax() and of_label[cluster] < MOST * of_label.sum()
            if is_due and not is_main and owner[cluster] not in (label, NO_CLUSTER):
                ids[rows] = owner[cluster]
    is_in = found != NO_CLUSTER
    apart = state.apart.copy()
    apart[is_in] = np.where(owner[found[is_in]] == ids[is_in], 0, apart[is_in] + 1)
    return ids, apart, next_id, born


def _owners(
    before: NDArray, found: NDArray, is_fixed: NDArray
) -> tuple[dict[int, NDArray], NDArray]:
    """Counts the rows that known and found clusters share, and finds the owners by rule 1.

    Returns:
        The counts: for each known cluster the number of its rows in each of the k found clusters,
        int `[k]`. Rows whose `before` or `found` is negative are not counted, and a known cluster
        without counted rows is left out. And the owner of each found cluster, int `[k]`, -1 for
        none.
    """
    k = int(found.max(initial=-1)) + 1
    counts = dict[int, NDArray]()
    owner = np.full(k, NO_CLUSTER)
    most = np.zeros(k, int)
    for label in np.unique(before[(before >= 0) & (found >= 0)]).tolist():
        counts[label] = here = np.bincount(found[(before == label) & (found >= 0)], minlength=k)
        main = here.argmax()
        if here[main] > most[main]:
            owner[main] = label
            most[main] = here[main]
    for cluster in np.flatnonzero(owner == NO_CLUSTER).tolist():
        held = before[(found == cluster) & is_fixed & (before >= 0)]
        if len(held) and np.bincount(held).max() >= LEAST:
            owner[cluster] = np.bincount(held).argmax()
    return counts, owner


def _split(
    state: State, ids: NDArray, rows: NDArray, counts: dict[int, NDArray], cluster: int
) -> NDArray:
    """Returns which rows become a new cluster by rule 3, bool `[n]`; none if the split is not due.

    The rows leave the known cluster that has most rows in the found one.

    Args:
        state: before the update.
        ids: int64 `[n]`, the present cluster of each row.
        rows: bool `[n]`, the rows of the found cluster that are not fixed.
        counts: those of `_owners`, of at least one known cluster.
        cluster: number of the found cluster.
    """
    parent = max(counts, key=lambda label: counts[label][cluster])
    part = rows & (state.ids == parent)
    is_due = part.any() and (state.apart[part] >= SPLIT_LOOKS).mean() >= MOST
    is_large = part.sum() >= max(LEAST, SPLIT_SHARE * counts[parent].max())
    return rows & (ids == parent) & is_due & is_large


def refit(state: State, found: NDArray, is_fixed: NDArray | None = None) -> State:
    """Returns the state after a new fit of the same rows; clusters get ids of most similar ones.

    The clusters of the fit are matched one to one with the old ones, by the largest sum of their
    Jaccard indices. A cluster without a match of an index of at least 0.5 gets a new id, unless
    more than half of its rows are fixed: then it gets the id that most of its fixed rows have.
    `apart` is 0 for all rows, and the number of updates grows by one.

    Args:
        state: the state of the n rows.
        found: int `[n]`, n at least 1, the clusters of the fit, 0 to k - 1, -1 for none.
        is_fixed: bool `[n]`, rows that keep their id; None: no row is fixed.

    Example:
        >>> refit(start(np.array([0, 0, 1, 1, 1])), np.array([1, 1, 0, 0, 0])).ids.tolist()
        [0, 0, 1, 1, 1]
    """
    fixed = np.zeros(len(found), bool) if is_fixed is None else is_fixed
    counts, _ = _owners(state.ids, found, fixed)
    both = np.array([*counts.values()]).reshape(len(counts), int(found.max()) + 1)
    index = both / np.maximum(both.sum(1)[:, None] + both.sum(0)[None, :] - both, 1)
    ids_of = np.full(both.shape[1] + 1, NO_CLUSTER)
    next_id = state.next_id
    born = set[int]()
    live = np.array([*counts], np.int64)
    pairs = zip(*linear_sum_assignment(-index), strict=True)
    for i, cluster in (pair for pair in pairs if index[pair] >= SAME):
        ids_of[cluster] = live[i]
    for cluster in np.flatnonzero(ids_of[:-1] == NO_CLUSTER).tolist():
        rows = found == cluster
        held = state.ids[rows & fixed & (state.ids >= 0)]
        if 2 * len(held) > rows.sum():
            ids_of[cluster] = np.bincount(held).argmax()
            continue
        # A new cluster of which most rows come from one old cluster is a part of the old one.
        if 2 * both[:, cluster].max(initial=0) <= both[:, cluster].sum():
            born.add(next_id)
        ids_of[cluster] = next_id
        next_id += 1
    ids = np.where(fixed, state.ids, ids_of[found])
    after = state._replace(ids=ids, apart=np.zeros_like(state.apart), next_id=next_id)
    return after._replace(updates=state.updates + 1, events=events(state.ids, ids, born))


def events(
    before: NDArray, after: NDArray, born: Collection[int], had: NDArray | None = None
) -> tuple[Event, ...]:
    """Returns the events of all clusters, by id; a row that moved counts in a split or merge.

    A cluster that has lost rows to another one may have a second event, "grew" or "emerged". A
    cluster of which all rows are now in one other cluster is "merged"; any other cluster that has
    lost rows to another one is "split", even if it was a single row.

    Args:
        before: int `[n]`, the clusters of the old rows that are still there, -1 for none.
        after: int `[m]`, the clusters of all present rows: these n in their order, then new ones.
        born: ids of new clusters that are not parts of an old one.
        had: the clusters of all old rows, in any order, if some have left; None: `before`.

    Example:
        >>> [event[:2] for event in events(np.array([0, 0, 0, 1]), np.array([0, 2, 2, 0]), ())]
        [('split', 0), ('merged', 1)]
    """
    had = before if had is None else had
    stayed = after[: len(before)]
    result = []
    for cluster in np.unique(np.concatenate([had, after])).tolist():
        if cluster == NO_CLUSTER:
            continue
        was = before == cluster
        rows = int((after == cluster).sum())
        lost = stayed[was & (stayed != cluster)]
        into = tuple(np.unique(lost[lost != NO_CLUSTER]).tolist())
        if into:
            kind = MERGED if len(into) == 1 and not rows else SPLIT
            result.append(Event(kind, cluster, len(lost), into))
        came = int((after[len(before) :] == cluster).sum())
        if cluster in born:
            result.append(Event(EMERGED, cluster, rows))
        elif not rows and not into:
            result.append(Event(DISAPPEARED, cluster, 0))
        elif came:
            is_known = cluster in had or cluster in stayed
            result.append(Event(GREW if is_known else RETURNED, cluster, came))
        left = int((had == cluster).sum() - was.sum())
        if rows and left:
            result.append(Event(SHRANK, cluster, left))
        elif rows and not into and not came and cluster in had:
            result.append(Event(SURVIVED, cluster, rows))
    return tuple(result)


def to_arrays(state: State) -> dict[str, NDArray]:
    """Returns a state as arrays by name, for `from_arrays`.

    Example:
        >>> list(to_arrays(start(np.array([0, 1]))))[:3]
        ['ids', 'since', 'apart']
    """
    stored = {**state._asdict(), "events": json.dumps(state.events)}
    return {name: np.asarray(value) for name, value in stored.items()}


def from_arrays(stored: Mapping[str, NDArray]) -> State:
    """Returns the state from the arrays of `to_arrays`.

    Raises:
        KeyError: an array is missing.

    Example:
        >>> from_arrays(to_arrays(start(np.array([0, 1])))).next_id
        2
    """
    changes = json.loads(stored["events"].item())
    events_ = tuple(Event(kind, i, rows, tuple(into)) for kind, i, rows, into in changes)
    ids, since, apart = (stored[name] for name in ("ids", "since", "apart"))
    return State(ids, since, apart, int(stored["next_id"]), int(stored["updates"]), events_)
