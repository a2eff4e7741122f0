"""The report of a run: one HTML file that opens offline, with images, map, tree and tables."""

import datetime
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster import hierarchy

from cluster_jax.clustering.membership import Membership
from cluster_jax.core import io
from cluster_jax.report import changes, duplicates, pages, report_data, report_map, summary
from cluster_jax.report.report_data import Cluster, ReportData

# An image is doubtful if the probability of its cluster is lower.
DOUBTFUL = 0.8
BURST = 3  # seconds between two photos of one moment
SECTIONS = ("clusters", "changed", "doubtful", "duplicates", "map", "tree", "skipped")


def render(data: ReportData) -> str:
    """Returns the page as HTML.

    Args:
        data: what the page shows.
    """
    data = _completed(data)
    names = {**report_data.suggested_names(data.results.get("suggested_names")), **data.names}
    # Copies come last: what they show is there already.
    distances = np.where(data.is_copy, np.inf, data.distances)
    clusters = report_data.clusters_by_size(
        data.cluster_labels, distances, names, data.group, data.n_known
    )
    doubts = doubtful(data)
    changed, more_changes = changes.entries(data, clusters)
    real = [cluster for cluster in clusters if cluster.id >= 0]
    tree = None
    if data.linkage is not None and len(real) > 1:
        tree = tree_record(data.linkage, real)
    record: dict[str, Any] = {
        "state": data.state,
        "applied": data.applied,
        "words": {"point": data.noun, "cluster": data.group},
        "map": report_map.build_map(data, clusters, doubts, changed, questions(data, doubts)),
        "tree": tree,
        "duplicates": duplicates.record(data.duplicates, data.sources),
    }
    is_shown = {
        "changed": data.changes,
        "doubtful": doubts,
        "duplicates": data.duplicates,
        "tree": tree,
        "skipped": data.skipped,
    }
    return pages.fill(
        "report.html",
        data=data,
        noun=data.noun,
        group=data.group,
        sections=[name for name in SECTIONS if is_shown.get(name, True)],
        overview=_overview(data, real),
        changed=changed,
        more_changes=more_changes,
        numbers=changes.numbers,
        doubts=doubts,
        map=record["map"],
        tree=tree,
        results=json.dumps(io.plain(data.results), indent=2, ensure_ascii=False),
        record=pages.compressed(json.dumps(record, allow_nan=False, separators=(",", ":"))),
    )


def _completed(data: ReportData) -> ReportData:
    """Returns the data with two axes of the map, and with a name for each true label.

    A map of one axis gets a second one of zeros. True labels without names are named by their
    numbers. All else stays.
    """
    points = data.points
    if points.shape[1] == 1:
        points = np.pad(points, ((0, 0), (0, 1)))
        data = data._replace(points=points)
    if data.true_labels is not None and data.label_names is None:
        data = data._replace(label_names=tuple(map(str, range(int(data.true_labels.max()) + 1))))
    return data


def tree_record(linkage: NDArray, clusters: Sequence[Cluster]) -> dict[str, Any]:
    """Returns the tree of the clusters for the page's script, which draws the tree and its cuts.

    The cut into n groups is that of `clustering.cut_tree(linkage, n)`.

    Args:
        linkage: float `[k - 1, 4]`; leaf i is the cluster with the i-th lowest number.
        clusters: all k > 1 clusters.

    Returns:
        "leaves", the clusters in an order in which no branches cross; "merges", the pairs of nodes
        that are merged, the nearest pair first, where a node is the position of a leaf, or the
        number of leaves plus the number of an earlier merge; and "heights", the distance of each.
    """
    order = hierarchy.leaves_list(linkage)
    numbers = sorted(cluster.id for cluster in clusters)
    nodes = np.concatenate([np.argsort(order), np.arange(len(order), 2 * len(order) - 1)])
    return {
        "leaves": [numbers[leaf] for leaf in order.tolist()],
        "merges": nodes[linkage[:, :2].astype(int)].tolist(),
        "heights": linkage[:, 2].tolist(),
    }


def is_doubtful(membership: Membership, is_copy: NDArray, is_decided: NDArray) -> NDArray:
    """Returns which of n images are doubtful, bool `[n]`; see `doubtful`.

    Args:
        membership: the clusters of the images and their probabilities.
        is_copy: bool `[n]`, images that are copies of another one.
        is_decided: bool `[n]`, images whose cluster a person has decided.
    """
    is_improbable = (membership.probabilities < DOUBTFUL) & (membership.labels >= 0)
    return is_improbable & ~is_copy & ~is_decided


def doubtful(data: ReportData) -> list[tuple[int, int]]:
    """Returns each image that may belong to another cluster, as (point, ID of that cluster).

    The probability of its own cluster is below `DOUBTFUL`; the least probable image comes first.
    The ID is that of the second likeliest cluster, or -1 if all others have probability 0. Copies,
    images in no cluster, and images that a person has decided about are left out.

    Args:
        data: what the report shows; without probabilities or images the result is empty.
    """
    member = data.membership
    if member is None or data.fetch_images is None:
        return []
    points = np.flatnonzero(is_doubtful(member, data.is_copy, data.is_decided))
    points = points[np.argsort(member.probabilities[points], kind="stable")]
    return list(zip(points.tolist(), member.second_labels[points].tolist(), strict=True))


def questions(data: ReportData, doubts: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Returns the points that each question is about, the most doubtful one first.

    Doubtful photos of one cluster that may belong to the same other one are one question if each
    was taken within `BURST` seconds of the one before. Their near copies, about which a person has
    not decided and which are in the same cluster, are in it as well, at its end.

    Args:
        data: what the report shows.
        doubts: see `doubtful`.
    """
    labels = data.cluster_labels
    asked = dict[int, list[int]]()  # the first point of a question -> its points
    last = dict[tuple[int, int], tuple[float, int]]()  # clusters -> time, and first point
    order = {point: rank for rank, (point, _) in enumerate(doubts)}
    times = {point: _seconds(data, point) for point in order}
    for point, other in sorted(doubts, key=lambda doubt: times[doubt[0]]):
        pair = int(labels[point]), other
        time, first = last.get(pair, (-np.inf, point))
        first = first if times[point] - time <= BURST else point
        asked.setdefault(first, []).append(point)
        last[pair] = times[point], first
    copies = _copies(data)
    result = list[list[int]]()
    for points in sorted(asked.values(), key=lambda points: min(map(order.__getitem__, points))):
        points.sort(key=order.__getitem__)
        also = {copy for point in points for copy in copies.get(point, ())}.difference(points)
        cluster = labels[points[0]]
        result.append([*points, *sorted(copy for copy in also if labels[copy] == cluster)])
    return result


def _seconds(data: ReportData, point: int) -> float:
    """Returns when a photo was taken, in seconds; infinity if it is not known."""
    taken = "" if data.facts is None else data.facts["taken"][point].decode()
    if not taken:
        return np.inf
    return datetime.datetime.fromisoformat(taken).replace(tzinfo=datetime.UTC).timestamp()


def _copies(data: ReportData) -> dict[int, list[int]]:
    """Returns the copies of each point that has some, itself among them; only undecided ones."""
    sets = duplicates.groups_of(data.duplicates, len(data.cluster_labels))
    members = dict[int, list[int]]()
    for point in np.flatnonzero((sets >= 0) & ~data.is_decided).tolist():
        members.setdefault(int(sets[point]), []).append(point)
    return {point: points for points in members.values() for point in points}


def _overview(data: ReportData, real: Sequence[Cluster]) -> dict[str, Any]:
    """Returns the facts in the head of the page.

    Args:
        data: what the report shows.
        real: its clusters, without the points in no cluster.

    Returns:
        - "n_large", "n_small": numbers of clusters with a point that is no outlier, and of others;
          of a discovery, of the novel classes;
        - "n_points": how many points were clustered, of which the page may show a sample;
        - "is_given": whether the number of clusters was set in advance;
        - "is_corrected": whether a person has corrected them;
        - "n_empty": how many clusters have no point, if their number was given;
        - "is_novel": whether the clusters are the novel classes of a discovery;
        - "is_clear": whether the tree's verdict is "clear";
        - "verdict": a sentence why the verdict is not "clear", or None;
        - "is_unclear": whether GridShift's verdict is "unclear";
        - "n_outliers": a number;
        - "doubt": the reason why the novel classes may be unreliable, or None.
    """
    metrics = data.results["metrics"]
    discovery = metrics.get("discovery")
    method = summary.shown(metrics)
    scores = metrics[method]
    origin = data.results["provenance"].get("number_of_clusters", {}).get(method)
    # The verdict is about the clusters that are found without k.
    judged = scores if method == "tree" and not discovery and origin != "given" else {}
    outliers = data.outliers
    rows_used = data.results["provenance"].get("rows_used")
    # If every point is an outlier, no cluster is smaller than the others.
    n_large = sum(not outliers[c.members].all() for c in real) or len(real)
    n_small = len(real) - n_large
    if rows_used:
        n_large, n_small = summary.tally(scores)
    if discovery:
        n_large, n_small = discovery["novel"]["n_clusters"], 0
    verdict = summary.verdict(judged, f"{data.noun}s", data.group)
    if n_large == 1 and not summary.is_too_few(judged):
        verdict = None
    return {
        "n_large": n_large,
        "n_small": n_small,
        "n_points": rows_used["all"] if rows_used else len(outliers),
        "is_given": bool(discovery) or origin == "given",
        "is_corrected": data.is_corrected,
        "n_empty": max(scores.get("k_given", 0) - n_large, 0) if origin == "given" else 0,
        "is_novel": bool(discovery),
        "is_clear": judged.get("verdict") == "clear",
        "verdict": verdict,
        "is_unclear": (method, scores.get("verdict")) == ("gridshift", "unclear"),
        "n_outliers": scores.get("outliers", 0) if rows_used else int(outliers.sum()),
        "doubt": summary.doubt(discovery) if discovery else None,
    }
