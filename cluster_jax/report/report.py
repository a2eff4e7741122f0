"""The report of a run: one HTML file that opens offline, with figures, images and tables."""

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath
from numpy.typing import NDArray
from plotly.offline import get_plotlyjs

from cluster_jax.clustering.membership import Membership
from cluster_jax.core import io
from cluster_jax.report import (
    changes,
    duplicates,
    pages,
    plots,
    report_data,
    report_map,
    summary,
    thumbnails,
)
from cluster_jax.report.plots import Curve, Figure
from cluster_jax.report.report_data import STYLED_CLUSTERS, Cluster, ReportData, evenly_spaced

THUMBNAIL_SIDE = 132  # pixels
N_BEST_IMAGES, N_TYPICAL, N_LEAST_TYPICAL, N_BORDERLINE = 8, 6, 6, 6
# An image is doubtful if the probability of its cluster is lower.
DOUBTFUL = 0.8
# Without probabilities, the search for borderline points compares at most this many members of a
# cluster with at most this many points of other clusters.
MAX_COMPARED = 5_000

# Title -> indices of points, each with the cluster that it borders on or None.
Groups = dict[str, list[tuple[int, Cluster | None]]]

_compressed_once = functools.cache(pages.compressed)  # plotly.js, four megabytes
# What people look at first; then what they ask about it, behind one line.
SECTIONS = ("clusters", "changed", "doubtful", "duplicates", "map", "tree", "skipped")
DETAILS = ("sizes", "training", "bandwidth", "labels", "metrics")
_FINDERS = {"gridshift": "GridShift", "tree": "the tree of smoothed features"}


def write_report(path: epath.PathLike, data: ReportData) -> None:
    """Writes the report to `path`, atomically.

    Args:
        path: local or remote (`gs://...`) file in an existing folder; an old file is replaced.
        data: what to show. The same data give the same bytes.
    """
    # Bytes of file names that are not UTF-8 (lone surrogates) are spelled out.
    io.write(path, render(data).encode("utf-8", "backslashreplace"))


def render(data: ReportData) -> str:
    """Renders the page as text.

    Args:
        data: what to show.
    """
    clustering = data.clustering
    if clustering.points.shape[1] == 1:  # A map has two axes.
        clustering = clustering._replace(points=np.pad(clustering.points, ((0, 0), (0, 1))))
        data = data._replace(clustering=clustering)
    if data.true_labels is not None and data.label_names is None:
        data = data._replace(label_names=tuple(map(str, range(int(data.true_labels.max()) + 1))))
    suggested = data.results.get("suggested_names") or {}
    names = {**report_data.suggested_names(data.results), **data.names}
    clusters = report_data.clusters_by_size(
        clustering.cluster_labels, clustering.distances, names, data.group
    )
    curves = plots.training_curves(data.history)
    tree, figures = _figures(data, clusters, curves)
    groups, doubts = exemplars(data, clusters), []
    changed = changes.entries(data, clusters)
    if data.fetch_images is not None:
        doubts = doubtful(data, clusters)
    record: dict[str, Any] = {
        "run": data.run,
        "state": _digest(data, names),
        "next_cluster": max(data.next_cluster, 1 + int(clustering.cluster_labels.max())),
        "words": {"point": data.noun, "cluster": data.group},
        "figures": figures,
        "look": plots.LOOK,
        "map": report_map.build_map(data, clusters, doubts),
        "tree": tree,
        "duplicates": None if data.duplicates is None else duplicates.record(data.duplicates),
    }
    overview = _overview(data, clusters)
    sections, details = (_section_names(data, tree, doubts, names) for names in (SECTIONS, DETAILS))
    return pages.fill(
        "report.html",
        data=data,
        gone=report_data.GONE,
        plots=plots,
        report_map=report_map,
        bad_steps=_bad_steps(data),
        sizes=[len(cluster.members) for cluster in clusters if cluster.id >= 0] or [0],
        more_changes=_n_more_changes(data),
        titles={**summary.SECTION_TITLES, "clusters": f"{data.group.capitalize()}s"},
        noun=data.noun,
        group=data.group,
        sections=sections,
        details=details,
        overview=overview,
        curves=curves,
        cards=list(zip(clusters, groups, strict=False)),
        majorities=_majorities(data, clusters),
        **_pictures(data, clusters, changed),
        suggested=suggested,
        changed=changed,
        doubts=doubts,
        orders=_orders(data),
        clusters=clusters,
        n_clusters=sum(cluster.id >= 0 for cluster in clusters),
        **record,
        record=pages.compressed(json.dumps(record, allow_nan=False, separators=(",", ":"))),
        plotlyjs=_compressed_once(get_plotlyjs()),
    )  # fmt: skip


def _pictures(
    data: ReportData, clusters: Sequence[Cluster], changed: Sequence[changes.Entry]
) -> dict[str, Any]:
    """Returns the pictures that stand on the page, by point, and whether they have few pixels."""
    if data.fetch_images is None:
        return {"uris": {}, "pixelated": False}
    best = [i for cluster in clusters[:STYLED_CLUSTERS] for i in cluster.members[:N_BEST_IMAGES]]
    of_changes = [i for entry in changed for _, points in entry.shown for i in points]
    shown = np.unique([*best, *of_changes])
    images = thumbnails.thumbnails(data.fetch_images, shown, THUMBNAIL_SIDE)
    uris = dict(zip(shown.tolist(), map(thumbnails.data_uri, images), strict=True))
    return {"uris": uris, "pixelated": thumbnails.is_small(images[0])}


def _bad_steps(data: ReportData) -> list[int]:
    """Lists the logged steps at which the loss was not finite."""
    logged = [line for line in data.history if "loss" in line]
    return [line["step"] for line in logged if plots.finite(line["loss"]) is None]


def _n_more_changes(data: ReportData) -> int:
    """Counts the events of the last update that the page does not show."""
    if data.changes is None:
        return 0
    return max(len(changes.ordered(data.changes.events)) - changes.MAX_ENTRIES, 0)


def _orders(data: ReportData) -> dict[str, str]:
    """Returns what the photos of a group can be sorted by, with its words."""
    orders = {"": "how typical"}
    if data.clustering.membership is not None:
        orders["doubt"] = "how doubtful"
    if data.facts is not None and any(data.facts.taken):
        orders["date"] = "date"
    if data.sources is not None:
        orders["folder"] = "folder and name"
    if data.facts is not None:
        orders["size"] = "size of the file"
    return orders


def _digest(data: ReportData, names: Mapping[str, str]) -> str:
    """Identifies the clusters that a page shows, to which unsaved corrections belong."""
    labels = np.ascontiguousarray(data.clustering.cluster_labels, np.int64).tobytes()
    decided = b"" if data.is_decided is None else data.is_decided.tobytes()
    every = labels + decided + json.dumps(names, sort_keys=True).encode()
    return hashlib.sha256(every).hexdigest()[:16]


def exemplars(data: ReportData, clusters: Sequence[Cluster]) -> list[Groups]:
    """Picks exemplars of each of the `STYLED_CLUSTERS` largest clusters; a small one is whole.

    Args:
        data: what the report shows.
        clusters: all clusters, largest first.
    """
    shown: list[Groups] = []
    for cluster in clusters[:STYLED_CLUSTERS]:
        members: list[tuple[int, Cluster | None]] = [(i, None) for i in cluster.members.tolist()]
        if data.fetch_images is not None:
            shown.append({"Most typical": members[:N_BEST_IMAGES]})
            continue
        if len(members) <= N_TYPICAL:
            shown.append({f"All {data.noun}s": members})
            continue
        least = members[N_TYPICAL:][: -N_LEAST_TYPICAL - 1 : -1]
        shown.append({"Most typical": members[:N_TYPICAL], "Least typical": least})
        by_id = {other.id: other for other in clusters}
        if near := _likelier_elsewhere(data, cluster):
            # All rows of a cluster may have been moved away.
            shown[-1]["Borderline"] = [(i, by_id[other]) for i, other in near if other in by_id]
    return shown


def _likelier_elsewhere(data: ReportData, cluster: Cluster) -> list[tuple[int, int]]:
    """Finds up to `N_BORDERLINE` points of a cluster that may be another's, and its ID."""
    clustering = data.clustering
    if clustering.membership is not None:
        return least_probable(clustering.membership, cluster, N_BORDERLINE)
    if not data.has_map:
        return []
    return borderline(clustering.points, clustering.cluster_labels, cluster, N_BORDERLINE)


def count_doubtful(membership: Membership | None) -> int | None:
    """Counts the images that are doubtful by probability, see `doubtful`; None without any."""
    return None if membership is None else int((membership.probabilities < DOUBTFUL).sum())


def doubtful(data: ReportData, clusters: Sequence[Cluster]) -> list[tuple[int, int]]:
    """Finds the points that may belong to another cluster, and the ID of that one or -1.

    With probabilities, those whose own cluster has less than `DOUBTFUL`, the least probable first;
    without them, the borderline points of each of the largest clusters. Points of which a person
    has decided, and those in no cluster, are left out.

    Args:
        data: what the report shows.
        clusters: all clusters, largest first.
    """
    clustering, decided = data.clustering, data.is_decided
    if clustering.membership is not None:
        sure = clustering.membership.probabilities
        points = np.flatnonzero((sure < DOUBTFUL) & (clustering.cluster_labels >= 0))
        points = points[np.argsort(sure[points], kind="stable")]
        pairs = list(
            zip(points.tolist(), clustering.membership.runners_up[points].tolist(), strict=True)
        )
    else:
        shown = [c for c in clusters[:STYLED_CLUSTERS] if c.id >= 0]
        pairs = [pair for cluster in shown for pair in _likelier_elsewhere(data, cluster)]
    return [(i, other) for i, other in pairs if decided is None or not decided[i]]


def least_probable(
    membership: Membership, cluster: Cluster, n_points: int
) -> list[tuple[int, int]]:
    """Finds a cluster's points of the lowest probability of it, and their likeliest other one.

    Points for which no other cluster is likely are left out.

    Args:
        membership: of all points.
        cluster: the cluster.
        n_points: how many to return at most.

    Returns:
        Pairs of a point's index and the ID of the other cluster, the least probable point first.
    """
    runners_up = membership.runners_up[cluster.members]
    members = cluster.members[runners_up >= 0]
    order = np.argsort(membership.probabilities[members], kind="stable")[:n_points]
    shown = members[order]
    return list(zip(shown.tolist(), membership.runners_up[shown].tolist(), strict=True))


def borderline(
    points: NDArray, cluster_labels: NDArray, cluster: Cluster, n_points: int
) -> list[tuple[int, int]]:
    """Finds the points of a cluster that lie nearest to another one on the map.

    The distance of a point to another cluster is that to the nearest point of any other cluster. At
    most `MAX_COMPARED` points of other clusters are compared, drawn evenly over the clusters, with
    at most as many members, drawn evenly from the most to the least typical one.

    Args:
        points: float `[n, d]`.
        cluster_labels: int `[n]`.
        cluster: the cluster.
        n_points: how many to return at most.

    Returns:
        Pairs of a point's index and the ID of the other cluster, nearest first; none if there is
        no other cluster.
    """
    from sklearn.neighbors import NearestNeighbors  # Not before: a service needs none.

    by_cluster = np.argsort(cluster_labels, kind="stable")
    sample = by_cluster[evenly_spaced(len(points), MAX_COMPARED)]
    foreign = sample[cluster_labels[sample] != cluster.id]
    if not len(foreign):
        return []
    members = cluster.members[evenly_spaced(len(cluster.members), MAX_COMPARED)]
    # Not `clustering.knn`: in the few dimensions of a map, a search tree is far faster.
    search = NearestNeighbors(n_neighbors=1).fit(points[foreign])
    distances, nearest = (column[:, 0] for column in search.kneighbors(points[members]))
    closest = np.argsort(distances, kind="stable")[:n_points]
    neighbors = cluster_labels[foreign[nearest[closest]]]
    return list(zip(members[closest].tolist(), neighbors.tolist(), strict=True))


def _section_names(
    data: ReportData,
    tree: dict[str, Any] | None,
    doubts: Sequence[tuple[int, int]],
    names: Sequence[str],
) -> list[str]:
    """Names the sections that the page has; each has a template and an anchor of that name."""
    parts: dict[str, Any] = {"tree": tree, "duplicates": data.duplicates, "skipped": data.skipped}
    parts |= {"doubtful": doubts, "map": data.has_map, "sizes": data.has_map}
    parts |= {"metrics": data.has_map, "changed": data.changes}
    parts |= {"training": data.history, "bandwidth": data.clustering.curve}
    parts["labels"] = data.true_labels is not None
    return [name for name in names if parts.get(name, True)]


def _figures(
    data: ReportData, clusters: Sequence[Cluster], curves: Mapping[str, Curve]
) -> tuple[dict[str, Any] | None, dict[str, Figure]]:
    """Draws all figures, by the names under which the page refers to them; records the tree."""
    figures = {
        f"training-{i}": plots.training_figure(curve, summary.entry_name(name))
        for i, (name, curve) in enumerate(curves.items())
    }
    figures["sizes"] = plots.size_figure(clusters, data.noun, data.group)
    if data.clustering.curve is not None:
        figures["bandwidth"] = plots.bandwidth_figure(data.clustering.curve)
    if data.true_labels is not None and data.label_names is not None:
        figures["confusion"] = plots.confusion_figure(
            data.true_labels, data.label_names, data.clustering.cluster_labels, data.noun
        )
    tree, real = None, [cluster for cluster in clusters if cluster.id >= 0]
    if data.linkage is not None and len(real) > 1:
        is_ward = data.clustering.membership is not None and not data.is_corrected
        measure = "distance" if is_ward else "cosine distance"
        tree, figures["tree"] = plots.tree_figure(data.linkage, real, measure)
    return tree, figures


def _majorities(data: ReportData, clusters: Sequence[Cluster]) -> dict[int, tuple[str, float]]:
    """Finds each cluster's most common true label (the lowest of several), and its share."""
    if data.true_labels is None or data.label_names is None:
        return {}
    counts = {c.id: np.bincount(data.true_labels[c.members]) for c in clusters}
    return {
        cluster: (data.label_names[int(n.argmax())], float(n.max() / n.sum()))
        for cluster, n in counts.items()
    }


def _overview(data: ReportData, clusters: Sequence[Cluster]) -> dict[str, Any]:
    """Returns the facts in the head of the page.

    Returns:
        - "n_large", "n_small": numbers of clusters with a point that is no outlier, and of others;
        - "n_points": how many points were clustered, of which the page may show a sample;
        - "is_given": whether the number of clusters was set in advance;
        - "is_corrected": whether a person has corrected them;
        - "n_empty": how many of a number of clusters that was given have no point;
        - "is_novel": whether the clusters are the novel classes of a discovery;
        - "finder": the method that finds the number of clusters, in words, or "";
        - "found_clusters": the number of clusters that the method shown has, in words;
        - "is_clear": whether the tree's verdict is "clear";
        - "verdict": the reason why it is not, or None;
        - "accuracy": of the clusters, or None;
        - "n_true_labels", "n_outliers": numbers;
        - "doubt": the reason why the novel classes may be unreliable, or None.
    """
    metrics = data.results["metrics"]
    discovery = metrics.get("discovery")
    method = summary.shown(metrics)
    scores = metrics[method]
    origin = data.results["provenance"].get("number_of_clusters", {}).get(method)
    # The verdict is about the clusters that are found without k.
    judged = scores if method == "tree" and not discovery and origin != "given" else {}
    outliers, rows_used = data.clustering.outliers, data.results["provenance"].get("rows_used")
    # If every point is an outlier, no cluster is smaller than the others.
    real = [cluster for cluster in clusters if cluster.id >= 0]
    n_large = sum(not outliers[c.members].all() for c in real) or len(real)
    n_small = len(real) - n_large
    if rows_used:
        n_large, n_small = summary.tally(scores)
    return {
        "n_large": n_large,
        "n_small": n_small,
        "n_points": rows_used["all"] if rows_used else len(outliers),
        "is_given": bool(discovery) or origin == "given",
        "is_corrected": data.is_corrected,
        "n_empty": max(scores.get("k_given", 0) - n_large, 0) if origin == "given" else 0,
        "is_novel": bool(discovery),
        "finder": _FINDERS.get(method, method),
        "found_clusters": summary.groups(*summary.tally(scores), "cluster"),
        "is_clear": judged.get("verdict") == "clear",
        "verdict": None
        if n_large == 1 and not summary.is_too_few(judged)
        else summary.verdict(judged, f"{data.noun}s"),
        "accuracy": plots.finite((discovery["novel"] if discovery else scores).get("acc")),
        "n_true_labels": 0 if data.true_labels is None else len(np.unique(data.true_labels)),
        "n_outliers": scores.get("outliers", 0) if rows_used else int(outliers.sum()),
        "doubt": summary.doubt(discovery) if discovery else None,
    }
