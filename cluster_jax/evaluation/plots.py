"""Figures of the report, made with plotly; the map of the points is in `report_map`.

A color or font written as `var(--name)` is a variable of the style sheet: the page's script
resolves it when it draws, so that figures follow the reader's light or dark theme.
"""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from cluster_jax.clustering.bandwidth import BandwidthCurve
from cluster_jax.evaluation.report_data import Cluster, evenly_spaced

MAX_CURVE_STEPS = 2_000
MAX_BARS = 500
MAX_MATRIX_SIDE = 100
# Up to this many bars or columns have their numbers written out.
_MAX_ANNOTATED = 20
_MAX_LABEL_LENGTH = 28
_AXIS = {
    "gridcolor": "var(--line)",
    "linecolor": "var(--line)",
    "zeroline": False,
    "tickcolor": "var(--line)",
    "ticks": "outside",
    "ticklen": 4,
    "automargin": True,
    "title": {"standoff": 10},
}
TEMPLATE = go.layout.Template(
    layout={
        "font": {"family": "var(--sans)", "size": 12, "color": "var(--soft)"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": False,
        "margin": {"l": 8, "r": 8, "t": 28, "b": 8},
        "modebar": {
            "bgcolor": "rgba(0,0,0,0)",
            "color": "var(--faint)",
            "activecolor": "var(--ink)",
        },
        "hoverlabel": {
            "bgcolor": "var(--paper)",
            "bordercolor": "var(--faint)",
            "font": {"color": "var(--ink)"},
        },
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    }
)


class TrainingCurve(NamedTuple):
    """One logged scalar: its name, steps, and values; None where a value is not finite."""

    name: str
    steps: list[int]
    values: list[float | None]


class ConfusionMatrix(NamedTuple):
    """True labels against clusters.

    Attributes:
        labels: names of the rows.
        clusters: cluster IDs of the columns.
        counts: int64 `[rows, columns]`, points.
        shares: float64 `[rows, columns]`, `counts` as parts of all points of the label.
        n_hidden_labels: labels beyond `MAX_MATRIX_SIDE`.
        n_hidden_clusters: clusters beyond `MAX_MATRIX_SIDE`.
    """

    labels: list[str]
    clusters: list[int]
    counts: NDArray
    shares: NDArray
    n_hidden_labels: int
    n_hidden_clusters: int


def finite(value: object) -> float | None:
    """`value` as a float; None for NaN, infinities, and what is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        return None
    return float(value) if math.isfinite(value) else None


def training_curves(history: Sequence[Mapping[str, Any]]) -> list[TrainingCurve]:
    """The logged scalars, the loss first, each thinned to `MAX_CURVE_STEPS`.

    A step that was logged twice (by a run that was resumed) counts once, with its last value.
    Scalars without any finite value are left out.

    Args:
        history: logged lines, each with `step` and scalars.
    """
    names = dict.fromkeys(["loss"])
    for line in history:
        names |= dict.fromkeys(name for name in line if name != "step")
    curves = []
    for name in names:
        values = {int(line["step"]): finite(line[name]) for line in history if name in line}
        if any(value is not None for value in values.values()):
            steps = np.array(sorted(values))[evenly_spaced(len(values), MAX_CURVE_STEPS)].tolist()
            curves.append(TrainingCurve(name, steps, [values[step] for step in steps]))
    return curves


def training_figure(curve: TrainingCurve, title: str) -> go.Figure:
    """One scalar over the steps; non-finite values are gaps.

    Args:
        curve: the scalar.
        title: its name on the axis.
    """
    # A value between two gaps has no line to either side: only a marker makes it visible.
    padded = [None, *curve.values, None]
    is_isolated = [
        value is not None and before is None and after is None
        for before, value, after in zip(padded[:-2], padded[1:-1], padded[2:], strict=True)
    ]
    line = go.Scatter(
        x=curve.steps,
        y=curve.values,
        mode="lines+markers",
        connectgaps=False,
        line={"color": "var(--accent)", "width": 1.75},
        marker={"color": "var(--accent)", "size": [5 * isolated for isolated in is_isolated]},
        hovertemplate="step %{x:,}: %{y:.4g}<extra></extra>",
    )
    return go.Figure(
        line,
        {
            "template": TEMPLATE,
            "xaxis": {"title": {"text": "step"}, "tickformat": ","},
            "yaxis": {"title": {"text": html.escape(title, quote=False)}},
        },
    )


def size_figure(clusters: Sequence[Cluster], noun: str) -> go.Figure:
    """Bars of the sizes of the `MAX_BARS` largest clusters.

    Args:
        clusters: all clusters, largest first.
        noun: what one point is.
    """
    shown = clusters[:MAX_BARS]
    bars = go.Bar(
        x=[str(cluster.id) for cluster in shown],
        y=[len(cluster.members) for cluster in shown],
        marker={"color": [cluster.color for cluster in shown]},
        hovertemplate=f"Cluster %{{x}}: %{{y:,}} {noun}s<extra></extra>",
    )
    if len(shown) <= _MAX_ANNOTATED:
        bars.update(texttemplate="%{y:,}", textposition="outside", cliponaxis=False)
    return go.Figure(
        bars,
        {
            "template": TEMPLATE,
            "xaxis": {
                "title": {"text": "cluster"},
                "type": "category",
                "showgrid": False,
                # At least eight places, so that one or two clusters are not drawn as walls.
                "range": [-0.5, max(len(shown), 8) - 0.5],
            },
            "yaxis": {"title": {"text": f"{noun}s"}, "tickformat": ","},
            "bargap": 0.28,
        },
    )


def _log_axis(values: Sequence[float], max_decades: int) -> dict[str, Any]:
    """A logarithmic axis with plain ticks: 1, 2, 5 up to `max_decades` decades, else only 1."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    digits = (1, 2, 5) if high - low <= max_decades else (1,)
    ticks = [(digit, power) for power in range(low, high + 1) for digit in digits]
    return {
        "type": "log",
        "tickvals": [float(f"{digit}e{power}") for digit, power in ticks],
        "ticktext": [f"{float(f'{d}e{power}'):,.{max(-power, 0)}f}" for d, power in ticks],
    }


def bandwidth_figure(curve: BandwidthCurve) -> go.Figure:
    """The number of clusters (top) and the score (bottom) over the bandwidth, the choice marked.

    Args:
        curve: the scan; a score that is NaN is a gap.
    """
    widths, counts = np.asarray(curve.bandwidths).tolist(), np.asarray(curve.n_clusters).tolist()
    scores = [finite(score) for score in np.asarray(curve.scores).tolist()]
    selected = widths[curve.best_index]
    lines = []
    for name, values, color, axis in (
        ("%{y:,} clusters", counts, "var(--accent)", "y"),
        ("score %{y:.4g}", scores, "var(--second)", "y2"),
    ):
        line = go.Scatter(
            x=widths,
            y=values,
            yaxis=axis,
            mode="lines+markers",
            line={"color": color, "width": 1.75},
            marker={"color": color, "size": 5},
            hovertemplate=f"bandwidth %{{x:.4g}}: {name}<extra></extra>",
        )
        lines.append(line)
    spans_decades = max(counts) > 20 * max(1, min(counts))
    count_axis = (
        _log_axis([n for n in counts if n], 1) if spans_decades else {"rangemode": "tozero"}
    )
    layout = {
        "template": TEMPLATE,
        "xaxis": {"title": {"text": "bandwidth"}, "anchor": "y2", **_log_axis(widths, 3)},
        "yaxis": {"title": {"text": "clusters"}, "domain": [0.54, 1], **count_axis},
        "yaxis2": {"title": {"text": "score"}, "domain": [0, 0.44]},
        "margin": {"t": 44},
    }
    figure = go.Figure(lines, layout)
    mark = {"color": "var(--ink)", "width": 1, "dash": "dot"}
    figure.add_shape(x0=selected, x1=selected, y0=0, y1=1, yref="paper", line=mark)
    return figure.add_annotation(
        text=f"selected: {selected:.3g}",
        x=math.log10(selected),
        y=1,
        yref="paper",
        yanchor="bottom",
        showarrow=False,
        font={"color": "var(--ink)"},
    )


def confusion_matrix(
    true_labels: NDArray, label_names: Sequence[str], clusters: Sequence[Cluster]
) -> ConfusionMatrix:
    """True labels against clusters, both in the order of the best one-to-one matching.

    Args:
        true_labels: int `[n]`.
        label_names: name of each true label.
        clusters: all clusters, largest first.
    """
    present, codes = np.unique(true_labels, return_inverse=True)
    columns = [np.bincount(codes[c.members], minlength=len(present)) for c in clusters]
    table = np.stack(columns, axis=1)
    matched_labels, matched_clusters = (m.tolist() for m in linear_sum_assignment(table, True))
    # Unmatched ones follow in their own order: labels by number, clusters by size.
    rows = matched_labels + sorted(set(range(len(present))) - set(matched_labels))
    order = matched_clusters + sorted(set(range(len(clusters))) - set(matched_clusters))
    n_hidden = [max(len(side) - MAX_MATRIX_SIDE, 0) for side in (rows, order)]
    rows, order = rows[:MAX_MATRIX_SIDE], order[:MAX_MATRIX_SIDE]
    counts = table[np.ix_(rows, order)]
    return ConfusionMatrix(
        labels=[label_names[present[row]] for row in rows],
        clusters=[clusters[column].id for column in order],
        counts=counts,
        shares=counts / table.sum(axis=1)[rows][:, None],
        n_hidden_labels=n_hidden[0],
        n_hidden_clusters=n_hidden[1],
    )


def confusion_figure(matrix: ConfusionMatrix, noun: str) -> go.Figure:
    """A heat map of the shares, with the counts written in if there are few columns.

    Args:
        matrix: true labels against clusters.
        noun: what one point is.
    """
    rows = list(range(len(matrix.labels)))
    counts = matrix.counts.tolist()
    hover = f"cluster %{{x}}: %{{customdata:,}} {noun}s, %{{z:.1%}} of the label<extra></extra>"
    cells = go.Heatmap(
        x=[str(cluster) for cluster in matrix.clusters],
        y=rows,
        z=matrix.shares.round(4).tolist(),
        customdata=counts,
        zmin=0,
        zmax=1,
        xgap=1,
        ygap=1,
        showscale=False,
        colorscale=[[0, "var(--surface)"], [1, "var(--accent)"]],
        text=[[f"{count:,}" if count else "" for count in row] for row in counts],
        texttemplate="%{text}" if len(matrix.clusters) <= _MAX_ANNOTATED else None,
        hovertemplate=hover,
    )
    return go.Figure(
        cells,
        {
            "template": TEMPLATE,
            "height": 110 + min(30, max(14, 900 // len(rows))) * len(rows),
            "xaxis": {"title": {"text": "cluster"}, "type": "category", "showgrid": False},
            "yaxis": {
                "autorange": "reversed",
                "showgrid": False,
                "tickvals": rows,
                "ticktext": [_axis_label(label) for label in matrix.labels],
            },
        },
    )


def _axis_label(text: str) -> str:
    """A short label; escaped, since plotly reads markup in the texts of a figure."""
    if len(text) > _MAX_LABEL_LENGTH:
        text = text[: _MAX_LABEL_LENGTH - 1] + "…"
    return html.escape(text, quote=False)
