"""The map of the report: all points, one trace per cluster, and their thumbnails.

The page's script (`templates/report_map.js`) draws the map; every other figure is made with plotly
in Python. The map needs what plotly's figures cannot do: a card next to the pointer with a
thumbnail cut out of one shared sprite, a switch between 2-D and 3-D, toggles for the clusters
outside the figure, and names that disappear with their clusters.
"""

import base64
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from cluster_jax.evaluation import plots, thumbnails
from cluster_jax.evaluation.report_data import (
    STYLED_CLUSTERS,
    Cluster,
    ReportData,
    evenly_spaced,
)
from cluster_jax.evaluation.thumbnails import Sprite

MAX_POINTS = 20_000
MAX_SVG_POINTS = 5_000
MAX_THUMBNAILS = 4_000
THUMBNAIL_SIDE = 48  # pixels


class MapTrace(NamedTuple):
    """The drawn points of one cluster, or of all clusters without a style of their own.

    Attributes:
        name: the cluster's ID; empty for the clusters that share a style.
        size: number of its points, drawn or not; of clusters, for those that share a style.
        color: of its markers.
        symbol: of its markers.
        name_position: where the name is written, a point on the principal axes.
        coordinates: "x", "y" and maybe "z" of the points, packed for plotly.js.
        points: their indices.
        cluster_labels: their clusters' IDs.
        distances: to the centers of their clusters.
        thumbnails: their places in the sprite, -1 for none.
        outliers: 1 for outliers, else 0; or None.
        label_names: names of their true labels, or None.
        sources: their names, or None.
        probabilities: of their clusters, or None.
        runners_up: number and probability of the second likeliest cluster, null for none; or None.
    """

    name: str
    size: int
    color: str
    symbol: str
    name_position: list[float]
    coordinates: dict[str, dict[str, str]]
    points: list[int]
    cluster_labels: list[int]
    distances: list[float]
    thumbnails: list[int]
    outliers: list[int] | None
    label_names: list[str] | None
    sources: list[str] | None
    probabilities: list[float] | None
    runners_up: list[tuple[int, float] | None] | None


class ReportMap(NamedTuple):
    """The map: its traces, largest cluster first, and the thumbnails for the pointer, or None."""

    traces: list[MapTrace]
    n_points: int
    sprite: Sprite | None

    def to_json(self, noun: str, folder: str | None) -> dict[str, Any]:
        """The record from which the page's script draws the map.

        Args:
            noun: what one point is.
            folder: URI of the folder of the image files, or None.
        """
        return {
            "traces": [trace._asdict() for trace in self.traces],
            "n_points": self.n_points,
            "webgl": self.n_points > MAX_SVG_POINTS,
            "sprite": None if self.sprite is None else self.sprite._asdict(),
            "noun": noun,
            "folder": folder,
            "template": plots.TEMPLATE.to_plotly_json(),
        }


def build_map(
    data: ReportData, clusters: Sequence[Cluster], label_names: Sequence[str] | None
) -> ReportMap:
    """The map on the principal axes; `MAX_POINTS` of more points, evenly over the clusters.

    Args:
        data: what the report shows.
        clusters: all clusters, largest first.
        label_names: name of each true label, or None without labels.
    """
    ranks = np.empty(len(data.points), np.int64)
    for rank, cluster in enumerate(clusters):
        ranks[cluster.members] = min(rank, STYLED_CLUSTERS)
    order = np.argsort(ranks, kind="stable")
    points = order[evenly_spaced(len(order), MAX_POINTS)]
    coordinates = principal_components(data.points[points])
    places, sprite = np.full(len(points), -1), None
    if data.fetch_images is not None:
        pictured = evenly_spaced(len(points), MAX_THUMBNAILS)
        places[pictured] = np.arange(len(pictured))
        images = thumbnails.thumbnails(data.fetch_images, points[pictured], THUMBNAIL_SIDE)
        sprite = thumbnails.sprite(images)
    traces = []
    for rank in np.unique(ranks[points]).tolist():
        drawn = np.flatnonzero(ranks[points] == rank)
        trace = _trace(data, points[drawn], coordinates[drawn], places[drawn], label_names)
        is_styled = rank < STYLED_CLUSTERS
        look = trace._replace(
            name=str(clusters[rank].id) if is_styled else "",
            size=len(clusters[rank].members) if is_styled else len(clusters) - STYLED_CLUSTERS,
            color=clusters[rank].color,
            symbol=clusters[rank].symbol,
        )
        traces.append(look)
    return ReportMap(traces, len(points), sprite)


def _trace(
    data: ReportData,
    points: NDArray,
    coordinates: NDArray,
    places: NDArray,
    label_names: Sequence[str] | None,
) -> MapTrace:
    """A trace of `points` that has no name and style yet."""
    names = None
    if data.true_labels is not None and label_names is not None:
        names = [label_names[label] for label in data.true_labels[points].tolist()]
    sources, member = data.sources, data.membership
    probabilities = runners_up = None
    if member is not None:
        probabilities = member.probabilities[points].round(3).tolist()
        second = member.runner_up_probabilities[points].round(3).tolist()
        pairs = zip(member.runners_up[points].tolist(), second, strict=True)
        runners_up = [pair if pair[1] > 0 else None for pair in pairs]
    return MapTrace(
        name="",
        size=0,
        color="",
        symbol="",
        name_position=_name_position(coordinates),
        coordinates={axis: _pack(c) for axis, c in zip("xyz", coordinates.T, strict=False)},
        points=points.tolist(),
        cluster_labels=data.cluster_labels[points].tolist(),
        distances=[float(f"{distance:.4g}") for distance in data.distances[points].tolist()],
        thumbnails=places.tolist(),
        outliers=None if data.outliers is None else data.outliers[points].astype(int).tolist(),
        label_names=names,
        sources=None if sources is None else [sources[i] for i in points.tolist()],
        probabilities=probabilities,
        runners_up=runners_up,
    )


def principal_components(points: NDArray) -> NDArray:
    """`points` `[n, d]` on their first three principal axes (d > 2), unchanged for d = 2.

    An axis has no sign of its own: its largest component is made positive. Not scikit-learn's
    PCA, which refuses fewer points than axes: a report of one or two images has a map, too.

    Args:
        points: float `[n, d]`, n >= 1, d >= 2.

    Returns:
        float `[n, 3]`, or `points` themselves for d = 2.
    """
    d = points.shape[1]
    if d == 2:
        return points
    centered = points - points.mean(axis=0, dtype=np.float64)
    _, axes = eigh(centered.T @ centered, subset_by_index=[d - 3, d - 1])
    axes = axes[:, ::-1]
    return centered @ (axes * np.sign(axes[np.abs(axes).argmax(axis=0), range(3)]))


def _name_position(coordinates: NDArray) -> list[float]:
    """Where a cluster's name is written: above its upper end, but not its outermost points."""
    edge, top = np.quantile(coordinates[:, 1], (0.85, 0.95))
    position = np.median(coordinates[coordinates[:, 1] >= edge], axis=0)
    position[1] = top
    return position.tolist()


def _pack(values: NDArray) -> dict[str, str]:
    """An array in the base64 form that plotly.js reads, a third of the size of decimals."""
    packed = np.ascontiguousarray(values, "<f4").tobytes()
    return {"dtype": "f4", "bdata": base64.b64encode(packed).decode()}
