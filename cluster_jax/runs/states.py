"""States of a finished run that a person makes: corrected ones, and the one before."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from cluster_jax.core import checks
from cluster_jax.core.checks import InputError, short
from cluster_jax.runs import carry, corrections, measured, page
from cluster_jax.runs import run as records
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.changes import Ended
from cluster_jax.runs.run import Run

_CLUSTERS = ["label", "decided"]  # the columns that say in which clusters rows are


def undo(workdir: epath.PathLike, *, with_report: bool = True) -> Ended:
    """Removes the newest state of a run; returns the message and values for `--json`.

    The state before, with its clusters, names and corrections, is the newest one then, and the
    outputs are written again.

    Args:
        workdir: local folder of a finished run.
        with_report: whether the page is written; if not, an existing page is removed.

    Returns:
        The message, and "workdir" and "undone": "update", "corrections", "clustering" or "damaged
        state".

    Raises:
        InputError: the run is not finished or has no earlier state, this cannot be read, or another
            process uses the workdir; nothing was changed.
    """
    workdir = workdirs.of_run(checks.local(workdir))
    with workdirs.locked(workdir):
        numbers = workdirs.states_of_run(workdir)
        if len(numbers) < 2 or numbers[-2] != numbers[-1] - 1:
            raise InputError(
                f"{workdir} must have an update or corrections to take back; got none (the last "
                f"{records.KEPT} states are kept)"
            )
        before = records.read(workdir, numbers[-2])
        what, order = "damaged state", ""
        with contextlib.suppress(InputError):
            run = records.read(workdir)
            what = {"first": "clustering"}.get(run.made_by, run.made_by)
            if before.names is None and not run.is_of_images and _has_other_order(before, run):
                order = " Its rows are in the order of the file that was read before."
        text = page.render(before) if with_report else None
        # It says of which state the outputs are: after a kill they are of two.
        (workdir / workdirs.RESULTS).unlink(missing_ok=True)
        if what != "corrections":  # The table of the update before may be unknown.
            (workdir / workdirs.CHANGES).unlink(missing_ok=True)
        page.write_outputs(before, text)
        # Last, so that after a kill the same command does not go back twice.
        (workdir / f"run-{numbers[-1]}.npz").unlink()
    said = f"update {before.updates + 1}" if what == "update" else f"the last {what}"
    said = f"Took {said} of {workdir} back: its clusters are as they were before.{order}"
    return said, {"workdir": str(workdir), "undone": what}


def _has_other_order(before: Run, run: Run) -> bool:
    """Returns whether the rows that two states have in common are in another order in them."""
    both = np.intersect1d(before.columns["id"], run.columns["id"])
    then, now = (ids[np.isin(ids, both)] for ids in (before.columns["id"], run.columns["id"]))
    return not np.array_equal(then, now)


def correct(
    workdir: epath.PathLike,
    files: Sequence[epath.PathLike] = (),
    names: Mapping[str, str] | None = None,
    *,
    with_report: bool = True,
) -> Ended:
    """Applies files of corrections and names; returns the message and values for `--json`.

    Without files and names, only the outputs are written again. Files of one page are all applied,
    also those of the page of an older state, see `carry.carried`.

    Args:
        workdir: folder of a finished run.
        files: files of corrections as a page saves them, in the order in which they are applied.
        names: number of a cluster, as text -> its new name; None: no names. They come last.
        with_report: whether the page is written; if not, an existing page is removed.

    Returns:
        The message, and the paths "workdir", "assignments" and, if it was written, "report".

    Raises:
        InputError: the run is not finished, a file does not fit it, a name is invalid, or another
            process uses the workdir; nothing was written.
        OSError: a file of corrections cannot be read.
    """
    decisions = [(file, corrections.read(file)) for file in files]
    # Of two files of one browser the later one counts, in whatever order they are given.
    decisions.sort(key=lambda decision: decision[1].get("saved", 0))
    with records.opened(workdir) as before:
        run = before
        for file, said in decisions:
            carry.check_is_last(run, said, file)
            run = _apply(run, said)
        if names:
            there = set(np.unique(run.labels).tolist())
            with checks.named({"names must name clusters": f"--name must name {run.words[1]}s"}):
                run = carry.corrected(run, {"names": names})
            if empty := [key for key in names if int(key) not in there]:
                must = f"--name must name a {run.words[1]} that has {run.words[0]}s"
                raise InputError(f"{must}; got {empty[0]}, which has none now")
        run = _after_corrections(before, run, any("browser" in said for _, said in decisions))
        run = page.publish(run, with_report=with_report)
    workdir = run.workdir
    values = {"workdir": str(workdir), "assignments": str(workdir / workdirs.ASSIGNMENTS)}
    lines = [f"corrections  {corrections.summary(before, run)}"]
    lines.append(f"assignments  {values['assignments']}")
    if with_report:
        values["report"] = str(workdir / workdirs.REPORT)
        lines.append(f"report       {values['report']}")
    return "\n".join(lines), values


def _after_corrections(before: Run, run: Run, has_browser: bool) -> Run:
    """Returns the state after corrections: a new one, or the one before if they change nothing.

    Args:
        before: the newest written state.
        run: that state with the decisions applied.
        has_browser: whether one of the files names its browser.
    """
    is_other = (run.columns != before.columns).any() or (run.departed != before.departed).any()
    is_other |= run.shaped != before.shaped
    if run.state != before.state or is_other:
        if (run.columns[_CLUSTERS] != before.columns[_CLUSTERS]).any():
            run = measured.described(run)
        # A name alone changes nothing that is measured: of rows that an update has brought into
        # another order, not even the sample of the silhouette.
        if is_other:
            run = measured.measured(run)
        return dataclasses.replace(run, number=before.number + 1, made_by="corrections")
    # What two people have said holds as long as one of them says it.
    return run if has_browser else before


def _apply(run: Run, said: dict[str, Any]) -> Run:
    """Returns a run with the decisions of a file applied.

    Args:
        run: the newest state, perhaps with the decisions of earlier files, not yet written.
        said: the content of the file, which is about one of the last written states.

    Raises:
        InputError: a correction is invalid, see `carry.carried`, or is about another state.
    """
    for number in reversed(workdirs.states(run.workdir)):
        shown = records.read(run.workdir, number, run)
        if shown.state == said["state"]:
            return carry.carried(shown, run, said)
    raise InputError(
        f"the corrections must be of one of the last states of {run.workdir}; got those of another "
        f"run, or of a state that is gone ({short(said['state'])}): open its page anew"
    )
