"""Photos or rows that exist now, matched to those of a run; all functions are pure."""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering import stable_ids
from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted
from cluster_jax.data import decode
from cluster_jax.runs.next_state import Now, with_rows
from cluster_jax.runs.run import Run


class Comparison(NamedTuple):
    """The m photos or rows that exist now, compared with the n rows of a run.

    Attributes:
        run: the run; rows of `Run.departed` that are there again are its last ones. Rows that are
            there have the names and facts of now: the same photo may be in another file, in which a
            program has written a title. The names of photos are absolute paths.
        known: int64 `[n]`, for each row of `run` its index among the m present ones, -1 if it is
            not among them.
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
    def to_embed(self) -> NDArray:
        """Indices among the present ones of which the run has no features: changed, then new ones.

        The changed ones are in the order of the rows of `run`.
        """
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
        assert run.facts is not None
        names = None
        if run.names is not None and self.names is not None:
            names = (*_at(run.names, old), *_at(self.names, self.new))
        columns = run.columns.copy()
        n_changed = int(self.changed.sum())
        columns["row"][self.changed] = len(run.store) + np.arange(n_changed)
        after = dataclasses.replace(
            _with_departed(run, old),
            store=np.concatenate([run.store, made]) if len(made) else run.store,
            names=names,
            columns=columns[old],
            facts=np.concatenate([run.facts[old], self.facts[self.new]]),
            truth=None if run.truth is None else _labels(run.truth[old], len(self.new)),
        )
        after = with_rows(after, len(self.new), len(run.store) + n_changed)
        changed = np.zeros(len(after.columns), bool)
        changed[: len(old)] = self.changed[old]
        return Now(after, old, changed)


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
    n = len(run.columns)
    known = _known_rows(_with_returned(run, np.arange(len(run.departed))), names, facts)
    back = np.flatnonzero(known[n:] >= 0)
    known = np.concatenate([known[:n], known[n + back]])
    run = _with_returned(run, back)
    assert run.facts is not None
    is_there = known >= 0
    facts_now = run.facts.copy()
    facts_now[is_there] = facts[known[is_there]]
    changed = (run.facts["digest"] != facts_now["digest"]).any(axis=1)
    names_now = run.names
    if run.names is not None and names is not None:
        pairs = zip(run.names, known.tolist(), strict=True)
        names_now = tuple(name if i < 0 else names[i] for name, i in pairs)
    run = dataclasses.replace(run, names=names_now, facts=facts_now)
    return Comparison(run, known, changed, np.setdiff1d(np.arange(len(facts)), known), names, facts)


def _with_returned(run: Run, back: NDArray) -> Run:
    """Returns a run with rows of `Run.departed`, int `[b]`, after all others.

    They come in the next update, and their true labels are unknown. Of those that were only picked
    of their copies no cluster is known. The others stay in `Run.departed`.
    """
    assert run.facts is not None
    left = np.setdiff1d(np.arange(len(run.departed)), back)
    names = run.names
    if names is not None:
        names = (*names, *_at(run.departed_names, back))
    returned = run.departed[back]
    returned["since"] = run.updates + 1
    is_held = returned["decided"] | np.isin(returned["label"], list(run.held))
    returned["label"][~is_held] = stable_ids.NEW
    return dataclasses.replace(
        run,
        columns=np.concatenate([run.columns, returned]),
        facts=np.concatenate([run.facts, run.departed_facts[back]]),
        names=names,
        truth=None if run.truth is None else _labels(run.truth, len(back)),
        departed=run.departed[left],
        departed_facts=run.departed_facts[left],
        departed_names=_at(run.departed_names, left),
    )


def _with_departed(run: Run, staying: NDArray) -> Run:
    """Adds the rows that leave to `Run.departed`; returns the run.

    Which of them are remembered is known once all others are clustered: `decisions.without_ended`.

    Args:
        run: the run with all rows of which some leave.
        staying: int `[l]`, indices of the rows that stay.
    """
    columns = run.columns
    rows = np.setdiff1d(np.arange(len(columns)), staying)
    ids = [""] * len(columns) if run.is_of_images or run.names is None else run.names
    assert run.facts is not None
    return dataclasses.replace(
        run,
        departed=np.concatenate([run.departed, columns[rows]]),
        departed_facts=np.concatenate([run.departed_facts, run.facts[rows]]),
        departed_names=(*run.departed_names, *_at(ids, rows)),
    )


def _at(names: Sequence[str], rows: NDArray) -> tuple[str, ...]:
    return tuple(names[row] for row in rows.tolist())


def _labels(truth: NDArray, count: int) -> NDArray:
    """Returns true labels int32 `[n]`, and after them `count` unknown ones."""
    return np.concatenate([truth, np.full(count, -1, np.int32)])


def _known_rows(run: Run, names: tuple[str, ...] | None, facts: NDArray) -> NDArray:
    """Returns for each row of a run its index among the m present ones, int64 `[n]`, else -1.

    For the arguments see `compare`; the last rows of the run may be those of `Run.departed`.
    """
    assert run.facts is not None
    if not run.is_of_images and run.names is not None:
        return _matched(run.names, names or ())
    known = _matched(_keys(run.facts, run.names), _keys(facts, names))
    if run.is_of_images:  # Equal content under another name.
        left = np.flatnonzero(known < 0)
        free = np.setdiff1d(np.arange(len(facts)), known)
        place = _matched(_keys(run.facts[left]), _keys(facts[free]))
        known[left[place >= 0]] = free[place[place >= 0]]
    return known


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
    noun = run.words[0]
    of_run = f"of the {counted(len(run.columns), noun)} of {run.workdir}"
    is_other = "would have another vector under the same id"
    said = f"{changed:,} {of_run} {is_other}"
    if gone:
        said = f"{gone:,} {of_run} would leave"
        said += f" and {changed:,} {is_other}" if changed else ""
    raise InputError(
        f"{said}: {do}, or confirm that by --yes (in Python confirmed=True); what was decided "
        f"stays with the {noun}s that stay"
    )
