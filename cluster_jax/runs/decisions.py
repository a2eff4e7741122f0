"""What people have decided about a run, and the clusters that follow from it.

The clusters of a state are those that were found (the column "found"), with what the files of
corrections say on top of them: first the files of the oldest page, then those of the next one, and
so on. A state has what each file says. `folded` makes its labels, names, and all else that people
have decided from these two alone, so that it can be made anew without one of the files, or with
another one in its place.

The files of one page hold together. `carry` refuses a file that contradicts another one when it is
applied, so the order in which two files are applied decides nothing but which of them is refused.
"""

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering.base import NO_CLUSTER
from cluster_jax.core.checks import InputError
from cluster_jax.report import duplicates
from cluster_jax.runs.run import Decisions, Run


def folded(run: Run, said: Sequence[Decisions]) -> Run:
    """Returns a run with the clusters that were found, and on top of them what files say.

    Args:
        run: the run, of which only what was found counts. In novel class discovery its images of
            known classes are decided.
        said: the files, in the order in which they were applied.

    Raises:
        InputError: the merges of two files of one page contradict each other.
    """
    n = len(run.columns)
    columns = np.concatenate([run.columns, run.departed])
    columns["label"], columns["kept"] = columns["found"], False
    columns["decided"][:n], columns["decided"][n:] = run.has_class, False
    groups = np.full(len(columns), -1)
    groups[:n] = duplicates.groups_of(run.copies, n)
    named, shaped, whole = dict[int, str](), set[int](), set[int]()
    for files in _by_page(said):
        into = merged(files)
        shaped |= _decide(columns, files, into) | {*into.values()}
        names = {label: name for file in files for label, name in file.names.items()}
        named |= names | names_of(files, into, named)
        for label, receiver in sorted(into.items()):
            if receiver not in named and label in named:
                named[receiver] = named[label]
        _pick(columns["kept"], groups, columns["id"], files)
        whole.update(*(file.whole for file in files))
    return dataclasses.replace(
        run,
        columns=columns[:n],
        departed=columns[n:],
        named=named,
        shaped=frozenset(shaped),
        whole=frozenset(whole),
        decisions=tuple(said),
    )


def _by_page(said: Sequence[Decisions]) -> Iterator[tuple[Decisions, ...]]:
    """Yields the files of each page, of the oldest one first.

    Names that a command has given come after the files of the page of then, and one by one. A
    state that was written again under its number, in another order of rows, has another page.
    """
    first = dict[str | None, int]()
    for place, file in enumerate(said):
        first.setdefault(file.page, place)

    def order(place: int) -> tuple[int, bool, int]:
        number, page = said[place].number, said[place].page
        return number, page is None, place if page is None else first[page]

    for _, places in itertools.groupby(sorted(range(len(said)), key=order), key=order):
        yield tuple(said[place] for place in places)


def _decide(columns: NDArray, files: Sequence[Decisions], into: Mapping[int, int]) -> set[int]:
    """Merges clusters and moves rows in the columns of a run as the files of a page say.

    Args:
        columns: `[n + g]` of `run.COLUMNS`, of the rows and of those that have left.
        files: the files of one page.
        into: see `merged`.

    Returns:
        The clusters that were made or divided: no update puts their parts together again.
    """
    labels = columns["label"]
    targets = dict[int, int]()
    for id, label in (each for file in files for each in file.labels.items()):
        targets.setdefault(id, into.get(label, label))
    made = {number for file in files for number in file.new.values()}
    rows = rows_of(columns, targets)
    wanted = np.array([targets[id] for id in columns["id"][rows].tolist()], np.int64)
    divided = labels[rows[np.isin(wanted, list(made))]].tolist()
    for label, receiver in into.items():
        labels[labels == label] = receiver
    labels[rows] = wanted
    columns["decided"][rows] = True
    return {*divided, *made.intersection(targets.values())} - {NO_CLUSTER}


def rows_of(columns: NDArray, ids: Iterable[int]) -> NDArray:
    """Returns the rows, int64, ascending, whose number is one of `ids`; columns as `COLUMNS`."""
    return np.flatnonzero(np.isin(columns["id"], list(ids)))


def names_of(
    files: Sequence[Decisions], into: Mapping[int, int], named: Collection[int]
) -> dict[int, str]:
    """Returns the names that the files of a page give to clusters that are not merged away.

    A cluster without a name gets that of one that is merged into it.

    Args:
        files: the files.
        into: see `merged`.
        named: the clusters that have a name without these files.
    """
    names = dict[int, str]()
    for file in files:
        for label, name in sorted(file.names.items()):
            receiver = into.get(label, label)
            if label == receiver or not (receiver in named or receiver in file.names):
                names.setdefault(receiver, name)
    return names


def _pick(kept: NDArray, groups: NDArray, ids: NDArray, files: Sequence[Decisions]) -> None:
    """Writes into `kept`, bool `[l]`, which rows the files of a page keep of their copies.

    Args:
        kept: changed here.
        groups: int `[l]`, the group of copies of each row, -1 for none.
        ids: int `[l]`, the numbers of the rows.
        files: the files.
    """
    picked = dict[int, int]()
    for file in files:
        rows = [row for id in file.keep for row in np.flatnonzero(ids == id).tolist()]
        own = {int(groups[row]): row for row in rows if groups[row] >= 0}  # The last one counts.
        picked = own | picked
    for group, row in picked.items():
        kept[groups == group] = False
        kept[row] = True


def merged(files: Sequence[Decisions]) -> dict[int, int]:
    """Returns `receivers` of the merges of all files of a page."""
    return receivers(sorted({pair for file in files for pair in file.merges}))


def receivers(merges: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Returns the cluster that receives each merged cluster, at the end of a chain of merges.

    Args:
        merges: see `Decisions`.

    Raises:
        InputError: a cluster is merged into several or into itself.
    """
    into = dict[int, int]()
    for label, target in merges:
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


def without_ended(run: Run, *, with_clusters: bool) -> Run:
    """Returns a run whose rows were clustered again, without the decisions that have ended.

    Rows that have left, and about which nothing is decided any more, are forgotten.

    Args:
        run: the run, of which what was found and decided rows are those of now, and `decisions`
            those of the state before.
        with_clusters: whether a decision ends with its cluster, one about a row also if the row is
            no longer decided, and a merge if the merged cluster is there again. A cluster that is
            merged is there if the one that has received it is; a name stays with its number.
    """
    said: Sequence[Decisions] = run.decisions
    found = {NO_CLUSTER, *run.labels.tolist()}
    if with_clusters:
        there = found | {label for label, end in _ends(said).items() if end in found}
        ended = set(run.columns["id"][~run.columns["decided"]].tolist())
        said = [_pruned(file, found, there, ended) for file in said]
    now = folded(run, said)
    departed = now.departed
    stays = departed["decided"] | np.isin(departed["label"], list(now.held))
    stays |= np.isin(departed["id"], [id for file in said for id in file.keep])
    if with_clusters:
        stays &= np.isin(departed["label"], list(found))
    return dataclasses.replace(
        now,
        departed=departed[stays],
        departed_facts=now.departed_facts[stays],
        departed_names=tuple(itertools.compress(now.departed_names, stays)),
    )


def _pruned(
    said: Decisions, found: Collection[int], there: Collection[int], ended: Collection[int]
) -> Decisions:
    """Returns a file without the decisions that have ended, see `without_ended`.

    Args:
        said: the file.
        found: the clusters of now.
        there: these, and the clusters that are merged into them.
        ended: numbers of rows that are no longer decided.
    """
    return said._replace(
        labels={id: label for id, label in said.labels.items() if id not in ended},
        merges=tuple(pair for pair in said.merges if pair[0] not in found and pair[1] in there),
        new={key: number for key, number in said.new.items() if number in there},
        whole=tuple(label for label in said.whole if label in there),
    )


def _ends(said: Sequence[Decisions]) -> dict[int, int]:
    """Returns the cluster in which the rows of each merged cluster are after all files."""
    ends = dict[int, int]()
    for files in _by_page(said):
        into = merged(files)
        ends = into | {label: into.get(end, end) for label, end in ends.items()}
    return ends
