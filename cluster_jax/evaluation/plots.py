"""Records for the plots of the report.

The page's script draws the plots. A color written as `var(--name)` is a name of the style sheet,
so that it follows the reader's light or dark theme.
"""

import base64
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh
from scipy.optimize import linear_sum_assignment

from cluster_jax.evaluation import thumbnails

# Twenty colors that stay apart from each other (at least 0.08 in OKLab) and from a white and a
# nearly black page; after the twentieth the marker changes and the colors start again.
COLORS = (
    *("#3b7dd8", "#e8762c", "#2e9e5b", "#d6423f", "#8b5fc7", "#d9a514", "#1aa7b5", "#e56fa9"),
    *("#8a5a2b", "#84962a", "#4b50c0", "#f2a08c", "#12736b", "#b03a96", "#8fb9f2", "#9bd45c"),
    *("#9c2f2f", "#c3a2ea", "#4f7391", "#c49a6c"),
)
SYMBOLS = ("circle", "square", "diamond")
SHOWN = len(COLORS) * len(SYMBOLS)  # clusters with a look of their own; the others share a gray
MAP_POINTS, SVG_POINTS, MAP_PICTURES = 20_000, 5_000, 4_000
MAP_SIDE = 48  # pixels
HISTORY_STEPS, BARS, MATRIX_SIDE = 2_000, 500, 100


class Cluster(NamedTuple):
    """One cluster and how it is drawn: `members` are point numbers, most typical first."""

    id: int
    members: np.ndarray
    color: str
    symbol: str


def by_size(clusters: np.ndarray, distances: np.ndarray) -> list[Cluster]:
    """Clusters, largest first (ties by number), from assignments and distances `[n]`."""
    order = np.lexsort((distances, clusters))
    ids, starts = np.unique(clusters[order], return_index=True)
    groups = sorted(
        zip(ids.tolist(), np.split(order, starts[1:]), strict=True),
        key=lambda group: (-len(group[1]), group[0]),
    )
    return [
        Cluster(
            name,
            members,
            COLORS[rank % len(COLORS)] if rank < SHOWN else "var(--faint)",
            SYMBOLS[rank // len(COLORS)] if rank < SHOWN else "circle",
        )
        for rank, (name, members) in enumerate(groups)
    ]


def even(n: int, most: int) -> np.ndarray:
    """At most `most` of the positions 0 to n - 1, evenly spread, first and last among them."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(np.int64))


def number(value: object) -> float | None:
    """`value` as a float that JSON can carry: None for NaN, infinities and what is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        return None
    return float(value) if math.isfinite(value) else None


def principal(points: np.ndarray) -> np.ndarray:
    """`points` `[n, d]` on their first three principal axes (d > 2), unchanged for d = 2.

    An axis has no sign of its own: its largest component is made positive.
    """
    if points.shape[1] == 2:
        return points
    d = points.shape[1]
    centered = points - points.mean(axis=0, dtype=np.float64)
    _, axes = eigh(centered.T @ centered, subset_by_index=[d - 3, d - 1])
    axes = axes[:, ::-1]
    return centered @ (axes * np.sign(axes[np.abs(axes).argmax(axis=0), range(3)]))


def _packed(values: np.ndarray) -> dict:
    """An array in the base64 form that plotly.js reads: a third of the size of decimals."""
    values = np.ascontiguousarray(values, "<f4")
    return {"dtype": "f4", "bdata": base64.b64encode(values.tobytes()).decode()}


def _above(points: np.ndarray) -> list[float]:
    """Where the name of a cluster goes: over its upper end, but not over its outermost points."""
    edge, top = np.quantile(points[:, 1], (0.85, 0.95))
    at = np.median(points[points[:, 1] >= edge], axis=0)
    at[1] = top
    return at.tolist()


def scatter(
    points: np.ndarray,
    clusters: np.ndarray,
    distances: np.ndarray,
    groups: Sequence[Cluster],
    outliers: np.ndarray | None,
    labels: Sequence[str] | None,
    sources: Sequence[str] | None,
    read: Callable[[np.ndarray], np.ndarray] | None,
) -> dict:
    """The map: one record per shown cluster, one for all others, and the pictures for hovering.

    Of large sets `MAP_POINTS` are drawn, spread evenly over the clusters.

    Args:
        points: `[n, d]`, d >= 2; the plot shows the first two (or three) principal axes of those
            that are drawn.
        clusters: int `[n]`.
        distances: `[n]`, to the center of the own cluster.
        groups: the clusters, largest first.
        outliers: bool `[n]`, or None.
        labels: name of the label of each point, or None.
        sources: name of each point, or None.
        read: point numbers -> uint8 `[b, h, w, 1 or 3]`, or None without pictures.

    Returns:
        A record for the page's script.
    """
    place = {group.id: min(rank, SHOWN) for rank, group in enumerate(groups)}
    ranks = np.array([place[c] for c in clusters.tolist()])
    order = np.argsort(ranks, kind="stable")
    rows = order[even(len(order), MAP_POINTS)]
    axes = principal(points[rows])
    pictured = even(len(rows), MAP_PICTURES)
    thumbs = np.full(len(rows), -1)
    if read is not None:
        thumbs[pictured] = np.arange(len(pictured))
    traces = []
    for rank in np.unique(ranks[rows]).tolist():
        at = np.flatnonzero(ranks[rows] == rank)
        chosen = rows[at]
        trace = {
            "group": rank,
            "tag": str(groups[rank].id) if rank < SHOWN else "",
            "size": len(groups[rank].members) if rank < SHOWN else len(groups) - SHOWN,
            "color": groups[rank].color,
            "symbol": groups[rank].symbol,
            "tag_at": _above(axes[at]),
            "point": chosen.tolist(),
            "cluster": clusters[chosen].tolist(),
            "distance": [float(f"{d:.4g}") for d in distances[chosen]],
            "thumb": thumbs[at].tolist(),
        }
        trace |= {axis: _packed(axes[at, i]) for i, axis in enumerate("xyz"[: axes.shape[1]])}
        if outliers is not None:
            trace["outlier"] = outliers[chosen].astype(int).tolist()
        if labels is not None:
            trace["label"] = [labels[i] for i in chosen.tolist()]
        if sources is not None:
            trace["source"] = [sources[i] for i in chosen.tolist()]
        traces.append(trace)
    return {
        "traces": traces,
        "count": len(rows),
        "webgl": len(rows) > SVG_POINTS,
        "sprite": None if read is None else _sprite(read, rows[pictured]),
    }


def _sprite(read: Callable[[np.ndarray], np.ndarray], rows: np.ndarray) -> dict:
    return thumbnails.sprite(thumbnails.pictures(read, rows, MAP_SIDE))


def history_series(history: Sequence[dict]) -> dict[str, dict[str, list]]:
    """Logged scalars as {name: {"step", "value"}}, the loss first, thinned to `HISTORY_STEPS`.

    A step that was logged twice (a run that was continued) counts once, with its last value; a
    value that is not finite becomes None, which the plot shows as a gap.
    """
    names = dict.fromkeys(["loss"])
    for line in history:
        names |= dict.fromkeys(name for name in line if name != "step")
    series = {}
    for name in names:
        values = {int(line["step"]): number(line[name]) for line in history if name in line}
        if any(value is not None for value in values.values()):
            steps = np.array(sorted(values))[even(len(values), HISTORY_STEPS)].tolist()
            series[name] = {"step": steps, "value": [values[step] for step in steps]}
    return series


def size_bars(groups: Sequence[Cluster]) -> dict:
    """The sizes of the `BARS` largest clusters."""
    bars = [(group.id, len(group.members), group.color) for group in groups[:BARS]]
    return dict(zip(("id", "count", "color"), zip(*bars, strict=True), strict=True))


def bandwidth_curve(curve: dict) -> dict:
    """The scan over bandwidths, what is not finite as None."""
    names = ("bandwidths", "n_clusters", "scores")
    return {name: [number(value) for value in curve[name]] for name in names} | {
        "chosen": int(curve["best_index"])
    }


def confusion(
    labels: np.ndarray, names: Sequence[str], groups: Sequence[Cluster]
) -> tuple[dict, tuple[int, int]]:
    """Labels against clusters, both in the order of the best one-to-one match.

    Args:
        labels: int `[n]`.
        names: name of each label number.
        groups: the clusters, largest first.

    Returns:
        `labels` (rows), `clusters` (columns), `counts` and `shares` of the label; and how many
        labels and clusters beyond `MATRIX_SIDE` are left out.
    """
    present, codes = np.unique(labels, return_inverse=True)
    table = np.stack([np.bincount(codes[g.members], minlength=len(present)) for g in groups], 1)
    matched, partners = linear_sum_assignment(table, maximize=True)
    # What has no partner follows in its own order: labels by number, clusters by size.
    rows = [*matched, *sorted(set(range(len(present))) - set(matched))]
    columns = [*partners, *sorted(set(range(len(groups))) - set(partners))]
    hidden = (max(len(rows) - MATRIX_SIDE, 0), max(len(columns) - MATRIX_SIDE, 0))
    rows, columns = rows[:MATRIX_SIDE], columns[:MATRIX_SIDE]
    counts = table[np.ix_(rows, columns)]
    shares = counts / table.sum(axis=1)[rows][:, None]
    record = {
        "labels": [names[present[r]] for r in rows],
        "clusters": [groups[c].id for c in columns],
        "counts": counts.tolist(),
        "shares": shares.round(4).tolist(),
    }
    return record, hidden
