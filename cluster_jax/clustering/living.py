"""Clusters that keep their identity while rows come and go.

An update fits the rows anew and explains the clusters that it finds by those that are known. Rows
change their cluster only in a split or merge, which is an event of the update:

1. Look. All rows are clustered, of more than 4,000 the new ones beside a sample of each cluster, so
   that an update costs as much as its new rows do. The sample stays the same while a cluster grows.
2. Owners. A found cluster belongs to the known one that has most rows there, among those that have
   most of their rows there. New rows of a found cluster join its owner.
3. Births. A found cluster without an owner of which most rows have come in the last four updates
   is a new cluster. So are five of these rows or more that are next to each other and to no older
   row, of which a fit takes notice later: the four nearest sharp rows of each are recent, and the
   nearest older row is farther than those are from one another in the median.
4. Splits. Any other found cluster without an owner is a part of the known cluster that has most
   rows there. It becomes a cluster of its own when three looks in a row have seen it apart, unless
   it has less than a fifth of the rows of the largest part.
5. Merges. Rows of a known cluster that five looks in a row have found with another owner join it:
   all of them in a merge, some of them in a split.

The waiting is what keeps ids: most of what a fit changes, the next one takes back. The largest part
keeps the id, an id is never used twice, and the events have the words of MONIC [1]. What other
values of the constants give is in `experiments/living.md`.

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
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from cluster_jax.clustering import knn, tree
from cluster_jax.clustering.base import NO_CLUSTER
from cluster_jax.core.arrays import Rows

SURVIVED, GREW, SPLIT, MERGED = "survived", "grew", "split", "merged"
EMERGED, SHRANK, DISAPPEARED = "emerged", "shrank", "disappeared"
# Rows that are clustered at an update, at most; of a cluster's sample, at least, if all fit.
LOOK, _SAMPLE = 4_000, 20
# Updates after which a row is no longer recent; share of recent rows of a birth.
RECENT, RECENT_SHARE = 4, 0.7
# Rows of a birth or a split, at least; rows that a split takes for each of the largest part.
LEAST, SPLIT_SHARE = 5, 0.2
# Looks before this one in which a part was apart: of a split, and of rows that join another
# cluster; share of the rows for which this must hold.
SPLIT_LOOKS, JOIN_LOOKS, SEEN = 2, 4, 0.7
# Jaccard index from which a cluster of a refit is the old one.
SAME = 0.5


class Event(NamedTuple):
    """What has happened to a cluster.

    Attributes:
        kind: one of "survived", "grew", "shrank", "split", "merged", "emerged", "disappeared".
        id: of the cluster.
        rows: that the cluster has ("survived", "emerged"), has got ("grew"), has lost ("shrank"),
            or has lost to `into` ("split", "merged"); 0 where it has disappeared.
        into: ids of the clusters in which its rows are now.
    """

    kind: str
    id: int
    rows: int
    into: tuple[int, ...] = ()


class State(NamedTuple):
    """The clusters of n rows.

    Attributes:
        ids: int64 `[n]`, the cluster of each row, -1 for none.
        since: int64 `[n]`, the update in which the row came; 0: the first fit.
        apart: int64 `[n]`, how many looks in a row have seen it apart from its cluster.
        next_id: the lowest id that no cluster has had.
        updates: how many there were.
        events: of the last update.
    """

    ids: NDArray
    since: NDArray
    apart: NDArray
    next_id: int
    updates: int
    events: tuple[Event, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Repeated:
    """Rows `[n, d]` of which many may be the same: `rows[leaves]`, read a part at a time.

    Attributes:
        rows: `[m, d]`.
        leaves: int `[n]`.
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
        """Appends new rows `[l, d]` to these."""
        leaves = len(self.rows) + np.arange(len(x))
        return Repeated(np.concatenate([self.rows, x]), np.concatenate([self.leaves, leaves]))


class Look(NamedTuple):
    """Clusters of the rows of a look.

    Attributes:
        labels: int `[m]`, 0 to k - 1, -1 for none.
        place: new rows `[l, d]` -> their clusters, int `[l]`.
        sharp: `[c, r]`, rows without copies, whose Euclidean distances say what is alike.
        leaves: int `[m]`, which of these each row in a cluster is.
    """

    labels: NDArray
    place: Callable[[NDArray], NDArray]
    sharp: NDArray
    leaves: NDArray


def start(labels: NDArray) -> State:
    """Returns the state after a first fit with the clusters int `[n]`, -1 for none.

    Example:
        >>> start(np.array([0, 0, 1])).events
        (Event(kind='emerged', id=0, rows=2, into=()), Event(kind='emerged', id=1, rows=1, into=()))
    """
    ids, none = labels.astype(np.int64), np.zeros(len(labels), np.int64)
    next_id = int(ids.max(initial=-1)) + 1
    return State(ids, none, none, next_id, 0, events(none[:0], ids, range(next_id)))


def update(state: State, x: Rows, fit: Callable[[NDArray], Look]) -> State:
    """Assigns clusters to all rows after new ones have come, and returns the new state.

    Args:
        state: of the n rows before.
        x: all rows `[m, d]` in their order, the new ones last.
        fit: clusters rows.

    Returns:
        The state of m rows; the same one if there are no new rows.

    Example:
        >>> def fit(x):
        ...     high = lambda rows: (rows[:, 0] > 5) * 1
        ...     return Look(high(x), high, x, np.arange(len(x)))
        >>> x = np.array([[0.0], [1.0], [9.0], [8.0], [7.0], [1.5]])
        >>> update(start(np.array([0, 0, 1, 1])), x, fit).ids.tolist()
        [0, 0, 1, 1, 1, 0]
    """
    old, m = len(state.ids), x.shape[0]
    if m == old:
        return state._replace(events=())
    rows, labels, is_seen = _looked_at(state, m), np.full(m, -1), np.zeros(m, bool)
    look = fit(np.asarray(x[rows]))
    since = np.concatenate([state.since, np.full(m - old, state.updates + 1)])
    labels[rows], is_seen[rows] = _with_newcomers(look, _is_recent(since[rows], since[-1])), True
    new = np.flatnonzero(~is_seen[old:]) + old
    labels[new] = _placed(look, x, new)
    after = explain(state, labels, is_seen)
    # What was decided on a sample holds for all rows of the cluster.
    changed = np.unique(state.ids[after.ids[:old] != state.ids])
    others = np.flatnonzero(~is_seen[:old] & np.isin(state.ids, changed))
    if not len(others):
        return after
    labels[others] = _placed(look, x, others)
    return explain(state, labels, is_seen)


def _placed(look: Look, x: Rows, rows: NDArray) -> NDArray:
    parts = np.array_split(rows, -(-len(rows) // LOOK) or 1)
    return np.concatenate(
        [look.place(np.asarray(x[part])) for part in parts if len(part)] or [rows]
    )


def _is_recent(since: NDArray, now: int) -> NDArray:
    """Returns which rows came with the last updates, bool; those of the first fit did not."""
    return since > max(now - RECENT, 0)


def _with_newcomers(look: Look, is_recent: NDArray) -> NDArray:
    """Gives recent rows that lie apart from all older ones a label of their own."""
    labels, n = look.labels.astype(np.int64), len(look.sharp)
    is_old, is_in = np.zeros(n, bool), labels != NO_CLUSTER
    is_old[look.leaves[is_in & ~is_recent]] = True
    if n <= LEAST or not 1 < is_old.sum() < n:
        return labels
    near = knn.nearest(look.sharp, look.sharp, LEAST - 1, exclude_self=True).indices
    apart = np.flatnonzero(~is_old & ~is_old[near].any(axis=1))
    if len(apart):
        old = look.sharp[is_old]
        usual = np.median(knn.nearest(old, old, 1, exclude_self=True).distances)
        far = knn.nearest(look.sharp[apart], old, 1).distances[:, 0] >= usual
        apart = apart[far]
    first, second = np.repeat(apart, LEAST - 1), near[apart].ravel()
    is_link = np.isin(second, apart)
    links = coo_array((np.ones(is_link.sum()), (first[is_link], second[is_link])), shape=(n, n))
    group = connected_components(links, directed=False)[1]
    for label in np.unique(group[apart]):
        core = apart[group[apart] == label]
        if len(core) < LEAST:
            continue
        rows = is_in & np.isin(look.leaves, np.union1d(core, near[core]))
        most = np.bincount(labels[rows]).argmax()
        if is_recent[labels == most].mean() < RECENT_SHARE:
            labels[rows & (labels == most)] = labels.max() + 1
    labels[is_in] = np.unique(labels[is_in], return_inverse=True)[1]
    return labels


def _looked_at(state: State, m: int) -> NDArray:
    """Returns which of m rows are clustered, int64: all, or the new and some of each cluster."""
    old = len(state.ids)
    if m <= LOOK:
        return np.arange(m)
    new = np.arange(old, m)
    new = new[np.argsort(_priority(new), kind="stable")[: LOOK // 2]]
    room, priority = LOOK - len(new), _priority(np.arange(old))
    order = np.lexsort((priority, state.ids))
    _, first, sizes = np.unique(state.ids[order], return_index=True, return_counts=True)
    rank = np.arange(old) - np.repeat(first, sizes)
    # Proportional to the sizes, but for small clusters; of more of them than fit, some.
    share = rank / np.repeat(np.maximum(_SAMPLE, room * sizes / old), sizes)
    return np.sort(np.concatenate([order[np.lexsort((priority[order], share))[:room]], new]))


def _priority(rows: NDArray) -> NDArray:
    """Returns a number for each row to sort by: in an order that looks random and is fixed."""
    return rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def explain(state: State, labels: NDArray, is_seen: NDArray | None = None) -> State:
    """Derives the clusters of all rows from those that a clustering of some of them has found.

    Args:
        state: of the n rows before.
        labels: int `[m]`, the cluster that the look has found for each row, -1 for rows that were
            not looked at or are in none; the rows from n on are new.
        is_seen: bool `[m]`, rows by which splits and merges are decided; None: all.

    Example:
        >>> before, found = start(np.repeat([0, 1], 9)), np.repeat([1, 0, 2], [9, 9, 6])
        >>> after = explain(before, found)
        >>> after.ids[-1], after.events[-1]
        (np.int64(2), Event(kind='emerged', id=2, rows=6, into=()))
    """
    old, m, now = len(state.ids), len(labels), state.updates + 1
    ids, since, apart = (
        np.concatenate([column, np.full(m - old, value)])
        for column, value in ((state.ids, NO_CLUSTER), (state.since, now), (state.apart, 0))
    )
    is_seen = np.ones(m, bool) if is_seen is None else is_seen
    is_known = is_seen & (ids != NO_CLUSTER) & (labels >= 0)
    live, codes = np.unique(ids[is_known], return_inverse=True)
    k, next_id, born = int(labels.max()) + 1, state.next_id, set[int]()
    counts = np.zeros((len(live), k), np.int64)
    np.add.at(counts, (codes, labels[is_known]), 1)
    sizes, main = counts.sum(axis=1), counts.argmax(axis=1) if len(live) else np.array([], int)
    owned = np.where(main[:, None] == np.arange(k), counts, 0)
    owner = np.full(k, NO_CLUSTER)
    if len(live):
        owner = np.where(owned.any(axis=0), live[owned.argmax(axis=0)], NO_CLUSTER)
    before = ids.copy()
    members = tree.members(labels + 1)[1:]  # The first are the rows that were not looked at.
    for b in np.flatnonzero(owner == NO_CLUSTER).tolist():
        rows = members[b]
        parent = int(live[counts[:, b].argmax()]) if counts[:, b].any() else NO_CLUSTER
        is_new = rows >= old
        ids[rows[is_new]] = parent
        mine = rows[is_new | (before[rows] == parent)]
        seen, part = rows[is_seen[rows]], mine[is_seen[mine] & (mine < old)]
        is_recent = _is_recent(since[seen], now)
        is_birth = is_recent.mean() >= RECENT_SHARE
        if parent != NO_CLUSTER and len(seen) < LEAST:
            continue
        if is_birth or parent == NO_CLUSTER:
            born.add(next_id)
        elif (
            len(part) < max(LEAST, SPLIT_SHARE * counts[np.searchsorted(live, parent)].max())
            or (apart[part] >= SPLIT_LOOKS).mean() < SEEN
        ):
            continue
        ids[mine], owner[b], next_id = next_id, next_id, next_id + 1
    is_new = np.arange(m) >= old
    has_owner = (labels >= 0) & (owner[labels] != NO_CLUSTER)
    ids[is_new & has_owner] = owner[labels[is_new & has_owner]]
    is_apart = (labels >= 0) & (owner[labels] != ids)
    for i, b in np.argwhere(counts).tolist():
        cell = members[b][before[members[b]] == live[i]]
        seen = cell[is_seen[cell]]
        is_due = (apart[seen] >= JOIN_LOOKS).mean() >= SEEN
        # A cluster without most of its rows would have changed its meaning.
        is_main = b == main[i] and counts[i, b] < SEEN * sizes[i]
        if owner[b] not in (live[i], NO_CLUSTER) and is_due and not is_main:
            ids[cell] = owner[b]
    is_apart &= ids == np.concatenate([state.ids, ids[old:]])
    apart = np.where(labels < 0, apart, np.where(is_apart, apart + 1, 0))
    return State(ids, since, apart, next_id, now, events(state.ids, ids, born))


def refit(state: State, labels: NDArray) -> State:
    """Names the clusters int `[n]` of a fit of all rows by the ids of the old ones most like them.

    Clusters are matched one to one, by the largest sum of their Jaccard indices; below 0.5 a
    cluster is a new one.

    Example:
        >>> refit(start(np.array([0, 0, 1, 1, 1])), np.array([1, 1, 0, 0, 0])).ids.tolist()
        [0, 0, 1, 1, 1]
    """
    is_in = (state.ids != NO_CLUSTER) & (labels >= 0)
    live, codes = np.unique(state.ids[is_in], return_inverse=True)
    k, next_id = int(labels.max()) + 1, state.next_id
    both = np.zeros((len(live), k))
    np.add.at(both, (codes, labels[is_in]), 1)
    index = both / np.maximum(both.sum(1)[:, None] + both.sum(0)[None, :] - both, 1)
    ids_of = np.full(k + 1, NO_CLUSTER)
    for i, b in zip(*linear_sum_assignment(-index), strict=True):
        if index[i, b] >= SAME:
            ids_of[b] = live[i]
    unmatched = np.flatnonzero(ids_of[:k] == NO_CLUSTER)
    ids_of[unmatched] = next_id + np.arange(len(unmatched))
    # A new cluster of which most rows come from one old one is a part of that.
    is_born = [2 * both[:, b].max(initial=0) <= both[:, b].sum() for b in unmatched]
    ids, now = ids_of[labels], state.updates + 1
    changes = events(state.ids, ids, ids_of[unmatched[is_born]].tolist())
    apart = np.zeros_like(state.apart)
    return State(ids, state.since, apart, next_id + len(unmatched), now, changes)


def without(state: State, is_kept: NDArray) -> State:
    """Returns the state of the rows that are kept, bool `[n]`.

    Example:
        >>> without(start(np.array([0, 1])), np.array([True, False])).events[1].kind
        'disappeared'
    """
    ids = state.ids[is_kept]
    gone = events(state.ids[is_kept], ids, (), had=state.ids)
    return state._replace(
        ids=ids, since=state.since[is_kept], apart=state.apart[is_kept], events=gone
    )


def events(
    before: NDArray, after: NDArray, born: Collection[int], had: NDArray | None = None
) -> tuple[Event, ...]:
    """Returns what has happened to each cluster, by id; a row that moved is in a split or merge.

    Args:
        before: int `[n]`, the clusters of the old rows.
        after: int `[m]`, of all rows, the new ones last.
        born: ids of new clusters that are no part of an old one.
        had: clusters of all old rows, if some have left.

    Example:
        >>> [event[:2] for event in events(np.array([0, 0, 0, 1]), np.array([0, 2, 2, 0]), ())]
        [('split', 0), ('merged', 1)]
    """
    had, stayed = before if had is None else had, after[: len(before)]
    result = []
    for cluster in np.unique(np.concatenate([had, after])).tolist():
        if cluster == NO_CLUSTER:
            continue
        was, rows = before == cluster, int((after == cluster).sum())
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
        elif came and cluster in had:
            result.append(Event(GREW, cluster, came))
        elif rows and not into and (had == cluster).sum() > was.sum():
            result.append(Event(SHRANK, cluster, int((had == cluster).sum() - was.sum())))
        elif rows and not into and cluster in had:
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
    """Restores the state of `to_arrays`.

    Example:
        >>> from_arrays(to_arrays(start(np.array([0, 1])))).next_id
        2
    """
    changes = json.loads(stored["events"].item())
    events_ = tuple(Event(kind, i, rows, tuple(into)) for kind, i, rows, into in changes)
    ids, since, apart = (stored[name] for name in ("ids", "since", "apart"))
    return State(ids, since, apart, int(stored["next_id"]), int(stored["updates"]), events_)
