"""Corrections of clusters that a person has made in a report: checked, and applied to a table."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.core import arrays
from cluster_jax.core.checks import InputError
from cluster_jax.data import splits
from cluster_jax.evaluation import assignments, clusters, summary
from cluster_jax.evaluation.assignments import Table
from cluster_jax.evaluation.report_data import ReportData

# Label of images that are in a wrong cluster and in no other, as that of scikit-learn's noise.
NO_CLUSTER = -1
# Columns that describe an image within the cluster that it has left.
_OF_CLUSTER = ("distance", "outlier", "probability", "runner_up", "runner_up_probability")


class Corrected(NamedTuple):
    """A corrected table, of which n rows are in clusters.

    Attributes:
        csv: the whole table, with the column `corrected`.
        rows: int64 `[n]`, which of its rows are in clusters: those of unlabeled images, all without
            novel class discovery.
        labels: int64 `[n]`, their clusters.
        summary: how many were corrected, in words.
    """

    csv: str
    rows: NDArray
    labels: NDArray
    summary: str


def apply(table: Table, files: Sequence[epath.PathLike]) -> Corrected:
    """Applies files of corrections to a table, one after the other.

    Args:
        table: content of `assignments.csv`; it is left as it is.
        files: as the report saves them: name, cluster, "move" or "wrong", and the new cluster.

    Raises:
        InputError: a file or one of its rows does not fit the table; says which and why.
    """
    is_named = [row[table.name] for row in table.rows] != list(map(str, range(len(table.rows))))
    rows = [i for i, row in enumerate(table.rows) if row["cluster"]]
    of_name = {table.rows[row][table.name] if is_named else str(i): i for i, row in enumerate(rows)}
    novel = splits.novel_name(0).removesuffix("0") if table.cluster == "class" else ""
    before = [table.rows[i][table.cluster].removeprefix(novel) for i in rows]
    after = list(before)
    for file in files:
        path = epath.Path(file).expanduser()
        if not path.exists():
            raise InputError(f"{file} must be a file that a report has saved; got no such file")
        titles, corrections = assignments.read(path)
        if list(titles[1:]) != ["cluster", "correction", "to"] or titles[0] not in ("image", "row"):
            raise InputError(
                f"{file} must have the columns image, cluster, correction, to, as a report saves "
                f"them; got {', '.join(titles) or 'none'}"
            )
        for line, row in enumerate(corrections, 2):
            name, cluster, kind, to = (row[title] for title in titles)
            where = f"line {line} of {file}"
            if name not in of_name:
                raise InputError(f"{where} must name an image or row of the run; got {name!r}")
            i = of_name[name]
            if cluster != after[i]:
                raise InputError(
                    f"{where} must name the cluster that {name!r} is in, {after[i]}; got "
                    f"{cluster!r}: it was saved by the report of another run"
                )
            if (kind, to) != ("wrong", "") and (kind != "move" or to not in before):
                raise InputError(
                    f"{where} must say 'wrong', or 'move' and a cluster of the run; got {kind!r} "
                    f"and {to!r}"
                )
            after[i] = to or str(NO_CLUSTER)
    changed = {row: b for row, a, b in zip(rows, before, after, strict=True) if a != b}
    corrected = []
    for i, row in enumerate(table.rows):
        if i in changed:
            row = {**row, **{title: "" for title in _OF_CLUSTER if title in row}}
            is_lost = changed[i] == str(NO_CLUSTER)
            row[table.cluster] = changed[i] if is_lost else novel + changed[i]
        corrected.append(row)
    n_lost = sum(cluster == str(NO_CLUSTER) for cluster in changed.values())
    columns: dict[str, assignments.Column] = {
        title: [assignments.unescaped(row[title]) for row in corrected] for title in table.titles
    }
    return Corrected(
        assignments.to_csv(
            {**columns, "corrected": np.isin(np.arange(len(corrected)), [*changed])}
        ),
        np.array(rows),
        np.array(after, np.int64),
        f"{len(changed) - n_lost:,} moved, {n_lost:,} in no cluster ({NO_CLUSTER})",
    )


def report_data(
    table: Table, corrected: Corrected, results: Mapping[str, Any], title: str, **known: Any
) -> ReportData | None:
    """Data of the report of corrected clusters; None for a table without a map.

    Args:
        table: content of `assignments.csv`, before it was corrected.
        corrected: see `apply`.
        results: content of `results.json`, of which the scores of the clusters are made anew.
        title: name of the run.
        **known: what else is known of the images that are in clusters, see `ReportData`.
    """
    axes = [name for name in ("map_x", "map_y", "map_z") if name in table.titles]
    if not axes:
        return None
    rows = [table.rows[i] for i in corrected.rows]
    points = np.array([[float(row[axis]) for axis in axes] for row in rows])
    _, codes = np.unique(corrected.labels, return_inverse=True)
    metrics = dict(results["metrics"])
    scores = clusters.scores(known.get("true_labels"), codes)
    if metrics.get("discovery"):
        metrics["discovery"] = {**metrics["discovery"], "novel": scores}
    else:
        metrics[summary.shown(metrics)] = scores
    features = known.get("features", points)
    data = ReportData(
        title=f"{title}, corrected: {corrected.summary}",
        results={**results, "metrics": metrics},
        points=points,
        cluster_labels=corrected.labels,
        distances=arrays.distances_to_cluster_means(features, codes, features, codes),
        outliers=None,
        true_labels=None,
        label_names=None,
        sources=tuple(assignments.unescaped(row[table.name]) for row in rows),
    )
    return data._replace(**known)
