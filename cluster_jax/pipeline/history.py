"""What updates have done: in words, and as lines of `HISTORY`."""

import datetime
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from cluster_jax import __version__
from cluster_jax.clustering import living
from cluster_jax.clustering.living import Event, State
from cluster_jax.core import io
from cluster_jax.core.names import counted
from cluster_jax.report import changes

HISTORY = "history.jsonl"
_NAMED = 12  # events that are told


class Change(NamedTuple):
    """What is new, and what became of the clusters.

    Attributes:
        came, left, renamed: numbers of images or rows.
        events: what has happened to the clusters.
        is_refit: whether all was clustered anew.
        noun, group: what one of them, and a cluster, is called.
        away: folders that are not there, whose images stay as they were.
    """

    came: int
    left: int
    renamed: int
    events: tuple[Event, ...]
    is_refit: bool
    noun: str
    group: str
    away: tuple[str, ...] = ()


def words(change: Change, names: Mapping[int, str]) -> str:
    """Tells in plain words what has happened: numbers of files, then a line for each event.

    Args:
        change: the update.
        names: a cluster -> its name.

    Example:
        >>> print(words(Change(2, 0, 0, (Event("grew", 3, 2),), False, "photo", "group"), {}))
        2 photos are new.
          group 3 grew by 2 photos
    """
    noun, group = change.noun, change.group

    def called(cluster: int) -> str:
        return f"{group} {cluster}" + (f" ({names[cluster]})" if names.get(cluster) else "")

    numbers = (change.came, "new"), (change.left, "gone"), (change.renamed, "moved or renamed")
    parts = [f"{counted(n, noun)} {'is' if n == 1 else 'are'} {word}" for n, word in numbers if n]
    lines = [*told_away(change), "; ".join(parts) + "." if parts else f"No {noun} is new."]
    if change.is_refit:
        lines.append(f"All {noun}s were clustered anew.")
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


def told_away(change: Change) -> list[str]:
    """Returns a sentence for each folder that is not there."""
    return [
        f"{folder} is not there: its {change.noun}s stay as they were." for folder in change.away
    ]


def line(change: Change, state: State) -> dict[str, Any]:
    """Returns the line of an update in `HISTORY`, as values."""
    return {
        "update": state.updates,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "new": change.came,
        "gone": change.left,
        "renamed": change.renamed,
        "refit": change.is_refit,
        "away": list(change.away),
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
