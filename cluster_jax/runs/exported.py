"""The folder of an export on disk: written, and made anew in place of an earlier one.

A file of the run lists what was made, so that a later export replaces that and nothing else.
"""

import collections
import contextlib
import hashlib
import os
import pathlib
import shutil
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath

from cluster_jax.core import io
from cluster_jax.core.checks import InputError

RECORD = "exports.json"  # in the workdir of a run: what each folder got, by its path
_NEW = ".cluster_jax_new"  # where files are until all of them are there
_MAX_BYTES = 255  # of a name, which file systems allow


class Item(NamedTuple):
    """A file of an export.

    Attributes:
        place: name of its folder.
        name: the name that it should have; of several in one folder the later ones get a number.
        file: its source; None: it is no file of its own, as in a zip.
        read: returns its content.
    """

    place: str
    name: str
    file: pathlib.Path | None
    read: Callable[[], bytes]


class Exported(NamedTuple):
    """What an export has made.

    Attributes:
        folders: number of folders.
        without_times: number of files without the times of their sources.
        kept: number of copies of an earlier export that stay, see `write`.
    """

    folders: int
    without_times: int
    kept: int


def earlier(workdir: epath.PathLike, folder: pathlib.Path) -> dict[str, Any]:
    """Returns what earlier exports of a run have made in a folder, by path; {} for nothing."""
    try:
        return dict(io.read_json(epath.Path(workdir) / RECORD).get(str(folder.resolve()), {}))
    except (OSError, AttributeError, TypeError, io.DamagedFile):
        return {}  # Nothing is replaced then.


def _record(workdir: epath.PathLike, folder: pathlib.Path, made: Mapping[str, Any]) -> None:
    """Writes what an export has made; a run that cannot be written has no record."""
    file = epath.Path(workdir) / RECORD
    every = {}
    with contextlib.suppress(OSError, TypeError, ValueError):
        every = dict(io.read_json(file))
    with contextlib.suppress(OSError):
        io.write_json(file, {**every, str(folder.resolve()): made})


def write(
    folder: pathlib.Path, workdir: epath.PathLike, items: Sequence[Item], by: str
) -> Exported:
    """Writes files in place of those of an earlier export; all else in the folder stays.

    A file that was changed since it was made stays, too, and so does a copy of what is not among
    these files and no longer at its source: it may be the last one. If an error occurs, an earlier
    export is as it was.

    Args:
        folder: where; it is made if it does not exist.
        workdir: workdir of the run, which has the record.
        items: the files.
        by: "link" for links to the absolute paths, with copies where links are not possible, or
            "copy".

    Raises:
        InputError: a file has the name of a folder that is needed.
        OSError: a source cannot be read, or the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    before = earlier(workdir, folder)
    own = {name: made for name, made in before.items() if _is_as_made(folder / name, made)}
    kept = {name: own.pop(name) for name in _of_others(own, items)}
    used = collections.defaultdict[str, set[str]](set)
    for place in sorted({item.place for item in items}):
        if os.path.lexists(folder / place) and not (folder / place).is_dir():
            raise InputError(f"{folder / place} must be a folder; got a file: name it otherwise")
        if (folder / place).is_dir():
            names = (name for name in os.listdir(folder / place) if f"{place}/{name}" not in own)
            used[place] |= set(map(same, names))
    made = dict[str, Any]()
    without_times = 0
    shutil.rmtree(folder / _NEW, ignore_errors=True)
    try:
        for item in items:
            name = f"{item.place}/{unused(*os.path.splitext(item.name), used[item.place])}"
            made[name], has_times = _put(item, by, folder / _NEW / name)
            without_times += not has_times
        _record(workdir, folder, {**kept, **own, **made})
    except BaseException:
        shutil.rmtree(folder / _NEW, ignore_errors=True)
        raise
    _replace(folder, own, made)
    _record(workdir, folder, {**kept, **made})
    return Exported(len({item.place for item in items}), without_times, len(kept))


def _of_others(own: Mapping[str, Any], items: Sequence[Item]) -> list[str]:
    """Returns the copies of an earlier export of which no item and no source has the content.

    A source of an item that was changed since is another state of the same photo.
    """
    sources = {str(item.file) for item in items if item.file is not None}
    copies = [name for name, made in own.items() if "sha256" in made]
    copies = [name for name in copies if own[name].get("source") not in sources]
    copies = [name for name in copies if not _is_at_source(own[name])]
    if not copies:
        return []
    digests = {hashlib.sha256(item.read()).hexdigest() for item in items}
    return [name for name in copies if own[name]["sha256"] not in digests]


def _is_at_source(made: Mapping[str, Any]) -> bool:
    """Returns whether a file of the same size is where a copy was made from."""
    source = made.get("source")
    return (
        source is not None and os.path.isfile(source) and os.stat(source).st_size == made["bytes"]
    )


def _replace(folder: pathlib.Path, own: Mapping[str, Any], made: Mapping[str, Any]) -> None:
    """Puts the files of an export in the place of those of an earlier one.

    Args:
        folder: the folder, which has the new files in `_NEW`.
        own: files of the earlier export.
        made: the new files.
    """
    for name in own:
        (folder / name).unlink()
    for name in made:
        (folder / name).parent.mkdir(exist_ok=True)
        os.replace(folder / _NEW / name, folder / name)
    shutil.rmtree(folder / _NEW, ignore_errors=True)
    for place in {os.path.dirname(name) for name in own}:
        if not os.listdir(folder / place):
            (folder / place).rmdir()


def _is_as_made(path: pathlib.Path, made: Mapping[str, Any]) -> bool:
    """Returns whether a file of an earlier export is there, and nobody has changed it."""
    if "link" in made:
        return path.is_symlink() and os.readlink(path) == made["link"]
    if path.is_symlink() or not path.is_file() or path.stat().st_size != made["bytes"]:
        return False
    return hashlib.sha256(path.read_bytes()).hexdigest() == made["sha256"]


def _put(item: Item, by: str, target: pathlib.Path) -> tuple[dict[str, Any], bool]:
    """Makes a link to a file if links are asked for and possible, else a copy.

    Returns:
        What `_is_as_made` compares, and whether the file has the times of its source.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if by == "link" and item.file is not None:
        try:
            source = str(item.file.resolve(strict=True))
            os.symlink(source, target)
            return {"link": source}, True
        except OSError:  # The file system has none.
            pass
    content = item.read()
    target.write_bytes(content)
    made: dict[str, Any] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    try:
        if item.file is not None:
            made["source"] = str(item.file)
            shutil.copystat(item.file, target)
    except OSError:  # Some drives refuse modes and times.
        return made, False
    return made, True


def unused(stem: str, suffix: str, used: set[str]) -> str:
    """Returns the first unused of `stem`, `stem_2`, ... with the suffix, and adds it to `used`.

    A stem is cut so that the whole name has at most 255 bytes; files in a zip can have longer
    names.

    Args:
        stem: of the name.
        suffix: of the name, with its dot.
        used: names in the form of `same`, which ignores case and the encoding of accents, as macOS
            does.
    """
    number = 1
    end = suffix
    while same(free := _shortened(stem, end)) in used:
        number += 1
        end = f"_{number}{suffix}"
    used.add(same(free))
    return free


def same(name: str) -> str:
    """Returns a name in a form that is equal for names that a file system may not tell apart."""
    return unicodedata.normalize("NFC", name).casefold()


def _shortened(stem: str, end: str) -> str:
    """Returns `stem` + `end`, at most `_MAX_BYTES` bytes: the stem is cut between characters."""
    whole = os.fsencode(stem)
    start = whole[: _MAX_BYTES - len(os.fsencode(end))]
    return (stem if start == whole else start.decode(errors="ignore")) + end
