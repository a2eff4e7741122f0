"""The members of a cluster that the report shows: typical, least typical and borderline ones."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from cluster_jax.evaluation import thumbnails
from cluster_jax.evaluation.report_data import (
    STYLED_CLUSTERS,
    Cluster,
    ReportData,
    evenly_spaced,
    point_name,
)

THUMBNAIL_SIDE = 80  # pixels
N_TYPICAL_IMAGES, N_TYPICAL_ROWS, N_LEAST_TYPICAL, N_BORDERLINE = 12, 6, 6, 6
MAX_FOREIGN_POINTS = 5_000
# In more dimensions than this a search tree visits every point: fewer members are queried.
MAX_TREE_DIMENSIONS, MAX_QUERIES = 15, 1_000


class Exemplar(NamedTuple):
    """A member of a cluster that is shown.

    Attributes:
        point: its index.
        name: its source, or its number.
        label: name of its true label, or None.
        distance: to the center of the cluster.
        is_outlier: whether it is an outlier.
        neighbor: the cluster that it borders on, or None.
        probability: of its cluster, or None.
        uri: its thumbnail, or None.
    """

    point: int
    name: str
    label: str | None
    distance: float
    is_outlier: bool
    neighbor: Cluster | None
    probability: float | None
    uri: str | None = None

    @property
    def description(self) -> str:
        """The text that stands for the thumbnail."""
        facts = [self.name]
        facts += [] if self.label is None else [f"label {self.label}"]
        facts += [f"distance {self.distance:.3g}"]
        facts += [] if self.probability is None else [f"probability {self.probability:.3f}"]
        facts += ["outlier"] if self.is_outlier else []
        facts += [] if self.neighbor is None else [f"next to cluster {self.neighbor.id}"]
        return ", ".join(facts)


class ClusterCard(NamedTuple):
    """What is shown of one cluster.

    Attributes:
        cluster: the cluster.
        share: its part of all points.
        majority_label: its most common true label (of several the lowest number), or None.
        majority_share: the part of its points with that label; 0 without labels.
        groups: title -> exemplars.
        pixelated: whether the thumbnails are so small that their pixels are shown as squares.
    """

    cluster: Cluster
    share: float
    majority_label: str | None
    majority_share: float
    groups: dict[str, list[Exemplar]]
    pixelated: bool


def borderline(
    points: NDArray, cluster_labels: NDArray, cluster: Cluster, n_points: int
) -> list[tuple[int, int]]:
    """The points of a cluster that lie nearest to another one.

    Nearness is the distance to the nearest foreign point among `MAX_FOREIGN_POINTS` evenly
    spaced ones. In more than `MAX_TREE_DIMENSIONS` dimensions `MAX_QUERIES` members are looked
    at, evenly spaced from the most to the least typical.

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
    sample = by_cluster[evenly_spaced(len(points), MAX_FOREIGN_POINTS)]
    foreign = sample[cluster_labels[sample] != cluster.id]
    if not len(foreign):
        return []
    members = cluster.members
    if points.shape[1] > MAX_TREE_DIMENSIONS:
        members = members[evenly_spaced(len(members), MAX_QUERIES)]
    search = NearestNeighbors(n_neighbors=1).fit(points[foreign])
    distances, nearest = (column[:, 0] for column in search.kneighbors(points[members]))
    closest = np.argsort(distances, kind="stable")[:n_points]
    return [(int(members[i]), int(cluster_labels[foreign[nearest[i]]])) for i in closest]


def cluster_cards(
    data: ReportData, clusters: Sequence[Cluster], label_names: Sequence[str] | None
) -> list[ClusterCard]:
    """A card for each of the `STYLED_CLUSTERS` largest clusters.

    Args:
        data: what the report shows.
        clusters: all clusters, largest first.
        label_names: name of each true label, or None without labels.
    """
    clusters_by_id = {cluster.id: cluster for cluster in clusters}
    cards = []
    for cluster in clusters[:STYLED_CLUSTERS]:
        groups = _exemplar_groups(data, cluster, clusters_by_id, label_names)
        pixelated = False
        if data.fetch_images is not None:
            groups, pixelated = _with_thumbnails(data.fetch_images, groups)
        majority_label, majority_share = None, 0.0
        if data.true_labels is not None and label_names is not None:
            counts = np.bincount(data.true_labels[cluster.members])
            majority_label = label_names[int(counts.argmax())]
            majority_share = float(counts.max() / counts.sum())
        share = len(cluster.members) / len(data.points)
        cards.append(ClusterCard(cluster, share, majority_label, majority_share, groups, pixelated))
    return cards


def _exemplar_groups(
    data: ReportData,
    cluster: Cluster,
    clusters_by_id: dict[int, Cluster],
    label_names: Sequence[str] | None,
) -> dict[str, list[Exemplar]]:
    """Title -> exemplars, without thumbnails; a small cluster is shown whole."""

    def exemplar(i: int, neighbor: Cluster | None = None) -> Exemplar:
        label = None
        if data.true_labels is not None and label_names is not None:
            label = label_names[int(data.true_labels[i])]
        is_outlier = data.outliers is not None and bool(data.outliers[i])
        name = point_name(data, i)
        member = data.membership
        probability = None if member is None else float(member.probabilities[i])
        return Exemplar(i, name, label, float(data.distances[i]), is_outlier, neighbor, probability)

    n_typical = N_TYPICAL_ROWS if data.fetch_images is None else N_TYPICAL_IMAGES
    members = cluster.members.tolist()
    typical = [exemplar(i) for i in members[:n_typical]]
    if len(members) <= n_typical:
        return {f"All {data.noun}s": typical}
    groups = {
        "Most typical": typical,
        "Least typical": [exemplar(i) for i in members[n_typical:][: -N_LEAST_TYPICAL - 1 : -1]],
    }
    pairs = borderline(data.points, data.cluster_labels, cluster, N_BORDERLINE)
    if pairs:
        groups["Borderline"] = [exemplar(i, clusters_by_id[neighbor]) for i, neighbor in pairs]
    return groups


def _with_thumbnails(
    fetch_images: Callable[[NDArray], NDArray], groups: dict[str, list[Exemplar]]
) -> tuple[dict[str, list[Exemplar]], bool]:
    """The exemplars with their thumbnails, and whether these are small."""
    indices = np.array([exemplar.point for group in groups.values() for exemplar in group])
    images = thumbnails.thumbnails(fetch_images, indices, THUMBNAIL_SIDE)
    uris = iter([thumbnails.data_uri(image, thumbnails.is_lossless(image)) for image in images])
    groups = {
        title: [exemplar._replace(uri=next(uris)) for exemplar in group]
        for title, group in groups.items()
    }
    return groups, max(images[0].shape[:2]) <= thumbnails.MAX_LOSSLESS_SIDE
