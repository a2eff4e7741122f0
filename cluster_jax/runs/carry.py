"""Corrections of the page of an older state, as corrections of the present one.

Files of one page are all applied. A later file of the same browser is a change of mind: it replaces
what the earlier one has decided. One of another browser that contradicts it is refused.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.core.checks import InputError, short
from cluster_jax.report import duplicates
from cluster_jax.runs import changes
from cluster_jax.runs.corrections import LISTS, OBJECTS, checked_name, checked_row, corrected
from cluster_jax.runs.run import Run

MOST_PAGES = 8  # of which a run knows what it has applied
_NOT_MADE = -2  # the number of a new cluster that has none yet


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


def carried(
    shown: Run,
    run: Run,
    said: Mapping[str, Any],
    later: Collection[tuple[Run, Mapping[str, Any]]] = (),
) -> tuple[Run, dict[str, Any]]:
    """Returns a later state of a run, and the corrections of an earlier one as corrections of it.

    They are carried by content: a cluster is the same one if more than half of its rows are the
    same, where rows count that the corrections themselves move. So a file may be applied again, and
    two files of one page are both applied. Corrections of rows that are gone are left out. A row
    that is right moves to the cluster in which the page has shown it. If rows of a new cluster have
    since been moved to one that was made since, as by an earlier file of the same page, the new
    cluster is not made: its rows move to that one. The returned state is without what an earlier
    file of the same page and browser has decided otherwise.

    Args:
        shown: the state that the corrections are about.
        run: a later state of the same run.
        said: the corrections, see `corrections`.
        later: corrections of pages after that of `shown` that have been applied, each after the
            state of its page.

    Raises:
        InputError: a correction is invalid in its own state, speaks of a cluster that has other
            rows now, or contradicts a correction that was made since.
    """
    wanted = corrected(shown, said)
    files = run.pages.get(shown.state, {}).get("files", {})
    if (earlier := files.get(said.get("browser"))) is not None:
        others = [(shown, file) for browser, file in files.items() if browser != said["browser"]]
        they_say = _said_by([*others, *later], shown, run)
        run = _without_changes_of_mind(shown, run, earlier, said, they_say)
    fresh = _without(said, files)
    # A row that is right belongs to the cluster on the page, from which it may have moved since.
    rights = {row: checked_row(shown, "right", row) for row in fresh.get("right", [])}
    labels: dict[str, Any] = {str(row): int(shown.labels[i]) for row, i in rights.items()}
    labels |= fresh.get("labels", {})
    now = _rows_now(shown, run)
    made = dict[str, int]()
    targets = wanted.labels.copy()
    for i, key in enumerate(said.get("new", {})):
        number = shown.next_label + i
        rows = now[(wanted.labels == number) & (now >= 0)]
        if (label := _made(shown, run, rows)) is not None:
            made[key] = label
        targets[wanted.labels == number] = made.get(key, _NOT_MADE)
    spoken = {int(key) for key in fresh.get("names", {})}
    spoken |= {int(each) for pair in fresh.get("merges", []) for each in pair}
    spoken |= {int(each) for each in fresh["whole"]}
    spoken |= {int(to) for to in labels.values() if to not in said.get("new", {})}
    for cluster in sorted(spoken):
        _check_same_rows(cluster, shown, run, targets, now)
    rows = [checked_row(shown, "labels", row) for row in (*labels, *fresh.get("wrong", []))]
    _check_no_contradiction(shown, run, targets, now, rows)
    _check_no_other_is_kept(shown, run, now, [checked_row(shown, "keep", i) for i in fresh["keep"]])
    names = _names_since(shown, run, fresh.get("names", {}))

    place = {row: i for i, row in enumerate(run.rows.tolist())}

    def kept(rows: Collection[Any]) -> dict[Any, int]:
        there = ((row, place.get(int(now[checked_row(shown, "labels", row)]))) for row in rows)
        return {row: i for row, i in there if i is not None}

    labels = {str(i): made.get(labels[row], labels[row]) for row, i in kept(labels).items()}
    for key, label in made.items():
        if fresh["new"].get(key) is not None:
            names |= _names_since(shown, run, {str(label): said["new"][key]})
    new = {key: name for key, name in said.get("new", {}).items() if key in labels.values()}
    result = {**fresh, "labels": labels, "names": names, "new": new, "right": []}
    result |= {key: [*kept(fresh.get(key, [])).values()] for key in ("wrong", "keep")}
    return run, result


def check_is_last(run: Run, said: Mapping[str, Any], file: epath.PathLike) -> None:
    """Raises an `InputError` for a file of which a later one of its page and browser is applied.

    It would take back what the later one says.

    Args:
        run: the newest state.
        said: the corrections of the file.
        file: the file, for the message.
    """
    applied = run.pages.get(said["state"], {}).get("files", {}).get(said.get("browser"), {})
    if said.get("saved", 0) < applied.get("saved", 0):
        raise InputError(
            f"{file} must be the last file that its browser has saved of the page; got an earlier "
            "one, which would take back what the last one says, and that is applied: to go back, "
            f"take the last one back first by `cluster-jax update --workdir={run.workdir} --undo`"
        )


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
        done, now = corrected(state, file), _rows_now(state, run)
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


def _without_changes_of_mind(
    shown: Run,
    run: Run,
    earlier: Mapping[str, Any],
    said: Mapping[str, Any],
    others: _Others,
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
        others: what other files say that were applied.
    """
    before, wanted = corrected(shown, earlier), corrected(shown, said)
    now = _rows_now(shown, run)
    is_mine = (now >= 0) & ~others.rows[now]
    is_changed = _targets(before, shown, earlier) != _targets(wanted, shown, said)
    is_changed |= before.columns["decided"] & ~wanted.columns["decided"]
    columns, named = run.columns.copy(), dict(run.named)
    names = dict[int, tuple[str | None, str | None]]()  # of clusters: earlier, and now
    for label in np.unique(before.labels).tolist():
        rows = np.flatnonzero((before.labels == label) & is_mine)
        there: int | None = label
        if label >= shown.next_label:
            key = [*earlier["new"]][label - shown.next_label]
            there = _made(shown, run, now[rows])
            if there is not None:
                names[there] = (before.named.get(label), said.get("new", {}).get(key))
        rows = rows[is_changed[rows]]
        rows = rows[run.labels[now[rows]] == there]
        for name in ("label", "decided"):
            columns[name][now[rows]] = shown.columns[name][rows]
    for label in range(shown.next_label):
        names[label] = (before.named.get(label), wanted.named.get(label))
    for label, (mine, other) in names.items():
        is_changed_name = mine is not None and mine != other and (label, mine) not in others.names
        if is_changed_name and mine == run.named.get(label):
            named.pop(label)
            named |= {label: shown.named[label]} if label in shown.named else {}
    whole = run.whole - (before.whole - wanted.whole - shown.whole - others.whole)
    # A cluster is held as long as it has a name, or another file speaks of it. The numbers of new
    # clusters of the page may be those of others in the run.
    lost = before.held - wanted.held - shown.held - {*range(shown.next_label, before.next_label)}
    held = (run.held - (lost - others.held)) | run.held.intersection(named)
    is_picked = before.columns["kept"] & ~shown.columns["kept"] & ~wanted.columns["kept"]
    is_picked &= ~others.kept[now]
    run = dataclasses.replace(run, columns=columns, named=named, whole=whole, held=held)
    return _without_picks(shown, run, np.flatnonzero(is_picked & (now >= 0)))


def _without_picks(shown: Run, run: Run, rows: NDArray) -> Run:
    """Returns a run in which of some copies those are kept that an earlier state has kept.

    Args:
        shown: the earlier state.
        run: the present state.
        rows: int `[l]`, rows of `shown` that a person has picked since, and that are there.
    """
    now = _rows_now(shown, run)
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


def _without(said: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
    """Returns corrections without those that have been applied, which hold or were changed since.

    Args:
        said: the corrections, see `corrections`.
        files: browser -> its corrections of the same state that have been applied.
    """
    result = dict(said)
    for key in OBJECTS:
        known = [item for each in files.values() for item in each.get(key, {}).items()]
        result[key] = {
            name: to for name, to in said.get(key, {}).items() if (name, to) not in known
        }
    for key in LISTS:
        known = [item for each in files.values() for item in each.get(key, [])]
        result[key] = [each for each in said.get(key, []) if each not in known]
    return result


def with_applied(run: Run, shown: Run, said: Mapping[str, Any]) -> Run:
    """Returns a run that knows that corrections of the page of a state have been applied.

    Of each browser the last file is known. Files that name no browser are known together.

    Args:
        run: the run after them.
        shown: the state.
        said: the corrections, see `corrections`.
    """
    files = dict(run.pages.get(shown.state, {}).get("files", {}))
    browser = said.get("browser", "")
    record = {key: said[key] for key in ("saved", *OBJECTS, *LISTS) if key in said}
    if not browser:
        earlier = files.get("", {})
        record = {key: {**earlier.get(key, {}), **said.get(key, {})} for key in OBJECTS}
        for key in LISTS:
            applied = list(earlier.get(key, []))
            record[key] = applied + [each for each in said.get(key, []) if each not in applied]
    page = {"number": shown.number, "files": {**files, browser: record}}
    others = ((state, page) for state, page in run.pages.items() if state != shown.state)
    pages = dict([(shown.state, page), *others][:MOST_PAGES])
    return dataclasses.replace(run, pages=pages)


def _rows_now(shown: Run, run: Run) -> NDArray:
    """Returns the row of `run` that each row of `shown` is, int64 `[n]`, -1 if it is gone."""
    now = changes.matched(run, shown)
    if run.is_of_images:  # Another photo under an old name is another photo.
        now[(now >= 0) & (run.columns["since"][now] > shown.updates)] = -1
    return now


def _check_same_rows(cluster: int, shown: Run, run: Run, targets: NDArray, now: NDArray) -> None:
    """Raises an `InputError` if a cluster has other rows now than on the page, see `carried`.

    Args:
        cluster: its number.
        shown: the state of the page, of n rows.
        run: the present state.
        targets: int `[n]`, where the corrections want each row of `shown`.
        now: int `[n]`, the row of `run` that each row of `shown` is, -1 if it is gone.
    """
    there = now >= 0
    own = (shown.labels == cluster) & there
    core = own & (targets == cluster)
    core = core if core.any() else own
    labels = run.labels[now[core]]
    same = int(((labels == cluster) | (labels == targets[core])).sum())
    allowed = now[own | ((targets == cluster) & there)]
    others = int((run.labels == cluster).sum() - (run.labels[allowed] == cluster).sum())
    total = int(core.sum()) + others
    if total and 2 * same <= total:
        noun, group = run.words
        raise InputError(
            f"{group} {cluster} must have more than half of the {noun}s that it has on the page of "
            f"the corrections; got {same:,} of {total:,}: open the page of {run.workdir} anew"
        )


def _check_no_contradiction(
    shown: Run, run: Run, targets: NDArray, now: NDArray, rows: Collection[int]
) -> None:
    """Raises an `InputError` if a person has decided otherwise since about one of these rows.

    Args:
        shown: see `_check_same_rows`, like `run`, `targets` and `now`.
        run: the present state.
        targets: int `[n]`.
        now: int `[n]`.
        rows: rows of `shown` that the corrections decide about.
    """
    for row in rows:
        i = int(now[row])
        if i < 0 or not run.columns["decided"][i] or run.labels[i] == targets[row]:
            continue
        if shown.columns["decided"][row] and shown.labels[row] == run.labels[i]:
            continue
        noun, group = run.words
        name = f"{noun} {i}" if run.names is None else run.names[i]
        where = f"in {group} {run.labels[i]}" if run.labels[i] >= 0 else f"in no {group}"
        raise InputError(
            f"the corrections must not contradict those that were made since their page was "
            f"written; got {name}, which a person has decided to be {where}: open the page of "
            f"{run.workdir} anew"
        )


def _check_no_other_is_kept(shown: Run, run: Run, now: NDArray, rows: Collection[int]) -> None:
    """Raises an `InputError` if a person has picked another copy since to be kept.

    Args:
        shown: see `_check_same_rows`, like `run` and `now`.
        run: the present state.
        now: int `[n]`.
        rows: rows of `shown` that the corrections pick.
    """
    groups = duplicates.groups_of(run.duplicates, len(run.columns))
    is_since = run.columns["kept"].copy()
    is_since[now[shown.columns["kept"] & (now >= 0)]] = False
    for i in (int(now[row]) for row in rows if now[row] >= 0):
        others = np.flatnonzero(is_since & (groups == groups[i]) & (groups >= 0)).tolist()
        if others := [other for other in others if other != i]:
            name = f"{run.words[0]} {others[0]}" if run.names is None else run.names[others[0]]
            raise InputError(
                "the corrections must not contradict those that were made since their page was "
                f"written; got another copy than {name}, which a person has picked to be kept: "
                f"open the page of {run.workdir} anew"
            )


def _names_since(shown: Run, run: Run, names: Mapping[str, str]) -> dict[str, str]:
    """Returns names by cluster; raises an `InputError` if one has got another name since."""
    for key, name in names.items():
        earlier = run.named.get(int(key))
        if earlier not in (None, shown.named.get(int(key)), checked_name(name)):
            raise InputError(
                f"the corrections must not contradict those that were made since their page was "
                f"written; got {short(repr(name))} for {run.words[1]} {key}, which a person has "
                f"called {short(repr(earlier))}: open the page of {run.workdir} anew"
            )
    return dict(names)


def _made(shown: Run, run: Run, rows: NDArray) -> int | None:
    """Returns the one cluster, made since, to which a person has moved some of these rows, or None.

    Args:
        shown: the earlier state.
        run: the later state.
        rows: int `[l]`, rows of `run`.
    """
    labels = run.labels[rows[run.columns["decided"][rows]]]
    labels = np.unique(labels[labels >= shown.next_label])
    return int(labels[0]) if len(labels) == 1 else None
