"""What a report is about."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np


class ReportData(NamedTuple):
    """Everything the report shows.

    Attributes:
        title: name of the run.
        results: what `results.json` holds; figures that need labels are None without them.
        history: logged lines, each a dict with `step` and scalars; empty without a training.
        points: float `[n, d]`, d >= 2, the space the clusters were found in.
        clusters: int `[n]`.
        distances: float `[n]`, to the center of the own cluster, in any unit.
        outliers: bool `[n]`, rows unlike all others, or None.
        labels: int `[n]`, or None.
        label_names: name of each label number, or None.
        thumbnails: image numbers -> uint8 `[b, height, width, 1 or 3]`; None for rows without
            pictures, which are shown by name.
        sources: file name of each image or name of each row, or None.
        curve: a `BandwidthCurve` as a dict, or None.
        skipped: file name and reason of each image that could not be read.
    """

    title: str
    results: dict
    history: list[dict]
    points: np.ndarray
    clusters: np.ndarray
    distances: np.ndarray
    outliers: np.ndarray | None
    labels: np.ndarray | None
    label_names: tuple[str, ...] | None
    thumbnails: Callable[[np.ndarray], np.ndarray] | None
    sources: tuple[str, ...] | None
    curve: dict | None
    skipped: tuple[tuple[str, str], ...]


def check(data: ReportData) -> None:
    """Raises a ValueError for arrays that do not belong together."""
    points, labels, names = data.points, data.labels, data.label_names
    if points.ndim != 2 or len(points) == 0 or points.shape[1] < 2:
        raise ValueError(f"points must be [n > 0, d > 1], got {list(points.shape)}")
    for name in ("clusters", "distances", "outliers", "labels", "sources"):
        row = getattr(data, name)
        if row is not None and len(row) != len(points):
            raise ValueError(f"{name} must have {len(points)} entries, as points, got {len(row)}")
    for name in ("points", "distances"):
        if not np.isfinite(getattr(data, name)).all():
            raise ValueError(f"{name} must be finite, but there is a NaN or an infinity")
    if labels is not None:
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or (names is not None and high >= len(names)):
            most = "" if names is None else f" to {len(names) - 1}"
            raise ValueError(f"labels must be numbers from 0{most}, got {low} to {high}")


def tally(data: ReportData, members: Sequence[np.ndarray]) -> tuple[int, int]:
    """How many clusters count, and how many are small: those of outliers alone.

    Args:
        data: what the report is about.
        members: the points of each cluster.
    """
    if data.outliers is None:
        return len(members), 0
    # The largest cluster always counts, as in `bandwidth.min_cluster_size`.
    large = sum(not data.outliers[own].all() for own in members) or len(members)
    return large, len(members) - large


def nouns(data: ReportData) -> dict[str, str]:
    """What the page calls one of the points, and several."""
    thing = "row" if data.thumbnails is None else "image"
    return {"thing": thing, "things": f"{thing}s"}


def name(data: ReportData, i: int) -> str:
    """What the page calls point number `i`."""
    return f"{nouns(data)['thing']} {i}" if data.sources is None else str(data.sources[i])
