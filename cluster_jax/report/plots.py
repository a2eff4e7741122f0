"""Figures of the report, for plotly.js; the map of the points is in `report_map`.

A figure is what plotly calls one: a dict of "data" and "layout". The page's script adds
`LOOK` (`templates/report.js`), and resolves a color written as `var(--name)`, a variable
of the style sheet, so that figures follow the reader's light or dark theme.
"""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster import hierarchy
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import squareform

from cluster_jax.clustering.gridshift import BandwidthCurve
from cluster_jax.metrics import partition
from cluster_jax.report.report_data import STYLED_CLUSTERS, Cluster, evenly_spaced

MAX_CURVE_STEPS = 2_000
MAX_BARS = 500
MAX_MATRIX_SIDE = 100
# Up to this many bars or columns have their numbers written out.
_MAX_ANNOTATED = 20
_MAX_LABEL_LENGTH = 28

Figure = dict[str, Any]  # and its parts
# Layout that all figures have in common.
_AXIS = {
    "gridcolor": "var(--line)",
    "linecolor": "var(--line)",
    "tickcolor": "var(--line)",
    "zeroline": False,
    "ticks": "outside",
    "ticklen": 4,
    "automargin": True,
    "title": {"standoff": 10},
}
_CLEAR = "rgba(0,0,0,0)"
LOOK: Figure = {
    "font": {"family": "var(--sans)", "size": 12, "color": "var(--soft)"},
    "paper_bgcolor": _CLEAR,
    "plot_bgcolor": _CLEAR,
    "showlegend": False,
    "margin": {"l": 8, "r": 8, "t": 28, "b": 8},
    "xaxis": _AXIS,
    "yaxis": _AXIS,
    "modebar": {"bgcolor": _CLEAR, "color": "var(--faint)", "activecolor": "var(--ink)"},
    "hoverlabel": {
        "bgcolor": "var(--paper)",
        "bordercolor": "var(--faint)",
        "font": {"color": "var(--ink)"},
    },
}
Curve = dict[int, float | None]


def finite(value: object) -> float | None:
    """Returns `value` as a float; None for NaN, infinities, and what is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        return None
    return float(value) if math.isfinite(value) else None


def _axis(title: str, **more: Any) -> Figure:
    return {"title": {"text": title}, **more}


def _scatter(x: list, y: list, hover: str | None, color: Any, size: Any, **more: Any) -> Figure:
    """Draws points joined by a line; `hover` is the text when the mouse is on a point, or None."""
    looks = {"line": {"color": color, "width": 1.75}, "marker": {"color": color, "size": size}}
    shown = {"hoverinfo": "skip"} if hover is None else {"hovertemplate": f"{hover}<extra></extra>"}
    return {"type": "scatter", "mode": "lines+markers", "x": x, "y": y, **looks, **shown, **more}


def training_curves(history: Sequence[Mapping[str, Any]]) -> dict[str, Curve]:
    """Returns the logged scalars, the loss first, each thinned to `MAX_CURVE_STEPS`.

    A step that was logged twice (by a run that was resumed) counts once, with its last value.
    Scalars without any finite value are left out.

    Args:
        history: logged lines, each with `step` and scalars.

    Returns:
        Name -> step -> value; None where a value is not finite.
    """
    names = dict.fromkeys(["loss"])
    for line in history:
        names |= dict.fromkeys(name for name in line if name != "step")
    curves = {}
    for name in names:
        values = {int(line["step"]): finite(line[name]) for line in history if name in line}
        if any(value is not None for value in values.values()):
            steps = np.array(sorted(values))[evenly_spaced(len(values), MAX_CURVE_STEPS)].tolist()
            curves[name] = {step: values[step] for step in steps}
    return curves


def training_figure(curve: Curve, title: str) -> Figure:
    """Draws one scalar over the steps; non-finite values are gaps.

    Args:
        curve: step -> value.
        title: its name on the axis.
    """
    # A value between two gaps has no line to either side: only a marker makes it visible.
    padded = np.array([None, *curve.values(), None], float)  # None becomes NaN.
    is_gap = np.isnan(padded)
    sizes = np.where(is_gap[:-2] & ~is_gap[1:-1] & is_gap[2:], 5, 0).tolist()
    hover = "step %{x:,}: %{y:.4g}"
    line = _scatter(list(curve), list(curve.values()), hover, "var(--accent)", sizes)
    x_axis = _axis("step", tickformat=",")
    return {"data": [line], "layout": {"xaxis": x_axis, "yaxis": _axis(html.escape(title, False))}}


def size_figure(clusters: Sequence[Cluster], noun: str, group: str) -> Figure:
    """Draws the sizes of the `MAX_BARS` largest clusters as bars.

    Args:
        clusters: all clusters, largest first.
        noun: what one point is.
        group: what a cluster is called.
    """
    shown = clusters[:MAX_BARS]
    bars: Figure = {
        "type": "bar",
        "x": [str(cluster.id) for cluster in shown],
        "y": [len(cluster.members) for cluster in shown],
        "marker": {"color": [cluster.color for cluster in shown]},
        "customdata": [html.escape(cluster.title, False) for cluster in shown],
        "hovertemplate": f"%{{customdata}}: %{{y:,}} {noun}s<extra></extra>",
        # An eighth of the plot at most, so that one or two clusters are not drawn as walls.
        "width": 0.72 * min(len(shown), 8) / 8,
    }
    if len(shown) <= _MAX_ANNOTATED:
        bars |= {"texttemplate": "%{y:,}", "textposition": "outside", "cliponaxis": False}
    x_axis = _axis(group, type="category", showgrid=False, range=[-0.5, len(shown) - 0.5])
    y_axis = _axis(f"{noun}s", tickformat=",")
    return {"data": [bars], "layout": {"xaxis": x_axis, "yaxis": y_axis}}


def _log_axis(values: Sequence[float], max_decades: int) -> dict[str, Any]:
    """Makes a logarithmic axis, ticks at 1, 2, 5 up to `max_decades` decades, else only at 1."""
    n_decades = math.ceil(math.log10(max(values))) - math.floor(math.log10(min(values)))
    return {"type": "log", "dtick": "D2" if n_decades <= max_decades else 1, "tickformat": ","}


def bandwidth_figure(curve: BandwidthCurve) -> Figure:
    """Draws the number of clusters (top) and the score (bottom) by bandwidth, the choice marked.

    Args:
        curve: the scan; a score that is NaN is a gap.
    """
    widths, counts = np.asarray(curve.bandwidths).tolist(), np.asarray(curve.n_clusters).tolist()
    scores = [finite(score) for score in np.asarray(curve.scores).tolist()]
    selected = widths[curve.best_index]
    hover = "bandwidth %{x:.4g}: "
    top = _scatter(widths, counts, hover + "%{y:,} clusters", "var(--accent)", 5)
    bottom = _scatter(widths, scores, hover + "score %{y:.4g}", "var(--second)", 5, yaxis="y2")
    spans_decades = max(counts) > 20 * max(1, min(counts))
    count_axis = (
        _log_axis([n for n in counts if n], 1) if spans_decades else {"rangemode": "tozero"}
    )
    ink = "var(--ink)"
    line = {"x0": selected, "x1": selected, "y0": 0, "y1": 1, "yref": "paper"}
    text = {"text": f"selected: {selected:.3g}", "showarrow": False, "font": {"color": ink}}
    place = {"x": math.log10(selected), "y": 1, "yref": "paper", "yanchor": "bottom"}
    layout = {
        "xaxis": _axis("bandwidth", anchor="y2", **_log_axis(widths, 3)),
        "yaxis": _axis("clusters", domain=[0.54, 1], **count_axis),
        "yaxis2": _axis("score", domain=[0, 0.44]),
        "margin": {"t": 44},
        "shapes": [{**line, "line": {"color": ink, "width": 1, "dash": "dot"}}],
        "annotations": [{**text, **place}],
    }
    return {"data": [top, bottom], "layout": layout}


def confusion_figure(
    true_labels: NDArray, label_names: Sequence[str], cluster_labels: NDArray, noun: str
) -> Figure:
    """Draws a heat map of true labels by clusters, in the order of the best one-to-one matching.

    The color is the share of the label; the counts are written in if there are few columns. Beyond
    `MAX_MATRIX_SIDE` rows or columns are left out.

    Args:
        true_labels: int `[n]`.
        label_names: name of each true label.
        cluster_labels: int `[n]`.
        noun: what one point is.
    """
    table, labels, clusters = partition.contingency(true_labels, cluster_labels)
    # Unmatched ones follow in their own order: labels by number, clusters by size.
    in_order = np.arange(len(labels)), np.argsort(-table.sum(axis=0), kind="stable")
    matched = linear_sum_assignment(table[:, in_order[1]], maximize=True)
    rows, columns = (
        np.concatenate([order[pairs], np.delete(order, pairs)])[:MAX_MATRIX_SIDE]
        for order, pairs in zip(in_order, matched, strict=True)
    )
    counts = table[np.ix_(rows, columns)]
    hover = f"cluster %{{x}}: %{{customdata:,}} {noun}s, %{{z:.1%}} of the label<extra></extra>"
    look = {"zmin": 0, "zmax": 1, "xgap": 1, "ygap": 1, "showscale": False}
    cells = {
        "type": "heatmap",
        "x": [str(cluster) for cluster in clusters[columns].tolist()],
        "y": list(range(len(rows))),
        "z": (counts / table.sum(axis=1)[rows, None]).round(4).tolist(),
        "customdata": counts.tolist(),
        **look,
        "colorscale": [[0, "var(--surface)"], [1, "var(--accent)"]],
        "text": [[f"{count:,}" if count else "" for count in row] for row in counts.tolist()],
        "texttemplate": "%{text}" if len(columns) <= _MAX_ANNOTATED else "",
        "hovertemplate": hover,
    }
    names = [_axis_label(label_names[label]) for label in labels[rows].tolist()]
    ticks = {"tickvals": cells["y"], "ticktext": names, "autorange": "reversed"}
    layout = {
        "height": 110 + min(30, max(14, 900 // len(rows))) * len(rows),
        "xaxis": _axis("cluster", type="category", showgrid=False),
        "yaxis": {**ticks, "showgrid": False},
    }
    return {"data": [cells], "layout": layout}


def _axis_label(text: str) -> str:
    """Shortens a label, and escapes it, since plotly reads markup in the texts of a figure."""
    if len(text) > _MAX_LABEL_LENGTH:
        text = text[: _MAX_LABEL_LENGTH - 1] + "…"
    return html.escape(text, quote=False)


def tree_figure(
    linkage: NDArray, clusters: Sequence[Cluster], measure: str
) -> tuple[dict[str, Any], Figure]:
    """Draws the tree of the `STYLED_CLUSTERS` largest clusters: a record, and the dendrogram.

    Args:
        linkage: float `[k - 1, 4]`; leaf i is the cluster with the i-th lowest number.
        clusters: all k > 1 clusters, largest first.
        measure: what the distances are.

    Returns:
        The record from which the page's script lists the groups at a cut, and the figure. The
        record has "leaves", the clusters from left to right; "merges", the pairs of nodes that are
        merged, the nearest pair first, where a node is the position of a leaf, or the number of
        leaves plus the number of an earlier merge; and "heights", the distance of each pair.
    """
    drawn = sorted(clusters[:STYLED_CLUSTERS], key=lambda cluster: cluster.id)
    if len(drawn) < len(clusters):
        # The heights at which drawn clusters meet are an ultrametric, and its tree is theirs.
        kept = np.searchsorted(sorted(cluster.id for cluster in clusters), [c.id for c in drawn])
        apart = squareform(hierarchy.cophenet(linkage))[np.ix_(kept, kept)]
        linkage = hierarchy.linkage(squareform(apart), "single")
    picture = hierarchy.dendrogram(linkage, no_plot=True)
    leaves = [drawn[i] for i in picture["leaves"]]
    # SciPy places leaf i at 10 i + 5.
    across = (np.array(picture["icoord"]) - 5) / 10
    upward = np.array(picture["dcoord"])
    x, y = ([z for branch in side.tolist() for z in (*branch, None)] for side in (across, upward))
    branches = _scatter(x, y, None, "var(--soft)", 0, mode="lines")
    middles = across[:, 1:3].mean(axis=1).tolist()
    hover = f"{measure} %{{y:.3g}}"
    joints = _scatter(middles, upward[:, 1].tolist(), hover, "var(--soft)", 6, mode="markers")
    places = list(range(len(leaves)))
    hover = "%{customdata[0]}: %{customdata[1]:,}"
    ends = _scatter(places, [0] * len(leaves), hover, None, 11, mode="markers", cliponaxis=False)
    ends["marker"]["color"] = [cluster.color for cluster in leaves]
    ends["marker"]["symbol"] = [cluster.symbol for cluster in leaves]
    ends["customdata"] = [
        [html.escape(cluster.title, False), len(cluster.members)] for cluster in leaves
    ]
    names = [_axis_label(cluster.title) for cluster in leaves]
    x_axis = _axis("", tickvals=places, ticktext=names, showgrid=False)
    x_axis["range"] = [-0.5, len(leaves) - 0.5]
    top = 1.08 * max(upward.max(), 1e-9)
    layout = {"xaxis": x_axis, "yaxis": _axis(measure, range=[0, top])}
    positions = np.argsort(picture["leaves"])
    nodes = np.concatenate([positions, np.arange(len(leaves), 2 * len(leaves) - 1)])
    record = {
        "leaves": [cluster.look for cluster in leaves],
        "merges": nodes[linkage[:, :2].astype(int)].tolist(),
        "heights": linkage[:, 2].tolist(),
    }
    return record, {"data": [branches, joints, ends], "layout": layout}
