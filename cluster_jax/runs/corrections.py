"""Corrections that a person has saved on the page: one JSON file, checked as a whole.

    {"state": "3f9c0e51a2b4",             the state of the run that the page shows
     "browser": "k2x90fz1q7",             the browser that has saved the file
     "names": {"3": "cats"},              cluster: its name
     "merges": [[5, 3]],                  cluster, and the one that receives its rows
     "new": {"a": "puppies"},             key of a new cluster: its name, or null
     "labels": {"17": 3, "18": "a"},      row: the cluster to which it moves
     "wrong": [20],                       rows that belong to no cluster
     "right": [21],                       rows that are right where they are
     "keep": [12]}                        rows that are kept of their copies

All keys but the first may be left out. A row is its position on the page. Names are set first, then
clusters merge, then rows move (for a merged cluster: to the one that has received it), then rows
are marked wrong or right. A cluster that receives another one keeps its name; without a name, it
gets that of the first merged cluster that has one. A cluster that is gone can be named and can
receive rows: its number keeps its meaning.

Files of one page are all applied. A later file of the same browser is a change of mind: it replaces
what the earlier one has decided. One of another browser that contradicts it is refused.
"""

import collections
import dataclasses
import json
import unicodedata
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.clustering.base import NO_CLUSTER
from cluster_jax.core import buckets
from cluster_jax.core.checks import InputError, short
from cluster_jax.report import duplicates
from cluster_jax.runs.run import Run

MOST_PAGES = 8  # of which a run knows what it has applied
MAX_NAME = 100  # characters of a name
_JOINERS = "\u200c\u200d"  # of many scripts and signs; other formats turn the direction of a text
_NOT_MADE = -2  # the number of a new cluster that has none yet
_OBJECTS = ("names", "new", "labels")
_LISTS = ("merges", "wrong", "right", "keep")


def read(file: epath.PathLike) -> dict[str, Any]:
    """Returns the content of a file of corrections, of which the keys and their types are checked.

    Whether the entries suit a run is checked by `corrected`.

    Raises:
        InputError: it is not a file that a page has saved.
        OSError: the file cannot be read.
    """
    if not str(file):
        raise InputError("--corrections must be a file that a report has saved; got an empty name")
    path = buckets.path(file)
    if not path.exists() or path.is_dir():
        problem = "a folder" if path.exists() else "no such file"
        raise InputError(f"{file} must be a file that a report has saved; got {problem}")
    try:
        said = json.loads(path.read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{file} must be a JSON file that a report has saved; got other content: save it again "
            "on the page of the run"
        ) from error
    if not isinstance(said, dict) or not isinstance(said.get("state"), str):
        raise InputError(f"{file} must say of which state of a run it is; got no key 'state'")
    for key, value in said.items():
        is_known = key == "state" or (key == "browser" and isinstance(value, str))
        is_known |= key in _OBJECTS and isinstance(value, dict)
        is_known |= key in _LISTS and isinstance(value, list)
        if not is_known:
            got = f"{short(repr(key))} with {short(repr(value))}"
            raise InputError(f"{file} must have the keys of a report; got {got}")
    return said


def corrected(run: Run, said: Mapping[str, Any]) -> Run:
    """Returns the corrected run, whose probabilities, distances, tree and results stay as before.

    The corrections change labels, names, held clusters, which rows a person has decided, and which
    copies are kept; `keep` is ignored if the run has no duplicates. `measured.described` and
    `measured.measured` bring the rest up to date.

    Args:
        run: the run in the state that the corrections are about.
        said: the corrections, see the module; "state" is not compared with the run.

    Raises:
        InputError: an entry is invalid, for example has no such row or cluster.
    """
    clusters = range(run.next_label)
    new = _new(said.get("new", {}), run.next_label)
    names = {_cluster("names", key, clusters): _name(v) for key, v in said.get("names", {}).items()}
    names |= {new[key]: _name(v) for key, v in said.get("new", {}).items() if v is not None}
    receiver = _merges(said.get("merges", []), clusters)
    moved = dict[int, int]()
    for key, target in said.get("labels", {}).items():
        is_new = isinstance(target, str) and target in new
        label = new[target] if is_new else _cluster("labels", target, clusters)
        moved[_row(run, "labels", key)] = receiver.get(label, label)
    wrong, right, keep = (
        [_row(run, key, row) for row in said.get(key, [])] for key in ("wrong", "right", "keep")
    )
    _check_rows(run, [*moved, *wrong, *right], right)
    if empty := [key for key, label in new.items() if label not in moved.values()]:
        raise InputError(f"a new cluster must have an image; got none in {short(empty[0])!r}")

    # What a person has divided stays divided: no update puts the parts together again.
    divided = {int(run.labels[row]) for row, label in moved.items() if label in new.values()}
    named = {**run.named, **names}
    columns = run.columns.copy()
    gone = run.gone.copy()
    labels = run.labels.copy()
    for label, into in receiver.items():
        labels[labels == label] = into
        gone["label"][gone["label"] == label] = into
        if into not in named and label in named:
            named[into] = named[label]
    labels[list(moved)] = list(moved.values())
    labels[wrong] = NO_CLUSTER
    columns["label"] = labels
    columns["decided"][[*moved, *wrong, *right]] = True
    repeated = run.duplicates
    if repeated is not None and keep:
        repeated = duplicates.with_picked(repeated, keep)
        columns["kept"][repeated.images[~repeated.keep]] = False
        columns["kept"][np.intersect1d(keep, repeated.images[repeated.keep])] = True
    return dataclasses.replace(
        run,
        columns=columns,
        gone=gone,
        named=named,
        held=run.held.union(names, receiver.values(), new.values(), divided - {NO_CLUSTER}),
        next_label=run.next_label + len(new),
        is_corrected=run.is_corrected or bool(receiver or moved or wrong or right),
        duplicates=repeated,
    )


def carried(shown: Run, run: Run, said: Mapping[str, Any]) -> tuple[Run, dict[str, Any]]:
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
        said: the corrections, see the module.

    Raises:
        InputError: a correction is invalid in its own state, speaks of a cluster that has other
            rows now, or contradicts a correction that was made since.
    """
    wanted = corrected(shown, said)
    files = run.pages.get(shown.state, {}).get("files", {})
    if (earlier := files.get(said.get("browser"))) is not None:
        others = [file for browser, file in files.items() if browser != said["browser"]]
        run = _without_changes_of_mind(shown, run, earlier, said, others)
    fresh = _without(said, files)
    # A row that is right belongs to the cluster on the page, from which it may have moved since.
    rights = {row: _row(shown, "right", row) for row in fresh.get("right", [])}
    labels: dict[str, Any] = {str(row): int(shown.labels[i]) for row, i in rights.items()}
    labels |= fresh.get("labels", {})
    now = _places(shown, run)
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
    spoken |= {int(to) for to in labels.values() if to not in said.get("new", {})}
    for cluster in sorted(spoken):
        _check_same_rows(cluster, shown, run, targets, now)
    rows = [_row(shown, "labels", row) for row in (*labels, *fresh.get("wrong", []))]
    _check_no_contradiction(shown, run, targets, now, rows)
    _check_no_other_is_kept(shown, run, now, [_row(shown, "keep", i) for i in fresh["keep"]])
    names = _names_since(shown, run, fresh.get("names", {}))

    place = {row: i for i, row in enumerate(run.rows.tolist())}

    def kept(rows: Collection[Any]) -> dict[Any, int]:
        there = ((row, place.get(int(now[_row(shown, "labels", row)]))) for row in rows)
        return {row: i for row, i in there if i is not None}

    labels = {str(i): made.get(labels[row], labels[row]) for row, i in kept(labels).items()}
    for key, label in made.items():
        if fresh["new"].get(key) is not None:
            names |= _names_since(shown, run, {str(label): said["new"][key]})
    new = {key: name for key, name in said.get("new", {}).items() if key in labels.values()}
    result = {**fresh, "labels": labels, "names": names, "new": new, "right": []}
    result |= {key: [*kept(fresh.get(key, [])).values()] for key in ("wrong", "keep")}
    return run, result


def _without_changes_of_mind(
    shown: Run,
    run: Run,
    earlier: Mapping[str, Any],
    said: Mapping[str, Any],
    others: Collection[Mapping[str, Any]],
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
        others: corrections of the page that other browsers have saved, and that were applied.
    """
    before, wanted = corrected(shown, earlier), corrected(shown, said)
    now = _places(shown, run)
    is_mine = now >= 0
    for file in others:
        is_mine &= ~corrected(shown, file).columns["decided"] | shown.columns["decided"]
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
        if mine is not None and mine != other and mine == run.named.get(label):
            named.pop(label)
            named |= {label: shown.named[label]} if label in shown.named else {}
    is_picked = before.columns["kept"] & ~shown.columns["kept"] & ~wanted.columns["kept"]
    for file in others:
        is_picked &= ~corrected(shown, file).columns["kept"]
    run = dataclasses.replace(run, columns=columns, named=named)
    return _without_picks(shown, run, np.flatnonzero(is_picked & (now >= 0)))


def _without_picks(shown: Run, run: Run, rows: NDArray) -> Run:
    """Returns a run in which of some copies those are kept that an earlier state has kept.

    Args:
        shown: the earlier state.
        run: the present state.
        rows: int `[l]`, rows of `shown` that a person has picked since, and that are there.
    """
    now = _places(shown, run)
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
        said: the corrections, see the module.
    """
    targets = wanted.labels.astype(object)
    for i, key in enumerate(said.get("new", {})):
        targets[wanted.labels == shown.next_label + i] = key
    return targets


def _without(said: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
    """Returns corrections without those that have been applied, which hold or were changed since.

    Args:
        said: the corrections, see the module.
        files: browser -> its corrections of the same state that have been applied.
    """
    result = dict(said)
    for key in _OBJECTS:
        known = [item for each in files.values() for item in each.get(key, {}).items()]
        result[key] = {
            name: to for name, to in said.get(key, {}).items() if (name, to) not in known
        }
    for key in _LISTS:
        known = [item for each in files.values() for item in each.get(key, [])]
        result[key] = [each for each in said.get(key, []) if each not in known]
    return result


def with_applied(run: Run, shown: Run, said: Mapping[str, Any]) -> Run:
    """Returns a run that knows that corrections of the page of a state have been applied.

    Of each browser the last file is known. Files that name no browser are known together.

    Args:
        run: the run after them.
        shown: the state.
        said: the corrections, see the module.
    """
    files = dict(run.pages.get(shown.state, {}).get("files", {}))
    browser = said.get("browser", "")
    record = {key: said[key] for key in (*_OBJECTS, *_LISTS) if key in said}
    if not browser:
        earlier = files.get("", {})
        record = {key: {**earlier.get(key, {}), **said.get(key, {})} for key in _OBJECTS}
        for key in _LISTS:
            applied = list(earlier.get(key, []))
            record[key] = applied + [each for each in said.get(key, []) if each not in applied]
    page = {"number": shown.number, "files": {**files, browser: record}}
    others = ((state, page) for state, page in run.pages.items() if state != shown.state)
    pages = dict([(shown.state, page), *others][:MOST_PAGES])
    return dataclasses.replace(run, pages=pages)


def _places(shown: Run, run: Run) -> NDArray:
    """Returns the row of `run` that each row of `shown` is, int64 `[n]`, -1 if it is gone.

    Rows of embeddings are known by their ids, and all others by their row in the store.
    """
    keys = [each.columns["row"].tolist() for each in (shown, run)]
    if not run.is_of_images and run.names is not None and shown.names is not None:
        keys = [list(shown.names), list(run.names)]
    place = {key: i for i, key in enumerate(keys[1])}
    return np.array([place.get(key, -1) for key in keys[0]], np.int64)


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
        if earlier not in (None, shown.named.get(int(key)), _name(name)):
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


def summary(before: Run, after: Run) -> str:
    """Returns what corrections have changed, such as "3 moved, 1 named", for a line of output.

    If they have changed nothing, it tells which earlier corrections are in force, if there are any.

    Args:
        before: the state before the corrections.
        after: the state after them, of the same rows.
    """
    moved = before.labels != after.labels
    lost = moved & (after.labels == NO_CLUSTER)
    gone = set(before.labels.tolist()) - set(after.labels.tolist())
    is_new = after.columns["decided"] & ~before.columns["decided"]
    kept = [run.columns["kept"] for run in (before, after)]
    # A later file of the same page replaces what an earlier one has said.
    taken_back = int((before.columns["decided"] & ~after.columns["decided"]).sum())
    taken_back += len(before.named.keys() - after.named.keys())
    taken_back += max(0, int(kept[0].sum() - kept[1].sum()))
    # The rows of a group that was merged are not counted one by one.
    by_hand = moved & ~lost & (is_new | ~np.isin(before.labels, list(gone)))
    counts = {
        "moved": int(by_hand.sum()),
        "confirmed": int((is_new & ~moved).sum()),
        f"in no {before.words[1]}": int(lost.sum()),
        "new": len(set(after.labels.tolist()) - set(before.labels.tolist()) - {NO_CLUSTER}),
        "merged or emptied": len(gone - {NO_CLUSTER}),
        "named": sum(before.named.get(key) != name for key, name in after.named.items()),
        "kept of its copies": int((kept[1] & ~kept[0]).sum()),
        "taken back": taken_back,
    }
    if said := _counted(counts):
        return said
    earlier = {
        "decided": int(after.columns["decided"].sum()),
        "merged or made": len(after.held - after.named.keys()),
        "named": len(after.named),
    }
    if said := _counted(earlier):
        return f"nothing new; in force: {said}"
    noun, group = before.words
    return f"none: no {noun} was moved, confirmed or taken out, and no {group} named or merged"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n:,} {word}" for word, n in counts.items() if n)


def _new(said: Mapping[str, Any], next_label: int) -> dict[str, int]:
    """Returns the number of each new cluster by its key: `next_label` for the first key, and so on.

    Args:
        said: the entry "new" of the corrections alone, see the module.
        next_label: the lowest number that no cluster has had.

    Raises:
        InputError: a key consists of digits, so that it could be the number of another cluster.
    """
    if numbers := [key for key in said if key.isdecimal()]:
        raise InputError(f"the key of a new cluster must be no number; got {short(numbers[0])!r}")
    return {key: next_label + i for i, key in enumerate(said)}


def _merges(pairs: list[Any], clusters: Collection[int]) -> dict[int, int]:
    """Returns the cluster that receives each merged cluster, at the end of a chain of merges.

    Args:
        pairs: the entry "merges" of the module.
        clusters: the numbers that are clusters of the run.

    Raises:
        InputError: a merge is not of two clusters, or of one into several or into itself.
    """
    into = dict[int, int]()
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            raise InputError(f"each of merges must be two clusters; got {short(repr(pair))}")
        label, target = (_cluster("merges", each, clusters) for each in pair)
        if into.get(label, target) != target:
            raise InputError(f"a cluster must be merged into one; got {label} twice")
        into[label] = target
    result = dict[int, int]()
    for label, target in into.items():
        for _ in into:
            target = into.get(target, target)
        if target in into:
            raise InputError(f"a cluster must be merged into another one; got {label} into itself")
        result[label] = target
    return result


def _check_rows(run: Run, said: list[int], right: list[int]) -> None:
    """Raises an `InputError` if a row is in `said` twice, or in `right` and in no cluster."""
    if again := [row for row, count in collections.Counter(said).items() if count > 1]:
        raise InputError(f"an image must be moved, wrong or right; got two of these for {again[0]}")
    if lost := [row for row in right if run.labels[row] == NO_CLUSTER]:
        raise InputError(f"an image that is right must be in a cluster; got {lost[0]}, in none")


def _cluster(key: str, value: Any, clusters: Collection[int]) -> int:
    """Returns a cluster given as a number or its text; raises an `InputError` for another value."""
    label = _whole(value)
    if label not in clusters:
        raise InputError(f"{key} must name clusters of the run; got {short(repr(value))}")
    return label


def _row(run: Run, key: str, value: Any) -> int:
    """Returns the row of a run that has a position on its page, or raises an `InputError`.

    The position is a number or its text; `key` is the key of the corrections, for the message.
    """
    place = _whole(value)
    rows = run.rows
    if not 0 <= place < len(rows):
        got = short(repr(value))
        raise InputError(f"{key} must have rows of the page, 0 to {len(rows) - 1}; got {got}")
    return int(rows[place])


def _whole(value: Any) -> int:
    """Returns a whole number given as an int or as text of up to nine digits; -1 for other values.

    A negative int stays as it is: callers refuse all numbers below 0.
    """
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        return int(value)
    return value if type(value) is int else -1


def _name(value: Any) -> str:
    """Returns a name with single blanks between its words.

    Raises:
        InputError: it is no text of 1 to `MAX_NAME` characters, or has control characters.
    """
    name = " ".join(value.split()) if isinstance(value, str) else ""
    kinds = {unicodedata.category(character) for character in name if character not in _JOINERS}
    is_control = not kinds.isdisjoint({"Cc", "Cf", "Cs"})
    if not 0 < len(name) <= MAX_NAME or is_control:
        must = f"a name must have 1 to {MAX_NAME} characters, none for control"
        raise InputError(f"{must}; got {short(repr(value))}")
    return name
