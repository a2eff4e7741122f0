"""Corrections that a person has saved on the page: one JSON file, checked as a whole.

    {"state": "3f9c0e51a2b4",             the state of the run that the page shows
     "browser": "k2x90fz1q7",             the browser that has saved the file
     "saved": 3,                          how many files that browser has saved by then
     "names": {"3": "cats"},              cluster: its name
     "merges": [[5, 3]],                  cluster, and the one that receives its rows
     "new": {"a": "puppies"},             key of a new cluster: its name, or null
     "labels": {"17": 3, "18": "a"},      row: the cluster to which it moves
     "wrong": [20],                       rows that belong to no cluster
     "right": [21],                       rows that are right where they are
     "keep": [12],                        rows that are kept of their copies
     "whole": [4]}                        clusters of one kind, of which no page asks any more

All keys but the first may be left out. A row is its position on the page. Names are set first, then
clusters merge, then rows move (for a merged cluster: to the one that has received it), then rows
are marked wrong or right. A cluster that receives another one keeps its name; without a name, it
gets that of the merged cluster with the lowest number that has one. A cluster that is gone can be
named and can receive rows: its number keeps its meaning.
"""

import collections
import json
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.clustering.base import NO_CLUSTER
from cluster_jax.core import buckets
from cluster_jax.core.checks import InputError, short
from cluster_jax.runs.decisions import receivers
from cluster_jax.runs.run import Decisions, Run

MAX_NAME = 100  # characters of a name
_JOINERS = "\u200c\u200d"  # of many scripts and signs; other formats turn the direction of a text
OBJECTS = ("names", "new", "labels")
LISTS = ("merges", "wrong", "right", "keep", "whole")


def read(file: epath.PathLike) -> dict[str, Any]:
    """Returns the content of a file of corrections, of which the keys and their types are checked.

    Whether the entries suit a run and each other is checked by `parsed`.

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
        is_known |= key == "saved" and type(value) is int
        is_known |= key in OBJECTS and isinstance(value, dict)
        is_known |= key in LISTS and isinstance(value, list)
        if not is_known:
            got = f"{short(repr(key))} with {short(repr(value))}"
            raise InputError(f"{file} must have the keys of a report; got {got}")
    return said


def parsed(run: Run, said: Mapping[str, Any], page: str | None = None) -> Decisions:
    """Returns what a file says of a state, after checking it.

    Args:
        run: the state that the file is about.
        said: the content of the file, see the module; "state" is not compared with the run.
        page: `Run.state` of the page that has saved the file; None for a command.

    Raises:
        InputError: an entry is invalid, for example has no such row or cluster; entries contradict
            each other; a new cluster gets no row; or a row that is right is in no cluster.
    """
    clusters = range(run.next_label)
    names, new, labels = (said.get(key, {}) for key in OBJECTS)
    merges, wrong, right, keep, whole = (said.get(key, []) for key in LISTS)
    if numbers := [key for key in new if key.isdecimal()]:
        raise InputError(f"the key of a new cluster must be no number; got {short(numbers[0])!r}")
    made = {key: run.next_label + i for i, key in enumerate(new)}

    def target(value: Any) -> int:
        is_new = isinstance(value, str) and value in made
        return made[value] if is_new else _cluster("labels", value, clusters)

    named = {_cluster("names", key, clusters): checked_name(v) for key, v in names.items()}
    named |= {made[key]: checked_name(v) for key, v in new.items() if v is not None}
    moved = {_row("labels", key, run.rows): target(to) for key, to in labels.items()}
    of_none, confirmed, kept = (
        [_row(key, row, run.rows) for row in rows]
        for key, rows in (("wrong", wrong), ("right", right), ("keep", keep))
    )
    pairs = tuple(_merge(pair, clusters) for pair in merges)
    one_kind = tuple(_cluster("whole", each, clusters) for each in whole)
    receivers(pairs)
    _check_rows(run, [*moved, *of_none, *confirmed], confirmed)
    if empty := [key for key in new if made[key] not in moved.values()]:
        raise InputError(f"a new cluster must have an image; got none in {short(empty[0])!r}")
    moved |= dict.fromkeys(of_none, NO_CLUSTER) | {row: int(run.labels[row]) for row in confirmed}
    ids = run.columns["id"]
    return Decisions(
        page=page,
        number=run.number,
        browser=said.get("browser", ""),
        saved=said.get("saved", 0),
        names=named,
        new=made,
        labels={int(ids[row]): label for row, label in moved.items()},
        merges=pairs,
        keep=tuple(ids[kept].tolist()),
        whole=one_kind,
    )


def summary(before: Run, after: Run) -> str:
    """Returns what corrections have changed, such as "3 moved, 1 named", for a line of output.

    If they have changed nothing, it tells which earlier corrections are in force, if there are any.

    Args:
        before: the state before the corrections.
        after: the state after them, of the same rows, also of those that have left.
    """
    was, now = (np.concatenate([run.columns, run.departed]) for run in (before, after))
    moved = was["label"] != now["label"]
    lost = moved & (now["label"] == NO_CLUSTER)
    gone = set(before.labels.tolist()) - set(after.labels.tolist())
    come = set(after.labels.tolist()) - set(before.labels.tolist()) - {NO_CLUSTER}
    new = [label for label in come if label >= before.next_label]
    is_new = now["decided"] & ~was["decided"]
    kept = was["kept"], now["kept"]
    # A later file of the same page replaces what an earlier one has said.
    taken_back = int((was["decided"] & ~now["decided"]).sum())
    taken_back += len(before.named.keys() - after.named.keys()) + len(before.whole - after.whole)
    taken_back += max(0, int(kept[0].sum() - kept[1].sum())) + len(come) - len(new)
    # The rows of a group that was merged, or is there again, are not counted one by one.
    by_hand = moved & ~lost & now["decided"] & (is_new | ~np.isin(was["label"], list(gone)))
    counts = {
        "moved": int(by_hand.sum()),
        "confirmed": int((is_new & ~moved).sum()),
        f"in no {before.words[1]}": int(lost.sum()),
        "new": len(new),
        "merged or emptied": len(gone - {NO_CLUSTER}),
        "named": sum(before.named.get(key) != name for key, name in after.named.items()),
        "said to be one kind": len(after.whole - before.whole),
        "kept of its copies": int((kept[1] & ~kept[0]).sum()),
        "taken back": taken_back,
    }
    if said := _counted(counts):
        return said
    earlier = {
        "decided": int(after.by_hand.sum()),
        "merged or made": len(after.shaped - after.named.keys()),
        "said to be one kind": len(after.whole),
        "named": len(after.named),
    }
    if said := _counted(earlier):
        return f"nothing new; in force: {said}"
    noun, group = before.words
    return f"none: no {noun} was moved, confirmed or taken out, and no {group} named or merged"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n:,} {word}" for word, n in counts.items() if n)


def _merge(pair: Any, clusters: Collection[int]) -> tuple[int, int]:
    """Returns a merged cluster and the one that receives it; raises an `InputError` for others."""
    if not isinstance(pair, list) or len(pair) != 2:
        raise InputError(f"each of merges must be two clusters; got {short(repr(pair))}")
    label, into = (_cluster("merges", each, clusters) for each in pair)
    return label, into


def _check_rows(run: Run, said: Iterable[int], right: Iterable[int]) -> None:
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


def _row(key: str, value: Any, rows: NDArray) -> int:
    """Returns the row of a run that has a position on its page, or raises an `InputError`.

    Args:
        key: the key of the corrections, for the message.
        value: the position, as a number or its text.
        rows: the rows on the page, see `Run.rows`.
    """
    place = _whole(value)
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


def checked_name(value: Any) -> str:
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
