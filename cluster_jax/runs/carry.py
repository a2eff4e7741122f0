"""Corrections of the page of an older state, in the present one: a three-way merge.

The base is the page with the last file of its browser that was applied, mine is the page with the
file of now, and theirs is the present state. What is equal in base and mine stays as it is. What
differs becomes as in mine where theirs is still as the base and no other file says the same. Else
somebody has decided since: what the file says is refused if it contradicts that, and what it has
only left out stays. There is a function for rows, picks of copies, names and sets of clusters.
Merges of clusters also move rows that the page does not have.

The order in which the files of two people of one page are applied decides nothing: the second one
is refused in both orders, or the clusters, names and holds are the same after both. For this, what
a file says of a cluster that another file of the page has merged away is meant of the cluster that
has received it, as long as the merge holds: base and mine have the merges of all files of the page.
Only if something else has changed the same clusters since the page was written, the second one may
be refused in one order alone.
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.core.checks import InputError, short
from cluster_jax.report import duplicates
from cluster_jax.runs import corrections
from cluster_jax.runs.changes import rows_now
from cluster_jax.runs.corrections import LISTS, OBJECTS, Decisions, Target, applied, parsed
from cluster_jax.runs.run import Run

MOST_PAGES = 8  # of which a run knows what it has applied
_NOT_MADE = -2  # the number of a new cluster that has none yet


class _Merge(NamedTuple):
    """What is merged into what.

    Attributes:
        shown: the state of the page, of n rows.
        earlier: what the last file of this browser says that was applied; nothing if there is none.
        said: what the file of now says; its merges are new ones, and of those of the page that were
            applied, also by files of others, the ones that still hold.
        fresh: what of it the last file of this browser that was applied does not say.
        base: `shown` with `earlier`, and with merges of other files of the page that still hold.
        mine: the same with `said` in place of `earlier`.
        theirs: the present state.
        now: int64 `[n]`, the row of `theirs` that each row of `shown` is, -1 if it is gone.
        others: what files of other browsers or later pages say, each after the state of its page.
    """

    shown: Run
    earlier: Decisions
    said: Decisions
    fresh: Decisions
    base: Run
    mine: Run
    theirs: Run
    now: NDArray
    others: Sequence[tuple[Run, Decisions]]


def carried(
    shown: Run,
    run: Run,
    said: Mapping[str, Any],
    later: Collection[tuple[Run, Mapping[str, Any]]] = (),
) -> Run:
    """Returns a state of a run with the corrections of the page of this or an earlier one applied.

    They are carried by content: a cluster is the same one if more than half of its rows are the
    same, where rows count that the corrections themselves move. So a file may be applied again, and
    two files of one page are both applied, in any order. Corrections of rows that are gone are left
    out. A row that is right moves to the cluster in which the page has shown it. If rows of a new
    cluster have since been moved to one that was made since, as by an earlier file of the same
    page, the new cluster is not made: its rows move to that one. What an earlier file of the same
    page and browser has decided otherwise is taken back.

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
    merge = _merge_of(shown, run, said, later)
    is_new, columns, made_before = _rows(merge)
    merge = merge._replace(theirs=dataclasses.replace(run, columns=columns))
    targets, made = _targets_now(shown, merge.theirs, merge.mine, merge.said.new, merge.now)
    _check_same_clusters(merge, is_new, targets)
    _check_no_contradiction(merge, is_new, targets)
    columns["kept"] = _picks(merge)
    named = _names(merge, made_before, made)
    whole, shaped = _sets(merge)
    run = dataclasses.replace(run, columns=columns, named=named, whole=whole, shaped=shaped)
    return applied(run, _of_now(merge, is_new, targets))


def _merge_of(
    shown: Run,
    run: Run,
    said: Mapping[str, Any],
    later: Collection[tuple[Run, Mapping[str, Any]]],
) -> _Merge:
    """Returns what is merged into what; for the arguments see `carried`."""
    decisions = parsed(shown, said)
    files = run.pages.get(shown.state, {}).get("files", {})
    known = {browser: parsed(shown, file) for browser, file in files.items()}
    fresh = _without(decisions, parsed(shown, files.get(said.get("browser", ""), {})))
    held = _held(run, [pair for file in known.values() for pair in file.merges])
    # A file that names no browser takes nothing back.
    earlier = known.pop(said.get("browser"), parsed(shown, {}))
    others = [(shown, file) for file in known.values()]
    others += [(state, parsed(state, file)) for state, file in later]
    said_now = (pair for file in (decisions, *known.values()) for pair in file.merges)
    merges = held.intersection(said_now).union(fresh.merges)
    return _Merge(
        shown=shown,
        earlier=earlier,
        said=decisions._replace(merges=tuple(sorted(merges))),
        fresh=fresh,
        base=_merged(applied(shown, earlier), held),
        mine=_merged(applied(shown, decisions), merges),
        theirs=run,
        now=rows_now(shown, run),
        others=others,
    )


def _of_now(merge: _Merge, is_new: NDArray, targets: NDArray) -> Decisions:
    """Returns what the file says of rows and of clusters, of the present state.

    Args:
        merge: what is merged.
        is_new: bool `[n]`, the rows of the page that the file moves.
        targets: int64 `[n]`, where the file wants each row of the page, see `_targets_now`.
    """
    now, said = merge.now, merge.said
    moved = dict[int, Target]()
    for row in np.flatnonzero(is_new & (now >= 0)).tolist():
        # A row that is wrong moves to no cluster.
        is_made = targets[row] != _NOT_MADE
        moved[int(now[row])] = int(targets[row]) if is_made else said.labels[row]
    return parsed(merge.theirs, {})._replace(
        new={key: name for key, name in said.new.items() if key in moved.values()},
        labels=moved,
        merges=said.merges,
        keep=tuple(int(now[row]) for row in merge.fresh.keep if now[row] >= 0),
    )


def _held(run: Run, merges: Collection[tuple[int, int]]) -> set[tuple[int, int]]:
    """Returns those of the applied merges of a page that still hold in a state."""
    into = corrections.receivers(merges)
    return {pair for pair in merges if pair[0] not in run.labels and into[pair[0]] in run.shaped}


def _merged(run: Run, merges: Iterable[tuple[int, int]]) -> Run:
    """Returns a run of which clusters are merged; names are as before.

    Raises:
        InputError: a cluster is merged into several or into itself, by files of several people.
    """
    only = parsed(run, {})._replace(merges=tuple(merges))
    try:
        return dataclasses.replace(run, columns=applied(run, only).columns)
    except InputError as error:
        raise _contradiction(run, "merges that others have made otherwise") from error


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


def _without(said: Decisions, earlier: Decisions) -> Decisions:
    """Returns decisions without those that have been applied: they hold, or were changed since.

    Args:
        said: the decisions.
        earlier: those that have been applied, of the same state.
    """
    left = dict[str, Any]()
    for key in OBJECTS:
        items = getattr(earlier, key).items()
        left[key] = dict(item for item in getattr(said, key).items() if item not in items)
    for key in LISTS:
        items = {*getattr(earlier, key)}
        left[key] = tuple(item for item in getattr(said, key) if item not in items)
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


def _rows(merge: _Merge) -> tuple[NDArray, NDArray, Mapping[Target, int]]:
    """Returns the columns of the present state, of which rows are as in mine.

    They are those that differ from the base, if they are in its cluster and nobody else has decided
    about them. Rows that the file of now moves are where the page has shown them, and not decided,
    until they are moved.

    Returns:
        Which rows of the page the file of now moves, bool `[n]`; the columns; and the numbers of
        the new clusters of the base, see `_targets_now`.
    """
    shown, now, theirs, base, mine = merge.shown, merge.now, merge.theirs, merge.base, merge.mine
    was_said, is_said, is_new = (
        np.isin(np.arange(len(now)), _rows_of(file))
        for file in (merge.earlier, merge.said, merge.fresh)
    )
    held = [rows_now(state, theirs)[_rows_of(file)] for state, file in merge.others]
    free = _free(now, held)
    places, made = _targets_now(shown, theirs, base, merge.earlier.new, free)
    is_as_base = (free >= 0) & (theirs.labels[free] == places)
    is_as_base &= base.columns["decided"] | ~theirs.columns["decided"][free]
    # Where both files say the same, merges may still differ; numbers of new clusters say nothing.
    is_old = np.maximum(base.labels, mine.labels) < shown.next_label
    is_other = is_old & (base.labels != mine.labels)
    is_new |= is_said & was_said & is_other & is_as_base
    is_left_out = ~is_said & (was_said | is_other) & is_as_base

    columns = theirs.columns.copy()
    labels = np.where(is_new, shown.labels, mine.labels)
    # What others merge stays merged.
    for label, into in (pair for _, file in merge.others for pair in file.merges):
        labels[is_left_out & (labels == label)] = into
    rows = np.flatnonzero(is_new & is_as_base | is_left_out)
    columns["label"][now[rows]] = labels[rows]
    columns["decided"][now[rows]] &= shown.columns["decided"][rows] & ~is_new[rows]
    return is_new, columns, made


def _rows_of(said: Decisions) -> list[int]:
    """Lists the rows of a page that a file moves, or says to be wrong or right."""
    return [*said.right, *said.labels, *said.wrong]


def _free(now: NDArray, held: Iterable[NDArray]) -> NDArray:
    """Returns `_Merge.now` with -1 also for rows of the present state that others hold."""
    return np.where(np.isin(now, np.concatenate([[-1], *held])), -1, now)


def _check_same_clusters(merge: _Merge, is_new: NDArray, targets: NDArray) -> None:
    """Raises an `InputError` if the file speaks of a cluster that is another one than on the page.

    It is the same one if s > (r + o) / 2. The page shows r rows in it that are still there and that
    the corrections leave in it, or if they leave none, all that are still there. Of these, s are in
    it now, or where the corrections want them, or another file of the page has decided about them.
    And o other rows are in it now, which neither the page nor the corrections have in it, and about
    which no other file of the page has decided.

    Args:
        merge: what is merged.
        is_new: bool `[n]`, the rows of the page that the file moves.
        targets: int64 `[n]`, where the file wants each row of the page, see `_targets_now`.
    """
    shown, run, now, fresh = merge.shown, merge.theirs, merge.now, merge.fresh
    held = [now[_rows_of(file)] for state, file in merge.others if state is shown]
    is_there, is_free = now >= 0, _free(now, held) >= 0
    spoken = {*fresh.names, *fresh.whole}.union(*fresh.merges)
    spoken |= {*targets[is_new].tolist()} & {*range(shown.next_label)}
    for cluster in sorted(spoken):
        own = (shown.labels == cluster) & is_there
        left = own & (targets == cluster)
        left = left if left.any() else own
        labels = run.labels[now[left]]
        same = int(((labels == cluster) | (labels == targets[left]) | ~is_free[left]).sum())
        allowed = now[is_there & (own | ~is_free | (targets == cluster))]
        others = int((run.labels == cluster).sum() - (run.labels[allowed] == cluster).sum())
        total = int(left.sum()) + others
        if total and 2 * same <= total:
            noun, group = run.words
            must = f"have more than half of the {noun}s that it has on the page of the corrections"
            got = f"got {same:,} of {total:,}: open the page of {run.workdir} anew"
            raise InputError(f"{group} {cluster} must {must}; {got}")


def _check_no_contradiction(merge: _Merge, is_new: NDArray, targets: NDArray) -> None:
    """Raises an `InputError` if a person has decided otherwise since about a row of the file.

    Args:
        merge: what is merged.
        is_new: bool `[n]`, the rows of the page that the file moves.
        targets: int64 `[n]`, where the file wants each row of the page, see `_targets_now`.
    """
    run, mine, known = merge.theirs, merge.mine.labels, dict[int, int]()
    labels = _merged(run, merge.said.merges).labels
    rows = np.flatnonzero(is_new & (merge.now >= 0))
    for row in rows[run.columns["decided"][merge.now[rows]]].tolist():
        i = int(merge.now[row])
        # Two new clusters of the file are not one.
        if labels[i] != targets[row] or known.setdefault(targets[row], mine[row]) != mine[row]:
            group = run.words[1]
            where = f"in {group} {run.labels[i]}" if run.labels[i] >= 0 else f"in no {group}"
            got = f"{_called(run, i)}, which a person has decided to be {where}"
            raise _contradiction(run, got)


def _picks(merge: _Merge) -> NDArray:
    """Returns which rows of the present state are kept of their copies, bool, before those of mine.

    A pick that mine leaves out is as the page has shown it.

    Raises:
        InputError: a person has picked another copy since.
    """
    shown, run, now = merge.shown, merge.theirs, merge.now
    picks = run.columns["kept"].copy()
    held = [rows_now(state, run)[list(file.keep)] for state, file in merge.others]
    free = _free(now, held)
    is_left_out = merge.base.columns["kept"] & ~merge.mine.columns["kept"]
    is_left_out &= (free >= 0) & picks[free]
    groups = duplicates.groups_of(shown.copies, len(now))
    rows = np.flatnonzero(np.isin(groups, groups[is_left_out]) & (now >= 0))
    picks[now[rows]] = shown.columns["kept"][rows]

    groups = duplicates.groups_of(run.copies, len(picks))
    is_since = picks.copy()
    is_since[now[shown.columns["kept"] & (now >= 0)]] = False
    for i in (int(now[row]) for row in merge.fresh.keep if now[row] >= 0):
        others = np.flatnonzero(is_since & (groups == groups[i]) & (groups >= 0)).tolist()
        if others := [other for other in others if other != i]:
            got = f"another copy than {_called(run, others[0])}, which a person has picked"
            raise _contradiction(run, f"{got} to be kept")
    return picks


def _names(
    merge: _Merge, made_before: Mapping[Target, int], made: Mapping[Target, int]
) -> dict[int, str]:
    """Returns the names of the present state with those of mine that differ from the base.

    Args:
        merge: what is merged.
        made_before: key of a new cluster of the base -> its number in the present state.
        made: the same for mine.

    Raises:
        InputError: a person has given a cluster another name since.
    """
    shown, fresh = merge.shown, merge.fresh
    base = _named(shown, merge.base, merge.earlier, made_before)
    mine = _named(shown, merge.mine, merge.said, made)
    others = {named for _, file in merge.others for named in file.names.items()}
    result = dict(merge.theirs.named)
    for label, name in base.items():
        is_other = name not in (mine.get(label), shown.named.get(label))
        if is_other and result.get(label) == name and (label, name) not in others:
            result.pop(label)
            result |= {label: mine[label]} if label in mine else {}
    said = [*fresh.names, *(made[key] for key in fresh.new if key in made)]
    # A cluster without a name gets that of one that is merged into it, which is then said of it.
    said += [into for _, into in fresh.merges if mine.get(into) != shown.named.get(into)]
    for label in (label for label in said if label in mine):
        name, earlier = mine[label], result.get(label)
        if earlier not in (None, shown.named.get(label), name):
            group = f"{merge.theirs.words[1]} {label}"
            got = f"{short(repr(name))} for {group}, which a person has called"
            raise _contradiction(merge.theirs, f"{got} {short(repr(earlier))}")
        result[label] = name
    return result


def _named(
    shown: Run, corrected: Run, said: Decisions, made: Mapping[Target, int]
) -> dict[int, str]:
    """Returns the names of a page after a file, by the clusters of the present state.

    Args:
        shown: the state of the page.
        corrected: that state after the file.
        said: what the file says.
        made: key of a new cluster -> its number in the present state; others have none.
    """
    old = {label: name for label, name in corrected.named.items() if label < shown.next_label}
    return old | {made[key]: name for key, name in said.new.items() if key in made and name}


def _sets(merge: _Merge) -> tuple[frozenset[int], frozenset[int]]:
    """Returns `whole` and `shaped` of the present state, in which what differs is as in mine."""
    base, mine, theirs = merge.base, merge.mine, merge.theirs
    whole, made = set[int](), set[int]()  # which another file says, too
    for state, file in merge.others:
        divided = [row for row, target in file.labels.items() if target in file.new]
        whole |= {*file.whole}
        made.update((into for _, into in file.merges), state.labels[divided].tolist())
    # The numbers of new clusters of the page may be those of others in the run.
    made |= {*range(merge.shown.next_label, max(base.next_label, mine.next_label))}
    return (
        theirs.whole - (base.whole - mine.whole - whole) | {*merge.fresh.whole},
        theirs.shaped - (base.shaped - mine.shaped - made) | (mine.shaped - base.shaped - made),
    )


def _called(run: Run, row: int) -> str:
    return f"{run.words[0]} {row}" if run.names is None else run.names[row]


def _contradiction(run: Run, got: str) -> InputError:
    """Returns the error for corrections that a later decision contradicts; raises nothing."""
    must = "the corrections must not contradict those that were made since their page was written"
    return InputError(f"{must}; got {got}: open the page of {run.workdir} anew")


def _targets_now(
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
