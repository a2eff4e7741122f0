"""What a later file of one browser takes back of an earlier one of the same page.

The later file replaces the earlier one: rows, names and picks that it leaves out are as the page
has shown them, unless somebody else says the same.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster_jax.report import duplicates
from cluster_jax.runs import changes
from cluster_jax.runs.corrections import checked_name, checked_row, corrected
from cluster_jax.runs.run import Run


class _Others(NamedTuple):
    """What files of other browsers or later pages say, of a present state of n rows.

    Attributes:
        rows: bool `[n]`, rows that they move, confirm or take out of their cluster.
        kept: bool `[n]`, rows that they pick of their copies.
        names: (cluster, name) of each cluster that they name.
        held: clusters that they name, divide, call one kind, or into which they merge others.
        whole: those that they call one kind.
    """

    rows: NDArray
    kept: NDArray
    names: frozenset[tuple[int, str]]
    held: frozenset[int]
    whole: frozenset[int]


def without_changes_of_mind(
    shown: Run,
    run: Run,
    earlier: Mapping[str, Any],
    said: Mapping[str, Any],
    others: Collection[tuple[Run, Mapping[str, Any]]],
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
    they_say = _said_by(others, shown, run)
    before, wanted = corrected(shown, earlier), corrected(shown, said)
    now = rows_now(shown, run)
    is_mine = (now >= 0) & ~they_say.rows[now]
    is_changed = _targets(before, shown, earlier) != _targets(wanted, shown, said)
    is_changed |= before.columns["decided"] & ~wanted.columns["decided"]
    columns, named = run.columns.copy(), dict(run.named)
    names = dict[int, tuple[str | None, str | None]]()  # of clusters: earlier, and now
    for label in np.unique(before.labels).tolist():
        rows = np.flatnonzero((before.labels == label) & is_mine)
        there: int | None = label
        if label >= shown.next_label:
            key = [*earlier["new"]][label - shown.next_label]
            there = made_since(shown, run, now[rows])
            if there is not None:
                names[there] = (before.named.get(label), said.get("new", {}).get(key))
        rows = rows[is_changed[rows]]
        rows = rows[run.labels[now[rows]] == there]
        for name in ("label", "decided"):
            columns[name][now[rows]] = shown.columns[name][rows]
    for label in range(shown.next_label):
        names[label] = (before.named.get(label), wanted.named.get(label))
    for label, (mine, other) in names.items():
        is_changed_name = mine is not None and mine != other and (label, mine) not in they_say.names
        if is_changed_name and mine == run.named.get(label):
            named.pop(label)
            named |= {label: shown.named[label]} if label in shown.named else {}
    whole = run.whole - (before.whole - wanted.whole - shown.whole - they_say.whole)
    # A cluster is held as long as it has a name, or another file speaks of it. The numbers of new
    # clusters of the page may be those of others in the run.
    lost = before.held - wanted.held - shown.held - {*range(shown.next_label, before.next_label)}
    held = (run.held - (lost - they_say.held)) | run.held.intersection(named)
    is_picked = before.columns["kept"] & ~shown.columns["kept"] & ~wanted.columns["kept"]
    is_picked &= ~they_say.kept[now]
    run = dataclasses.replace(run, columns=columns, named=named, whole=whole, held=held)
    return _without_picks(shown, run, np.flatnonzero(is_picked & (now >= 0)))


def _said_by(others: Collection[tuple[Run, Mapping[str, Any]]], shown: Run, run: Run) -> _Others:
    """Returns what files say, by the rows and clusters of the present state.

    Args:
        others: each file, after the state of its page.
        shown: the state of the page whose file is applied. What a page has shown as decided is not
            decided by its files.
        run: the present state.
    """
    rows, kept = np.zeros((2, len(run.columns)), bool)
    names, held, whole = set[tuple[int, str]](), set[int](), set[int]()
    for state, file in others:
        done, now = corrected(state, file), rows_now(state, run)
        moved = [*file.get("labels", {}), *file.get("wrong", []), *file.get("right", [])]
        spoken = np.array([checked_row(state, "labels", row) for row in moved], int)
        if state is shown:
            spoken = spoken[~shown.columns["decided"][spoken]]
        picked = np.array([checked_row(state, "keep", row) for row in file.get("keep", [])], int)
        for is_said, places in ((rows, now[spoken]), (kept, now[picked])):
            is_said[places[places >= 0]] = True
        own = {(int(key), checked_name(name)) for key, name in file.get("names", {}).items()}
        ones = {int(each) for each in file.get("whole", [])}
        names |= own
        whole |= ones
        # The numbers of new clusters of a page may be those of others in the run.
        held |= (done.held - state.held) - {*range(state.next_label, done.next_label)}
        held |= ones.union(key for key, _ in own)
        held |= {int(into) for _, into in file.get("merges", [])}
    return _Others(rows, kept, frozenset(names), frozenset(held), frozenset(whole))


def _without_picks(shown: Run, run: Run, rows: NDArray) -> Run:
    """Returns a run in which of some copies those are kept that an earlier state has kept.

    Args:
        shown: the earlier state.
        run: the present state.
        rows: int `[l]`, rows of `shown` that a person has picked since, and that are there.
    """
    now = rows_now(shown, run)
    rows = rows[run.columns["kept"][now[rows]]]
    if not len(rows) or shown.duplicates is None or run.duplicates is None:
        return run
    before = duplicates.originals(shown.duplicates, len(shown.columns))[rows]
    before = before[now[before] >= 0]
    columns = run.columns.copy()
    columns["kept"][now[rows]] = False
    columns["kept"][now[before]] = shown.columns["kept"][before]
    repeated = duplicates.with_picked(run.duplicates, now[before].tolist())
    return dataclasses.replace(run, columns=columns, duplicates=repeated)


def _targets(wanted: Run, shown: Run, said: Mapping[str, Any]) -> NDArray:
    """Returns where corrections want each row, object `[n]`: a cluster, or the key of a new one.

    Args:
        wanted: `shown` with the corrections.
        shown: the state that they are about.
        said: the corrections, see `corrections`.
    """
    targets = wanted.labels.astype(object)
    for i, key in enumerate(said.get("new", {})):
        targets[wanted.labels == shown.next_label + i] = key
    return targets


def rows_now(shown: Run, run: Run) -> NDArray:
    """Returns the row of `run` that each row of `shown` is, int64 `[n]`, -1 if it is gone."""
    now = changes.matched(run, shown)
    if run.is_of_images:  # Another photo under an old name is another photo.
        now[(now >= 0) & (run.columns["since"][now] > shown.updates)] = -1
    return now


def made_since(shown: Run, run: Run, rows: NDArray) -> int | None:
    """Returns the one cluster, made since, to which a person has moved some of these rows, or None.

    Args:
        shown: the earlier state.
        run: the later state.
        rows: int `[l]`, rows of `run`.
    """
    labels = run.labels[rows[run.columns["decided"][rows]]]
    labels = np.unique(labels[labels >= shown.next_label])
    return int(labels[0]) if len(labels) == 1 else None
