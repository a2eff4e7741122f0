"""The next state of a finished run: what is there now, its clusters, and its outputs.

An update compares the photos or rows that exist now with those of the run, by contents and names
(`photos.now`, `rows.now`), clusters all of them, where clusters keep their numbers
(`clustering.stable_ids`), and writes the next state.
"""

import dataclasses
import time
from collections.abc import Sequence

import numpy as np
from etils import epath

from cluster_jax.core import checks
from cluster_jax.core.names import counted
from cluster_jax.data import folder as image_files
from cluster_jax.data.tables import Table
from cluster_jax.runs import changes, claims, finish, page, photos, sources
from cluster_jax.runs import rows as embeddings
from cluster_jax.runs import run as records
from cluster_jax.runs import store as stores
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.changes import Ended
from cluster_jax.runs.match import Now
from cluster_jax.runs.next_state import Numbers, Step
from cluster_jax.runs.run import Run
from cluster_jax.training.config import AnyConfig, parse_config


def update_photos(
    workdir: epath.PathLike,
    folders: Sequence[str] = (),
    *,
    gone: Sequence[str] = (),
    exclude: Sequence[str] = (),
    refit: bool = False,
    confirmed: bool = False,
    with_report: bool = True,
) -> Ended:
    """Updates a run to the photos that exist now; returns the message and values for `--json`.

    Photos of a folder that is away or empty, and files that cannot be read or decoded now, stay as
    they were, unless they are found elsewhere. A moved or renamed file is the same photo; another
    picture under an old name is another photo. If there is no change, no state is added.

    Args:
        workdir: folder of a finished run that trains nothing, with the clusters of the tree.
        folders: folders or files beside those of the run.
        gone: folders of the run that are gone for good, whose photos leave.
        exclude: globs of names or paths that are left out from now on, also of photos of the run.
        refit: whether all images are clustered anew, and matched to the old clusters.
        confirmed: whether more than half of the photos may leave.
        with_report: whether the page is written; if not, and the run changes, an existing page is
            removed.

    Raises:
        InputError: the run or the photos cannot be used, or another process uses the workdir; no
            state was written.
    """
    started = time.perf_counter()
    with records.opened(checks.local(workdir)) as before:
        now = photos.now(before, folders, gone, exclude, confirmed)
        return _updated(before, now, started, refit=refit, with_report=with_report)


def update_rows(
    workdir: epath.PathLike,
    table: Table | None = None,
    *,
    add: bool = False,
    refit: bool = False,
    confirmed: bool = False,
    with_report: bool = True,
    file: str | None = None,
) -> Ended:
    """Updates a run to the rows that exist now; returns the message and values for `--json`.

    A row is known by its id; numbered rows are known by their vectors. Rows of the run that the
    table lacks leave. A row whose vector has changed stays in its cluster, if the clusters do not
    part it from that, and as a person has decided. The tables are in the order of `table`. Scores
    by labels are of the rows whose label is known. If there is no change, no state is added.

    Args:
        workdir: folder of a finished run of embeddings in memory, with the clusters of the tree.
        table: the rows; None: those of the run.
        add: whether the rows of the run that the table lacks stay.
        refit: whether all rows are clustered anew, and matched to the old clusters.
        confirmed: whether more than half of the rows may leave or change.
        with_report: whether the page is written; if not, and the run changes, an existing page is
            removed.
        file: path of the table, after which the page is named; None: it keeps its name.

    Raises:
        InputError: the run or the rows cannot be used, or another process uses the workdir; no
            state was written.
    """
    started = time.perf_counter()
    with records.opened(checks.local(workdir)) as before:
        embeddings.options_of(before)
        now = _same_rows(before)
        if table is not None:
            now = embeddings.now(before, table, confirmed, add=add, file=file)
        return _updated(before, now, started, refit=refit, with_report=with_report)


def _updated(before: Run, now: Now, started: float, *, refit: bool, with_report: bool) -> Ended:
    """Updates a run to what is there now; returns the message and values for `--json`.

    Args:
        before: the newest state of the run, whose folder is locked.
        now: the rows of the next state.
        started: what `time.perf_counter` returned when the command began.
        refit: see `update_photos`.
        with_report: whether the page is written.
    """
    if not (refit or _differs(before, now.after)):
        after = dataclasses.replace(_ordered(now.after, now), source=before.source)
        return _unchanged(before, after, with_report=with_report)
    numbers: Numbers = "refit" if refit else "kept"
    run = _next(before, now, numbers, started, with_report=with_report)
    return changes.words(before, run, refit=refit), changes.values(run, refit=refit)


def with_number(workdir: epath.PathLike, n_clusters: int, *, with_report: bool = True) -> Ended:
    """Clusters a run into another number of clusters; returns the message and values for `--json`.

    The photos or rows are those of the run. Clusters of which most are the same keep their numbers
    and names, and what a person has decided about rows of these holds.

    Args:
        workdir: folder of a finished run that can be updated.
        n_clusters: number of clusters.
        with_report: whether the page is written; if not, an existing page is removed.

    Raises:
        InputError: the run cannot be updated, has fewer different rows, or another process uses
            the workdir; no state was written.
    """
    started = time.perf_counter()
    checks.whole("--n-clusters", n_clusters, 1)
    with records.opened(checks.local(workdir)) as before:
        if before.is_of_images:
            photos.config_of(before)
            section = {**before.config["eval"], "n_clusters": n_clusters}
            asked = {"eval": parse_config({**before.config, "eval": section}).values["eval"]}
        else:
            embeddings.options_of(before)
            asked = {"n_clusters": n_clusters}
        after = dataclasses.replace(before, config={**before.config, **asked})
        run = cluster_again(before, after, started, with_report=with_report)
        return changes.words(before, run, refit=True), changes.values(run, refit=True)


def asked_again(before: Run, config: AnyConfig) -> Run:
    """Returns a run of photos with another section `eval`, by which it is not clustered yet.

    Args:
        before: the newest state of the run.
        config: the config; all but the section `eval` and the labels is that of the run, of which
            labels stay if it names none.

    Raises:
        InputError: other labels are named, and their file cannot be used.
    """
    data = dict(before.config["data"])
    data["labels"] = config.data.labels or data["labels"]
    values = {**before.config, "data": data}
    values |= {key: config.values[key] for key in claims.AFTER_TRAINING}
    after = dataclasses.replace(before, config=values)
    if data["labels"] is None or before.names is None:
        return after
    if data["labels"] != before.config["data"]["labels"]:  # Other labels replace all of them.
        after = dataclasses.replace(after, truth=None, label_names=None)
    return sources.with_truth(after)


def cluster_again(before: Run, after: Run, started: float, *, with_report: bool) -> Run:
    """Returns the next state of a run of the same photos or rows, after writing it.

    No photo is read. Clusters of which most rows are the same keep their numbers and names.

    Args:
        before: the newest state of the run, whose folder is locked.
        after: the same state with what is asked for now.
        started: what `time.perf_counter` returned when the command began.
        with_report: whether the page is written; if not, an existing page is removed.
    """
    return _next(before, _same_rows(after), "other", started, with_report=with_report)


def _same_rows(run: Run) -> Now:
    """Returns the photos or rows of a run as those that are there now."""
    assert run.store is not None
    return Now(run, np.arange(len(run.columns)), run.store[:0])


def _ordered(run: Run, now: Now) -> Run:
    """Returns a state of the rows of now in the order of the tables."""
    return run if now.order is None else records.reordered(run, now.order)


def _next(before: Run, now: Now, numbers: Numbers, started: float, *, with_report: bool) -> Run:
    """Returns the next state of a run, after writing it and its outputs.

    Args:
        before: the newest written state of the run, whose folder is locked.
        now: the rows of the next state.
        numbers: see `next_state.Step`.
        started: what `time.perf_counter` returned when the command began.
        with_report: whether the page is written; if not, an existing page is removed.
    """
    if before.is_of_images:
        run = _next_photos(before, now, numbers, started)
    else:
        step = Step(numbers, changed=now.changed)
        run = embeddings.clustered(before, now.after, now.old, now.after.all_features, step)
    if len(now.made):
        stores.append(run.workdir, now.made)
    return page.publish_next(before, _ordered(run, now), with_report=with_report)


def _next_photos(before: Run, now: Now, numbers: Numbers, started: float) -> Run:
    """Returns the next state of a run of photos with its results, see `_next`.

    Photos are read only to compare the whole pictures of those that are nearly the same.
    """
    began = time.perf_counter()
    after = now.after
    after = finish.with_duplicates(before, after, photos.of_run(after))
    run, clustering = finish.clustered(before, after, now.old, numbers)
    assert run.store is not None
    embedding = {"backbone": run.store[run.columns["row"]]}
    run = finish.complete(run, clustering, embedding)
    return finish.with_seconds(run, began - started, time.perf_counter() - began)


def _differs(before: Run, after: Run) -> bool:
    """Returns whether a photo or row is new, gone, renamed or changed."""
    is_same = np.array_equal(after.columns["row"], before.columns["row"])
    return changes.paths(after) != changes.paths(before) or not is_same


def _unchanged(before: Run, run: Run, *, with_report: bool) -> Ended:
    """Returns the message and values of an update without a change of photos or rows.

    A new place of the photos, what is away or cannot be read, another order of rows, and facts
    about files into which something was written are stored in the state, whose number stays.
    Outputs that a killed process has left behind are written again.

    Args:
        before: the newest written state.
        run: the same state, perhaps with another `config`, `facts`, `away`, `skipped` and order.
        with_report: whether the page is among the outputs that are written again.
    """
    assert run.facts is not None
    assert before.facts is not None
    of_now, of_then = ((each.config, each.away, each.skipped) for each in (run, before))
    is_of_now = of_now == of_then
    is_of_now &= np.array_equal(run.facts, before.facts)
    is_of_now &= run.names == before.names
    if not is_of_now:
        page.publish(run, with_report=(run.workdir / workdirs.REPORT).exists())
    else:  # A kill may have come between the state and its outputs.
        page.repaired(run, with_report=with_report)
    has = f"{run.workdir} has all {counted(len(run.columns), run.words[0])} already"
    lines = [*changes.missing_folders(run), f"Nothing has happened: {has}, and none is gone."]
    now, then = (each.config.get("data", {}) for each in (run, before))
    if now.get("dir") != then.get("dir"):
        lines.append(f"They are in {image_files.shown(now['dir'])} from now on.")
    if globs := [glob for glob in now.get("exclude", ()) if glob not in then.get("exclude", ())]:
        lines.append(f"Files that match {', '.join(globs)} are left out from now on.")
    text = "\n".join(lines)
    return text, changes.values(dataclasses.replace(run, events=(), changes={}), refit=False)
