"""The members of a cluster that the report shows: typical, least typical and borderline ones."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from cluster_jax.evaluation.report_data import STYLED_CLUSTERS, Cluster, ReportData, evenly_spaced

THUMBNAIL_SIDE = 80  # pixels
N_TYPICAL_IMAGES, N_TYPICAL_ROWS, N_LEAST_TYPICAL, N_BORDERLINE = 12, 6, 6, 6
# The search for borderline points compares at most this many members of a cluster with at most
# this many points of other clusters.
MAX_COMPARED = 5_000

# Title -> indices of points, each with the cluster that it borders on or None.
Groups = dict[str, list[tuple[int, Cluster | None]]]


def groups(data: ReportData, clusters: Sequence[Cluster]) -> list[Groups]:
    """The exemplars of each of the `STYLED_CLUSTERS` largest clusters; a small one is shown whole.

    Args:
        data: what the report shows.
        clusters: all clusters, largest first.
    """
    n_typical = N_TYPICAL_ROWS if data.fetch_images is None else N_TYPICAL_IMAGES
    by_id = {cluster.id: cluster for cluster in clusters}
    shown: list[Groups] = []
    for cluster in clusters[:STYLED_CLUSTERS]:
        members: list[tuple[int, Cluster | None]] = [(i, None) for i in cluster.members.tolist()]
        if len(members) <= n_typical:
            shown.append({f"All {data.noun}s": members})
            continue
        least = members[n_typical:][: -N_LEAST_TYPICAL - 1 : -1]
        near = borderline(data.points, data.cluster_labels, cluster, N_BORDERLINE)
        shown.append({"Most typical": members[:n_typical], "Least typical": least})
        if near:
            shown[-1]["Borderline"] = [(i, by_id[neighbor]) for i, neighbor in near]
    return shown


def borderline(
    points: NDArray, cluster_labels: NDArray, cluster: Cluster, n_points: int
) -> list[tuple[int, int]]:
    """The points of a cluster that lie nearest to another one.

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
