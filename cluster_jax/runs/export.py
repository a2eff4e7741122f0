"""Folders of images by cluster, as links or copies.

A file of the run lists what was made, so that a later export replaces that and nothing else.
"""

import contextlib
import functools
import hashlib
import os
import pathlib
import re
import shutil
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.clustering.base import NO_CLUSTER
from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted
from cluster_jax.data import folder as image_files
from cluster_jax.runs import changes, photos
from cluster_jax.runs.run import Run

_RECORD = "exports.json"  # in the workdir of a run: what each folder got, by its path
_PARTIAL = ".cluster_jax_new"  # where files are until all of them are there
_MAX_BYTES = 255  # of a name, which file systems allow
_MAX_NAME = 60  # characters of a folder that a person has named: 63 have 255 bytes at worst
_FORBIDDEN = '<>:"/\\|?*'  # in names of files, by one system or another
COPIES = "copies"  # the folder of images of which a better copy is in another one
NEW = "maybe new"  # the folder of images that may be of no known cluster


class _Item(NamedTuple):
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
        kept: number of copies of an earlier export that stay, see `write`.
    """

    folders: int
    kept: int


def check_has_files(data_name: str) -> None:
    """Raises an `InputError` unless `data.name` is "folder": only then images are files."""
    if data_name != "folder":
        raise InputError(
            f"what is exported must be images in files; got a run on {data_name}, of which "
            "assignments.csv has the clusters"
        )


def check(
    folder: os.PathLike | str, workdir: epath.PathLike, images: Sequence[epath.PathLike] = ()
) -> pathlib.Path:
    """Returns the path of a folder, after checking that it can be exported to; writes nothing.

    Args:
        folder: must be new or empty, or have an earlier export of this run, of which files that
            nobody has changed are replaced.
        workdir: workdir of the run, which must not be in the folder.
        images: folders of the source images, or their zip; the new folder must not be part of one,
            because its links would become images.

    Raises:
        InputError: the folder cannot be used.
    """
    path = pathlib.Path(folder).expanduser()
    real = path.resolve()
    parent = next(p for p in (path, *path.absolute().parents) if os.path.lexists(p))
    around = [place for place in images if real.is_relative_to(_resolved(place))]
    if "://" in str(folder):
        must = "be a local one"
    elif os.path.lexists(path) and (not path.is_dir() or not _is_free(path, workdir)):
        must = "be new or empty, or have an earlier export of this run"
    elif not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        must = "be in a folder that can be written"
    elif around:
        must = f"be outside of the images' folder {around[0]}"
    elif _resolved(workdir).is_relative_to(real):
        must = "not hold the workdir"
    else:
        return path
    raise InputError(f"the folder to export to must {must}; got {folder}")


def _is_free(folder: pathlib.Path, workdir: epath.PathLike) -> bool:
    """Returns whether a folder is empty, or has an earlier export of the run in a workdir.

    What a killed export has left behind before its files were in place does not count.
    """
    others = (path for path in folder.iterdir() if path.name != _PARTIAL)
    return bool(_earlier(workdir, folder)) or not any(others)


def check_of_run(folder: epath.PathLike, run: Run) -> tuple[list[int], list[str]]:
    """Checks that the images of a run can be exported to a folder, see `check`.

    Returns:
        The rows that are left out, whose folder or file is away or cannot be read now; and the
        paths that are away or cannot be read, at least one if a row is left out.

    Raises:
        InputError: the folder cannot be used, the images are not files, no image is there, or one
            of them is gone, has another name or another content.
    """
    check_has_files(run.config["data"]["name"] if run.is_of_images else "features")
    place = str(run.config["data"]["dir"])
    check(folder, run.workdir, image_files.folders(place))
    update = f"`cluster-jax update --workdir={run.workdir}"
    do, or_do = f"run {update}` first", f", or name its new place by {update} FOLDER`"
    if run.is_trained:  # It cannot be updated.
        do, or_do = "put it back", ""
    none = f"the images to export must be there; got none: bring {image_files.shown(place)} back"
    try:
        present, comparison, is_kept = photos.compared(run)
    except InputError as error:
        raise InputError(none + or_do) from error
    paths, now = changes.paths(run), comparison.run.names or ()
    for row, path in enumerate(paths):
        if not is_kept[row] or now[row] != path:
            said = "with another content" if path in present.paths else "gone"
            must = "the images to export must be those of the run"
            raise InputError(f"{must}; got {(run.names or ())[row]} {said}: {do}")
    left_out = np.flatnonzero(comparison.known[: len(paths)] < 0).tolist()
    if len(left_out) == len(paths):
        raise InputError(none + or_do)
    return left_out, [*comparison.run.away, *(paths[row] for row in left_out)]


def places(
    labels: NDArray,
    names: Mapping[str, str],
    group: str,
    sources: Sequence[str],
    copies: Collection[str] = (),
    new: NDArray | None = None,
) -> list[str]:
    """Returns the name of the folder of each image.

    Args:
        labels: `[n]`, of each image its cluster as an int, -1 for none, or the name of its class.
        names: label, as text -> its name, from which `folder_names` makes that of the folder.
        group: the word for a cluster.
        sources: file of each image.
        copies: the files, among `sources`, that are put into the folder `COPIES` instead (into
            "copies_2" if a cluster has that name).
        new: bool `[n]`, images that are unlike all images of the run, which are put into the folder
            `NEW`; None: there are none.
    """
    folders = folder_names(labels, names, group)
    used = {_same(name) for name in folders.values()}
    of_copies = _unused(COPIES, "", used)
    of_new = _unused(NEW, "", used)
    is_new = np.zeros(len(sources), bool) if new is None else new
    result = list[str]()
    for label, source, unlike in zip(labels.tolist(), sources, is_new.tolist(), strict=True):
        place = of_new if unlike else folders[label]
        result.append(of_copies if source in copies else place)
    return result


def write(
    folder: os.PathLike | str,
    workdir: epath.PathLike,
    places: Sequence[str],
    dir: str,
    sources: Sequence[str],
    by: str = "link",
) -> Exported:
    """Writes one folder per cluster, in place of those of an earlier export.

    Files of a zip are unpacked into them. Source images are never changed. Of files with one name
    in one folder, the later ones get a number, "a_2.jpg".

    All else in the folder stays, also a file that was changed since it was made, and a copy of what
    is not among these images and no longer at its source: it may be the last one. If an error
    occurs, an earlier export is as it was.

    Args:
        folder: see `check`.
        workdir: workdir of the run.
        places: name of the folder of each image, see `places`.
        dir: where the images are, as `data.dir`.
        sources: file of each image, relative to `dir`.
        by: "link" for links to the absolute paths, with copies where links are not possible, or
            "copy".

    Raises:
        InputError: the folder cannot be used, or in it a file has the name of a folder that is
            needed.
        OSError: a source file does not exist any more (`FileNotFoundError`) or cannot be read, or
            the folder cannot be written.
    """
    path = check(folder, workdir)
    root, read = image_files.root(dir), image_files.reader(dir)
    items = [
        _Item(
            place,
            os.path.basename(source),
            root / source if os.path.isdir(root) else None,
            functools.partial(read, source),
        )
        for place, source in zip(places, sources, strict=True)
    ]
    path.mkdir(parents=True, exist_ok=True)
    before = _earlier(workdir, path)
    own = {name: made for name, made in before.items() if _is_as_made(path / name, made)}
    kept = {name: own.pop(name) for name in _of_others(own, items)}
    used = {place: _others_in(path, place, own) for place in sorted(set(places))}
    made = dict[str, Any]()
    shutil.rmtree(path / _PARTIAL, ignore_errors=True)
    try:
        for item in items:
            name = f"{item.place}/{_unused(*os.path.splitext(item.name), used[item.place])}"
            made[name] = _put(item, by, path / _PARTIAL / name)
        _record(workdir, path, {**kept, **own, **made})
    except BaseException:
        shutil.rmtree(path / _PARTIAL, ignore_errors=True)
        raise
    _replace(path, own, made)
    _record(workdir, path, {**kept, **made})
    return Exported(len(used), len(kept))


def _others_in(folder: pathlib.Path, place: str, own: Collection[str]) -> set[str]:
    """Returns the names in a folder for a cluster that stay, in the form of `_same`.

    Args:
        folder: the folder of the export.
        place: name of the folder in it, which need not exist.
        own: files of an earlier export, which do not stay.

    Raises:
        InputError: it is no folder.
    """
    path = folder / place
    if path.is_dir():
        return {_same(name) for name in os.listdir(path) if f"{place}/{name}" not in own}
    if os.path.lexists(path):
        raise InputError(f"{path} must be a folder; got a file: name it otherwise")
    return set()


def _earlier(workdir: epath.PathLike, folder: pathlib.Path) -> dict[str, Any]:
    """Returns what earlier exports of a run have made in a folder, by path; {} for nothing."""
    try:
        return dict(io.read_json(epath.Path(workdir) / _RECORD).get(str(folder.resolve()), {}))
    except (OSError, AttributeError, TypeError, io.DamagedFile):
        return {}  # Nothing is replaced then.


def _record(workdir: epath.PathLike, folder: pathlib.Path, made: Mapping[str, Any]) -> None:
    """Writes what an export has made; a run that cannot be written has no record."""
    file = epath.Path(workdir) / _RECORD
    every = {}
    with contextlib.suppress(OSError, TypeError, ValueError):
        every = dict(io.read_json(file))
    with contextlib.suppress(OSError):
        io.write_json(file, {**every, str(folder.resolve()): made})


def _of_others(own: Mapping[str, Any], items: Sequence[_Item]) -> list[str]:
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
        folder: the folder, which has the new files in `_PARTIAL`.
        own: files of the earlier export.
        made: the new files.
    """
    for name in own:
        (folder / name).unlink()
    for name in made:
        (folder / name).parent.mkdir(exist_ok=True)
        os.replace(folder / _PARTIAL / name, folder / name)
    shutil.rmtree(folder / _PARTIAL, ignore_errors=True)
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


def _put(item: _Item, by: str, target: pathlib.Path) -> dict[str, Any]:
    """Makes a link to a file if links are asked for and possible, else a copy.

    Returns what `_is_as_made` compares.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if by == "link" and item.file is not None:
        try:
            source = str(item.file.resolve(strict=True))
            os.symlink(source, target)
            return {"link": source}
        except OSError:  # The file system has none.
            pass
    content = item.read()
    target.write_bytes(content)
    made: dict[str, Any] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    if item.file is not None:
        made["source"] = str(item.file)
        with contextlib.suppress(OSError):  # Some drives refuse modes and times.
            shutil.copystat(item.file, target)
    return made


def told(made: Exported, folder: os.PathLike | str) -> str:
    """Returns what a command says of an export."""
    lines = [f"exported     {counted(made.folders, 'folder')} to {folder}"]
    if made.kept:
        stay = counted(made.kept, "earlier copy stays", "earlier copies stay")
        lines.append(f"{stay}, of photos that are away or gone: they may be the last ones")
    return "\n".join(lines)


def run_clusters(
    run: Run, folder: os.PathLike | str, by: str = "link", left_out: Sequence[int] = ()
) -> Exported:
    """Exports the images of a finished run by cluster.

    In novel class discovery folders are those of the known and novel classes. Copies of an image
    that is kept are in the folder `COPIES`.

    Args:
        run: the run, which `check_of_run` has checked.
        folder: see `check`.
        by: see `write`.
        left_out: rows that are not exported, see `check_of_run`.

    Raises:
        InputError, OSError: see `write`.
    """
    sources: Sequence[str] = run.names or ()
    copies = set[str]()
    if run.duplicates is not None:
        copies = {sources[i] for i in run.duplicates.images[~run.duplicates.keep].tolist()}
    where = places(run.titles(run.labels), run.cluster_names, run.words[1], sources, copies)
    rows = np.setdiff1d(np.arange(len(sources)), np.asarray(left_out, int)).tolist()
    where, sources = [where[row] for row in rows], [sources[row] for row in rows]
    return write(folder, run.workdir, where, str(run.config["data"]["dir"]), sources, by)


def folder_names(
    labels: NDArray, names: Mapping[str, str] = {}, group: str = "cluster"
) -> dict[Any, str]:
    """Returns a safe and distinct folder name for each label.

    If two labels have one name, but for upper and lower case, the higher label gets a number,
    "church_2". A label without a name has the folder `group_03` for 3, and "cat_dog" for the class
    "cat/dog". That of -1 is always `no_group`.

    Args:
        labels: `[n]`, int or names of classes, at least one; each may occur several times.
        names: label, as text -> name.
        group: the word for a cluster, "group" above.

    Example:
        >>> folder_names(np.array([-1, 0, 1, 2]), {"0": "church", "2": "Church"}, "group")
        {-1: 'no_group', 0: 'church', 1: 'group_01', 2: 'Church_2'}
    """
    unique = np.unique(labels).tolist()
    width = max(2, len(str(unique[-1]))) if labels.dtype.kind in "iu" else 0
    used: set[str] = set()
    folders = {}
    for label in unique:
        plain = f"{group}_{label:0{width}d}" if width else str(label)
        called = names.get(str(label), "")
        if label == NO_CLUSTER:
            plain, called = f"no_{group}", ""
        folders[label] = _unused(_safe(called) or _safe(plain) or "class", "", used)
    return folders


def _safe(text: str) -> str:
    """Returns a safe folder name: not ".", ".." or hidden, and no flag.

    Letters, marks and signs of all scripts stay; what a file system forbids does not, nor do
    invisible characters and those that reverse text. It has at most `_MAX_NAME` characters, and is
    "" if none of the text is safe.
    """
    text = unicodedata.normalize("NFC", text)
    kept = "".join(character if _is_safe(character) else "\0" for character in text)
    return re.sub("\0+", "_", kept).strip("._- ")[:_MAX_NAME].strip()


def _is_safe(character: str) -> bool:
    if character.isascii():
        return character.isprintable() and character not in _FORBIDDEN
    # Controls, formats and blanks are not, but for the joiner of many scripts and signs.
    return character == "\u200d" or unicodedata.category(character)[0] not in "CZ"


def _resolved(path: epath.PathLike) -> pathlib.Path:
    return pathlib.Path(path).expanduser().resolve()


def _unused(stem: str, suffix: str, used: set[str]) -> str:
    """Returns the first unused of `stem`, `stem_2`, ... with the suffix, and adds it to `used`.

    A stem is cut so that the whole name has at most 255 bytes; files in a zip can have longer
    names.

    Args:
        stem: of the name.
        suffix: of the name, with its dot.
        used: names in the form of `_same`, which ignores case and the encoding of accents, as macOS
            does.
    """
    number = 1
    end = suffix
    while _same(free := _shortened(stem, end)) in used:
        number += 1
        end = f"_{number}{suffix}"
    used.add(_same(free))
    return free


def _same(name: str) -> str:
    """Returns a name in a form that is equal for names that a file system may not tell apart."""
    return unicodedata.normalize("NFC", name).casefold()


def _shortened(stem: str, end: str) -> str:
    """Returns `stem` + `end`, at most `_MAX_BYTES` bytes: the stem is cut between characters."""
    whole = os.fsencode(stem)
    start = whole[: _MAX_BYTES - len(os.fsencode(end))]
    return (stem if start == whole else start.decode(errors="ignore")) + end
