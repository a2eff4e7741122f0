"""The map of the report: all points, cluster by cluster, their thumbnails and nearest points.

The page's script draws them: cards of the clusters, and the map on a canvas.
"""

import base64
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from cluster_jax.core import knn
from cluster_jax.data.thumbnails import SIDE
from cluster_jax.report import thumbnails
from cluster_jax.report.changes import Entry
from cluster_jax.report.report_data import Cluster, ReportData, evenly_spaced, parts_of_clusters

MAX_POINTS = 100_000
MAX_THUMBNAILS = 10_000
# Pixels of all thumbnails: of 10,000, 7 MB of the page.
SHEET_PIXELS = 14e6
# The largest clusters, whose best images are larger.
N_SHOWN, N_BEST = 60, 8
N_NEAREST = 8
_PACKED = {"f": "f4", "i": "i4", "b": "u1"}  # kind of a dtype -> dtype in the page


def build_map(
    data: ReportData,
    clusters: Sequence[Cluster],
    doubts: Sequence[tuple[int, int]] = (),
    changed: Sequence[Entry] = (),
    questions: Sequence[Sequence[int]] = (),
) -> dict[str, Any]:
    """Returns the record of the points, from which the page's script draws clusters and map.

    It has all points. If there are more than `MAX_POINTS`, it has that many, evenly spaced in the
    order below: a cluster has a share by its size, and a small one may have none. The points are
    ordered by cluster, and within a cluster from the most to the least typical one. A point's
    number is its position in this order.

    Args:
        data: what the report shows; a map has two axes or more.
        clusters: all clusters, at least one, with that of the points in no cluster; largest first.
        doubts: points that may belong to another cluster, and its ID or -1, in the order shown.
        changed: events of the last update, with points that show them.
        questions: the points of `doubts` by question, see `questions` in `report`.

    Returns:
        - "folder": URI of the folder of the image files, or None;
        - "n_points": number of points in the record; "n_places": at how many places they lie;
        - "clusters": of each cluster its ID, size, look, and suggested names ("guess"); and "stop",
          the number of its last point plus one;
        - "axes": coordinates of the points on the principal axes, packed;
        - "columns": properties of the points, packed: "index" is the index in `data`, "sample" the
          place in the first of "sheets" and in "nearest", "best" that in another sheet, or -1;
        - "names": names of the points, or None; "label_names": names of the true labels, or None;
        - "taken": dates of the photos, or None without facts about the files;
        - "doubtful", "doubtful_other": numbers of those `doubts` that have a point in the record,
          and the other cluster of each, packed;
        - "questions": the numbers of points about which one question is asked, see `questions`;
        - "sheets": thumbnails, each with the "column" that has the places of the points: of up to
          `MAX_THUMBNAILS` points, and, if these are small, larger ones of the best `N_BEST` points
          of the `N_SHOWN` largest clusters and of the points of `changed`; empty without images;
        - "nearest": for each point with a place in "sample", also without images, the numbers of
          the points nearest to it in the features, packed; or None;
        - "n_nearest": how many nearest points each of them has;
        - "parts": how the parts of each cluster merge, see `parts_of_clusters`; the column "part",
          which is left out without features, has the part of each point;
        - "asked": clusters that may be two kinds, the likeliest first, see `parts_of_clusters`.
    """
    members = np.concatenate([cluster.members for cluster in clusters])
    kept = evenly_spaced(len(members), MAX_POINTS)
    points = members[kept]
    axes = principal_components(data.points[points])
    has_picture = _has_picture(data, points)
    places = np.flatnonzero(has_picture)
    places = places[evenly_spaced(len(places), MAX_THUMBNAILS)]
    best = functools.partial(_best, points[has_picture], clusters, changed)
    shown, sheets = _sheets(data, points[places], best)
    nearest, n_nearest = None, 0
    if data.features is not None:
        neighbors = nearest_points(data.features[points], places)
        nearest = _pack(neighbors)
        n_nearest = neighbors.shape[1]
    columns = _columns(data)
    merges, asked = dict[int, list[list[int]]](), list[int]()
    if data.features is not None:
        columns["part"], merges, asked = parts_of_clusters(
            data.features, clusters, data.settled, data.whole
        )
    taken = None
    for title, rows in shown.items():
        columns[title] = np.full(len(data.points), -1)
        columns[title][rows] = np.arange(len(rows))
    if data.facts is not None:
        taken = data.facts["taken"][points].astype(str).tolist()
    numbers = np.full(len(data.points), -1)
    numbers[points] = np.arange(len(points))
    doubtful = np.array(doubts, np.int64).reshape(-1, 2)
    doubtful = doubtful[numbers[doubtful[:, 0]] >= 0]
    return {
        "folder": data.folder,
        "n_points": len(points),
        "n_places": len(np.unique(axes.astype(np.float32), axis=0)),
        "clusters": _drawn(data, clusters, kept),
        "axes": [_pack(axis) for axis in axes.T],
        "columns": {name: _pack(column[points]) for name, column in columns.items()},
        "names": None if data.sources is None else [data.sources[i] for i in points.tolist()],
        "label_names": None if data.true_labels is None else data.label_names,
        "taken": taken,
        "doubtful": _pack(numbers[doubtful[:, 0]]),
        "doubtful_other": _pack(doubtful[:, 1]),
        "questions": [each for points in questions if (each := _there(numbers[list(points)]))],
        "sheets": sheets,
        "nearest": nearest,
        "n_nearest": n_nearest,
        "parts": merges,
        "asked": asked,
    }


def _has_picture(data: ReportData, points: NDArray) -> NDArray:
    """Returns for each point whether there is a picture of it; all True without images."""
    if data.fetch_images is None or data.has_picture is None:
        return np.ones(len(points), bool)
    return np.asarray(data.has_picture[points])


def _there(numbers: NDArray) -> list[int]:
    """Returns the numbers of points that the record has, of numbers that are -1 for others."""
    return numbers[numbers >= 0].tolist()


def _best(
    points: NDArray, clusters: Sequence[Cluster], changed: Sequence[Entry]
) -> NDArray[np.intp]:
    """Returns the points with a larger picture: the first of large clusters, and changed ones."""
    best = [
        cluster.members[np.isin(cluster.members, points)][:N_BEST] for cluster in clusters[:N_SHOWN]
    ]
    best += [np.array(part, int) for entry in changed for _, part in entry.shown]
    rows = np.unique(np.concatenate(best))
    return rows[np.isin(rows, points)]


def _sheet(data: ReportData, column: str, points: NDArray, side: int) -> dict[str, Any]:
    """Returns the thumbnails of points as one image, see `build_map`."""
    assert data.fetch_images is not None
    images = thumbnails.thumbnails(data.fetch_images, points, side)
    return {"column": column, **thumbnails.sprite(images)}


def _sheets(
    data: ReportData, sample: NDArray, best: Callable[[], NDArray]
) -> tuple[dict[str, NDArray], list[dict[str, Any]]]:
    """Returns the points of each sheet of thumbnails, by the name of its column, and the sheets.

    Args:
        data: what the report shows; without images there is no sheet.
        sample: int `[m]`, the points of the first sheet.
        best: returns the points of another one, of larger thumbnails, if those of the first are
            small.
    """
    if data.fetch_images is None:
        return {"sample": sample}, []
    side = int(min(SIDE, (SHEET_PIXELS / len(sample)) ** 0.5))
    shown = {"sample": sample}
    sheets = [_sheet(data, "sample", sample, side)]
    if side < SIDE:
        shown["best"] = best()
        sheets.append(_sheet(data, "best", shown["best"], SIDE))
    return shown, sheets


def _drawn(data: ReportData, clusters: Sequence[Cluster], kept: NDArray) -> list[dict[str, Any]]:
    """Returns the entry of each cluster in the record, see `build_map`.

    Args:
        data: what the report shows.
        clusters: all clusters.
        kept: int `[m]`, ascending, the positions of the points that the record has. Position p is
            that of the p-th member of all clusters, one cluster after the other.
    """
    ends = np.cumsum([len(cluster.members) for cluster in clusters])
    guesses = data.results.get("suggested_names") or {}
    drawn = list[dict[str, Any]]()
    for cluster, stop in zip(clusters, np.searchsorted(kept, ends).tolist(), strict=True):
        guess = "" if str(cluster.id) in data.names else ", ".join(guesses.get(str(cluster.id), ()))
        size = len(cluster.members)
        drawn.append({**cluster.look, "guess": guess, "size": size, "stop": stop})
    return drawn


def _columns(data: ReportData) -> dict[str, NDArray]:
    """Returns the properties of all n points by title, `[n]` each, see "columns" in `build_map`."""
    columns = {
        "index": np.arange(len(data.points)),
        "distance": data.distances,
        "outlier": data.outliers,
        "decided": data.is_decided,
    }
    if data.true_labels is not None:
        columns["label"] = data.true_labels
    if data.facts is not None:
        columns |= {"width": data.facts["width"], "height": data.facts["height"]}
        columns["bytes"] = np.minimum(data.facts["bytes"], np.iinfo(np.int32).max)
        # Enough of what a picture shows to know it again on another page.
        columns["digest"] = np.ascontiguousarray(data.facts["digest"][:, :4]).view("<i4")[:, 0]
    if data.membership is not None:
        names = ("probability", "second_cluster", "second_probability")
        columns |= dict(zip(names, data.membership[1:], strict=True))
    return columns


def nearest_points(features: NDArray, sample: NDArray) -> NDArray:
    """Returns the nearest other rows of each row of a sample, int64 `[m, k]`, the nearest first.

    The distance is Euclidean. k is `N_NEAREST`, or n - 1 if there are fewer other rows.

    Args:
        features: float `[n, d]`.
        sample: int `[m]`, indices of rows, at least one.
    """
    nearest = knn.nearest(features[sample], features, N_NEAREST + 1).indices
    is_other = nearest != sample[:, None]
    is_other[is_other.all(axis=1), -1] = False  # More copies of the row than neighbors.
    return nearest[is_other].reshape(len(sample), -1)


def principal_components(points: NDArray) -> NDArray:
    """Returns `points` `[n, d]` projected on the first two principal axes; unchanged for d = 2.

    The points are centered first, but not for d = 2. The sign of an axis is chosen so that its
    component of the largest absolute value is positive. scikit-learn's PCA is not used because it
    refuses fewer points than axes: a report of one or two images has a map.

    Args:
        points: float `[n, d]`, n >= 1, d >= 2.

    Returns:
        float `[n, 2]`, or `points` themselves for d = 2.
    """
    d = points.shape[1]
    if d == 2:
        return points
    centered = points - points.mean(axis=0, dtype=np.float64)
    _, axes = eigh(centered.T @ centered, subset_by_index=[d - 2, d - 1])
    axes = axes[:, ::-1]
    return centered @ (axes * np.sign(axes[np.abs(axes).argmax(axis=0), range(2)]))


def _pack(values: NDArray) -> dict[str, str]:
    """Returns an array as base64 of its bytes, a third of the size of decimals, and its dtype.

    Args:
        values: floats, signed integers or booleans, packed as float32, int32 or uint8.
    """
    dtype = _PACKED[values.dtype.kind]
    packed = np.ascontiguousarray(values, f"<{dtype}").tobytes()
    return {"dtype": dtype, "bytes": base64.b64encode(packed).decode()}
