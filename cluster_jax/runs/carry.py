"""Corrections of the page of an older state, as corrections of the present one.

Files of one page are all applied. A later file of the same browser replaces its earlier one, see
`withdrawn`. One of another browser that contradicts it is refused.
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.core.checks import InputError, short
from cluster_jax.report import duplicates
from cluster_jax.runs.changes import rows_now
from cluster_jax.runs.corrections import LISTS, OBJECTS, Decisions, applied, parsed
from cluster_jax.runs.run import Run
from cluster_jax.runs.withdrawn import targets_now, without_changes_of_mind

MOST_PAGES = 8  # of which a run knows what it has applied


class _Case(NamedTuple):
    """Corrections of a page, and the present state that they are to change.

    Attributes:
        shown: the state of the page, of n rows.
        run: the present state.
        now: int64 `[n]`, the row of `run` that each row of `shown` is, -1 if it is gone.
        targets: int64 `[n]`, where the corrections want each row of `shown`, see `targets_now`.
    """

    shown: Run
    run: Run
    now: NDArray
    targets: NDArray


def carried(
    shown: Run,
    run: Run,
    said: Mapping[str, Any],
    later: Collection[tuple[Run, Mapping[str, Any]]] = (),
) -> Run:
    """Returns a state of a run with the corrections of the page of this or an earlier one applied.

    They are carried by content: a cluster is the same one if more than half of its rows are the
    same, where rows count that the corrections themselves move. So a file may be applied again, and
    two files of one page are both applied. Corrections of rows that are gone are left out. A row
    that is right moves to the cluster in which the page has shown it. If rows of a new cluster have
    since been moved to one that was made since, as by an earlier file of the same page, the new
    cluster is not made: its rows move to that one. What an earlier file of the same page and
    browser has decided otherwise is taken back.

    Args:
        shown: the state that the corrections are about.
        run: this state, or a later one of the same run.
        said: the corrections, see `corrections`.
        later: corrections of pages after that of `shown` that have been applied, each after the
            state of its page.

    Raises:
        InputError: a correction is invalid in its own state, speaks of a cluster that has other
            rows now, or contradicts a correction that was made since.
    """
    decisions = parsed(shown, said)
    files = run.pages.get(shown.state, {}).get("files", {})
    known = {browser: parsed(shown, file) for browser, file in files.items()}
    mine = said.get("browser")
    if mine in known:
        others = [(shown, file) for browser, file in known.items() if browser != mine]
        others += [(state, parsed(state, file)) for state, file in later]
        run = without_changes_of_mind(shown, run, known[mine], decisions, others)
    now = rows_now(shown, run)
    targets, made = targets_now(shown, run, applied(shown, decisions), decisions.new, now)
    case = _Case(shown, run, now, targets)

    fresh = _without(decisions, known.values())
    # A row that is right belongs to the cluster on the page, from which it may have moved since.
    labels = {row: int(shown.labels[row]) for row in fresh.right} | {**fresh.labels}
    fresh = fresh._replace(labels=labels, right=())
    names = {**fresh.names}
    names |= {made[key]: v for key, v in fresh.new.items() if key in made and v is not None}
    _check_same_clusters(case, fresh)
    _check_no_contradiction(case, [*fresh.labels, *fresh.wrong])
    _check_no_other_is_kept(case, fresh.keep)
    _check_no_other_name(case, names)

    labels = {row: made.get(target, target) for row, target in labels.items()}
    moved = {int(now[row]): target for row, target in labels.items() if now[row] >= 0}
    of_now = fresh._replace(
        names=names,
        new={key: name for key, name in decisions.new.items() if key in moved.values()},
        labels=moved,
        wrong=tuple(int(now[row]) for row in fresh.wrong if now[row] >= 0),
        keep=tuple(int(now[row]) for row in fresh.keep if now[row] >= 0),
    )
    return applied(run, of_now)


def check_is_last(run: Run, said: Mapping[str, Any], file: epath.PathLike) -> None:
    """Raises an `InputError` for a file of which a later one of its page and browser is applied.

    It would take back what the later one says.

    Args:
        run: the newest state.
        said: the corrections of the file.
        file: the file, for the message.
    """
    last = run.pages.get(said["state"], {}).get("files", {}).get(said.get("browser"), {})
    if said.get("saved", 0) < last.get("saved", 0):
        raise InputError(
            f"{file} must be the last file that its browser has saved of the page; got an earlier "
            "one, which would take back what the last one says, and that is applied: to go back, "
            f"take the last one back first by `cluster-jax update --workdir={run.workdir} --undo`"
        )


def _without(said: Decisions, known: Collection[Decisions]) -> Decisions:
    """Returns decisions without those of other files that have been applied.

    They hold, or were changed since.

    Args:
        said: the decisions.
        known: those of the other files, of the same state.
    """
    left = dict[str, Any]()
    for key in OBJECTS:
        others = {item for each in known for item in getattr(each, key).items()}
        left[key] = dict(item for item in getattr(said, key).items() if item not in others)
    for key in LISTS:
        others = {item for each in known for item in getattr(each, key)}
        left[key] = tuple(item for item in getattr(said, key) if item not in others)
    return Decisions(**left)


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


def _check_same_clusters(case: _Case, fresh: Decisions) -> None:
    """Raises an `InputError` if decisions speak of a cluster that is another one than on the page.

    It is the same one if s > (r + o) / 2. The page shows r rows in it that are still there and that
    the corrections leave in it, or if they leave none, all that are still there. Of these, s are in
    it now, or where the corrections want them. And o other rows are in it now, which neither the
    page nor the corrections have in it.

    Args:
        case: what all corrections of the page want.
        fresh: the decisions.
    """
    shown, run, now, targets = case
    spoken = {*fresh.names, *fresh.whole}.union(*fresh.merges)
    spoken |= {target for target in fresh.labels.values() if isinstance(target, int)}
    there = now >= 0
    for cluster in sorted(spoken):
        own = (shown.labels == cluster) & there
        left = own & (targets == cluster)
        left = left if left.any() else own
        labels = run.labels[now[left]]
        same = int(((labels == cluster) | (labels == targets[left])).sum())
        allowed = now[own | ((targets == cluster) & there)]
        others = int((run.labels == cluster).sum() - (run.labels[allowed] == cluster).sum())
        total = int(left.sum()) + others
        if total and 2 * same <= total:
            noun, group = run.words
            must = f"have more than half of the {noun}s that it has on the page of the corrections"
            got = f"got {same:,} of {total:,}: open the page of {run.workdir} anew"
            raise InputError(f"{group} {cluster} must {must}; {got}")


def _check_no_contradiction(case: _Case, rows: Iterable[int]) -> None:
    """Raises an `InputError` if a person has decided otherwise since about one of these rows.

    Args:
        case: what the corrections want.
        rows: rows of `case.shown` about which they decide.
    """
    shown, run, now, targets = case
    for row in rows:
        i = int(now[row])
        if i < 0 or not run.columns["decided"][i] or run.labels[i] == targets[row]:
            continue
        if shown.columns["decided"][row] and shown.labels[row] == run.labels[i]:
            continue
        group = run.words[1]
        where = f"in {group} {run.labels[i]}" if run.labels[i] >= 0 else f"in no {group}"
        got = f"{_called(run, i)}, which a person has decided to be {where}"
        raise _contradiction(run, got)


def _check_no_other_is_kept(case: _Case, rows: Iterable[int]) -> None:
    """Raises an `InputError` if a person has picked another copy since to be kept.

    Args:
        case: what the corrections want.
        rows: rows of `case.shown` that they pick.
    """
    shown, run, now, _ = case
    groups = duplicates.groups_of(run.copies, len(run.columns))
    is_since = run.columns["kept"].copy()
    is_since[now[shown.columns["kept"] & (now >= 0)]] = False
    for i in (int(now[row]) for row in rows if now[row] >= 0):
        others = np.flatnonzero(is_since & (groups == groups[i]) & (groups >= 0)).tolist()
        if others := [other for other in others if other != i]:
            got = f"another copy than {_called(run, others[0])}, which a person has picked"
            raise _contradiction(run, f"{got} to be kept")


def _check_no_other_name(case: _Case, names: Mapping[int, str]) -> None:
    """Raises an `InputError` if a person has given a cluster another name since.

    Args:
        case: what the corrections want.
        names: cluster of the present state -> its name.
    """
    shown, run, *_ = case
    for cluster, name in names.items():
        earlier = run.named.get(cluster)
        if earlier not in (None, shown.named.get(cluster), name):
            got = f"{short(repr(name))} for {run.words[1]} {cluster}"
            raise _contradiction(run, f"{got}, which a person has called {short(repr(earlier))}")


def _called(run: Run, row: int) -> str:
    return f"{run.words[0]} {row}" if run.names is None else run.names[row]


def _contradiction(run: Run, got: str) -> InputError:
    """Returns the error for corrections that a later decision contradicts; raises nothing."""
    must = "the corrections must not contradict those that were made since their page was written"
    return InputError(f"{must}; got {got}: open the page of {run.workdir} anew")
