"""Versions of a workdir: an update replaces all its files at once, and can be taken back.

The new files are made in a folder beside the old ones. A journal, written last, marks the update as
done: whoever reads the workdir next completes what a kill has left. Without the journal the old
files count, and the folder is of no use.
"""

import contextlib
import os
import shutil
from collections.abc import Sequence

from etils import epath

from cluster_jax.core import io
from cluster_jax.core.checks import InputError

SIDE, PREVIOUS = ".update", ".previous"
_JOURNAL, _NEW, _OLD, _ADDED = "journal.json", "new", "old", "added.json"


def start(workdir: epath.Path) -> epath.Path:
    """Makes an empty folder for the files of an update, on the file system of the workdir."""
    side = workdir / SIDE
    shutil.rmtree(side, ignore_errors=True)
    (side / _NEW).mkdir(parents=True)
    return side / _NEW


def commit(workdir: epath.Path, *later: str, removed: Sequence[str] = ()) -> None:
    """Puts the files of `start` in place of those of the same names, which are kept for `undo`.

    So are those of the names `removed`, which leave.

    Files of the names `later` that another command may write before `undo` are removed by it,
    unless they are there now.
    """
    side = workdir / SIDE
    names = _names(side / _NEW)
    for name in (*names, *removed):
        if (workdir / name).exists():
            _link(workdir / name, side / _OLD / name)
    added = [name for name in {*names, *later} if not (workdir / name).exists()]
    (side / _OLD).mkdir(exist_ok=True)
    io.write_json(side / _OLD / _ADDED, sorted(added))
    io.write_json(side / _JOURNAL, {"names": names, "removed": list(removed), "is_undo": False})
    finish(workdir)


def undo(workdir: epath.Path) -> None:
    """Puts back the files that the last update has replaced, bit for bit.

    Raises:
        InputError: there is no update, or it was taken back.
    """
    previous = workdir / PREVIOUS
    if not (previous / _ADDED).exists():
        raise InputError(
            f"{workdir} must have an update to take back; got none, or one that was taken back: "
            "only the last update can be"
        )
    new = start(workdir)
    names = [name for name in _names(previous) if name != _ADDED]
    for name in names:
        _link(previous / name, new / name)
    removed = io.read_json(previous / _ADDED)
    journal = {"names": names, "removed": removed, "is_undo": True}
    io.write_json(workdir / SIDE / _JOURNAL, journal)
    finish(workdir)


def finish(workdir: epath.Path) -> None:
    """Completes an update that was done when it was interrupted; nothing if there is none."""
    side = workdir / SIDE
    if "://" in str(workdir) or not (side / _JOURNAL).exists():  # In buckets there are no updates.
        return
    journal = io.read_json(side / _JOURNAL)
    # Another process may be doing the same.
    for name in journal["names"]:
        (workdir / name).parent.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.replace(side / _NEW / name, workdir / name)
    for name in journal["removed"]:
        (workdir / name).unlink(missing_ok=True)
    if journal["is_undo"] or (side / _OLD).exists():
        shutil.rmtree(workdir / PREVIOUS, ignore_errors=True)
    if (side / _OLD).exists():
        with contextlib.suppress(FileNotFoundError):
            os.rename(side / _OLD, workdir / PREVIOUS)
    shutil.rmtree(side, ignore_errors=True)


def _names(folder: epath.Path) -> Sequence[str]:
    """Lists the paths of the files in a folder, relative to it."""
    paths = (os.path.join(top, name) for top, _, names in os.walk(folder) for name in names)
    return sorted(os.path.relpath(path, folder) for path in paths)


def _link(file: epath.Path, other: epath.Path) -> None:
    """Links the same file under another name; copies it where the file system has no links."""
    other.parent.mkdir(parents=True, exist_ok=True)
    other.unlink(missing_ok=True)
    try:
        os.link(file, other)
    except OSError:
        shutil.copy2(file, other)
