"""The table and the report of a finished run, written again with what a person has decided."""

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.clustering.membership import Membership
from cluster_jax.clustering.tree import linkage_of_means
from cluster_jax.core import arrays, buckets, io
from cluster_jax.core.checks import InputError
from cluster_jax.evaluation.clusters import Clustering
from cluster_jax.pipeline import embeddings, inference, outputs, snapshots
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.inference import TrainedRun
from cluster_jax.report import assignments, decisions, report
from cluster_jax.report.assignments import Table
from cluster_jax.report.decisions import Decisions
from cluster_jax.report.duplicates import Shown


class _Finished(NamedTuple):
    """What a workdir has of a finished run, or a folder of `cluster`.

    Attributes:
        table: its `assignments.csv`.
        results: content of `results.json`.
        run: of images or their features; None: a folder of `cluster`.
        rows: which rows of the table are in clusters.
        computed: the clusters before decisions.
        decided: what a person has decided so far.
    """

    table: Table
    results: dict[str, Any]
    run: TrainedRun | None
    rows: Sequence[int]
    computed: decisions.Clusters
    decided: Decisions


def _read(workdir: epath.Path) -> _Finished:
    table = assignments.read_workdir(workdir)
    results = workdirs.finished_results(workdir, ())
    if results is None:
        raise InputError(f"the run in {workdir} must be finished; got no results")
    run = inference.read(workdir) if (workdir / workdirs.CLUSTERS).exists() else None
    rows, computed = decisions.clustered(table)
    if run is None:
        decided = decisions.read_workdir(workdir, computed)
        return _Finished(table, results, run, rows, computed, decided)
    if list(run.computed.names) != list(computed.names):
        raise InputError(
            f"assignments.csv in {workdir} must have the images of the run in their order; got "
            "others: run the command of the run again"
        )
    return _Finished(table, results, run, rows, run.computed, run.decisions)


def current_results(
    workdir: epath.PathLike, true_labels: NDArray | None = None
) -> dict[str, Any] | None:
    """Returns a finished run's results as a person has corrected it: what its page shows.

    Args:
        workdir: of a run, or folder of `cluster`.
        true_labels: int `[n]`, of all its rows, for scores; None: of a run, those of its images if
            they are still there.

    Returns:
        `results.json` with the scores of the clusters as they are now, their names in
        "suggested_names" and the number of doubtful images; None if nothing was decided.

    Raises:
        InputError: the run is not finished, or `decisions.csv` does not fit it.
    """
    workdir = buckets.path(workdir)
    if decisions.DECISIONS not in buckets.names(workdir):
        return None
    _, results, run, rows, computed, decided = _read(workdir)
    if decided == Decisions():
        return None
    if true_labels is not None:
        true_labels = true_labels[rows]
    elif run is not None and results["provenance"].get("labels_used_for"):
        with contextlib.suppress(InputError):
            true_labels = inference.training_images(run).labels
        if true_labels is not None and run.clusters.unlabeled_rows is not None:
            true_labels = true_labels[run.clusters.unlabeled_rows]
    results = outputs.decided_results(results, true_labels, decided, computed)
    if run is None or run.known_classes is not None:
        return results
    here = set(map(str, run.clusters.cluster_labels.tolist()))
    names = {cluster: [name] for cluster, name in run.names.items() if cluster in here}
    doubtful = report.count_doubtful(run.clusters.membership)
    return {**results, "suggested_names": names, "doubtful_images": doubtful}


def correct(
    workdir: epath.PathLike,
    files: Sequence[epath.PathLike],
    shown: epath.PathLike | None = None,
    *,
    with_report: bool = True,
    repeated: Shown | None = None,
) -> tuple[str, dict[str, Any]]:
    """Applies files of corrections to a run, one after the other, and writes its outputs again.

    `decisions.csv` has all decisions, `assignments.csv` the clusters as they are now and as they
    were found, `report.html` the page. An interrupt leaves the old ones, or the same command
    completes the new ones.

    Args:
        workdir: of a run, or folder of `cluster`.
        files: as a report saves them; none: only the table and the page are written.
        shown: what the page calls the workdir.
        with_report: whether the page is written.
        repeated: duplicates among the images of the run; None: they are looked for.

    Returns:
        What was done, for the terminal, and the paths of what was written.

    Raises:
        InputError: the run is not finished, or a file does not fit it; nothing was written.
    """
    workdir = buckets.path(workdir)
    table, results, run, rows, computed, before = _read(workdir)
    after = before
    for file in files:
        after = decisions.join(after, decisions.read(file, computed, after))
    labels = after.labels(computed)
    if run is None:
        data = _table_report(workdir, table, results, rows, computed, after)
    else:
        data = outputs.stored_report(inference.with_decisions(run, after), table, repeated)
    names = {int(cluster): name for cluster, name in after.named.items()}
    new_table = decisions.decided_csv(
        table, rows, computed.labels, labels, after.is_decided(computed), names
    )
    if data is not None and shown is not None:
        title = data.title if run is not None else buckets.path(shown).name
        data = data._replace(title=title, command=outputs.correction_command(shown))
    # What takes time comes first; then the facts, from which the same command makes the rest.
    page = None
    if data is not None and with_report:
        page = report.render(data).encode("utf-8", "backslashreplace")
    if after != Decisions():
        io.write(workdir / decisions.DECISIONS, decisions.to_csv(after, computed))
    if after != Decisions() or decisions.FOUND in table.columns:  # All may have been taken back.
        io.write(workdir / workdirs.ASSIGNMENTS, new_table)
    if data is not None and data.duplicates is not None and (after.kept or before.kept):
        shown_ = data.duplicates
        table_ = assignments.duplicates_csv(shown_.sources, shown_.duplicates)
        io.write(workdir / workdirs.DUPLICATES, table_)
    if page is not None:
        io.write(workdir / workdirs.REPORT, page)
    values = {"workdir": str(workdir), "assignments": str(workdir / workdirs.ASSIGNMENTS)}
    if page is not None:
        values["report"] = str(workdir / workdirs.REPORT)
    nothing = " (nothing new)" if files and after == before else ""
    group = "cluster" if data is None else data.group
    text = (
        f"corrections  {after.summary(group)}{nothing}\n"
        f"assignments  {values['assignments']}\n"
        f"report       {values.get('report', 'none, because the run has no map')}"
    )
    return text, values


def _table_report(
    workdir: epath.Path,
    table: Table,
    results: dict[str, Any],
    rows: Sequence[int],
    computed: decisions.Clusters,
    decided: Decisions,
) -> report.ReportData | None:
    """Builds the data of the report of a table of `cluster`; None without a map."""
    columns = [assignments.numbers(table, f"map_{axis}", rows, 0.0) for axis in "xyz"]
    axes = [column for column in columns if column is not None]
    if not axes:
        return None
    points, labels = np.stack(axes, axis=1), decided.labels(computed)
    run = embeddings.read(workdir)
    features = points if run.clusterer is None else run.rows_of_likeness
    _, codes = np.unique(labels, return_inverse=True)
    means = arrays.cluster_means(features, codes)
    distances, membership = computed.distances, None
    results = outputs.decided_results(results, None, decided, computed)
    if decided.is_of_members:
        distances = arrays.distances_to_centers(features, means, codes)
    is_in = labels != decisions.NO_CLUSTER
    sure = assignments.numbers(table, "probability", rows, 1.0)
    second = assignments.numbers(table, "runner_up_probability", rows, 0.0)
    others = assignments.numbers(table, "runner_up", rows, decisions.NO_CLUSTER)
    if sure is not None and second is not None and others is not None:
        membership = Membership(computed.labels, sure, others.astype(np.int64), second)
        membership = decisions.decided_membership(decided, computed, membership)
    outliers = assignments.numbers(table, "outlier", rows, 0.0)
    return report.ReportData(
        title=workdir.name,
        results=results,
        clustering=Clustering(
            metrics={},
            points=points,
            centers=means,
            cluster_labels=labels,
            distances=distances,
            outliers=np.zeros(len(rows), bool) if outliers is None else outliers > 0,
            membership=membership,
        ),
        sources=tuple(computed.names),
        linkage=linkage_of_means(features[is_in], labels[is_in]),
        features=features,
        changes=snapshots.changes(workdir, computed.names),
        **outputs.decided_fields(decided, computed, workdir),
    )
