"""Where the photos of a run are now: in its folders and others, away, or not to be read today.

A photo is gone only where it is certain: its folder is there and can be read, and the file is not
in it, is another picture, or is excluded. All else stays until a person says that it is gone.
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster_jax.core import checks
from cluster_jax.core.checks import InputError
from cluster_jax.core.devices import say
from cluster_jax.data import datasets, images, tables
from cluster_jax.data import folder as image_files
from cluster_jax.data.datasets import Dataset
from cluster_jax.runs import changes, config_paths
from cluster_jax.runs.config_paths import is_at
from cluster_jax.runs.run import Run
from cluster_jax.training.config import parse_config


class Present(NamedTuple):
    """The photos that are there now and can be read.

    Attributes:
        dataset: the m photos.
        folders: all folders and files of the run from now on, also those that are away.
        exclude: globs of files that are left out from now on.
        paths: absolute path of each of the m photos.
        facts: `[m]` of `data.images.FACTS`.
        unreadable: absolute paths of files, and of folders, that are there and cannot be read.
        missing: folders and files of the run that are not there, cannot be read, or have no photo.
        given_up: folders and files that are gone for good, as a person says.
    """

    dataset: Dataset
    folders: tuple[str, ...]
    exclude: tuple[str, ...]
    paths: tuple[str, ...]
    facts: NDArray
    unreadable: frozenset[str]
    missing: tuple[str, ...]
    given_up: tuple[str, ...]

    def may_be_there(self, path: str) -> bool:
        """Returns whether a photo that was not found at a path may still be there."""
        if any(is_at(path, place) for place in (*self.missing, *self.unreadable)):
            return True
        if any(is_at(path, place) for place in self.given_up):
            return False
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return os.path.islink(path)  # It leads to a place that is not there now.
        except OSError:
            return True
        return False  # There is another picture, or one that is excluded.


def find(run: Run, more: Sequence[str], gone: Sequence[str], exclude: Sequence[str]) -> Present:
    """Finds the photos in the folders of a run, and in others.

    Args:
        run: the run, of which known files are not decoded again.
        more: further folders or files.
        gone: folders or files of the run that a person gives up.
        exclude: globs that are left out from now on, beside those of the config.

    Raises:
        InputError: the photos cannot be used, one of `more` does not exist, or one of `gone` is no
            folder of the run.
    """
    data = parse_config(run.config).data
    given_up = [str(config_paths.normalized(name)) for name in gone]
    own = _without(str(data.dir), given_up, run)
    folders = _folders(own, more)
    globs = tuple(dict.fromkeys([*data.exclude, *exclude]))
    place = "\n".join(_readable(folders, own or gone))
    # Labels are for scores alone: a photo without one is a photo, see `with_truth`. All that are
    # there are found, also those that a training has left out.
    data = dataclasses.replace(data, dir=place, cache_mb=0.0, exclude=globs)
    data = dataclasses.replace(data, labels=None, classes=None, limit=None)
    with checks.named({"data.dir": "PHOTOS"}):
        dataset = images.with_channels(datasets.load(data, known=run.facts), 3)
    assert dataset.facts is not None
    facts = dataset.facts(np.arange(dataset.size))
    root = image_files.root(place)
    paths = [os.path.abspath(root / name) for name in dataset.sources or ()]
    is_read = facts["file"].any(axis=1)
    closed = {os.path.abspath(root / name) for name, _ in dataset.skipped}
    closed |= {paths[row] for row in np.flatnonzero(~is_read).tolist()}
    rows = np.flatnonzero(is_read)
    paths = [paths[row] for row in rows.tolist()]
    known = changes.paths(run)
    missing = [name for name in own if not _is_there(name, paths, known)]
    return Present(
        dataset=images.select(dataset, rows),
        folders=tuple(folders),
        exclude=globs,
        paths=tuple(paths),
        facts=facts[rows],
        unreadable=frozenset(closed),
        missing=tuple(missing),
        given_up=tuple(given_up),
    )


def _is_there(name: str, paths: Sequence[str], known: Sequence[str]) -> bool:
    """Returns whether a folder of a run has photos now, or a file is there.

    Args:
        name: absolute path of the folder or file.
        paths: those of the photos that are there.
        known: those of the photos of the run: where some were inside, a file is not their folder.
    """
    if any(path != name and is_at(path, name) for path in paths):
        return True
    return os.path.isfile(name) and not any(path != name and is_at(path, name) for path in known)


def _readable(folders: Sequence[str], asked: Sequence[str]) -> list[str]:
    """Lists the folders and files that can be read now.

    Args:
        folders: all folders and files.
        asked: those of the run, for the message.

    Raises:
        InputError: none can be read.
    """
    present = [name for name in folders if _can_be_read(name)]
    if not present:
        raise InputError(
            f"PHOTOS must be given, because {image_files.shown(chr(10).join(asked))} is not there "
            "or cannot be read; got none: name the folder in which the photos are now"
        )
    return present


def _without(own: str, given_up: Sequence[str], run: Run) -> list[str]:
    """Returns the folders and files of a run without those that a person gives up.

    Raises:
        InputError: one of `given_up` is none of them.
    """
    folders = own.split("\n")
    if others := [name for name in given_up if name not in folders]:
        must = f"--gone must be a folder of {run.workdir}, {' or '.join(folders)}"
        raise InputError(f"{must}; got {others[0]}")
    return [name for name in folders if name not in given_up]


def _folders(own: Sequence[str], more: Sequence[str]) -> list[str]:
    """Lists the folders of a run and others, each once: no other one that is inside of one.

    A link to a folder is that folder. A folder of the run stays, also inside of another one, since
    it may be a disk that is not there today.

    Args:
        own: folders and files of the run.
        more: further folders or files.

    Raises:
        InputError: one of `more` does not exist.
    """
    if missing := [name for name in more if not os.path.exists(os.path.expanduser(name))]:
        raise InputError(f"PHOTOS must be folders or files of images; got no {missing[0]}")
    every = [*own, *(str(config_paths.normalized(name)) for name in more)]
    real = [os.path.realpath(name) for name in every]
    return [
        name
        for i, (name, path) in enumerate(zip(every, real, strict=True))
        if path not in real[:i]
        and (i < len(own) or not any(is_at(path, other) for other in real if other != path))
    ]


def _can_be_read(path: str) -> bool:
    """Returns whether a path is a file, or a folder whose files can be listed."""
    try:
        with os.scandir(path):
            return True
    except NotADirectoryError:
        return os.path.isfile(path)
    except OSError:
        return False


def with_truth(run: Run) -> Run:
    """Returns a run of photos with the true labels that its config names, and their names.

    They are for scores alone. A photo for which none is known has -1. One that has a label keeps
    it, unless a `.csv` names another one: it is read anew, and need not have all photos. Any other
    file has the labels in the order of the photos of then. A file that cannot be read is told, and
    the labels before stay.

    Args:
        run: the run, whose names are relative to the folder of its config. If it has no labels,
            they are asked for now.

    Raises:
        InputError: the run has no labels yet, and their file cannot be used.
    """
    source = run.config["data"]["labels"]
    if source is None:
        return dataclasses.replace(run, truth=None, label_names=None)
    names = run.names or ()
    label_names = run.label_names or ()
    known = np.full(len(names), -1, np.int32) if run.truth is None else run.truth
    if source == "folders":
        truth, titles = _of_folders(run.config["data"]["dir"], names, known, label_names)
        return dataclasses.replace(run, truth=truth, label_names=titles)
    if not source.lower().endswith(".csv") and (known >= 0).any():
        return run
    try:
        table = tables.read_labels(source, len(names), names, partial=True)
    except (InputError, OSError) as error:
        if run.truth is None:
            raise
        say(f"the labels cannot be read, and those of before stay: {error}")
        return run
    truth, titles = _with_known(table, known, label_names)
    return dataclasses.replace(run, truth=truth, label_names=titles)


def _of_folders(
    dir: str, names: Sequence[str], known: NDArray, label_names: Sequence[str]
) -> tuple[NDArray, tuple[str, ...]]:
    """Returns labels of n photos and their names; those without one have that of their folder.

    Args:
        dir: folders and files, one a line, as `data.dir`.
        names: paths of the photos, relative to the folder that holds all of these.
        known: int32 `[n]`, the labels before, numbers in `label_names`; -1 for unknown ones.
        label_names: the names of the labels before.
    """
    root = image_files.root(dir)
    tops = [os.path.relpath(line, root) for line in dir.split("\n")]
    tops.sort(key=len)  # Of a folder inside of another one the outer one has the labels.
    # A run that began with several folders has them as labels, one with one its subfolders.
    is_by_top = any(os.path.basename(top) in label_names for top in tops)
    found = known.copy()
    every = list(label_names)
    for row in np.flatnonzero(known < 0).tolist():
        top = next((top for top in tops if is_at(names[row], top)), "")
        inside, is_inside, _ = names[row].removeprefix(f"{top}/").partition("/")
        label = os.path.basename(top) if is_by_top else inside if is_inside else ""
        if label:
            every += [] if label in every else [label]
            found[row] = every.index(label)
    return found, tuple(every)


def _with_known(
    table: tables.Labels, known: NDArray, label_names: Sequence[str]
) -> tuple[NDArray, tuple[str, ...]]:
    """Returns labels of n photos and their names; those that a table lacks are known from before.

    Args:
        table: the labels, -1 for photos that it lacks.
        known: int32 `[n]`, the labels before, numbers in `label_names`; -1 for unknown ones.
        label_names: the names of the labels before.
    """
    every = list(table.names)
    codes = table.codes.copy()
    for row in np.flatnonzero((codes < 0) & (known >= 0)).tolist():
        label = label_names[known[row]]
        every += [] if label in every else [label]
        codes[row] = every.index(label)
    return codes, tuple(every)
