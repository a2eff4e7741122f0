"""The next state of a run, given what is there now: one path for first runs and for all others.

A first run is an update of an empty run. An update, a refit, another number of clusters and the end
of a training differ only in which rows there are, and in which rule numbers the clusters that are
found.
"""

import dataclasses
from collections.abc import Callable, Collection
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering import placing, stable_ids, tree_fit
from cluster_jax.clustering import tree as trees
from cluster_jax.clustering.base import NO_CLUSTER
from cluster_jax.clustering.placing import ByCenters, ByTree, ByVotes, Placing, Voters
from cluster_jax.clustering.stable_ids import Event
from cluster_jax.clustering.tree_fit import TreeFit
from cluster_jax.core import arrays
from cluster_jax.core.arrays import Rows
from cluster_jax.data.arrays import Shards
from cluster_jax.data.datasets import Dataset
from cluster_jax.evaluation import clusters
from cluster_jax.evaluation.clusters import Clustering
from cluster_jax.evaluation.options import CLUSTERINGS
from cluster_jax.runs import decisions, measured
from cluster_jax.runs.run import COLUMNS, Run

# How the clusters of a state get their numbers. "kept": rows keep their clusters, see
# `clustering.stable_ids`. "refit": all rows get the clusters that are found, which have the numbers
# of those of which they are the same, and only rows stay that a person has decided about or whose
# cluster is in `Run.held`. "other": as "refit", but only decided rows stay, and only if their
# cluster does, so that there are as many clusters as are asked for. A first run is a refit of an
# empty run.
Numbers = Literal["kept", "refit", "other"]


class Now(NamedTuple):
    """The n photos or rows of the next state of a run.

    Attributes:
        after: the state before with these rows: first old ones with their clusters, among them
            those that have returned, then new ones. Only its config, columns, facts, names, true
            labels and store are of these rows. The last features may not be on disk yet.
        old: int `[l]`, ascending, which rows of the state before the old ones are; an index from
            the size of that state on is that of a row that had left and has returned.
        changed: bool `[n]`, old rows of embeddings with another vector; None: there are none.
        order: int `[n]`, the row of `after` that comes first in the tables, and so on; None: its
            own order.
        pictures: the images, which are compared to find copies; None: a run of photos has them in
            its store, and other rows have none.
        in_blocks: rows that do not fit into memory; None: the store of `after` has all rows.
    """

    after: Run
    old: NDArray
    changed: NDArray | None = None
    order: NDArray | None = None
    pictures: Dataset | None = None
    in_blocks: Rows | None = None


def with_rows(run: Run, count: int, first: int = 0) -> Run:
    """Returns a run with `count` more rows, whose cluster is `stable_ids.NEW`, for none yet.

    They are the rows of its store from `first` on, which the store need not have yet.
    """
    added = np.zeros(count, COLUMNS)
    added["label"] = stable_ids.NEW
    added["id"] = added["row"] = first + np.arange(count)
    added["since"] = run.updates + 1
    return dataclasses.replace(run, columns=np.concatenate([run.columns, added]))


def find(
    after: Run, x: Rows, numbers: Numbers, progress: Callable[[str], None] = lambda text: None
) -> Clustering:
    """Returns the clusters of the rows that are there now, as the run asks for them.

    If rows have left, and fewer different ones are there than clusters were asked for, so many are
    found.

    Args:
        after: see `Now`.
        x: features `[n, d]`, see `next_state`.
        numbers: how the clusters get their numbers.
        progress: called with one line of text at each step.
    """
    options = after.options
    if options.n_clusters is not None and after.updates >= 0 and numbers != "other":
        n_distinct = len(np.unique(np.asarray(x), axis=0))
        options = dataclasses.replace(options, n_clusters=min(options.n_clusters, n_distinct))
    seed, originals = after.config["seed"], after.originals
    return clusters.find(x, options, seed=seed, originals=originals, progress=progress)


def next_state(before: Run, now: Now, x: Rows, numbers: Numbers, clustering: Clustering) -> Run:
    """Returns the state of the rows that are there now.

    Clusters, their numbers, and everything that follows from them are new; results are missing, and
    so is the map, if the clusters were not found in it.

    Args:
        before: the state before, perhaps an empty one. A number is never used for two clusters.
        now: the n rows of now.
        x: their features `[n, d]`.
        numbers: how the clusters get their numbers.
        clustering: their clusters, see `find`.
    """
    after = now.after
    found = clustering.cluster_labels
    state = _numbered(now, x, numbers, clustering)
    columns = after.columns.copy()
    columns["label"] = state.ids
    columns["apart"] = state.apart
    # With another number of clusters a decision ends with its cluster; else its cluster is there.
    columns["decided"] &= np.isin(after.labels, [NO_CLUSTER, *state.ids.tolist()])
    if numbers != "other":
        columns["earlier"] = columns["label"]
    is_new = (columns["label"] != after.labels) | (numbers == "other")
    columns["found"] = np.where(is_new, columns["label"], columns["found"])
    after = dataclasses.replace(after, columns=columns)
    after = decisions.without_ended(after, with_clusters=numbers == "other")
    born = {event.id for event in state.events if event.kind == stable_ids.EMERGED}
    had = before.labels
    is_there = now.old < len(had)
    stayed = had[now.old[is_there]]
    is_in_blocks = isinstance(x, Shards)
    described = x[after.rows] if is_in_blocks else np.asarray(x)
    points = described if is_in_blocks and clustering.tree is None else clustering.points
    after = dataclasses.replace(
        after,
        next_label=state.next_id,
        updates=state.updates,
        events=_events(before, stayed, after.labels, born),
        fit={**clustering.metrics, "is_shown": _are_same(found, state.ids)},
        tree=None if clustering.tree is None else clustering.tree.linkage,
        points=points.astype(np.float32) if points.size else None,
        placer=placer_of(clustering, after.labels, described, after),
    )
    after = measured.described(after, described if is_in_blocks else None)
    both = np.stack([stayed, after.labels[: len(now.old)][is_there]])
    if trees.are_same_clusters(had, both, after.labels):
        after = dataclasses.replace(after, linkage=before.linkage)
    return after


def _events(
    before: Run, stayed: NDArray, labels: NDArray, born: Collection[int]
) -> tuple[Event, ...]:
    """Returns the events of the clusters since the state before; of an empty one there are none.

    A cluster that has its earlier number back is told to be back, also if its rows were all there.

    Args:
        before: the state before.
        stayed: int `[l]`, the clusters before of its rows that are still there.
        labels: int `[n]`, the present clusters, of these rows first.
        born: see `stable_ids.events`.
    """
    had = before.labels
    if not len(had):
        return ()
    told = stable_ids.events(stayed, labels, born, had=had)
    known = {NO_CLUSTER, *had.tolist(), *(event.id for event in told)}
    back = [cluster for cluster in set(labels.tolist()) - known if cluster < before.next_label]
    returned = [Event(stable_ids.RETURNED, i, int((labels == i).sum())) for i in back]
    return tuple(sorted([*told, *returned], key=lambda event: event.id))


def placer_of(clustering: Clustering, ids: NDArray, x: NDArray, run: Run) -> Placing | None:
    """Returns what assigns new images or rows to clusters; None if a map of t-SNE was clustered.

    New images are compared with all images of the run, which it stores anyway; new rows with those
    that the tree keeps.

    Args:
        clustering: the clusters.
        ids: int `[n]`, their numbers.
        x: float `[m, d]`, the rows that are described; of images unit rows.
        run: the run, for the options, with a metric.
    """
    tree = clustering.tree
    options = run.options
    if tree is not None and not run.is_of_images:
        return dataclasses.replace(tree.placer, labels=ids)
    metric = str(options.metric)
    distinct = rows = arrays.normalize_rows(x) if metric == "cosine" else x
    if tree is not None and len(x) <= tree_fit.MAX_ROWS:
        distinct = rows[tree.sample]  # Of copies one counts.
    known = Voters(rows, metric, placing.novelty_threshold(distinct, metric))
    if tree is not None:
        return ByTree(tree.smoother, ids, tree.sample, tree.leaves, known)
    labels = clustering.cluster_labels
    if options.method in CLUSTERINGS and options.reduce == "tsne":
        return None
    if options.method == "kmeans" and options.reduce == "none":
        assert clustering.centers is not None
        return ByCenters(clustering.centers, labels, known)
    return ByVotes(labels, options.n_neighbors, known)


def _numbered(now: Now, x: Rows, numbers: Numbers, clustering: Clustering) -> stable_ids.State:
    """Returns the clusters of the n rows, of which some may be old, with their numbers.

    For the arguments see `next_state`.
    """
    after, n_old = now.after, len(now.old)
    found = clustering.cluster_labels
    columns = after.columns
    labels, follows = _with_copies(after)
    times = columns["since"], columns["apart"]
    known = stable_ids.State(labels, *times, after.next_label, after.updates)
    is_fixed = columns["decided"] | follows | np.isin(labels, list(after.held))
    if numbers == "refit":
        return stable_ids.refit(known, found, is_fixed)
    if numbers == "other":
        return _other(after, stable_ids.refit(known, found), labels, follows)
    assert clustering.tree is not None
    return _kept(known, n_old, x, clustering.tree, is_fixed, after.originals, now.changed)


def _other(
    after: Run, state: stable_ids.State, labels: NDArray, follows: NDArray
) -> stable_ids.State:
    """Returns what `_numbered` does for another number of clusters.

    A cluster that was there before the number was changed gets its number back.

    Args:
        after: see `Now`.
        state: the clusters that are found, by the numbers of those that are the same.
        labels: int `[n]`, the clusters of the rows before.
        follows: bool `[n]`, copies of rows that a person has decided about.
    """
    ids = _returned(state.ids, labels, after.columns["earlier"], after.next_label)
    alive = np.unique(ids).tolist()
    stays = follows & ((labels == NO_CLUSTER) | np.isin(labels, alive))
    return state._replace(ids=np.where(stays, labels, ids))


def of_copies(run: Run) -> NDArray:
    """Returns where new copies of each row belong, as a person has decided, int64 `[n]`.

    It is the cluster of the rows, among the row and its known copies, about which a person has
    decided, -1 for none, and `stable_ids.NEW` if there is no such row, or if they are parted.
    """
    decided = run.columns["decided"]
    groups = np.arange(len(decided)) if run.originals is None else run.originals
    low = np.full(len(decided), np.iinfo(np.int64).max)
    high = np.full(len(decided), stable_ids.NEW)
    np.minimum.at(low, groups[decided], run.labels[decided])
    np.maximum.at(high, groups[decided], run.labels[decided])
    return np.where(low == high, high, stable_ids.NEW)[groups]


def _with_copies(after: Run) -> tuple[NDArray, NDArray]:
    """Returns the clusters of all rows before the fit, and which of them follow a decided copy.

    A new copy of a row that a person has decided gets the cluster of that row, or none, as in
    `place.place`. An old copy follows it as long as both are in one cluster.

    Args:
        after: see `Now`.

    Returns:
        int64 `[n]`, `stable_ids.NEW` for other new rows, and bool `[n]`.
    """
    labels = after.labels
    wanted = of_copies(after)
    follows = (wanted != stable_ids.NEW) & ~after.columns["decided"]
    follows &= (labels == stable_ids.NEW) | (labels == wanted)
    return np.where(follows, wanted, labels), follows


def _returned(ids: NDArray, before: NDArray, earlier: NDArray, next_label: int) -> NDArray:
    """Returns clusters int64 `[n]`, of which some have the numbers of earlier ones.

    They do if more than half of the rows of both are in both, and the earlier one is not there. A
    new cluster does, and so does one half of the cluster before of which it has the number: the
    other half may be that cluster as it was earlier.

    Args:
        ids: int `[n]`, the clusters; new ones have numbers from `next_label` on.
        before: int `[n]`, the clusters before.
        earlier: int `[n]`, the clusters before the number of clusters was changed.
        next_label: the lowest number that no cluster has had.
    """

    def is_most(one: NDArray, other: NDArray) -> bool:
        return 2 * int((one & other).sum()) > int((one | other).sum())

    clusters = np.unique(ids[ids >= 0]).tolist()
    formers = dict[int, int]()
    for cluster in clusters:
        is_in = ids == cluster
        inside = earlier[is_in & (earlier >= 0)]
        former = int(np.bincount(inside).argmax()) if len(inside) else NO_CLUSTER
        if not is_most(is_in, before == cluster) and is_most(is_in, earlier == former):
            formers[cluster] = former
    kept = set(clusters) - formers.keys()
    while not kept.isdisjoint(formers.values()):  # Such a number is not free.
        formers = {cluster: former for cluster, former in formers.items() if former not in kept}
        kept = set(clusters) - formers.keys()
    return np.array([formers.get(cluster, cluster) for cluster in ids.tolist()], ids.dtype)


def _kept(
    known: stable_ids.State,
    n_old: int,
    x: Rows,
    tree: TreeFit,
    is_fixed: NDArray,
    originals: NDArray | None,
    changed: NDArray | None,
) -> stable_ids.State:
    """Returns the state in which rows keep their clusters, see `tree_fit.numbered`.

    Of known copies one counts: the oldest row that is not fixed, whose cluster all have that are
    not fixed. An old row with new features leaves its cluster only if it is found apart from the
    largest part of that.

    Args:
        known: the clusters of the rows before, `stable_ids.NEW` for new rows.
        n_old: number of old rows.
        x: features `[m, d]`, first those of the old rows.
        tree: the fit of these rows.
        is_fixed: bool `[m]`, rows that keep their cluster.
        originals: see `Run.originals`.
        changed: see `Now`.
    """
    m = len(known.ids)
    distinct, head = _representatives(originals, is_fixed | (np.arange(m) >= n_old))
    is_whole = len(distinct) == m
    n_known = int(np.searchsorted(distinct, n_old))
    rows = x if is_whole else np.asarray(x[distinct])
    own = dataclasses.replace(tree, labels=tree.labels[distinct], leaves=tree.leaves[distinct])
    living = known.of(distinct[:n_known])
    if n_known == len(distinct):
        state = living
    else:
        state = tree_fit.numbered(living, rows, own, is_fixed[distinct[:n_known]])
    ids = np.where(is_fixed, known.ids, state.ids[head])
    if changed is not None and changed.any():
        ids = _moved(known.ids, ids, tree.labels, changed & ~is_fixed)
    return state._replace(
        ids=ids, since=known.since, apart=state.apart[head], updates=known.updates + 1
    )


def _representatives(originals: NDArray | None, is_last: NDArray) -> tuple[NDArray, NDArray]:
    """Returns the rows that stand for their copies, and which of them stands for each row.

    Args:
        originals: int `[m]`, the row that each row is a copy of, or itself; None: no row is a copy.
        is_last: bool `[m]`, rows that stand for copies only if all of them are such rows. Of
            others the first one does.

    Returns:
        int64 `[r]`, ascending, and int64 `[m]`, indices of these r rows.
    """
    m = len(is_last)
    group = np.arange(m) if originals is None else originals
    order = np.lexsort((np.arange(m), is_last, group))
    first = order[np.flatnonzero(np.diff(group[order], prepend=-1))]
    distinct = np.sort(first)
    return distinct, np.searchsorted(distinct, first)[np.unique(group, return_inverse=True)[1]]


def _moved(before: NDArray, ids: NDArray, found: NDArray, changed: NDArray) -> NDArray:
    """Returns clusters int64 `[n]` after changed rows have left those from which they are apart.

    A changed row stays if it is found with the largest part of its cluster. Else, or if it was in
    none, it gets the cluster of most rows, unchanged ones if there are any, with which it is found.

    Args:
        before: int `[n]`, the clusters before the update.
        ids: int `[n]`, the clusters so far.
        found: int `[n]`, the clusters of the fit, -1 for none.
        changed: bool `[n]`, old rows with new features that may move.
    """
    ids = ids.copy()
    ids[changed & (found == NO_CLUSTER)] = NO_CLUSTER
    for row in np.flatnonzero(changed & (found != NO_CLUSTER)).tolist():
        mates = found[(before == before[row]) & (found != NO_CLUSTER)]
        if before[row] != NO_CLUSTER and np.bincount(mates).argmax() == found[row]:
            continue
        others = (found == found[row]) & (ids >= 0)
        others = others & ~changed if (others & ~changed).any() else others
        if others.any():
            ids[row] = np.bincount(ids[others]).argmax()
    return ids


def _are_same(one: NDArray, other: NDArray) -> bool:
    """Returns whether two arrays of clusters int `[n]` part the rows in the same way."""
    is_in = one != NO_CLUSTER
    codes = [trees.by_first(labels)[1] for labels in (one, other)]
    return np.array_equal(is_in, other != NO_CLUSTER) and np.array_equal(codes[0], codes[1])
