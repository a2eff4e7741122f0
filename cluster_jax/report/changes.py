"""The events of an update, as sentences and as pictures for the report."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from cluster_jax.clustering import numbering
from cluster_jax.clustering.numbering import Event
from cluster_jax.core.names import counted
from cluster_jax.report.report_data import Cluster, ReportData

N_SHOWN, MAX_ENTRIES = 8, 40
# Changes of rows that are counted -> their word.
COUNTED = {"new": "new", "gone": "gone", "changed": "changed", "renamed": "moved or renamed"}
# Kinds of events that are shown, in this order.
_KINDS = (
    numbering.EMERGED,
    numbering.RETURNED,
    numbering.SPLIT,
    numbering.MERGED,
    numbering.DISAPPEARED,
    numbering.GREW,
    numbering.SHRANK,
)


class Entry(NamedTuple):
    """An event on the page.

    Attributes:
        words: a sentence that describes it.
        shown: clusters, each with indices of some of its points.
    """

    words: str
    shown: list[tuple[Cluster, list[int]]]


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
        numbering.GREW: f"{cluster} has {counted(event.rows, f'new {noun}')}",
        numbering.SHRANK: f"{cluster} lost {count}",
        numbering.SPLIT: f"{cluster} split: {count} of it now in {into}",
        numbering.MERGED: f"{cluster} merged into {into} ({count})",
        numbering.RETURNED: f"{cluster} is back ({count})",
        numbering.EMERGED: f"{cluster} is new ({count})",
        numbering.DISAPPEARED: f"{cluster} disappeared: none of its {noun}s is left",
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

    An entry is the sentence on an event, and up to eight points of each cluster in it, the most
    typical first. These are the cluster of the event and the clusters that its lost points are in
    now. Of a cluster that grew, only new points are shown. A cluster that no longer exists is named
    in the sentence but has no points: it disappeared, or an update or a person has merged it.

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
        return data.names.get(str(cluster)) or f"{data.group.capitalize()} {cluster}"

    def points(cluster: Cluster, *, is_new: bool) -> list[int]:
        members = cluster.members
        return (members[change.is_new[members]] if is_new else members)[:N_SHOWN].tolist()

    result = []
    events = ordered(change.events)
    for event in events[:MAX_ENTRIES]:
        there = [by_id[i] for i in (event.id, *event.into) if i in by_id]
        shown = [(c, points(c, is_new=event.kind == numbering.GREW)) for c in there]
        result.append(Entry(sentence(event, called, data.noun), shown))
    return result, len(events) - len(result)
