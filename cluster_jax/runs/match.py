"""Photos or rows that exist now, matched to those of a run; all functions are pure."""

import collections
import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted
from cluster_jax.data import decode
from cluster_jax.runs.next_state import with_rows
from cluster_jax.runs.run import COLUMNS, DEPARTED, Run


class Now(NamedTuple):
    """The n photos or rows of the next state of a run.

    Attributes:
        after: the run with them, see `next_state.next_state`, like `old`; its store has all
            features.
        old: int `[l]`, ascending.
        made: float `[c, d]`, those of these features that are not on disk yet.
        changed: bool `[n]`, old rows of embeddings with another vector; None: there are none.
        order: int `[n]`, the row of `after` that comes first in the tables, and so on; None: its
            own order.
    """

    after: Run
    old: NDArray
    made: NDArray
    changed: NDArray | None = None
    order: NDArray | None = None


class Comparison(NamedTuple):
    """The m photos or rows that exist now, compared with the n rows of a run.

    Attributes:
        run: the run; rows that had left and have returned are its last ones, with their
            corrections. Its names are, of photos, absolute paths.
        known: int64 `[n]`, for each row of `run` its index among the m present ones, -1 if it is
            gone.
        changed: bool `[n]`, rows of `run` that are there with another vector, or turned by a tag.
        new: int64, ascending, indices among the m present ones that `run` does not have.
        names: ids or absolute paths of the m present ones; None: they are numbered.
        facts: `[m]`, facts about the present ones, see `Run.facts`.
    """

    run: Run
    known: NDArray
    changed: NDArray
    new: NDArray
    names: tuple[str, ...] | None
    facts: NDArray

    @property
    def _facts_now(self) -> NDArray:
        """Facts about the rows of `run`, `[n]`: of the present ones those of now.

        The same photo may be in another file, in which a program has written a title.
        """
        assert self.run.facts is not None
        facts = self.run.facts.copy()
        is_there = self.known >= 0
        facts[is_there] = self.facts[self.known[is_there]]
        return facts

    @property
    def to_embed(self) -> NDArray:
        """Indices among the present ones of which the run has no features: changed and new ones."""
        return np.concatenate([self.known[self.changed], self.new])

    def joined(self, is_kept: NDArray, made: NDArray) -> Now:
        """Returns the rows that stay, and after them all new ones, in this order.

        New rows have no cluster yet, and true labels of new rows are unknown.

        Args:
            is_kept: bool `[n]`, the rows of `run` that stay, also where they are not present.
            made: float `[c, d]`, the features of the rows of `to_embed`, which become the last ones
                of the store.
        """
        run = self.run
        old = np.flatnonzero(is_kept)
        assert run.store is not None
        names = None
        if self.names is not None and run.names is not None:
            places = zip(old.tolist(), self.known[old].tolist(), strict=True)
            known = (run.names[row] if i < 0 else self.names[i] for row, i in places)
            names = (*known, *(self.names[i] for i in self.new.tolist()))
        # The features in `made` are in the order of `to_embed`: changed rows, then new ones.
        columns = run.columns.copy()
        n_changed = int(self.changed.sum())
        columns["row"][self.changed] = len(run.store) + np.arange(n_changed)
        truth = None
        if run.truth is not None:
            truth = np.full(len(old) + len(self.new), -1, np.int32)
            was_there = old < len(run.truth)
            truth[: len(old)][was_there] = run.truth[old[was_there]]
        after = dataclasses.replace(
            run,
            store=np.concatenate([run.store, made]) if len(made) else run.store,
            names=names,
            columns=columns[old],
            facts=np.concatenate([self._facts_now[old], self.facts[self.new]]),
            truth=truth,
            gone=np.concatenate([run.gone, _kept_decisions(run, old)]),
        )
        after = with_rows(after, len(self.new), len(run.store) + n_changed)
        changed = np.zeros(len(after.columns), bool)
        changed[: len(old)] = self.changed[old]
        return Now(after, old, made, changed)


def compare(run: Run, names: Sequence[str] | None, facts: NDArray) -> Comparison:
    """Compares the present photos or rows with a run, by contents and names.

    Equal content under another name is the same photo. Of embeddings a row with an id is known by
    the id alone, and a numbered row by its content. A photo that a program has turned by its tag is
    the same one, see `decode.same_photo`.

    Args:
        run: the run before the update, with facts; its names are, of photos, absolute paths.
        names: the names of the m present ones, as those of `run`; None: they are numbered.
        facts: `[m]` of `data.images.FACTS`, facts about the present ones.
    """
    names = None if names is None else tuple(names)
    known = _known_rows(run, names, facts)
    new = np.setdiff1d(np.arange(len(facts)), known)
    run, back = _with_returned(run, names, facts, new)
    known = np.concatenate([known, back])
    assert run.facts is not None
    changed = known >= 0
    digests = facts["digest"][known[changed]]
    changed[changed] = (run.facts["digest"][changed] != digests).any(axis=1)
    return Comparison(run, known, changed, np.setdiff1d(new, back), names, facts)


def _known_rows(run: Run, names: tuple[str, ...] | None, facts: NDArray) -> NDArray:
    """Returns for each row of a run its index among the m present ones, int64 `[n]`, -1 if gone.

    For the arguments see `compare`.
    """
    assert run.facts is not None
    if not run.is_of_images and names is not None and run.names is not None:
        return _matched(run.names, names)
    known = _matched(_keys(run.facts, run.names), _keys(facts, names))
    if run.is_of_images:  # Equal content under another name.
        left = np.flatnonzero(known < 0)
        free = np.setdiff1d(np.arange(len(facts)), known)
        place = _matched(_keys(run.facts[left]), _keys(facts[free]))
        known[left[place >= 0]] = free[place[place >= 0]]
    return known


def _with_returned(
    run: Run, names: tuple[str, ...] | None, facts: NDArray, new: NDArray
) -> tuple[Run, NDArray]:
    """Returns a run with the rows of `Run.gone` that are there again, after all others.

    Args:
        run: see `compare`, like `names` and `facts`.
        names: of the m present ones.
        facts: `[m]`.
        new: int `[l]`, indices of those present ones that the run does not have.

    Returns:
        The run, and the index of each returned row among the present ones.
    """
    of_new = None if names is None else [names[i] for i in new.tolist()]
    gone = [digest.tobytes() for digest in run.gone["digest"]]
    present = _digests_of_departed(run, facts[new], of_new)
    if run.is_of_images:
        gone, present = ([*map(decode.same_photo, each)] for each in (gone, present))
    place = _matched(gone, present)
    back = new[place[place >= 0]]
    facts_then = facts[back]
    if run.is_of_images:
        facts_then["digest"] = run.gone["digest"][place >= 0]
    every = None
    if run.names is not None and names is not None:
        every = (*run.names, *(names[i] for i in back.tolist()))
    returned = run.gone[place >= 0][list(COLUMNS.names or ())].astype(COLUMNS)
    assert run.facts is not None
    run = dataclasses.replace(
        run,
        columns=np.concatenate([run.columns, returned]),
        facts=np.concatenate([run.facts, facts_then]),
        names=every,
        gone=run.gone[place < 0],
    )
    return run, back


def _keys(facts: NDArray, names: Sequence[str] | None = None) -> list[tuple[bytes, str]]:
    """Returns what `_matched` compares: contents, and names, if there are any."""
    contents = (decode.same_photo(digest.tobytes()) for digest in facts["digest"])
    if names is None:
        names = [""] * len(facts)
    return list(zip(contents, names, strict=True))


def _matched(known: Sequence[Any], now: Sequence[Any]) -> NDArray:
    """Returns for each known key the index of an equal key in `now`, int64 `[n]`, -1 without one.

    Equal keys are paired in order: the first known one gets the first of `now`, the second the
    second, and so on. No index is used twice.
    """
    comparison = collections.defaultdict[Any, list[int]](list)
    for i in reversed(range(len(now))):
        comparison[now[i]].append(i)
    return np.array([comparison[key].pop() if comparison[key] else -1 for key in known], np.int64)


def _kept_decisions(run: Run, kept: NDArray) -> NDArray:
    """Returns what a person has decided about rows that leave, `[g]` of `DEPARTED`.

    They are the rows that a person has decided about, and those of a cluster of `Run.held`.

    Args:
        run: the run with all rows of which some leave.
        kept: int `[l]`, indices of the rows that stay.
    """
    columns = run.columns
    is_said = columns["decided"].copy()
    is_said |= np.isin(columns["label"], list(run.held))
    is_said[kept] = False
    left = np.zeros(is_said.sum(), DEPARTED)
    left[list(COLUMNS.names or ())] = columns[is_said]
    assert run.facts is not None
    names = None if run.names is None else [run.names[i] for i in np.flatnonzero(is_said).tolist()]
    digests = b"".join(_digests_of_departed(run, run.facts[is_said], names))
    left["digest"] = np.frombuffer(digests, np.uint8).reshape(-1, 32)
    return left


def _digests_of_departed(run: Run, facts: NDArray, names: Sequence[str] | None) -> list[bytes]:
    """Returns digests by which images or rows are known again when they return.

    They are of the content, and of rows with ids of the id.
    """
    if run.is_of_images or names is None:
        return [digest.tobytes() for digest in facts["digest"]]
    return [hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest() for name in names]


def check_leaving(run: Run, gone: int, changed: int, confirmed: bool, do: str) -> None:
    """Raises an `InputError` if more than half of a run would leave or change without a yes.

    Args:
        run: the run before the update.
        gone: number of its rows that would leave.
        changed: number of its rows that would stay with another vector.
        confirmed: whether somebody has confirmed that so many leave or change.
        do: advice for the message: what to do if they are not meant to.
    """
    if 2 * (gone + changed) <= len(run.columns) or confirmed:
        return
    rows = f"of the {counted(len(run.columns), run.words[0])} of {run.workdir}"
    yes = "by --yes (in Python confirmed=True)"
    if not changed:
        raise InputError(
            f"{gone:,} {rows} are gone or have changed: {do}, or confirm that they leave, with "
            f"what was decided about them, {yes}"
        )
    left = f", and {gone:,} {'is' if gone == 1 else 'are'} gone" if gone else ""
    raise InputError(
        f"{changed:,} {rows} have another vector under the same id{left}: {do}, or confirm {yes} "
        "that they have changed; what was decided about rows that are there stays"
    )
