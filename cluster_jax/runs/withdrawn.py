"""What a later file of one browser takes back of an earlier one of the same page.

The later file replaces the earlier one: rows, names and picks that it leaves out are as the page
has shown them, unless somebody else says the same.
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster_jax.report import duplicates
from cluster_jax.runs.changes import rows_now
from cluster_jax.runs.corrections import Decisions, Target, applied
from cluster_jax.runs.run import Run

_NOT_MADE = -2  # the number of a new cluster that has none yet


class _Change(NamedTuple):
    """A file of a page, another one of the same browser that replaces it, and the present state.

    Attributes:
        shown: the state of the page, of n rows.
        run: the present state.
        now: int64 `[n]`, see `rows_now`.
        earlier: what the replaced file says.
        said: what the later one says.
        before: `shown` with `earlier`.
        wanted: `shown` with `said`.
        others: what files of other browsers or later pages say, each after the state of its page.
    """

    shown: Run
    run: Run
    now: NDArray
    earlier: Decisions
    said: Decisions
    before: Run
    wanted: Run
    others: Collection[tuple[Run, Decisions]]


def without_changes_of_mind(
    shown: Run,
    run: Run,
    earlier: Decisions,
    said: Decisions,
    others: Collection[tuple[Run, Decisions]],
) -> Run:
    """Returns a run without those corrections of a file that a later one of its browser changes.

    Rows are where the page has shown them, clusters have the names that it has shown, and of copies
    that one is kept that it has shown as kept, if the earlier file has moved, named or picked them,
    nobody else has done so or changed it since, and the later one wants otherwise.

    Args:
        shown: the state of the page.
        run: the present state.
        earlier: the last corrections of the browser that were applied.
        said: its corrections of now.
        others: files of other browsers of the page, and of later pages, that were applied, each
            after the state of its page.
    """
    before, wanted = applied(shown, earlier), applied(shown, said)
    now = rows_now(shown, run)
    change = _Change(shown, run, now, earlier, said, before, wanted, others)
    columns, made = _moved_back(change)
    columns["kept"] = _kept(change)
    named = _named(change, made)
    theirs = {cluster for _, file in others for cluster in file.whole}
    whole = run.whole - (before.whole - wanted.whole - shown.whole - theirs)
    shaped = _shaped(change)
    return dataclasses.replace(run, columns=columns, named=named, whole=whole, shaped=shaped)


def _moved_back(change: _Change) -> tuple[NDArray, Mapping[Target, int]]:
    """Returns the columns of the present state with rows where the page has shown them.

    These are the rows that the later file leaves out or moves elsewhere, of which nobody else has
    said anything, and that are still where the earlier file has put them.

    Returns:
        The columns, and the numbers of the new clusters of the earlier file, see `targets_now`.
    """
    shown, run, now, earlier, said, before, wanted, others = change
    theirs = set[int]()
    for state, file in others:
        rows = np.array([*file.labels, *file.wrong, *file.right], int)
        if state is shown:  # What a page has shown as decided is not decided by its files.
            rows = rows[~shown.columns["decided"][rows]]
        theirs |= {*rows_now(state, run)[rows].tolist()}
    mine = np.where(np.isin(now, list(theirs)), -1, now)
    places, made = targets_now(shown, run, before, earlier.new, mine)
    is_changed = _targets(earlier, before, shown) != _targets(said, wanted, shown)
    is_changed |= before.columns["decided"] & ~wanted.columns["decided"]
    rows = np.flatnonzero(is_changed & (mine >= 0) & (run.labels[mine] == places))
    columns = run.columns.copy()
    for name in ("label", "decided"):
        columns[name][mine[rows]] = shown.columns[name][rows]
    return columns, made


def _named(change: _Change, made: Mapping[Target, int]) -> dict[int, str]:
    """Returns the names of the present state without those that the later file leaves out.

    Args:
        change: the two files.
        made: key of a new cluster of the earlier file -> its number in the present state.
    """
    shown, run, earlier, said = change.shown, change.run, change.earlier, change.said
    theirs = {named for _, file in change.others for named in file.names.items()}
    before, wanted = change.before.named, change.wanted.named
    names = {label: (before.get(label), wanted.get(label)) for label in range(shown.next_label)}
    names |= {made[key]: (v, said.new.get(key)) for key, v in earlier.new.items() if key in made}
    result = dict(run.named)
    for label, (then, now) in names.items():
        is_left_out = then is not None and then != now and (label, then) not in theirs
        if is_left_out and run.named.get(label) == then:
            result.pop(label)
            result |= {label: shown.named[label]} if label in shown.named else {}
    return result


def _shaped(change: _Change) -> frozenset[int]:
    """Returns the clusters of the present state that are still shaped by a person.

    Another file merges others into each of them, or divides it, if the later file does not.
    """
    shown, run, before = change.shown, change.run, change.before
    theirs = set[int]()
    for state, file in change.others:
        divided = [row for row, target in file.labels.items() if target in file.new]
        theirs.update((into for _, into in file.merges), state.labels[divided].tolist())
    # The numbers of new clusters of the page may be those of others in the run.
    new = {*range(shown.next_label, before.next_label)}
    return run.shaped - (before.shaped - change.wanted.shaped - shown.shaped - new - theirs)


def _kept(change: _Change) -> NDArray:
    """Returns which rows are kept of their copies without picks that the later file leaves out.

    Of these copies those are picked that the page has shown as picked. The result is bool `[n]`.
    """
    shown, run, now, before = change.shown, change.run, change.now, change.before
    theirs = set[int]()
    for state, file in change.others:
        theirs |= {*rows_now(state, run)[list(file.keep)].tolist()}
    is_mine = before.columns["kept"] & ~shown.columns["kept"] & ~change.wanted.columns["kept"]
    is_mine &= (now >= 0) & run.columns["kept"][now] & ~np.isin(now, list(theirs))
    groups = duplicates.groups_of(shown.copies, len(now))
    rows = np.flatnonzero(np.isin(groups, groups[is_mine]) & (now >= 0))
    kept = run.columns["kept"].copy()
    kept[now[rows]] = shown.columns["kept"][rows]
    return kept


def _targets(said: Decisions, wanted: Run, shown: Run) -> NDArray:
    """Returns where decisions want each row, object `[n]`: a cluster, or the key of a new one.

    Args:
        said: the decisions.
        wanted: `shown` with them.
        shown: the state that they are about.
    """
    targets = wanted.labels.astype(object)
    for i, key in enumerate(said.new):
        targets[wanted.labels == shown.next_label + i] = key
    return targets


def targets_now(
    shown: Run, run: Run, wanted: Run, new: Iterable[str], now: NDArray
) -> tuple[NDArray, Mapping[Target, int]]:
    """Returns where decisions of a page want each of its rows, as clusters of the present state.

    A new cluster has a number if people have since moved rows of it to one cluster, made since.

    Args:
        shown: the state of the page.
        run: the present state.
        wanted: `shown` with the decisions.
        new: the keys of their new clusters.
        now: int64 `[n]`, the row of `run` that each row of `shown` is; rows of -1 do not count.

    Returns:
        The clusters, int64 `[n]`, `_NOT_MADE` for new ones without a number; and the number of each
        of the others by its key.
    """
    targets, made = wanted.labels.copy(), dict[Target, int]()
    for i, key in enumerate(new):
        is_in = wanted.labels == shown.next_label + i
        rows = now[is_in & (now >= 0)]
        labels = np.unique(run.labels[rows[run.columns["decided"][rows]]])
        labels = labels[labels >= shown.next_label]
        if len(labels) == 1:
            made[key] = int(labels[0])
        targets[is_in] = made.get(key, _NOT_MADE)
    return targets, made
