"""The data of a report, and the colors and names of its clusters."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering import tree
from cluster_jax.clustering.membership import Membership
from cluster_jax.clustering.stable_ids import Event
from cluster_jax.core import arrays
from cluster_jax.report.duplicates import Duplicates, are_copies

# Twenty distinguishable colors (at least 0.08 in OKLab) and from a white and a nearly black page;
# after the twentieth cluster they start again. Each cluster keeps its color, as it keeps its ID.
COLORS = (
    *("#3b7dd8", "#e8762c", "#2e9e5b", "#d6423f", "#8b5fc7", "#d9a514", "#1aa7b5", "#e56fa9"),
    *("#8a5a2b", "#84962a", "#4b50c0", "#f2a08c", "#12736b", "#b03a96", "#8fb9f2", "#9bd45c"),
    *("#9c2f2f", "#c3a2ea", "#4f7391", "#c49a6c"),
)

# Parts of a cluster, and the points of its tree.
MAX_PARTS, MAX_IN_TREE = 8, 500
# Clusters of which the page asks whether they are one kind, and the fewest points of a second one.
MAX_ASKED, MIN_KIND = 5, 3


class Gone(NamedTuple):
    """A photo or row that a run no longer has.

    Attributes:
        cluster: the cluster that it was in.
        name: its file, id or number.
        picture: its thumbnail, uint8 `[height, width, 1 or 3]`, or None.
    """

    cluster: int
    name: str
    picture: NDArray | None


class Changes(NamedTuple):
    """The last update of a run.

    Attributes:
        update: number of the update.
        is_new: bool `[n]`, points of the report that came in this update.
        left: int `[n]`, the cluster that a point has left in this update for another one; -1: none.
        events: changes of the clusters in this update.
        counts: numbers of changed rows, see `changes.numbers`.
        gone: some of the photos or rows that are gone, at most eight of a cluster.
        names: ID of a cluster, as text -> the name that it had before the update.
    """

    update: int
    is_new: NDArray
    left: NDArray
    events: tuple[Event, ...]
    counts: Mapping[str, int]
    gone: tuple[Gone, ...] = ()
    names: Mapping[str, str] = {}


class ReportData(NamedTuple):
    """Everything a report shows.

    Attributes:
        title: name of the run.
        results: contents of `results.json`, see `Run.results`; scores that need labels are None
            without them.
        points: float `[n, p]`, the map.
        cluster_labels: int `[n]`, the clusters, -1 for none.
        distances: float `[n]`, distance to the center of the cluster; the nearest come first.
        outliers: bool `[n]`, points of clusters too small to count.
        is_decided: bool `[n]`, points whose cluster a person has decided.
        membership: how sure the clusters are, or None; with it, `linkage` is the tree of
            `SmoothTree`.
        true_labels: int `[n]`, or None.
        label_names: name of each true label, or None: the labels are named by their numbers.
        sources: file name of each image or name of each row, or None.
        folder: URI of the local folder that `sources` are relative to, or None.
        fetch_images: indices of points that have a picture -> uint8 `[b, height, width, 1 or 3]`;
            None if the points are rows without images, which are shown by name.
        has_picture: bool `[n]`, points that have a picture; None: all.
        skipped: file name and reason for each image that could not be read.
        linkage: float `[k - 1, 4]`, the tree of the clusters in the order of their numbers, as in
            SciPy; or None.
        duplicates: groups of equal or nearly equal images, at least one; or None.
        features: float `[n, c]`, whose Euclidean distances say which images are alike; or None.
        names: number of a cluster, as text -> its name, of those that a person has named.
        settled: clusters that a person has named, merged, made or called one kind.
        whole: clusters that a person has called one kind.
        state: identifier of the run's state, for a file of corrections; "": none can be applied.
        applied: the files of corrections that are in the run, each as the state of its page, a
            blank, and its browser.
        facts: `[n]` of `data.images.FACTS`, of the files of the images; or None.
        command: the command that applies a saved file of corrections, whose name the page puts
            behind the last "="; or None.
        changes: the last update, or None: there was none.
        n_known: number of known classes, which are the first clusters; 0 without a discovery.
        words: the words for a point and for a cluster.
    """

    title: str
    results: Mapping[str, Any]
    points: NDArray
    cluster_labels: NDArray
    distances: NDArray
    outliers: NDArray
    is_decided: NDArray
    membership: Membership | None = None
    true_labels: NDArray | None = None
    label_names: tuple[str, ...] | None = None
    sources: tuple[str, ...] | None = None
    folder: str | None = None
    fetch_images: Callable[[NDArray], NDArray] | None = None
    has_picture: NDArray | None = None
    skipped: tuple[tuple[str, str], ...] = ()
    linkage: NDArray | None = None
    duplicates: Duplicates | None = None
    features: NDArray | None = None
    names: Mapping[str, str] = {}
    settled: Collection[int] = ()
    whole: Collection[int] = ()
    state: str = ""
    applied: tuple[str, ...] = ()
    facts: NDArray | None = None
    command: str | None = None
    changes: Changes | None = None
    n_known: int = 0
    words: tuple[str, str] = ("row", "cluster")

    @property
    def noun(self) -> str:
        """The word for a point."""
        return self.words[0]

    @property
    def group(self) -> str:
        """The word for a cluster."""
        return self.words[1]

    @property
    def is_corrected(self) -> bool:
        """Whether a person has corrected the clusters, whose tree is then one of mean features."""
        origins = self.results["provenance"].get("number_of_clusters", {})
        return "corrected" in origins.values()

    @property
    def is_copy(self) -> NDArray:
        """Which points are equal or nearly equal to another one that is kept, bool `[n]`."""
        return are_copies(self.duplicates, np.arange(len(self.cluster_labels)))


class Cluster(NamedTuple):
    """A cluster and how it is drawn.

    Attributes:
        id: its number among the cluster labels.
        members: int64 `[size]`, indices of its points, the one nearest to the center first,
            copies last.
        color: a CSS color.
        name: the one that a person has given, or else the first suggested one, or "".
        noun: the word for a cluster, see `ReportData.group`.
    """

    id: int
    members: NDArray
    color: str
    name: str = ""
    noun: str = "cluster"

    @property
    def look(self) -> dict[str, Any]:
        """Its ID, color, and name, for the page's script."""
        return {name: getattr(self, name) for name in ("id", "color", "name")}

    @property
    def title(self) -> str:
        """Its name, or else its ID: "goldfish", "Group 4"; "In no group" for -1."""
        if self.id < 0:
            return f"In no {self.noun}"
        return self.name or f"{self.noun.capitalize()} {self.id}"


def suggested_names(suggested: Mapping[Any, Sequence[str]] | None) -> dict[str, str]:
    """Returns one suggested name for each cluster, by its ID as text.

    Names are distinct: if "parachute" is the first suggestion for several clusters, each of them
    gets its second suggestion as well, "parachute (sky)". If an earlier cluster already has that
    name, the ID takes the place of the second suggestion, "parachute (7)".

    Args:
        suggested: cluster -> its suggestions, the best one first; None: there are none.
    """
    suggested = suggested or {}
    shared = Counter(first for first, *_ in suggested.values())
    names: dict[str, str] = {}
    for cluster, (first, *others) in suggested.items():
        name = f"{first} ({others[0]})" if shared[first] > 1 and others else first
        names[str(cluster)] = f"{first} ({cluster})" if name in names.values() else name
    return names


def clusters_by_size(
    cluster_labels: NDArray,
    distances: NDArray,
    names: Mapping[str, str] = {},
    noun: str = "cluster",
    n_known: int = 0,
) -> list[Cluster]:
    """Returns the clusters by size, the largest first; of one size by number; -1 last.

    Known classes come after the novel ones.

    Args:
        cluster_labels: int `[n]`, the cluster of each point, -1 for none.
        distances: float `[n]`, by which the members of a cluster are ordered, the nearest first.
        names: ID of a cluster, as text -> its name; others have none.
        noun: the word for a cluster.
        n_known: number of known classes, see `ReportData`.
    """
    order = np.lexsort((distances, cluster_labels))
    ids, starts = np.unique(cluster_labels[order], return_index=True)
    members = zip(ids.tolist(), np.split(order, starts[1:]), strict=True)
    # Ties stay in order; points in no cluster come last.
    by_size = sorted(members, key=lambda one: (one[0] < 0, one[0] < n_known, -len(one[1])))
    colors = {i: COLORS[i % len(COLORS)] for i, _ in by_size} | {-1: "var(--faint)"}
    return [Cluster(i, members, colors[i], names.get(str(i), ""), noun) for i, members in by_size]


def evenly_spaced(n: int, limit: int) -> NDArray:
    """Returns at most `limit` of the indices 0 to n - 1, evenly spaced, int64, ascending.

    The first and the last are among them; for a limit of 1 the first alone.
    """
    return np.unique(np.linspace(0, n - 1, min(n, limit)).round().astype(np.int64))


def parts_of_clusters(
    features: NDArray,
    clusters: Sequence[Cluster],
    settled: Collection[int] = (),
    whole: Collection[int] = (),
) -> tuple[NDArray, dict[int, list[list[int]]], list[int]]:
    """Returns the parts of each cluster, by which a person may split it, of Ward's tree.

    A cluster has up to `MAX_PARTS` parts, those of a cut of the tree. Of a large cluster, the tree
    has `MAX_IN_TREE` points, evenly spaced from the most to the least typical; each other point
    belongs to the part with the nearest mean.

    Args:
        features: float `[n, c]`, whose Euclidean distances say which points are alike.
        clusters: the clusters; the one of points in none and those of one point have one part.
        settled: clusters that a person knows, about which is asked last.
        whole: clusters that a person has called one kind, about which is not asked.

    Returns:
        The part of each point, int64 `[n]`, 0 to `MAX_PARTS` - 1, and of each cluster with several
        parts, by its ID, the pairs of nodes that merge, the nearest first, as in `tree_record`;
        and up to `MAX_ASKED` clusters that may be two kinds, the likeliest first: those whose last
        merge is highest above the one before, if each of the two parts has three points or more.
    """
    parts = np.zeros(len(features), np.int64)
    merges = dict[int, list[list[int]]]()
    steps = dict[int, float]()  # the last height of a tree, divided by the one before
    for cluster in clusters:
        if cluster.id < 0 or len(cluster.members) < 2:
            continue
        drawn = features[cluster.members[evenly_spaced(len(cluster.members), MAX_IN_TREE)]]
        linkage = tree.ward(drawn)
        leaves, merges[cluster.id] = _cut(linkage, min(MAX_PARTS, len(drawn)))
        means = arrays.cluster_means(drawn, leaves)
        apart = np.square(means).sum(axis=1) - 2 * features[cluster.members] @ means.T
        nearest = apart.argmin(axis=1)
        nearest[evenly_spaced(len(cluster.members), MAX_IN_TREE)] = leaves
        parts[cluster.members] = nearest
        if len(linkage) > 1 and min(np.bincount(_cut(linkage, 2)[0])) >= MIN_KIND:
            steps[cluster.id] = linkage[-1, 2] / max(linkage[-2, 2], 1e-12)
    asked = sorted(steps.keys() - whole, key=lambda each: (each in settled, -steps[each], each))
    return parts, merges, asked[:MAX_ASKED]


def _cut(linkage: NDArray, n_parts: int) -> tuple[NDArray, list[list[int]]]:
    """Returns the part of each leaf, `[n]`, and how the parts merge, see `parts_of_clusters`."""
    n = len(linkage) + 1
    below = [[i] for i in range(n)]
    for left, right in linkage[: n - n_parts, :2].astype(int).tolist():
        below.append(below[left] + below[right])
    pairs = linkage[n - n_parts :, :2].astype(int).tolist()
    joined = {node for pair in pairs for node in pair}
    tops = sorted(node for node in joined if node < len(below))
    number = {node: i for i, node in enumerate(tops)}
    number |= {len(below) + i: n_parts + i for i in range(len(pairs))}
    leaves = np.zeros(n, np.int64)
    for node in tops:
        leaves[below[node]] = number[node]
    return leaves, [[number[left], number[right]] for left, right in pairs]
