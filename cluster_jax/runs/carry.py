"""Corrections of the page of an older state, as corrections of the present one.

Files of one page are all applied. A later file of the same browser replaces its earlier one, see
`withdrawn`. One of another browser that contradicts it is refused.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.core.checks import InputError, short
from cluster_jax.report import duplicates
from cluster_jax.runs.corrections import LISTS, OBJECTS, checked_name, checked_row, corrected
from cluster_jax.runs.run import Run
from cluster_jax.runs.withdrawn import made_since, rows_now, without_changes_of_mind

MOST_PAGES = 8  # of which a run knows what it has applied
_NOT_MADE = -2  # the number of a new cluster that has none yet


class _Case(NamedTuple):
    """Corrections of a page, and the present state that they are to change.

    Attributes:
        shown: the state of the page, of n rows.
        run: the present state.
        now: int64 `[n]`, the row of `run` that each row of `shown` is, -1 if it is gone.
        targets: int `[n]`, where the corrections want each row of `shown`: a cluster, or
            `_NOT_MADE` for a new one that has no number yet.
        made: key of a new cluster -> its number, if it has been made since.
        said: the corrections, see `corrections`.
    """

    shown: Run
    run: Run
    now: NDArray
    targets: NDArray
    made: Mapping[str, int]
    said: Mapping[str, Any]


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
    files = run.pages.get(shown.state, {}).get("files", {})
    if (earlier := files.get(said.get("browser"))) is not None:
        others = [(shown, file) for browser, file in files.items() if browser != said["browser"]]
        run = without_changes_of_mind(shown, run, earlier, said, [*others, *later])
    case = _case(shown, run, said)
    fresh = _without(said, files)
    # A row that is right belongs to the cluster on the page, from which it may have moved since.
    rights = {row: checked_row(shown, "right", row) for row in fresh.get("right", [])}
    labels = {str(row): int(shown.labels[i]) for row, i in rights.items()} | fresh["labels"]
    fresh |= {"labels": labels, "right": []}
    _check(case, fresh)
    return run, _of_now(case, fresh)


def _case(shown: Run, run: Run, said: Mapping[str, Any]) -> _Case:
    """Returns what corrections of a page want in the present state, see `carried`."""
    wanted, now = corrected(shown, said), rows_now(shown, run)
    made = dict[str, int]()
    targets = wanted.labels.copy()
    for i, key in enumerate(said.get("new", {})):
        is_in = wanted.labels == shown.next_label + i
        if (label := made_since(shown, run, now[is_in & (now >= 0)])) is not None:
            made[key] = label
        targets[is_in] = made.get(key, _NOT_MADE)
    return _Case(shown, run, now, targets, made, said)


def _check(case: _Case, fresh: Mapping[str, Any]) -> None:
    """Raises an `InputError` if corrections do not fit the present state.

    Args:
        case: what they want.
        fresh: those that have not been applied.
    """
    spoken = {int(key) for key in fresh["names"]}
    spoken |= {int(each) for pair in fresh["merges"] for each in pair}
    spoken |= {int(each) for each in fresh["whole"]}
    new = case.said.get("new", {})
    spoken |= {int(to) for to in fresh["labels"].values() if to not in new}
    for cluster in sorted(spoken):
        _check_same_rows(case, cluster)
    decided = (*fresh["labels"], *fresh["wrong"])
    _check_no_contradiction(case, [checked_row(case.shown, "labels", row) for row in decided])
    _check_no_other_is_kept(case, [checked_row(case.shown, "keep", row) for row in fresh["keep"]])


def _of_now(case: _Case, fresh: Mapping[str, Any]) -> dict[str, Any]:
    """Returns corrections by the rows of the present state, without those of rows that are gone.

    Args:
        case: what they want.
        fresh: those that have not been applied.

    Raises:
        InputError: a cluster has got another name since.
    """
    shown, run, made, said = case.shown, case.run, case.made, case.said
    place = {row: i for i, row in enumerate(run.rows.tolist())}

    def there(rows: Collection[Any]) -> dict[Any, int]:
        found = ((row, place.get(int(case.now[checked_row(shown, "labels", row)]))) for row in rows)
        return {row: i for row, i in found if i is not None}

    labels = {str(i): fresh["labels"][row] for row, i in there(fresh["labels"]).items()}
    labels = {row: made.get(label, label) for row, label in labels.items()}
    names = _names_since(shown, run, fresh["names"])
    for key, label in made.items():
        if fresh["new"].get(key) is not None:
            names |= _names_since(shown, run, {str(label): said["new"][key]})
    new = {key: name for key, name in said.get("new", {}).items() if key in labels.values()}
    result = {**fresh, "labels": labels, "names": names, "new": new}
    return result | {key: [*there(fresh[key]).values()] for key in ("wrong", "keep")}


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


def _check_same_rows(case: _Case, cluster: int) -> None:
    """Raises an `InputError` if a cluster has other rows now than on the page, see `carried`."""
    shown, run, now, targets, *_ = case
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


def _check_no_contradiction(case: _Case, rows: Collection[int]) -> None:
    """Raises an `InputError` if a person has decided otherwise since about one of these rows.

    Args:
        case: what the corrections want.
        rows: rows of `case.shown` about which they decide.
    """
    shown, run, now, targets, *_ = case
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


def _check_no_other_is_kept(case: _Case, rows: Collection[int]) -> None:
    """Raises an `InputError` if a person has picked another copy since to be kept.

    Args:
        case: what the corrections want.
        rows: rows of `case.shown` that they pick.
    """
    shown, run, now, *_ = case
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
