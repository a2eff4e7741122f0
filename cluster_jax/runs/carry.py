"""Files of corrections in the present state: what they say, and whether it can still be applied.

A file says something of the state that its page shows. Rows and clusters have their numbers for
life, so it is true of the present state as well, unless a cluster of which it speaks has other rows
now, or somebody has decided otherwise since: then the file is refused.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

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
    who = said["state"], said.get("browser")
    if any(who == (e.page, e.browser) and said.get("saved", 0) < e.saved for e in run.decisions):
        raise InputError(
            f"{file} must be the last file that its browser has saved of the page; got an earlier "
            "one, which would take back what the last one says, and that is applied: to go back, "
            f"take the last one back first by `cluster-jax update --workdir={run.workdir} --undo`"
        )


def _applied(shown: Run, run: Run, said: Decisions) -> Run:
    """Returns a run with decisions of a state; for the arguments and errors see `carried`."""
    of_page = [file for file in run.decisions if file.page == said.page is not None]
    elsewhere = [file for file in run.decisions if file not in of_page]
    earlier = [file for file in of_page if file.browser == said.browser]
    # A file that names no browser takes nothing back.
    others = [file for file in run.decisions if file not in earlier or not said.browser]
    said = _of_now(shown, decisions.folded(run, others), said, of_page)
    fresh = _without(said, earlier)
    _check_same_clusters(shown, decisions.folded(run, elsewhere), said, fresh)
    try:
        result = decisions.folded(run, [*others, said])
    except InputError as error:
        raise _contradiction(run, "merges that others have made otherwise") from error
    # A page knows no file of its own: its state has those that have changed nothing that it shows.
    known = [file for file in shown.decisions if file.page != shown.state]
    since = [_without(file, [e for e in known if e.author == file.author]) for file in others]
    for got in _contradictions(shown, result, fresh, since):
        raise _contradiction(run, got)
    next_label = max([run.next_label, *(number + 1 for number in said.new.values())])
    return dataclasses.replace(result, next_label=next_label)


def _of_now(shown: Run, before: Run, said: Decisions, of_page: Sequence[Decisions]) -> Decisions:
    """Returns decisions of a page by the rows and clusters of the present state.

    Args:
        shown: the state of the page.
        before: the present state, without the file that is replaced.
        said: the decisions.
        of_page: the files of the page that were applied.
    """
    now = rows_now(shown, before)
    ids = np.where(now >= 0, before.columns["id"][now], shown.columns["id"])
    id_of = dict(zip(shown.columns["id"].tolist(), ids.tolist(), strict=True))
    said = said._replace(
        number=of_page[0].number if of_page else said.number,
        labels={id_of[id]: label for id, label in said.labels.items()},
        keep=tuple(id_of[id] for id in said.keep),
    )
    numbers = {label: label for label in range(NO_CLUSTER, shown.next_label)}
    numbers |= _numbers_of_new(before, said, of_page)
    return said._replace(
        names={numbers[label]: name for label, name in said.names.items() if label in numbers},
        new={key: numbers[number] for key, number in said.new.items() if number in numbers},
        labels={id: numbers[label] for id, label in said.labels.items() if label in numbers},
    )


def _numbers_of_new(before: Run, said: Decisions, of_page: Sequence[Decisions]) -> dict[int, int]:
    """Returns number of a new cluster on its page -> its number in the present state.

    It is that which it has got by an earlier file of the browser, or that which another file has
    given to a new cluster with rows of it, or else one that is free. A new cluster of which no row
    is left has none.

    Args:
        before: the present state, without the file that is replaced.
        said: the decisions, by the present rows.
        of_page: the files of the page that were applied.
    """
    known = dict[str, int]()
    for file in of_page:
        known |= file.new if file.browser == said.browser else {}
    made = {number for file in before.decisions for number in file.new.values()}
    free = max([before.next_label - 1, *known.values()]) + 1
    every = np.concatenate([before.columns, before.departed])
    numbers = dict[int, int]()
    for key, number in said.new.items():
        ids = [id for id, label in said.labels.items() if label == number]
        inside = every[decisions.rows_of(every, ids)]
        shared = made.intersection(inside["label"][inside["decided"]].tolist())
        is_shared = len(shared) == 1 and shared.isdisjoint([*numbers.values(), *known.values()])
        if len(inside):
            numbers[number] = known.get(key, shared.pop() if is_shared else free)
            free = max(free, numbers[number] + 1)
    return numbers


def _without(said: Decisions, files: Sequence[Decisions]) -> Decisions:
    """Returns decisions without those that one of the files says, too."""
    for file in files:
        said = said._replace(
            names=dict(said.names.items() - file.names.items()),
            labels=dict(said.labels.items() - file.labels.items()),
            merges=tuple(pair for pair in said.merges if pair not in file.merges),
            keep=tuple(id for id in said.keep if id not in file.keep),
            whole=tuple(label for label in said.whole if label not in file.whole),
        )
    return said


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


def _contradictions(
    shown: Run, run: Run, fresh: Decisions, since: Sequence[Decisions]
) -> Iterator[str]:
    """Yields about what somebody has decided otherwise since the page was written.

    Args:
        shown: the state of the page.
        run: the present state after the file, which is the last one of `Run.decisions`.
        fresh: what the file says that its browser has not said before.
        since: what each other file says that the page does not know.
    """
    said = run.decisions[-1]
    into = _receivers(run, said)
    of_page = [file for file in since if file.page == said.page is not None]
    pairs = [(said, fresh, file) for file in since if file not in of_page]
    # A merge that the file takes back may have been why two files of the page agreed.
    pairs += [(one, one, file) for one, file in itertools.combinations([said, *of_page], 2)]
    for whole, new, file in pairs:
        yield from _of_rows(run, new, file, into)
        mine, theirs = _names(shown, whole, new, into), _names(shown, file, file, into)
        for label in sorted(mine.keys() & theirs.keys()):
            if mine[label] != theirs[label]:
                name, other = short(repr(mine[label])), short(repr(theirs[label]))
                yield f"{name} for {run.words[1]} {label}, which a person has called {other}"
    picked = _picked(run, fresh)
    for file in since:
        for copies, id in _picked(run, file).items():
            if picked.get(copies, id) != id:
                yield f"another copy than {_called(run, id)}, which a person has picked to be kept"
    if not {label for label, _ in fresh.merges}.isdisjoint(run.labels.tolist()):
        yield "merges that others have made otherwise"


def _of_rows(
    run: Run, fresh: Decisions, other: Decisions, into: Mapping[int, int]
) -> Iterator[str]:
    """Yields about the rows that two files put into two clusters.

    Args:
        run: the present state.
        fresh: one file.
        other: the other one, perhaps of another page.
        into: the cluster that receives each cluster that files of the page of `fresh` merge.
    """
    of_other = _receivers(run, other)
    for id in sorted(fresh.labels.keys() & other.labels.keys()):
        wanted, label = fresh.labels[id], other.labels[id]
        label = of_other.get(label, label)
        label = into.get(label, label)
        if label != into.get(wanted, wanted):
            group = run.words[1]
            where = f"in no {group}" if label == NO_CLUSTER else f"in {group} {label}"
            yield f"{_called(run, id)}, which a person has decided to be {where}"


def _names(
    shown: Run, said: Decisions, fresh: Decisions, into: Mapping[int, int]
) -> dict[int, str]:
    """Returns the names that a file gives to clusters, see `decisions.names_of`.

    Args:
        shown: the state of the page.
        said: the file.
        fresh: the part of it whose names count.
        into: the cluster that receives each cluster that files of the page merge.
    """
    spoken = {into.get(label, label) for label in fresh.names}
    names = decisions.names_of([said], into, shown.named)
    return {label: name for label, name in names.items() if label in spoken}


def _receivers(run: Run, said: Decisions) -> dict[int, int]:
    """Returns `decisions.merged` of the page of a file in a run."""
    page = said.number, said.page
    return decisions.merged([file for file in run.decisions if (file.number, file.page) == page])


def _picked(run: Run, said: Decisions) -> dict[int, int]:
    """Returns group of copies -> the row that a file keeps of it."""
    groups = duplicates.groups_of(run.copies, len(run.columns))
    picked = dict[int, int]()
    for id in said.keep:
        for row in decisions.rows_of(run.columns, [id]).tolist():
            picked |= {int(groups[row]): id} if groups[row] >= 0 else {}
    return picked


def _called(run: Run, id: int) -> str:
    """Returns what a message calls the row of a number."""
    for row in decisions.rows_of(run.columns, [id]).tolist():
        return f"{run.words[0]} {row}" if run.names is None else run.names[row]
    return f"a {run.words[0]} that has left"


def _contradiction(run: Run, got: str) -> InputError:
    """Returns the error for corrections that a later decision contradicts; raises nothing."""
    must = "the corrections must not contradict those that were made since their page was written"
    return InputError(f"{must}; got {got}: open the page of {run.workdir} anew")
