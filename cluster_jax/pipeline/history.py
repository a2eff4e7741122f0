"""What updates have done: in words, as lines of `HISTORY`, and as a table of each version."""

import collections
import datetime
import json
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from cluster_jax import __version__
from cluster_jax.clustering import living
from cluster_jax.clustering.living import Event, State
from cluster_jax.core import buckets, io
from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted
from cluster_jax.pipeline.snapshots import Snapshot
from cluster_jax.report import assignments, changes, comparison

HISTORY, TABLES = "history.jsonl", "history"
_NAMED = 12  # events that are told


class Change(NamedTuple):
    """What is new, and what became of the clusters.

    Attributes:
        came, left, renamed: numbers of images or rows.
        described: number of known rows whose metadata are others now.
        events: what has happened to the clusters.
        is_refit: whether all was clustered anew.
        followed: how many have followed those that a person has moved.
        returned: how many of these have gone back.
        noun, group: what one of them, and a cluster, is called.
    """

    came: int
    left: int
    renamed: int
    described: int
    events: tuple[Event, ...]
    is_refit: bool
    noun: str
    group: str
    followed: int = 0
    returned: int = 0


def words(change: Change, names: Mapping[int, str]) -> str:
    """Tells in plain words what has happened: numbers of files, then a line for each event.

    Args:
        change: the update.
        names: a cluster -> its name.

    Example:
        >>> print(words(Change(2, 0, 0, 0, (Event("grew", 3, 2),), False, "photo", "group"), {}))
        2 photos are new.
          group 3 grew by 2 photos
    """
    noun, group = change.noun, change.group

    def called(cluster: int) -> str:
        return f"{group} {cluster}" + (f" ({names[cluster]})" if names.get(cluster) else "")

    numbers = (
        *((change.came, "new"), (change.left, "gone"), (change.renamed, "moved or renamed")),
        (change.described, "described anew"),
    )
    parts = [f"{counted(n, noun)} {'is' if n == 1 else 'are'} {word}" for n, word in numbers if n]
    lines = ["; ".join(parts) + "."] if parts else [f"No {noun} is new."]
    if change.is_refit:
        lines.append(f"All {noun}s were clustered anew.")
    if change.followed:
        verb = "follows" if change.followed == 1 else "follow"
        lines.append(
            f"{counted(change.followed, noun)} {verb} those that you have moved; to take it back: "
            "--exact."
        )
    if change.returned:
        lines.append(f"{counted(change.returned, noun)} went back: what you have moved stays.")
    shown = changes.ordered(change.events)
    lines += [f"  {changes.told(event, called, noun)}" for event in shown[:_NAMED]]
    if len(shown) > _NAMED:
        lines.append(f"  and {len(shown) - _NAMED:,} more; all are in {HISTORY}")
    same = sum(event.kind == living.SURVIVED for event in change.events)
    if same:
        lines.append(
            f"  {counted(same, group)} survived as {'it was' if same == 1 else 'they were'}"
        )
    return "\n".join(lines)


def line(change: Change, state: State) -> dict[str, Any]:
    """Returns the line of an update in `HISTORY`, as values."""
    return {
        "update": state.updates,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "new": change.came,
        "gone": change.left,
        "renamed": change.renamed,
        "described": change.described,
        "refit": change.is_refit,
        "followed": change.followed,
        "returned": change.returned,
        f"{change.noun}s": len(state.ids),
        "clusters": len(np.unique(state.ids)),
        "events": [event._asdict() for event in change.events],
        "version": __version__,
    }


def write(workdir: epath.Path, new: epath.Path, change: Change, state: State) -> dict[str, Any]:
    """Writes `HISTORY` with a further line into a folder; returns the line as values."""
    values, file = line(change, state), workdir / HISTORY
    lines = file.read_text() if file.exists() else ""
    io.write(new / HISTORY, f"{lines}{json.dumps(values)}\n")
    return values


def write_version(
    new: epath.Path,
    before: tuple[Snapshot, Mapping[int, str]],
    after: tuple[Snapshot, Mapping[int, str]],
) -> None:
    """Writes the table of a version into a folder, beside the first one that of what was before.

    Args:
        new: the folder.
        before: what was known, and the names of the clusters.
        after: what is known now, and the names.
    """
    last = after[0].state.updates
    (new / TABLES).mkdir(exist_ok=True)
    io.write(new / TABLES / f"{last:04}.csv", _version_csv(*after))
    if last == 1:
        io.write(new / TABLES / "0000.csv", _version_csv(*before))


def _version_csv(snapshot: Snapshot, names: Mapping[int, str]) -> str:
    """Formats the table of a version, by which two of them are compared."""
    ids = snapshot.state.ids.tolist()
    columns: dict[str, assignments.Column] = {
        "content": [content.tobytes().hex() for content in snapshot.contents],
        "image": snapshot.names.tolist(),
        "id": ids,
        "name": [names.get(cluster, "") for cluster in ids],
    }
    return assignments.to_csv(columns)


def compare(before: str, after: str) -> comparison.Comparison:
    """Compares two versions of a run, or one with its last: `W@3` is W after its third update.

    Images are the same by their content; clusters, by their id.

    Raises:
        InputError: the workdir has no such version, or there are two workdirs.
    """
    (first, old), (second, new) = map(_read_version, (before, after))
    if os.path.realpath(first) != os.path.realpath(second):
        raise InputError(f"versions must be of one workdir, as W@3 W@7; got {before} and {after}")
    shown = {key: name for table in (old, new) for key, (name, _) in table.items()}
    clusterings = ({shown[k]: cluster for k, (_, cluster) in of.items()} for of in (old, new))
    compared = comparison.compare(*clusterings)
    same = {cluster: cluster for _, cluster in old.values()}
    return compared._replace(matched=same)


def _read_version(version: str) -> tuple[str, dict[str, tuple[str, str]]]:
    """Reads the workdir, and each image's name and cluster by a key of its content."""
    path, _, number = (
        version.rpartition("@") if re.search("@[0-9]+$", version) else (version, "", "")
    )
    folder = buckets.path(path) / TABLES
    there = sorted(int(file.stem) for file in folder.glob("*.csv")) if folder.exists() else []
    last = int(number) if number else max(there, default=-1)
    if last not in there:
        has = f"0 to {max(there)}" if there else "none, as it was never updated"
        raise InputError(
            f"{version} must be a version of a run; got {path}, whose versions are {has}"
        )
    table, counts = dict[str, tuple[str, str]](), collections.Counter[str]()
    for row in assignments.read(folder / f"{last:04}.csv")[1]:
        counts[row["content"]] += 1
        key = f"{row['content']} {counts[row['content']]}"
        table[key] = assignments.unescaped(row["image"]), row["id"]
    return path, table
