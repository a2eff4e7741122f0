"""The outputs of a run: table, results and page.

They are files for people; commands use them only to detect that they are out of date.
"""

import collections
import dataclasses
import os
import pathlib
import shlex
from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.clustering.base import NO_CLUSTER
from cluster_jax.core import buckets, devices, io
from cluster_jax.core.arrays import blocks
from cluster_jax.data import folder as image_files
from cluster_jax.report import assignments, pages, report
from cluster_jax.report.changes import N_SHOWN
from cluster_jax.report.report_data import Changes, Gone, ReportData
from cluster_jax.runs import changes, finish, start
from cluster_jax.runs import run as records
from cluster_jax.runs import store as stores
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.run import Run


def publish(run: Run, *, with_report: bool) -> Run:
    """Writes a new state of a run and its outputs, and returns the state, with a page also its map.

    If the process is killed, the newest complete state stays valid, and the next command rewrites
    outputs that do not match it.

    Args:
        run: the state; one of its number is replaced.
        with_report: True: write `report.html`; False: remove an existing one, and draw no map.
    """
    run, page = _rendered(run, with_report)  # Before the state is written: it takes time.
    if run.number in workdirs.states(run.workdir):  # By number and digest its outputs are of it.
        (run.workdir / workdirs.RESULTS).unlink(missing_ok=True)
    run.write()
    write_outputs(run, page)
    return run


def publish_next(before: Run, run: Run, *, with_report: bool) -> Run:
    """Returns the next state of a run with its number, after writing it and its outputs.

    Args:
        before: the newest written state, or an empty run.
        run: the next state, not yet numbered.
        with_report: see `publish`.
    """
    number = 1 + max(workdirs.states(run.workdir), default=0)
    if not before.number:
        return publish(dataclasses.replace(run, number=number), with_report=with_report)
    run = dataclasses.replace(run, number=number, made_by="update")
    counts = collections.Counter(changes.table(before, run)["change"])
    return publish(dataclasses.replace(run, changes=counts), with_report=with_report)


def write_outputs(run: Run, page: str | None) -> None:
    """Writes `config.json`, the tables, the results and the page of a state.

    Args:
        run: the newest state in its workdir, or the one that an undo makes the newest.
        page: the page as HTML; None: an existing `report.html` is removed.
    """
    workdir = run.workdir
    io.write_json(workdir / workdirs.CONFIG, run.config)
    changes.write_last(run)
    _write_table(run, workdir / workdirs.ASSIGNMENTS)
    if run.duplicates is not None:
        table = assignments.duplicates_csv(run.names, run.duplicates)
        io.write(workdir / workdirs.DUPLICATES, table)
    if page is not None:
        io.write(workdir / workdirs.REPORT, page.encode("utf-8", "backslashreplace"))
    elif workdirs.REPORT in buckets.names(workdir):
        (workdir / workdirs.REPORT).unlink()
    io.write_json(workdir / workdirs.RESULTS, results_of(run))


def results_of(run: Run) -> dict[str, Any]:
    """Returns the content of `results.json`."""
    results = {"number": run.number, "state": run.state, **run.results, "config": run.config}
    return results | {"names": {str(key): name for key, name in sorted(run.named.items())}}


def is_published(run: Run, *, with_report: bool) -> bool:
    """Returns whether the outputs are there and belong to this state, where it lies now.

    A killed process may have left others, and the run or its images may have moved: `results.json`,
    which is written last, says to which state they belong and where the images were, and the page
    where the run was.

    Args:
        run: the newest state.
        with_report: whether the page must be there.
    """
    wanted = {workdirs.ASSIGNMENTS} | ({workdirs.REPORT} if with_report else set())
    if not wanted <= buckets.names(run.workdir):
        return False
    try:
        results = io.read_json(run.workdir / workdirs.RESULTS)
        workdirs.read_values(run.workdir / workdirs.CONFIG)  # Commands recognize the run by it.
        written = results["number"], results["state"], results["config"]
        if written != (run.number, run.state, io.plain(run.config)):
            return False
        command = pages.as_html(correction_command(run.workdir)).encode("utf-8", "backslashreplace")
        return not with_report or command in (run.workdir / workdirs.REPORT).read_bytes()
    except (OSError, KeyError, TypeError, io.DamagedFile):
        return False


def ensured(run: Run, *, with_report: bool) -> Run:
    """Returns the newest state of a run after `repaired`, which the first process alone does.

    A run that cannot be written, such as one that is mounted elsewhere, is returned as it is.
    """
    if not devices.is_first() or is_published(run, with_report=with_report):
        return run
    if "://" not in str(run.workdir) and not os.access(run.workdir, os.W_OK):
        return run
    with workdirs.locked(run.workdir):  # Another process may have written a state since.
        return repaired(records.read(run.workdir), with_report=with_report)


def repaired(run: Run, *, with_report: bool) -> Run:
    """Writes the outputs of a run again unless `is_published`; returns the run.

    Args:
        run: the newest state.
        with_report: whether the page is written, too, for which the returned run has a map; if not,
            an existing page is removed. It has no effect if nothing is written.
    """
    if not is_published(run, with_report=with_report):
        run, page = _rendered(run, with_report)
        write_outputs(run, page)
    return run


def _rendered(run: Run, with_report: bool) -> tuple[Run, str | None]:
    """Returns a run with its map and its page; without a page the run as it is, and None."""
    if not with_report:
        return run, None
    run = finish.with_map(run)
    return run, render(run)


def _write_table(run: Run, path: epath.Path) -> None:
    """Writes the table of all rows, in parts, because the whole text may not fit into memory."""
    columns = _columns(run)
    with io.replacing(path) as file:
        for rows in blocks(len(run.columns), 64):
            text = assignments.to_csv({title: cells[rows] for title, cells in columns.items()})
            if rows.start:
                text = text.partition("\n")[2]  # Its titles are there.
            file.write(text.encode("utf-8", "surrogateescape"))


def _columns(run: Run) -> dict[str, assignments.Column]:
    """Returns the columns of `assignments.csv`, each with a cell for each of the n rows.

    "cluster" is the present cluster, or "class" in novel class discovery. "name" is the name of the
    present cluster, "found" the cluster without what a person has decided, "decided" is 1 if a
    person has decided the cluster of the row, and "since" is the update in which the row came.
    Columns of which the run knows nothing are left out. Cells of rows that are not described are
    empty, but for the probability.
    """
    columns: dict[str, assignments.Column] = {"cluster": run.labels}
    titles = run.titles(run.labels)
    if run.known_classes is not None:
        columns = {"class": np.where(run.labels < 0, "", titles)}
    names = run.cluster_names
    if run.named or run.updates:
        columns["name"] = np.array([names.get(str(title), "") for title in titles])
    if run.made_by != "first":
        columns["found"] = run.columns["found"]
        columns["decided"] = run.columns["decided"]
    columns |= {title: _spread(run, cells) for title, cells in _described_columns(run).items()}
    if run.probabilities is not None:
        columns["probability"] = run.probabilities
    if run.facts is not None and run.is_of_images:
        columns["taken"] = run.facts["taken"].astype(str)
        columns |= {title: run.facts[title] for title in ("width", "height", "bytes")}
    if run.updates:
        columns["since"] = run.columns["since"]
    assert run.key not in columns
    return {run.key: range(len(run.columns)) if run.names is None else run.names, **columns}


def _described_columns(run: Run) -> dict[str, assignments.Column]:
    """Returns the columns that only the m described rows have, `[m]` each."""
    columns: dict[str, assignments.Column | None] = {
        "distance": run.distances,
        "outlier": run.outliers,
    }
    if run.points is not None and run.points.shape[1] <= 3:
        axes = zip("xyz", run.points.T, strict=False)
        columns |= {f"map_{axis}": values for axis, values in axes}
    columns |= assignments.sure_columns(run.membership)
    columns["kmeans_cluster"] = run.kmeans_labels
    if run.known_classes is not None and run.kmeans_labels is not None:
        columns["kmeans_cluster"] = np.where(run.has_class, "", run.kmeans_labels)
    return {title: cells for title, cells in columns.items() if cells is not None}


def _spread(run: Run, cells: assignments.Column) -> assignments.Column:
    """Returns n cells from those of the m described rows; the cells of other rows are ""."""
    if run.shown is None:
        return cells
    result = [""] * len(run.columns)
    for row, text in zip(run.shown.tolist(), assignments.cells(cells), strict=True):
        result[row] = text
    return result


def render(run: Run) -> str:
    """Returns the page of a run as HTML; for the errors see `report_data`."""
    return report.render(report_data(run))


def report_data(run: Run) -> ReportData:
    """Returns the data that the page of a run shows; pictures are the thumbnails in its store.

    Args:
        run: the run; if it has no map, one is drawn.

    Raises:
        DamagedFile: a file of thumbnails is not what was written.
    """
    run = finish.with_map(run)
    rows = run.rows
    truth = run.truth if run.truth is not None and (run.truth >= 0).all() else None
    is_moved = run.columns["decided"] & (run.labels != run.columns["found"])
    pictures = run.pictures()
    places = pictures.places(run.columns["row"][rows])

    def fetch(points: NDArray) -> NDArray:
        return pictures.fetch(places[points])

    names = run.names
    if names is not None and run.shown is not None:
        names = tuple(names[row] for row in rows.tolist())
    elif run.shown is not None:
        names = tuple(f"row {row}" for row in rows.tolist())
    repeated = run.duplicates
    return ReportData(
        title=_title(run),
        results={**run.results, "config": run.config},
        points=np.asarray(run.points),
        cluster_labels=run.labels[rows],
        # It is unknown how typical a moved image is of its new cluster: it comes last.
        distances=np.where(is_moved[rows], np.inf, run.distances),
        outliers=run.outliers,
        membership=run.membership,
        true_labels=None if truth is None else truth[rows],
        label_names=run.label_names,
        sources=names,
        folder=_image_folder(run) if run.is_of_images else None,
        fetch_images=fetch if (places >= 0).any() else None,
        has_picture=places >= 0,
        skipped=run.skipped,
        linkage=run.linkage,
        duplicates=repeated if repeated is not None and repeated.n_groups else None,
        features=run.likeness,
        names=_names(run),
        settled=run.held,
        whole=run.whole,
        state=run.state,
        applied=tuple(f"{file.page} {file.browser}" for file in run.decisions if file.page),
        is_decided=run.columns["decided"][rows],
        facts=None if run.facts is None or not run.is_of_images else run.facts[rows],
        command=correction_command(run.workdir),
        changes=_changes(run, pictures) if run.updates else None,
        n_known=len(run.known_classes or ()),
        words=run.words,
    )


def _changes(run: Run, pictures: stores.Pictures) -> Changes:
    """Returns the last update of a run: what is new, and what a cluster has lost, if that is known.

    Args:
        run: the run, whose last update may be some states ago.
        pictures: the pictures of all rows that the run has or had.
    """
    is_new = run.columns["since"][run.rows] == run.updates
    left = np.full(len(run.columns), NO_CLUSTER)
    gone = list[Gone]()
    names: Mapping[str, str] = {}
    if (states := changes.last_update(run)) is not None:
        before, after = states
        now = changes.rows_now(before, after)
        moved = np.flatnonzero((now >= 0) & (before.labels != after.labels[now]))
        left[now[moved]] = before.labels[moved]
        gone = _gone(before, np.flatnonzero(now < 0), pictures)
        names = before.cluster_names
    place = left[run.rows]
    return Changes(run.updates, is_new, place, run.events, run.changes, tuple(gone), names)


def _gone(before: Run, rows: NDArray, pictures: stores.Pictures) -> list[Gone]:
    """Returns some of the rows int `[g]` of a run, at most `N_SHOWN` of a cluster."""
    gone = list[Gone]()
    counts = collections.Counter[int]()
    places = pictures.places(before.columns["row"][rows]).tolist()
    for row, place in zip(rows.tolist(), places, strict=True):
        cluster = int(before.columns["label"][row])
        counts[cluster] += 1
        if counts[cluster] <= N_SHOWN:
            name = str(row) if before.names is None else before.names[row]
            picture = None if place < 0 else pictures.fetch(np.array([place]))[0]
            gone.append(Gone(cluster, name, picture))
    return gone


def _names(run: Run) -> dict[str, str]:
    """Returns cluster -> the name that a person has given it; classes all have a name."""
    named = {str(cluster): name for cluster, name in run.named.items()}
    if run.known_classes is None:
        return named
    classes = np.unique(run.labels[run.labels >= 0])
    return {**dict(zip(map(str, classes), run.titles(classes).tolist(), strict=True)), **named}


def correction_command(workdir: epath.PathLike) -> str:
    """Returns the command that applies a file of corrections, run in the folder of the file."""
    path = str(workdir) if "://" in str(workdir) else os.path.abspath(workdir)
    return f"cluster-jax report {shlex.quote(path)} --corrections=corrections.json"


def _title(run: Run) -> str:
    """Returns the title of a run: the name of its folder or file of images or features.

    The name of the config follows if the run trains, and stands alone if there are no files.
    Features of later files do not change it.
    """
    if not run.is_of_images:
        return pathlib.Path(str(run.source["features"])).name or "features"
    called = run.images.get("config", "images")
    files = start.name_of_files(run.config)
    if files is None:
        return called
    return f"{files}, {called}" if run.is_trained else files


def _image_folder(run: Run) -> str | None:
    """Returns the URI of the local image folder, by which a page opens images, or None.

    It is None for images in a zip, which a page cannot open, and for those that are not in files.
    """
    data = run.config["data"]
    if data["name"] != "folder":
        return None
    root = image_files.root(data["dir"]).resolve()
    return None if root.is_file() else root.as_uri() + "/"
