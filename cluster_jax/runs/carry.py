"""Files of corrections in the present state: what they say, and whether it can still be applied.

A file says something of the state that its page shows. Rows and clusters have their numbers for
life, so it is true of the present state as well, unless a cluster of which it speaks has other rows
now, or somebody has decided otherwise since: then the file is refused.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.clustering.base import NO_CLUSTER
from cluster_jax.core.checks import InputError, short
from cluster_jax.report import duplicates
from cluster_jax.runs import corrections, decisions
from cluster_jax.runs.changes import rows_now
from cluster_jax.runs.run import Decisions, Run


def corrected(run: Run, said: Mapping[str, Any]) -> Run:
    """Returns a run with corrections of its present state, which no page has saved."""
    return _applied(run, run, corrections.parsed(run, said))


def carried(shown: Run, run: Run, said: Mapping[str, Any]) -> Run:
    """Returns a state of a run with the corrections of the page of this or an earlier one applied.

    What an earlier file of the same page and browser has decided otherwise is taken back, so a file
    may be applied again. The files of one page are all applied, in any order. A cluster is the same
    one as on the page if more than half of its rows are the same. A row that is right moves to the
    cluster in which the page has shown it.

    Args:
        shown: the state that the corrections are about.
        run: this state, or a later one of the same run.
        said: the corrections, see `corrections`.

    Raises:
        InputError: a correction is invalid in its own state, speaks of a cluster that has other
            rows now, or contradicts a correction that was made since.
    """
    return _applied(shown, run, corrections.parsed(shown, said, shown.state))


def check_is_last(run: Run, said: Mapping[str, Any], file: epath.PathLike) -> None:
    """Raises an `InputError` for a file of which a later one of its page and browser is applied.

    It would take back what the later one says.

    Args:
        run: the newest state.
        said: the corrections of the file.
        file: the file, for the message.
    """
    last = _of_browser(run, said["state"], said.get("browser", ""))
    if last is not None and said.get("saved", 0) < last.saved:
        raise InputError(
            f"{file} must be the last file that its browser has saved of the page; got an earlier "
            "one, which would take back what the last one says, and that is applied: to go back, "
            f"take the last one back first by `cluster-jax update --workdir={run.workdir} --undo`"
        )


def _of_browser(run: Run, page: str | None, browser: str) -> Decisions | None:
    """Returns the last file of a page and a browser that was applied; None without one."""
    of_browser = (said for said in run.said if (said.page, said.browser) == (page, browser))
    return None if page is None else next(of_browser, None)


def _applied(shown: Run, run: Run, said: Decisions) -> Run:
    """Returns a run with decisions of a state; for the arguments and errors see `carried`."""
    earlier = _of_browser(run, said.page, said.browser)
    # A file that names no browser takes nothing back.
    replaced = earlier if said.browser else None
    others = tuple(each for each in run.said if each is not replaced)
    before = decisions.folded(run, others)
    said = _of_now(shown, before, said, earlier)
    fresh = said if earlier is None else _without(said, earlier)
    is_of_page = [each.page == said.page and said.page is not None for each in others]
    of_page = [each for each, is_of in zip(others, is_of_page, strict=True) if is_of]
    elsewhere = decisions.folded(run, [each for each in others if each not in of_page])
    _check_same_clusters(shown, elsewhere, said, fresh)
    try:
        result = decisions.folded(before, (*others, said))
        into = decisions.merged([*of_page, said])
    except InputError as error:
        raise _contradiction(run, "merges that others have made otherwise") from error
    _check_rows(shown, (elsewhere, result), fresh, into)
    _check_names(shown, (elsewhere, result), said, fresh, into)
    _check_picks(shown, (elsewhere, result), fresh)
    if earlier is not None and replaced is None:
        both = _with(earlier, said)
        result = decisions.folded(before, (*(e for e in others if e is not earlier), both))
    number = max([run.next_label - 1, *said.new.values()]) + 1
    return dataclasses.replace(result, next_label=number)


def _of_now(shown: Run, before: Run, said: Decisions, earlier: Decisions | None) -> Decisions:
    """Returns decisions of a page by the rows and clusters of the present state.

    A new cluster has the number that it has got by the earlier file, or that rows of it have which
    another file has put into a new cluster since, or else one that is free. One of which no row is
    left is not made.

    Args:
        shown: the state of the page.
        before: the present state without the earlier file.
        said: the decisions.
        earlier: the earlier file of the page and browser, or None.
    """
    now = rows_now(shown, before)
    ids = np.where(now >= 0, before.columns["id"][now], shown.columns["id"])
    id_of = dict(zip(shown.columns["id"].tolist(), ids.tolist(), strict=True))
    labels = {id_of[id]: label for id, label in said.labels.items()}
    known = {} if earlier is None else earlier.new
    numbers = {label: label for label in range(shown.next_label)} | {NO_CLUSTER: NO_CLUSTER}
    free = max([before.next_label - 1, *known.values()]) + 1
    every = np.concatenate([before.columns, before.departed])
    for key, number in said.new.items():
        inside = every[decisions.rows_of(every, [i for i in labels if labels[i] == number])]
        if not len(inside):
            continue
        made = np.unique(inside["label"][inside["decided"]])
        made = made[made >= shown.next_label].tolist()
        is_made = len(made) == 1 and made[0] not in numbers.values()
        numbers[number] = known.get(key, made[0] if is_made else free)
        free = max(free, numbers[number] + 1)
    page = [each.number for each in before.said if each.page == said.page is not None]
    return said._replace(
        number=page[0] if page else said.number,
        names={numbers[label]: name for label, name in said.names.items() if label in numbers},
        new={key: numbers[number] for key, number in said.new.items() if number in numbers},
        labels={id: numbers[label] for id, label in labels.items() if label in numbers},
        keep=tuple(id_of[id] for id in said.keep),
    )


def _with(earlier: Decisions, said: Decisions) -> Decisions:
    """Returns decisions with those of an earlier file, which do not contradict each other."""
    return said._replace(
        names={**earlier.names, **said.names},
        new={**earlier.new, **said.new},
        labels={**earlier.labels, **said.labels},
        merges=tuple({*earlier.merges, *said.merges}),
        keep=tuple(dict.fromkeys([*earlier.keep, *said.keep])),
        whole=tuple({*earlier.whole, *said.whole}),
    )


def _without(said: Decisions, earlier: Decisions) -> Decisions:
    """Returns decisions without those that were applied: they hold, or were changed since."""
    return said._replace(
        names=dict(said.names.items() - earlier.names.items()),
        labels=dict(said.labels.items() - earlier.labels.items()),
        merges=tuple(pair for pair in said.merges if pair not in earlier.merges),
        keep=tuple(id for id in said.keep if id not in earlier.keep),
        whole=tuple(label for label in said.whole if label not in earlier.whole),
    )


def _check_same_clusters(shown: Run, now: Run, said: Decisions, fresh: Decisions) -> None:
    """Raises an `InputError` if the file speaks of a cluster that is another one than on the page.

    The page shows r rows in it that are still there and that the file leaves in it, or if it leaves
    none, all that are still there. Of these, s are in it now, and so are o other rows, which the
    file does not move there. It is the same cluster if s > (r + o) / 2.

    Args:
        shown: the state of the page.
        now: the present state without the files of the page.
        said: the decisions.
        fresh: those of them that were not applied before.
    """
    rows = rows_now(shown, now)
    wanted = np.array([said.labels.get(id, NO_CLUSTER) for id in now.columns["id"].tolist()])
    is_moved = np.isin(now.columns["id"], list(said.labels))
    spoken = {*fresh.names, *fresh.whole, *fresh.labels.values()}.union(*fresh.merges)
    for cluster in sorted(spoken & {*range(shown.next_label)}):
        own = rows[(shown.labels == cluster) & (rows >= 0)]
        left = own[~is_moved[own] | (wanted[own] == cluster)]
        left = left if len(left) else own
        is_in = now.labels == cluster
        same = int(is_in[left].sum())
        is_in[own] = False
        total = len(left) + int((is_in & ~(is_moved & (wanted == cluster))).sum())
        if total and 2 * same <= total:
            noun, group = now.words
            must = f"have more than half of the {noun}s that it has on the page of the corrections"
            got = f"got {same:,} of {total:,}: open the page of {now.workdir} anew"
            raise InputError(f"{group} {cluster} must {must}; {got}")


def _check_rows(
    shown: Run, states: tuple[Run, Run], fresh: Decisions, into: Mapping[int, int]
) -> None:
    """Raises an `InputError` if a person has decided otherwise since about a row of the file.

    Args:
        shown: the state of the page.
        states: the present state without the files of the page, and with all and the file.
        fresh: what the file says that was not applied before.
        into: the cluster that receives each cluster that files of the page merge.
    """
    other, result = states
    known = {id: i for i, id in enumerate(shown.columns["id"].tolist())}
    for row in decisions.rows_of(result.columns, fresh.labels).tolist():
        id = int(result.columns["id"][row])
        target = into.get(fresh.labels[id], fresh.labels[id])
        was, then = int(other.labels[row]), known.get(id)
        is_known = then is not None and bool(shown.columns["decided"][then])
        is_known = is_known and shown.labels[then] == was
        is_since = other.columns["decided"][row] and into.get(was, was) != target and not is_known
        if is_since or result.labels[row] != target:
            label = was if is_since else int(result.labels[row])
            noun, group = result.words
            called = f"{noun} {row}" if result.names is None else result.names[row]
            where = f"in no {group}" if label == NO_CLUSTER else f"in {group} {label}"
            got = f"{called}, which a person has decided to be {where}"
            raise _contradiction(result, got)


def _check_names(
    shown: Run,
    states: tuple[Run, Run],
    said: Decisions,
    fresh: Decisions,
    into: Mapping[int, int],
) -> None:
    """Raises an `InputError` if a person has named or merged clusters otherwise since.

    For the arguments see `_check_rows`; `said` is all that the file says.
    """
    other, result = states
    names = decisions.names_of([said], into, shown.named)
    labels = {into.get(label, label) for label in fresh.names}
    for label in sorted(names.keys() & labels.union(into[pair[0]] for pair in fresh.merges)):
        name, was, now = names[label], other.named.get(label), result.named.get(label)
        if was in (None, name, shown.named.get(label)):
            was = now
        if was != name:
            got = f"{short(repr(name))} for {result.words[1]} {label}, which a person has called"
            raise _contradiction(result, f"{got} {short(repr(was))}")
    if not {pair[0] for pair in fresh.merges}.isdisjoint(result.labels.tolist()):
        raise _contradiction(result, "merges that others have made otherwise")


def _check_picks(shown: Run, states: tuple[Run, Run], fresh: Decisions) -> None:
    """Raises an `InputError` if a person has picked another copy since; see `_check_rows`."""
    other, result = states
    groups = duplicates.groups_of(result.copies, len(result.columns))
    known = shown.columns["id"][shown.columns["kept"]]
    is_since = other.columns["kept"] & ~np.isin(result.columns["id"], known)
    kept = dict[int, int]()
    for id in fresh.keep:
        rows = decisions.rows_of(result.columns, [id])
        kept |= {int(groups[row]): int(row) for row in rows if groups[row] >= 0}
    for group, row in kept.items():
        is_other = (groups == group) & (result.columns["kept"] | is_since)
        is_other[row] = False
        if is_other.any():
            i = int(np.flatnonzero(is_other)[0])
            noun = result.words[0]
            called = f"{noun} {i}" if result.names is None else result.names[i]
            got = f"another copy than {called}, which a person has picked to be kept"
            raise _contradiction(result, got)


def _contradiction(run: Run, got: str) -> InputError:
    """Returns the error for corrections that a later decision contradicts; raises nothing."""
    must = "the corrections must not contradict those that were made since their page was written"
    return InputError(f"{must}; got {got}: open the page of {run.workdir} anew")
