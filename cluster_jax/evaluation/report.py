"""The report of a run: one HTML file that opens offline, with figures, images and tables."""

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from etils import epath
from plotly.offline import get_plotlyjs

from cluster_jax.core import io
from cluster_jax.evaluation import (
    duplicates,
    exemplars,
    pages,
    plots,
    report_data,
    report_map,
    report_tables,
    report_tree,
    summary,
)
from cluster_jax.evaluation.plots import ConfusionMatrix, TrainingCurve
from cluster_jax.evaluation.report_data import Cluster, ReportData

_compressed_once = functools.cache(pages.compressed)  # plotly.js, four megabytes
_FINDERS = {"gridshift": "GridShift", "tree": "the tree of smoothed features"}


class Overview(NamedTuple):
    """What the head of the page says.

    Attributes:
        n_large: clusters that count.
        n_small: clusters that are too small to count.
        is_given: whether the number of clusters was set in advance.
        is_novel: whether the clusters are the novel classes of a discovery.
        finder: what found the clusters without being told their number.
        found_clusters: how many it finds, in words; for a discovery.
        is_clear: whether the tree found clusters and they are clear.
        verdict: why the tree's clusters are not clear, or None.
        accuracy: of the clusters, or None.
        n_true_labels: different true labels.
        n_outliers: points that are outliers.
        doubt: why the novel classes may be unreliable, or None.
        pretrained: network that the training started from, and its training data; or None.
        is_frozen: whether nothing was trained.
        training_clusters: number of clusters that the training was given, or None.
    """

    n_large: int
    n_small: int
    is_given: bool
    is_novel: bool
    finder: str
    found_clusters: str
    is_clear: bool
    verdict: str | None
    accuracy: float | None
    n_true_labels: int
    n_outliers: int
    doubt: str | None
    pretrained: str | None
    is_frozen: bool
    training_clusters: int | None


def write_report(path: epath.PathLike, data: ReportData) -> None:
    """Writes the report to `path`, atomically.

    Args:
        path: local or remote (`gs://...`) file in an existing folder; an old file is replaced.
        data: what to show. The same data give the same bytes.

    Raises:
        ValueError: the arrays have inconsistent shapes.
    """
    # Bytes of file names that are not UTF-8 (lone surrogates) are spelled out.
    io.write(path, render(data).encode("utf-8", "backslashreplace"))


def render(data: ReportData) -> str:
    """The page as text.

    Args:
        data: what to show.

    Raises:
        ValueError: the arrays have inconsistent shapes.
    """
    report_data.check(data)
    clusters = report_data.clusters_by_size(data.cluster_labels, data.distances)
    label_names: Sequence[str] | None = data.label_names
    matrix = None
    if data.true_labels is not None:
        label_names = label_names or [str(i) for i in range(int(data.true_labels.max()) + 1)]
        matrix = plots.confusion_matrix(data.true_labels, label_names, clusters)
    curves = plots.training_curves(data.history)
    tree = None if data.linkage is None else report_tree.build_tree(data.linkage, clusters)
    figures = _figures(data, clusters, curves, matrix)
    if tree is not None:
        measure = "distance" if data.is_smooth_tree else "cosine distance"
        figures["tree"] = report_tree.tree_figure(tree, measure)
    record = {
        "figures": {name: figure.to_plotly_json() for name, figure in figures.items()},
        "map": report_map.build_map(data, clusters, label_names),
        "tree": None if tree is None else tree.to_json(),
    }
    return pages.fill(
        "report.html",
        data=data,
        noun=data.noun,
        sections=_section_names(data, tree),
        overview=_overview(data, clusters),
        method_rows=report_tables.method_rows(data.results),
        other_metrics=report_tables.other_metrics(data.results),
        provenance=report_tables.provenance(data.results),
        curves=curves,
        bad_steps=_bad_steps(data.history),
        max_thumbnails=report_map.MAX_THUMBNAILS,
        cards=exemplars.cluster_cards(data, clusters, label_names),
        suggested=data.results.get("suggested_names") or {},
        n_clusters=len(clusters),
        median=np.median,
        sizes=[len(cluster.members) for cluster in clusters],
        max_bars=plots.MAX_BARS,
        matrix=matrix,
        figures=figures,
        tree=tree,
        duplicate_groups=[] if data.duplicates is None else duplicates.cards(data.duplicates),
        max_copies=duplicates.MAX_COPIES,
        nearness=duplicates.NEARNESS,
        chart=record["map"],
        record=pages.compressed(json.dumps(record, allow_nan=False, separators=(",", ":"))),
        script=pages.asset("report_map.js", "report_view.js", "report.js"),
        plotlyjs=_compressed_once(get_plotlyjs()),
    )  # fmt: skip


def _section_names(data: ReportData, tree: report_tree.ClusterTree | None) -> list[str]:
    """The sections of the page; each has a template and an anchor of that name."""
    optional = {
        "training": len(data.history) > 0,
        "bandwidth": data.curve is not None,
        "labels": data.true_labels is not None,
        "skipped": len(data.skipped) > 0,
        "tree": tree is not None,
        "duplicates": data.duplicates is not None,
    }
    # What people look at first, then what they ask about it.
    names = ["clusters", "map", "tree", "sizes", "duplicates", "skipped"]
    names += ["training", "bandwidth", "labels", "metrics"]
    return [name for name in names if optional.get(name, True)]


def _figures(
    data: ReportData,
    clusters: Sequence[Cluster],
    curves: Sequence[TrainingCurve],
    matrix: ConfusionMatrix | None,
) -> dict[str, go.Figure]:
    """All figures but the map, by the names under which the page refers to them."""
    figures = {
        f"training-{i}": plots.training_figure(curve, report_tables.entry_name(curve.name))
        for i, curve in enumerate(curves)
    }
    figures["sizes"] = plots.size_figure(clusters, data.noun)
    if data.curve is not None:
        figures["bandwidth"] = plots.bandwidth_figure(data.curve)
    if matrix is not None:
        figures["confusion"] = plots.confusion_figure(matrix, data.noun)
    return figures


def _overview(data: ReportData, clusters: Sequence[Cluster]) -> Overview:
    metrics = data.results["metrics"]
    discovery = metrics.get("discovery")
    method = summary.shown(metrics)
    found = metrics[method]
    scores = discovery["novel"] if discovery else found
    provenance = data.results["provenance"]
    origin = provenance.get("number_of_clusters", {}).get(method)
    # The verdict is about the clusters that are found without k.
    judged = found if method == "tree" and not discovery and origin != "given" else {}
    n_large, n_small = report_data.count_large_and_small(data.outliers, clusters)
    in_words = ""
    if discovery:
        in_words = summary.groups(*summary.tally(found), "cluster")
    return Overview(
        n_large=n_large,
        n_small=n_small,
        is_given=bool(discovery) or origin == "given",
        is_novel=bool(discovery),
        finder=_FINDERS.get(method, ""),
        found_clusters=in_words,
        is_clear=judged.get("verdict") == "clear",
        verdict=None if n_large == 1 else summary.verdict(judged, f"{data.noun}s"),
        accuracy=plots.finite(scores.get("acc")),
        n_true_labels=0 if data.true_labels is None else len(np.unique(data.true_labels)),
        n_outliers=0 if data.outliers is None else int(np.sum(data.outliers)),
        doubt=summary.doubt(discovery) if discovery else None,
        pretrained=provenance.get("pretrained"),
        is_frozen=not provenance.get("steps"),
        training_clusters=provenance.get("clusters_given_to_training"),
    )


def _bad_steps(history: Sequence[Mapping[str, Any]]) -> list[int]:
    """The logged steps at which the loss was not finite."""
    logged = [line for line in history if "loss" in line]
    return [line["step"] for line in logged if plots.finite(line["loss"]) is None]
