"""Folders of images by cluster, as links or copies."""

import collections
import functools
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
from cluster_jax.core.checks import InputError
from cluster_jax.data import folder as image_files
from cluster_jax.data.images import Dataset
from cluster_jax.discovery import splits
from cluster_jax.report.report_data import GONE
from cluster_jax.runs import build, page
from cluster_jax.runs import run as records
from cluster_jax.runs.config import parse_config
from cluster_jax.runs.run import Run

# Longest name of a folder; file systems allow 255 bytes, which are 63 characters at worst.
_MAX_NAME, _MAX_BYTES = 60, 255
COPIES = "copies"  # the folder of images of which a better copy is in another one


def check_has_files(data_name: str) -> None:
    """Raises an `InputError` unless the images of a run are files, by `data.name`."""
    if data_name != "folder":
        raise InputError(
            f"what is exported must be images in files; got a run on {data_name}, of which "
            "assignments.csv has the clusters"
        )


def check(
    folder: os.PathLike | str,
    images: Sequence[epath.PathLike] = (),
    workdir: epath.PathLike | None = None,
) -> pathlib.Path:
    """Returns the path of a folder, after checking that it can be exported to; writes nothing.

    Args:
        folder: must be new or empty.
        images: folders of the source images, or their zip; the new folder must not be part of one,
            because its links would become images.
        workdir: workdir of the run, which must not be in the folder; or None.

    Raises:
        InputError: the folder cannot be used.
    """
    path = pathlib.Path(folder).expanduser()
    real = path.resolve()
    parent = next(p for p in (path, *path.absolute().parents) if os.path.lexists(p))
    around = [place for place in images if real.is_relative_to(_resolved(place))]
    if "://" in str(folder):
        must = "be a local one"
    elif os.path.lexists(path) and (not path.is_dir() or any(path.iterdir())):
        must = "be new or empty"
    elif not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        must = "be in a folder that can be written"
    elif around:
        must = f"be outside of the images' folder {around[0]}"
    elif workdir is not None and _resolved(workdir).is_relative_to(real):
        must = "not hold the workdir"
    else:
        return path
    raise InputError(f"the folder to export to must {must}; got {folder}")


def check_of_run(folder: epath.PathLike, workdir: epath.PathLike) -> None:
    """Checks that the images of a run can be exported to a folder, see `check`.

    Raises:
        InputError: the folder cannot be used, the images are not files, or one of them is gone.
    """
    run = records.read(workdir)
    check_has_files(run.config["data"]["name"] if run.is_of_images else "features")
    place = str(run.config["data"]["dir"])
    check(folder, image_files.folders(place), workdir)
    root = image_files.root(place)
    gone = [name for name in run.names or () if root.is_dir() and not (root / name).exists()]
    if gone:
        raise InputError(
            f"the images of the run must be there to be exported; got {gone[0]} gone: run "
            f"`cluster-jax update --workdir={workdir}` first"
        )


class Images(NamedTuple):
    """Images to export.

    Attributes:
        folder: the folder that `sources` are relative to.
        sources: file of each image.
        load: loads the images of a zip.
    """

    folder: epath.PathLike
    sources: Sequence[str]
    load: Callable[[], Dataset]


def places(
    labels: NDArray,
    names: Mapping[Any, str],
    group: str,
    sources: Sequence[str],
    copies: Collection[str] = (),
) -> list[str]:
    """Returns the name of the folder of each image.

    Args:
        labels: cluster `[n]` of each image, int, or names of classes; -1: in no cluster.
        names: label -> name of its folder, see `folder_names`.
        group: the word for a cluster.
        sources: file of each image.
        copies: the files that are put into the folder `COPIES` instead.
    """
    folders = folder_names(labels, names, group)
    result = [folders[label] for label in labels.tolist()]
    if not copies:
        return result
    of_copies = _unused(COPIES, "", {_same(name) for name in folders.values()})
    pairs = zip(result, sources, strict=True)
    return [of_copies if source in copies else place for place, source in pairs]


def write(
    folder: os.PathLike | str, places: Sequence[str], images: Images, by: str = "link"
) -> int:
    """Writes one folder per cluster, and returns their number.

    Files are linked to by their absolute paths (copied if links are not possible) or copied. On an
    error, the folders written so far are removed. Source images are never changed.

    Args:
        folder: must be new or empty.
        places: name of the folder of each image, see `places`.
        images: the images.
        by: one of `flags.EXPORT_WAYS`.

    Returns:
        The number of folders.

    Raises:
        InputError: the folder cannot be used, or a source file does not exist any more.
    """
    path, made = check(folder), sorted(set(places))
    names, put = _files(images, by)
    used = collections.defaultdict[str, set[str]](set)
    try:
        for name in made:
            (path / name).mkdir(parents=True)
        for i, place in enumerate(places):
            put(i, path / place / _unused(*os.path.splitext(names[i]), used[place]))
    except BaseException:
        for name in made:
            shutil.rmtree(path / name, ignore_errors=True)
        raise
    return len(made)


def _files(images: Images, by: str) -> tuple[Sequence[str], Callable[[int, pathlib.Path], None]]:
    """Returns a file name for each image, and the function that writes an image to a path.

    Raises:
        InputError: a source file does not exist any more.
    """
    root, names = pathlib.Path(images.folder), [pathlib.Path(name).name for name in images.sources]
    if root.suffix.lower() == ".zip" and not root.is_dir():
        dataset = images.load()
        place = {name: i for i, name in enumerate(dataset.sources or ())}
        return names, functools.partial(_unpack, dataset, [place[name] for name in images.sources])
    files = [root / name for name in images.sources]
    if gone := [file for file in files if not file.exists()]:
        raise InputError(f"the source images must still exist to be exported; {gone[0]} does not")
    return names, functools.partial(_put, files, by)


def run_clusters(workdir: epath.PathLike, folder: os.PathLike | str, by: str = "link") -> int:
    """Exports the images of a finished run by its clusters, or by their classes.

    Args:
        workdir: workdir of the run.
        folder: must be new or empty.
        by: see `write`.

    Returns:
        The number of folders.

    Raises:
        InputError: see `write`.
    """
    run = records.read(workdir)
    labels = run.labels if run.known is None else run.class_names(run.classes)
    return training_images(run, labels, folder, names_of_folders(run), by, _copies(run))


def training_images(
    run: Run,
    labels: NDArray,
    folder: os.PathLike | str,
    names: Mapping[Any, str],
    by: str = "link",
    copies: Collection[str] = (),
) -> int:
    """Exports the images of a run by their labels, see `write` and `places`."""
    check_has_files(run.config["data"]["name"] if run.is_of_images else "features")
    config = parse_config(run.config)
    load = functools.partial(build.load_training_images, config, config.data)
    if run.facts is not None:
        _check_contents(run)
    sources = run.names or ()
    where = places(labels, names, run.words[1], sources, copies)
    return write(folder, where, Images(image_files.root(str(config.data.dir)), sources, load), by)


def _check_contents(run: Run) -> None:
    """Raises an `InputError` if the content of a file of the run has changed."""
    dataset = page.training_images(run)
    gone = {name for name, why in dataset.skipped if why == GONE}
    assert dataset.facts is not None
    assert run.facts is not None
    digests = dataset.facts(np.arange(dataset.size))["digest"]
    is_other = (digests != run.facts["digest"]).any(axis=1)
    names = np.array(dataset.sources)[is_other].tolist()
    if changed := [name for name in names if name not in gone]:
        raise InputError(
            f"the images to export must be those of the run; got {changed[0]} with another "
            f"content: run `cluster-jax update --workdir={run.workdir}` first"
        )


def _copies(run: Run) -> set[str]:
    """Returns the files that are duplicates of an image that is to be kept."""
    repeated = run.duplicates
    if repeated is None or run.names is None:
        return set()
    return {run.names[i] for i in repeated.images[~repeated.keep].tolist()}


def names_of_folders(run: Run) -> dict[Any, str]:
    """Returns the folder name of each cluster or class: the one a person gave, or the suggested."""
    if run.known is not None:
        return {splits.novel_name(cluster): name for cluster, name in run.named.items()}
    return {int(cluster): name for cluster, name in run.cluster_names.items()}


def folder_names(
    labels: NDArray, names: Mapping[Any, str] = {}, group: str = "cluster"
) -> dict[Any, str]:
    """Returns a safe and distinct folder name for each label.

    If two labels have one name, the second gets a number, "church_2". Without a name it is
    `group_03` for 3, "cat_dog" for the class "cat/dog", and `no_group` for -1.

    Args:
        labels: int, or names of classes.
        names: label -> name.
        group: the word for a cluster.

    Example:
        >>> folder_names(np.array([-1, 0, 1, 2]), {0: "church", 2: "Church"}, "group")
        {-1: 'no_group', 0: 'church', 1: 'group_01', 2: 'Church_2'}
    """
    unique = np.unique(labels).tolist()
    width = max(2, len(str(unique[-1]))) if labels.dtype.kind in "iu" else 0
    used: set[str] = set()
    folders = {}
    for label in unique:
        plain, called = f"{group}_{label:0{width}d}" if width else str(label), names.get(label, "")
        if label == NO_CLUSTER:
            plain, called = f"no_{group}", ""
        folders[label] = _unused(_safe(called) or _safe(plain) or "class", "", used)
    return folders


def _safe(text: str) -> str:
    """Returns a safe folder name: no separator or quote, not ".", ".." or hidden, no flag.

    Letters, marks and signs of all scripts stay; invisible characters and those that reverse text
    do not.
    """
    text = unicodedata.normalize("NFC", text)
    kept = "".join(character if _is_safe(character) else "\0" for character in text)
    return re.sub("\0+", "_", kept).strip("._- ")[:_MAX_NAME].strip()


def _is_safe(character: str) -> bool:
    if character.isascii():
        return character.isalnum() or character in "_.() -"
    # Controls, formats and blanks are not, but for the joiner of many scripts and signs.
    return character == "\u200d" or unicodedata.category(character)[0] not in "CZ"


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
    number, end = 1, suffix
    while _same(free := _shortened(stem, end)) in used:
        number += 1
        end = f"_{number}{suffix}"
    used.add(_same(free))
    return free


def _same(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _shortened(stem: str, end: str) -> str:
    """Returns a name of at most `_MAX_BYTES` bytes; a longer stem is cut between characters."""
    whole = os.fsencode(stem)
    start = whole[: _MAX_BYTES - len(os.fsencode(end))]
    return (stem if start == whole else start.decode(errors="ignore")) + end


def _resolved(path: epath.PathLike) -> pathlib.Path:
    return pathlib.Path(path).expanduser().resolve()


def _unpack(dataset: Dataset, numbers: Sequence[int], i: int, target: pathlib.Path) -> None:
    """Copies an image out of a zip."""
    assert dataset.original is not None
    with target.open("xb") as copy:
        copy.write(dataset.original(numbers[i]))


def _put(files: Sequence[pathlib.Path], by: str, i: int, target: pathlib.Path) -> None:
    """Links to a file, or copies it; also copies it if links are not possible."""
    if by == "link":
        try:
            os.symlink(os.path.realpath(files[i]), target)
            return
        except OSError:  # The file system has none.
            pass
    shutil.copy2(files[i], target)
