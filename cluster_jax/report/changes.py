"""The events of an update, as sentences and as pictures for the report."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cluster_jax.clustering import stable_ids
from cluster_jax.clustering.stable_ids import Event
from cluster_jax.core.names import counted
from cluster_jax.report.report_data import Changes, Cluster, Gone, ReportData

N_SHOWN, MAX_ENTRIES = 8, 40
# Changes of rows that are counted -> their word.
COUNTED = {"new": "new", "gone": "gone", "changed": "changed", "renamed": "moved or renamed"}
# Kinds of events that are shown, in this order.
_KINDS = (
    stable_ids.EMERGED,
    stable_ids.RETURNED,
    stable_ids.SPLIT,
    stable_ids.MERGED,
    stable_ids.DISAPPEARED,
    stable_ids.GREW,
    stable_ids.SHRANK,
)
_GONE = (stable_ids.SHRANK, stable_ids.DISAPPEARED)  # of clusters whose rows are gone


class Entry(NamedTuple):
    """An event on the page.

    Attributes:
        words: a sentence that describes it.
        shown: indices of points, with the words above them, "" if the sentence says enough.
        gone: photos or rows that the cluster has lost and the run no longer has.
    """

    words: str
    shown: list[tuple[str, list[int]]]
    gone: list[Gone]


def numbers(counts: Mapping[str, int], noun: str) -> str:
    """Returns the numbers of changes in words; the keys of `counts` are those of `COUNTED`.

    Example:
        >>> numbers({"new": 2, "gone": 1}, "photo"), numbers({}, "photo")
        ('2 photos are new; 1 photo is gone', 'no photo is new')
    """
    said = [(counts.get(kind, 0), word) for kind, word in COUNTED.items()]
    parts = [f"{counted(n, noun)} {'is' if n == 1 else 'are'} {word}" for n, word in said if n]
    return "; ".join(parts) or f"no {noun} is new"


def sentence(event: Event, called: Callable[[int], str], noun: str) -> str:
    """Returns an event as a sentence; "" for a cluster that survived.

    Args:
        event: the event.
        called: id of a cluster -> its name in the sentence.
        noun: the word for an image or row.

    Example:
        >>> sentence(Event("grew", 3, 2), "group {}".format, "photo")
        'group 3 has 2 new photos'
    """
    cluster = called(event.id)
    into = " and ".join(map(called, event.into))
    count = counted(event.rows, noun)
    return {
        stable_ids.GREW: f"{cluster} has {counted(event.rows, f'new {noun}')}",
        stable_ids.SHRANK: f"{cluster} lost {count}",
        stable_ids.SPLIT: f"{cluster} split: {count} of it now in {into}",
        stable_ids.MERGED: f"{cluster} merged into {into} ({count})",
        stable_ids.RETURNED: f"{cluster} is back ({count})",
        stable_ids.EMERGED: f"{cluster} is new ({count})",
        stable_ids.DISAPPEARED: f"{cluster} disappeared: none of its {noun}s is left",
    }.get(event.kind, "")


def ordered(events: Sequence[Event]) -> list[Event]:
    """Returns the events that are shown, in the order of `_KINDS`: new clusters come first.

    Of one kind, the event of most rows comes first, then the lowest id. Clusters that survived are
    left out.
    """
    shown = (event for event in events if event.kind in _KINDS)
    return sorted(shown, key=lambda event: (_KINDS.index(event.kind), -event.rows, event.id))


def entries(data: ReportData, clusters: Sequence[Cluster]) -> tuple[list[Entry], int]:
    """Returns the entries on the last update, at most 40, and the number of events left out.

    Without an update there are none.

    An entry is the sentence on an event, and up to eight points of each kind, the most typical
    first: of a cluster that grew, new ones; of one that lost points to others, what it has now, and
    what it lost, by the cluster in which these are now; of one that lost points that are gone,
    these; of any other one, its points. A cluster that no longer exists, because an update or a
    person has merged it, has only what it lost.

    Args:
        data: what the report shows.
        clusters: all clusters of the report, with the titles that the sentences use.
    """
    change = data.changes
    if change is None:
        return [], 0
    by_id = {cluster.id: cluster for cluster in clusters}

    def called(cluster: int) -> str:
        if cluster in by_id:
            return by_id[cluster].title
        name = data.names.get(str(cluster)) or change.names.get(str(cluster))
        return name or f"{data.group.capitalize()} {cluster}"

    result = []
    events = ordered(change.events)
    for event in events[:MAX_ENTRIES]:
        gone = [one for one in change.gone if one.cluster == event.id and event.kind in _GONE]
        shown = _shown(event, change, clusters)
        result.append(Entry(sentence(event, called, data.noun), shown, gone[:N_SHOWN]))
    return result, len(events) - len(result)


def _shown(
    event: Event, change: Changes, clusters: Sequence[Cluster]
) -> list[tuple[str, list[int]]]:
    """Returns the points of an event that are still there, see `Entry.shown`."""
    own = next((c.members for c in clusters if c.id == event.id), np.zeros(0, np.int64))
    if event.kind == stable_ids.GREW:
        new = own[change.is_new[own]][:N_SHOWN].tolist()
        return [("", new)] if new else []
    if event.kind in _GONE:
        return []
    if event.kind not in (stable_ids.SPLIT, stable_ids.MERGED):
        return [("", own[:N_SHOWN].tolist())]
    shown = [("Now in it", own[:N_SHOWN].tolist())]
    for cluster in clusters:
        lost = cluster.members[change.left[cluster.members] == event.id]
        if cluster.id != event.id:
            shown.append((f"Lost, now in {cluster.title}", lost[:N_SHOWN].tolist()))
    return [(words, points) for words, points in shown if points]
