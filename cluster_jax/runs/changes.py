"""What an update has changed: the table `changes.csv`, and the words and values of the command."""

import os
import shlex
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering import stable_ids
from cluster_jax.core import io
from cluster_jax.core.names import counted
from cluster_jax.data import folder as image_files
from cluster_jax.report import assignments, summary
from cluster_jax.report import changes as events
from cluster_jax.runs import run as records
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.run import Run

# What a command prints: lines for a person, and values for a program.
Ended = tuple[str, dict[str, Any]]
_TOLD = 12  # events that are printed


def write_last(run: Run) -> None:
    """Writes `changes.csv` of the last update up to a state; removes the file if there is none.

    The file stays as it is if that update is no longer known, see `last_update`.

    Args:
        run: a state in its workdir, the newest or an earlier one.
    """
    file = run.workdir / workdirs.CHANGES
    if (states := last_update(run)) is not None:
        io.write(file, assignments.to_csv(table(*states)))
    elif not run.updates:
        file.unlink(missing_ok=True)


def last_update(run: Run) -> tuple[Run, Run] | None:
    """Returns the states before and after the last update up to a state.

    Without such an update it is None, and so it is where one of these states, or one after them, is
    damaged or no longer kept.

    Args:
        run: a state of its workdir, or the next one, which is not yet written.
    """
    numbers = workdirs.states(run.workdir)
    after = run
    while after.number - 1 in numbers:
        try:
            earlier = records.read(run.workdir, after.number - 1, run)
        except io.DamagedFile:
            return None
        if after.made_by == "update":
            return earlier, after
        after = earlier
    return None


def table(before: Run, run: Run) -> dict[str, list[Any]]:
    """Lists the rows that are new, gone, changed, renamed, or in another cluster.

    Args:
        before: a state of a run.
        run: a later state.

    Returns:
        The columns of `changes.csv`, an entry for each listed row: "name", its file, id or number;
        "change", one of "new", "gone", "changed" (the same name has another content), "renamed" and
        "moved" (only the cluster is another one); "before" and "after", the clusters, -1 for none
        and "" where the row is not there. The rows of `run` come first, then those that are gone.
        Numbered rows are never changed or renamed: one leaves, and another one is new.
    """
    was = matched(before, run)
    earlier, now = paths(before), paths(run)
    is_same = np.isin(run.columns["row"], before.columns["row"])
    rows: list[tuple[Any, str, int | None, int | None]] = []
    for new, old in enumerate(was.tolist()):
        if old < 0:
            rows.append((_name(run, new), "new", None, new))
            continue
        if not is_same[new]:
            kind = "changed"
        elif run.names is not None and earlier[old] != now[new]:
            kind = "renamed"
        elif before.labels[old] != run.labels[new]:
            kind = "moved"
        else:
            continue
        rows.append((_name(run, new), kind, old, new))
    is_gone = np.setdiff1d(np.arange(len(before.columns)), was).tolist()
    rows += [(_name(before, old), "gone", old, None) for old in is_gone]
    return {
        "name": [name for name, *_ in rows],
        "change": [kind for _, kind, *_ in rows],
        "before": ["" if old is None else int(before.labels[old]) for _, _, old, _ in rows],
        "after": ["" if new is None else int(run.labels[new]) for *_, new in rows],
    }


def matched(before: Run, run: Run) -> NDArray:
    """Returns the row of a state that each row of a later state was there, int64 `[n]`, or -1.

    It is the same row, see `rows_now`, or a photo that another one has replaced under its name.
    """
    was = rows_now(run, before)
    if run.is_of_images and run.names is not None:
        earlier, now = paths(before), paths(run)
        left = {earlier[i]: i for i in np.setdiff1d(np.arange(len(earlier)), was).tolist()}
        for i in np.flatnonzero(was < 0).tolist():
            was[i] = left.pop(now[i], -1)
    return was


def rows_now(before: Run, run: Run) -> NDArray:
    """Returns the row of another state that each row of a state is, int64 `[n]`, -1 if it is gone.

    A row of embeddings is known by its id, if it has one, and all others by their number
    (`Run.columns["id"]`), which a photo keeps under another name, and if a tag turns it.
    """
    is_named = not run.is_of_images and run.names is not None
    one, other = (each.names if is_named else each.columns["id"] for each in (before, run))
    _, old, new = np.intersect1d(np.asarray(one), np.asarray(other), return_indices=True)
    now = np.full(len(before.columns), -1)
    now[old] = new
    return now


def _both(before: Run, run: Run) -> tuple[NDArray, NDArray]:
    """Returns the rows, int64 `[b]` each, that two states have of all rows that are in both."""
    now = rows_now(before, run)
    was = np.flatnonzero(now >= 0)
    return was, now[was]


def _name(run: Run, row: int) -> str | int:
    return row if run.names is None else run.names[row]


def paths(run: Run) -> tuple[Any, ...]:
    """Returns names of all rows that hold in every state: of photos, absolute paths.

    Of embeddings they are the ids; numbered rows have their numbers, which hold in one state alone.
    """
    if run.names is None:
        return tuple(range(len(run.columns)))
    if not run.is_of_images:
        return run.names
    root = image_files.root(str(run.config["data"]["dir"]))
    return tuple(os.path.abspath(os.path.join(root, name)) for name in run.names)


def true_labels(run: Run) -> list[str | None]:
    """Returns the true label of each row, None for an unknown one; [] if the run has no labels."""
    if run.truth is None:
        return []
    names = run.label_names or ()
    return [None if code < 0 else names[code] for code in run.truth.tolist()]


def ended(before: Run, run: Run, *, refit: bool) -> Ended:
    """Returns what a command prints at the end of an update, see `words` and `values`."""
    return words(before, run, refit=refit), values(run, refit=refit)


def values(run: Run, *, refit: bool) -> dict[str, Any]:
    """Returns what a program is told of an update, as JSON values.

    Args:
        run: the state after the update.
        refit: whether all rows were clustered anew.

    Returns:
        "workdir"; "update", its number; the numbers of rows that are "new", "gone", "changed" and
        "renamed"; "refit"; "away", see `Run.away`; the number of all "photos" or "rows", see
        `Run.words`; the number of "clusters"; and "events", see `stable_ids.Event`.
    """
    return {
        "workdir": str(run.workdir),
        "update": run.updates,
        **{kind: run.changes.get(kind, 0) for kind in events.COUNTED},
        "refit": refit,
        "away": list(run.away),
        f"{run.words[0]}s": len(run.columns),
        "clusters": len(np.unique(run.labels[run.labels >= 0])),
        "events": [event._asdict() for event in run.events],
    }


def words(before: Run, run: Run, *, refit: bool) -> str:
    """Returns what has happened in plain words: numbers of rows, then a line for each event.

    Args:
        before: the state before the update, which has the names of clusters that are gone.
        run: the state after the update.
        refit: whether all rows were clustered anew.

    Returns:
        Several lines, of which at most `_TOLD` tell of an event.
    """
    noun, group = run.words
    named = {str(cluster): name for cluster, name in run.named.items()}
    names = {**before.cluster_names, **named, **run.cluster_names}

    def called(cluster: int) -> str:
        name = names.get(str(cluster))
        return f"{group} {cluster}" + (f" ({name})" if name else "")

    lines = [*missing_folders(run), summary.capital(events.numbers(run.changes, noun)) + "."]
    if refit:
        lines.append(f"All {noun}s were clustered anew.")
    elif not any(run.changes.values()):  # Else there would be no update.
        lines.append("Their labels have changed: the scores are by those of now.")
    shown = events.ordered(run.events)
    lines += [f"  {events.sentence(event, called, noun)}" for event in shown[:_TOLD]]
    if len(shown) > _TOLD:
        lines.append(f"  and {len(shown) - _TOLD:,} more; {workdirs.CHANGES} has every {noun}")
    if said := lost(before, run):
        undo = f"cluster-jax update --workdir={shlex.quote(str(run.workdir))} --undo"
        lines += [said, f"`{undo}` brings back what was."]
    if came := _from_no_cluster(before, run):
        rows = counted(came, f"{noun} that was", f"{noun}s that were")
        lines.append(f"  {rows} in no {group} {'is' if came == 1 else 'are'} in one now")
    if same := sum(event.kind == stable_ids.SURVIVED for event in run.events):
        lines.append(f"  {counted(same, group)} stayed as {'it was' if same == 1 else 'they were'}")
    return "\n".join(lines)


def _from_no_cluster(before: Run, run: Run) -> int:
    """Returns the number of rows that were in no cluster, and are in one now."""
    was, now = _both(before, run)
    return int(((before.labels[was] < 0) & (run.labels[now] >= 0)).sum())


def lost(before: Run, run: Run) -> str:
    """Returns a sentence about the corrections that hold no longer for rows that are still there.

    Without such corrections it is "".

    Args:
        before: the earlier state.
        run: the later one.
    """
    noun, group = run.words
    was, now = _both(before, run)
    decided = before.columns["decided"][was] & ~run.columns["decided"][now]
    ended = set(before.labels[was].tolist()) - set(run.labels[now].tolist())
    names = [before.named[cluster] for cluster in sorted(ended & before.named.keys())]
    parts = [f"the {group} {name!r}" for name in names[:_TOLD]]
    if more := len(names[_TOLD:]):
        parts.append(f"{counted(more, f'more {group}')} that you had named")
    # A merged cluster, or one of one kind, may be there without some of its rows.
    is_parted = (before.labels[was] != run.labels[now]) & (run.labels[now] >= 0)
    is_parted &= ~before.columns["decided"][was] & ~run.columns["decided"][now]
    shaped = before.shaped | before.whole
    parted = shaped.intersection(before.labels[was[is_parted]].tolist()) - ended
    if count := len((ended & before.held) - before.named.keys() | parted):
        parts.append(
            f"{counted(count, group)} that you had made, merged, divided or called one kind"
        )
    if count := int(decided.sum()):
        parts.append(f"what you had decided about {counted(count, noun)}")
    if not parts:
        return ""
    *first, last = parts
    listed = f"{', '.join(first)}, and {last}" if first else last
    return f"This no longer holds: {listed}."


def missing_folders(run: Run) -> list[str]:
    """Returns sentences about what could not be read in the last update (`Run.away`)."""
    noun = run.words[0]
    folders = str(run.config["data"]["dir"]).split("\n") if run.is_of_images else []
    lines = [
        f"{folder} is away or empty: its {noun}s stay as they were, until it is back, or you say "
        f"that it is gone for good by --gone={shlex.quote(folder)}."
        for folder in run.away
        if folder in folders
    ]
    if closed := [path for path in run.away if path not in folders]:
        what = f"{counted(len(closed), 'file or folder', 'files or folders')} cannot be read"
        lines.append(f"{what}, such as {closed[0]}: what is there stays as it was.")
    return lines
