"""The next state of a run: what is there now, its clusters, and its outputs.

An update compares the photos or rows that exist now with those of the run, by contents and names
(`photos.now`, `rows.now`), clusters all of them, where clusters keep their numbers
(`clustering.stable_ids`), and writes the next state.
"""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from etils import epath

from cluster_jax.clustering.placing import ByTree
from cluster_jax.core import checks, devices
from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted
from cluster_jax.data import folder as image_files
from cluster_jax.data.tables import Table
from cluster_jax.runs import changes, finish, page, photos
from cluster_jax.runs import rows as embeddings
from cluster_jax.runs import run as records
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.changes import Ended
from cluster_jax.runs.next_state import Now, Numbers
from cluster_jax.runs.run import Run


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
    with _opened(workdir) as before:
        now = photos.now(before, folders, gone, exclude, confirmed)
        ended = _updated(before, now, started, refit=refit, with_report=with_report)
        photos.kept_in(before.workdir, {}).remove()
        return ended


def update_rows(
    workdir: epath.PathLike,
    table: Table | None = None,
    *,
    add: bool = False,
    refit: bool = False,
    confirmed: bool = False,
    with_report: bool = True,
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

    Raises:
        InputError: the run or the rows cannot be used, or another process uses the workdir; no
            state was written.
    """
    started = time.perf_counter()
    with _opened(workdir) as before:
        now = _same_rows(before)
        if table is not None:
            now = embeddings.now(before, table, confirmed, add=add)
        return _updated(before, now, started, refit=refit, with_report=with_report)


@contextlib.contextmanager
def _opened(workdir: epath.PathLike) -> Iterator[Run]:
    """Locks the folder of a run that can be updated, and yields its newest state.

    Raises:
        InputError: there is no such run, it cannot be updated, or another process uses the folder.
    """
    with records.opened(checks.local(workdir)) as run:
        check(run)
        yield run


def check(run: Run) -> None:
    """Raises an `InputError` for a run that cannot be updated."""
    if not run.is_of_images and not isinstance(run.placer, ByTree):
        got = f"{run.method!r} in {run.workdir}: cluster all rows anew"
        raise InputError(f"method must be 'tree' for an update; got {got}")
    if not run.is_of_images and run.store is None:
        must = "the run of an update must have its rows in memory"
        how = "whose rows were read in blocks: use predict, or cluster all rows in another folder"
        raise InputError(f"{must}; got {run.workdir}, {how}")
    if not run.is_of_images:
        return
    name, limit, classes = (run.config["data"][key] for key in ("name", "limit", "classes"))
    if run.is_trained:
        problem = "whose network is one of its first images: train again, or use predict"
    elif name != "folder" or limit is not None or classes is not None:
        problem = f"with data.name={name}, data.limit={limit} and data.classes={classes}"
    elif run.method != "tree":
        problem = f"with eval.method={run.method}"
    else:
        return
    must = "the run of an update must be of all photos of a folder, in the clusters of the tree"
    raise InputError(f"{must}; got {run.workdir}, {problem}")


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
        return _unchanged(before, _ordered(now.after, now), with_report=with_report)
    numbers: Numbers = "refit" if refit else "kept"
    run = next_of_run(before, now, numbers, started, with_report=with_report)
    return changes.ended(before, run, refit=refit)


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
    with _opened(workdir) as before:
        asked: dict[str, Any] = {"n_clusters": n_clusters}
        if before.is_of_images:
            asked = {"eval": {**before.config["eval"], **asked}}
        after = dataclasses.replace(before, config={**before.config, **asked})
        run = cluster_again(before, after, started, with_report=with_report)
        return changes.ended(before, run, refit=True)


def cluster_again(before: Run, after: Run, started: float, *, with_report: bool) -> Run:
    """Returns the next state of a run of the same photos or rows, after writing it.

    No photo is read. Clusters of which most rows are the same keep their numbers and names.

    Args:
        before: the newest state of the run, whose folder is locked.
        after: the same state with what is asked for now.
        started: what `time.perf_counter` returned when the command began.
        with_report: whether the page is written; if not, an existing page is removed.
    """
    now = _same_rows(after)
    return next_of_run(before, now, "other", started, with_report=with_report)


def _same_rows(run: Run) -> Now:
    """Returns the photos or rows of a run as those that are there now."""
    return Now(run, np.arange(len(run.columns)))


def _ordered(run: Run, now: Now) -> Run:
    """Returns a state of the rows of now in the order of the tables."""
    return run if now.order is None else records.reordered(run, now.order)


def next_of_run(
    before: Run, now: Now, numbers: Numbers, started: float, *, with_report: bool
) -> Run:
    """Returns the next state of a run, after the first process has written it and its outputs.

    Args:
        before: the newest written state of the run, whose folder is locked, or an empty run.
        now: the rows of the next state.
        numbers: see `next_state.Numbers`.
        started: what `time.perf_counter` returned when the command began.
        with_report: whether the page is written; if not, an existing page is removed.
    """
    if before.is_of_images:
        after = now.after
        assert after.store is not None
        if now.pictures is None:
            now = now._replace(pictures=photos.of_run(after))
        made = finish.Made({"backbone": after.store[after.columns["row"]]})
        run = finish.next_of_images(before, now, numbers, made, started)
    else:
        run = embeddings.clustered(before, now, numbers, started)
        if not devices.is_first():
            return run
        run = embeddings.stored(before, run)  # Photos are in it since they were embedded.
    return page.publish_next(before, _ordered(run, now), with_report=with_report)


def _differs(before: Run, after: Run) -> bool:
    """Returns whether a photo or row is new, gone, renamed or changed, or has another label."""
    is_same = np.array_equal(after.columns["row"], before.columns["row"])
    is_same = is_same and changes.paths(after) == changes.paths(before)
    # Only a table can be edited: other labels are those of folders, or of the photos of then.
    if str(after.config["data"]["labels"]).lower().endswith(".csv"):
        is_same = is_same and changes.true_labels(after) == changes.true_labels(before)
    return not is_same


def _unchanged(before: Run, run: Run, *, with_report: bool) -> Ended:
    """Returns the message and values of an update without a change of photos or rows.

    Another list of folders, what is away or cannot be read, another order of rows, and facts about
    files into which something was written are stored in the state, whose number stays.
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
        has_page = (run.workdir / workdirs.REPORT).exists()
        page.publish(run, with_report=with_report or has_page)
    else:  # A kill may have come between the state and its outputs.
        page.repaired(run, with_report=with_report)
    has = f"{run.workdir} has {counted(len(run.columns), run.words[0])}"
    lines = [
        *changes.missing_folders(run),
        f"Nothing has happened: {has}, and none is new or gone.",
    ]
    now, then = (each.config.get("data", {}) for each in (run, before))
    if now.get("dir") != then.get("dir"):
        lines.append(f"They are in {image_files.shown(now['dir'])} from now on.")
    if globs := [glob for glob in now.get("exclude", ()) if glob not in then.get("exclude", ())]:
        lines.append(f"Files that match {', '.join(globs)} are left out from now on.")
    text = "\n".join(lines)
    return text, changes.values(dataclasses.replace(run, events=(), changes={}), refit=False)
