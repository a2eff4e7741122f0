"""What a person has corrected or named in a report: checked, and applied to a table."""

import collections
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
from cluster_jax.evaluation.clusters import Clustering
from cluster_jax.evaluation.report_data import ReportData

# Label of images that are in a wrong cluster and in no other, as that of scikit-learn's noise.
NO_CLUSTER = -1
_NOUNS = ("image", "row")  # titles of names
# Columns that describe an image within the cluster that it has left.
_OF_CLUSTER = ("distance", "outlier", "probability", "runner_up", "runner_up_probability")


class Corrected(NamedTuple):
    """A corrected table, of which n rows are in clusters.

    Attributes:
        csv: the whole table, with the column `corrected`, and with `cluster_name` if one is named.
        rows: int64 `[n]`, which of its rows are in clusters: those of unlabeled images, all without
            novel class discovery.
        labels: int64 `[n]`, their clusters.
        outliers: bool `[n]`, those of the run whose cluster was not corrected.
        names: cluster -> its name, of those that were named.
        summary: how many were corrected, in words.
    """

    csv: str
    rows: NDArray
    labels: NDArray
    outliers: NDArray
    names: dict[str, str]
    summary: str


def apply(table: Table, files: Sequence[epath.PathLike]) -> Corrected:
    """Applies files of corrections to a table, one after the other.

    Args:
        table: content of `assignments.csv`; it is left as it is.
        files: as the report saves them: image, cluster, "move" or "wrong", and the new cluster; or
            no image, a cluster, "name", and its name.

    Raises:
        InputError: a file or one of its rows does not fit the table; says which and why.
    """
    rows = [i for i, row in enumerate(table.rows) if row["cluster"]]
    names = [table.rows[i][table.name] for i in rows]
    if all(row[table.name] == str(i) for i, row in enumerate(table.rows)):
        names = list(map(str, range(len(rows))))  # Without names, the report numbers what it shows.
    novel = splits.novel_name(0).removesuffix("0") if table.cluster == "class" else ""
    places = {name: place for place, name in enumerate(names)}
    counts = collections.Counter(names)
    before = [table.rows[i][table.cluster].removeprefix(novel) for i in rows]
    after, clusters_of_run, named = list(before), set(before), dict[str, str]()
    for file in files:
        path = epath.Path(file).expanduser()
        if not path.exists() or path.is_dir():
            found = "a folder" if path.exists() else "no such file"
            raise InputError(f"{file} must be a file that a report has saved; got {found}")
        titles, corrections = assignments.read(path)
        if tuple(titles) not in [(noun, "cluster", "correction", "to") for noun in _NOUNS]:
            columns = "the columns image, cluster, correction, to, as a report saves them"
            raise InputError(f"{file} must have {columns}; got {', '.join(titles) or 'none'}")
        for line, correction in enumerate(corrections, 2):
            name, cluster, kind, to = (correction[title] for title in titles)
            must = f"line {line} of {file} must"
            if kind == "name":
                if name or cluster not in clusters_of_run or not to:
                    found = f"{name!r}, {cluster!r} and {to!r}"
                    raise InputError(
                        f"{must} give no {table.name}, a cluster, and a name; got {found}"
                    )
                named[cluster] = assignments.unescaped(to)
                continue
            if counts[name] != 1:
                found = f"{name!r}" + (", which several have" if counts[name] else "")
                raise InputError(f"{must} name one image or row of the run; got {found}")
            if cluster != (current := after[places[name]]):
                raise InputError(
                    f"{must} name the cluster that {name!r} is in, {current}; got {cluster!r}: it "
                    "was saved by the report of another run"
                )
            if (kind, to) != ("wrong", "") and (kind != "move" or to not in clusters_of_run):
                wanted = "say 'wrong', 'name', or 'move' and a cluster of the run"
                raise InputError(f"{must} {wanted}; got {kind!r} and {to!r}")
            after[places[name]] = to or str(NO_CLUSTER)
    changed = {i: to for i, old, to in zip(rows, before, after, strict=True) if to != old}
    corrected = [dict(row) for row in table.rows]
    for i, cluster in changed.items():
        corrected[i] |= {title: "" for title in _OF_CLUSTER if title in corrected[i]}
        corrected[i][table.cluster] = cluster if cluster == str(NO_CLUSTER) else novel + cluster
    cells: dict[str, assignments.Column] = {
        title: [assignments.unescaped(row[title]) for row in corrected] for title in table.titles
    }
    cells["corrected"] = np.isin(np.arange(len(corrected)), list(changed))
    if named:
        names_of_rows = dict(zip(rows, (named.get(cluster, "") for cluster in after), strict=True))
        cells["cluster_name"] = [names_of_rows.get(i, "") for i in range(len(corrected))]
    csv = assignments.to_csv(cells)
    n_lost = list(changed.values()).count(str(NO_CLUSTER))
    text = f"{len(changed) - n_lost:,} moved, {n_lost:,} in no cluster ({NO_CLUSTER})"
    text += f", {len(named):,} named" if named else ""
    outliers = np.array([corrected[i].get("outlier") == "1" for i in rows])
    return Corrected(csv, np.array(rows), np.array(after, np.int64), outliers, named, text)


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
    metrics, provenance = dict(results["metrics"]), dict(results["provenance"])
    # Rows in no cluster are no cluster of their own, and none of them is in the right one.
    is_in, true_labels = corrected.labels != NO_CLUSTER, known.get("true_labels")
    true_labels = None if true_labels is None or not is_in.any() else true_labels[is_in]
    scores = clusters.scores(true_labels, corrected.labels[is_in])
    if true_labels is not None:
        scores["acc"] *= float(is_in.mean())
    if metrics.get("discovery"):
        metrics["discovery"] = {**metrics["discovery"], "novel": scores}
    else:
        method = summary.shown(metrics)
        metrics[method] = scores
        origins = provenance.get("number_of_clusters", {})
        provenance["number_of_clusters"] = {**origins, method: "corrected"}
    features = known.get("features", points)
    means = arrays.cluster_means(features, codes)
    distances = arrays.distances_to_centers(features, means, codes)
    labels, outliers = corrected.labels, corrected.outliers
    clustering = Clustering(scores, points, means, labels, distances, outliers)
    if "isolation" in table.titles:
        isolation = np.array([float(row["isolation"]) for row in rows])
        clustering = clustering._replace(isolation=isolation)
    return ReportData(
        title=f"{title}, corrected: {corrected.summary}",
        results={**results, "metrics": metrics, "provenance": provenance},
        clustering=clustering,
        names=corrected.names,
        **{"sources": tuple(assignments.unescaped(row[table.name]) for row in rows), **known},
    )
