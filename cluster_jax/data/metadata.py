"""What is known of rows beside their features: columns of text, joined by the names of the rows."""

import collections
import contextlib
import functools
import itertools
import os
import pathlib
import urllib.request
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cluster_jax.core import checks
from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted
from cluster_jax.data import tables

# Title -> the cell of each row; a cell is empty where nothing is known.
Metadata = Mapping[str, Sequence[str]]
# Titles of `assignments.csv` of embeddings, and of what corrections and updates add.
TAKEN = (
    *("row", "cluster", "distance", "outlier", "map_x", "map_y", "map_z", "probability"),
    *("runner_up", "runner_up_probability", "isolation", "found_cluster", "corrected", "name"),
    *("id", "since"),
)
# How the title of a column of files of pictures ends.
_PICTURES = ("image", "picture", "photo", "thumbnail", "file", "filename", "path")
_SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".webp")
_TRIED, _SECONDS = 3, 10  # cells of a column that are tried; for a server that has a picture


def read(path: str, names: Sequence[str] | None, count: int) -> Metadata:
    """The columns of a table, in the order of rows, which its column of ids names.

    This column has one of the titles that name rows, see `tables.names_rows`, or is the first.

    Args:
        path: CSV, TSV, Parquet, Arrow or JSON lines.
        names: name of each row; None: they are numbered from 0.
        count: number of rows.

    Raises:
        InputError: the file cannot be read, an id repeats, or none of them is that of a row.
    """
    table = dict(tables.read_texts(path))
    key = next(filter(tables.names_rows, table), None) or next(iter(table), "")
    if not table.get(key):
        raise InputError(f"{path} must have a row for each id; got no rows")
    ids = table.pop(key)
    repeated = [name for name, times in collections.Counter(ids).items() if times > 1]
    if repeated:
        raise InputError(
            f"{path} must have each id once; got {checks.short(repr(repeated[0]))} in several "
            f"lines of {key!r}"
        )
    place = {name: i for i, name in enumerate(ids)}
    at = [place.get(name) for name in (map(str, range(count)) if names is None else names)]
    missing, unused = at.count(None), len(ids) - len(set(at) - {None})
    if missing == count:
        example = "0" if names is None else names[0]
        raise InputError(
            f"{path} must have the ids of rows in its column {key!r}, such as "
            f"{checks.short(repr(example))}; got {checks.short(repr(ids[0]))}"
        )
    if missing or unused:
        others = f", and has {unused:,} of other rows" if unused else ""
        checks.warn(f"{path} describes {count - missing:,} of {counted(count, 'row')}{others}", 2)
    return {
        title: tuple("" if i is None else cells[i] for i in at) for title, cells in table.items()
    }


def allowed(found: Metadata, path: str) -> Metadata:
    """Metadata of a file of features, without titles of ours; a warning names these."""
    if clash := [title for title in found if title in TAKEN]:
        checks.warn(
            f"{path}: {', '.join(clash)} is left out, because assignments.csv has such a column",
            2,
        )
    return {title: cells for title, cells in found.items() if title not in TAKEN}


def joined(found: Metadata, more: Metadata, path: str) -> Metadata:
    """Metadata and those of another file.

    Raises:
        InputError: the latter have a title of ours, or of the former.
    """
    if clash := [title for title in more if title in TAKEN or title in found]:
        raise InputError(
            f"{path} must not have columns that assignments.csv has; got {', '.join(clash)}: "
            "rename them"
        )
    return {**found, **more}


def followed(found: Metadata, count: int, more: Metadata, rows: Sequence[int]) -> Metadata:
    """Metadata of `count` rows and of others that follow, those of `rows` in `more`."""
    return {
        title: [
            *found.get(title, [""] * count),
            *(more[title][i] if title in more else "" for i in rows),
        ]
        for title in {**found, **more}
    }


def pictures(
    metadata: Metadata, folders: Sequence[str], side: int
) -> Callable[[NDArray], NDArray] | None:
    """What shows the pictures of rows, if a column has their paths or URLs; else None.

    A picture that cannot be read is gray.

    Args:
        metadata: of the rows.
        folders: of relative paths, by priority.
        side: of the squares that are shown, in pixels.

    Returns:
        Indices of rows -> uint8 `[b, side, side, 3]`.
    """
    for title, cells in metadata.items():
        some = list(itertools.islice(filter(None, cells), _TRIED))
        is_named = title.strip().lower().removesuffix("url").rstrip("_ ").endswith(_PICTURES)
        urls = [cell for cell in some if _is_url(cell)]
        # A page of another site is no picture, and is not asked for.
        if urls and (is_named or pathlib.PurePath(urls[0]).suffix.lower() in _SUFFIXES):
            if not any(_can_be_read(cell) for cell in urls):
                checks.warn(
                    f"no picture of the column {title} is shown; got none from {urls[0]}", 2
                )
                continue
            return functools.partial(_fetch, cells, folders, side)
        if is_named and any(_in(folder, cell).is_file() for folder in folders for cell in some):
            return functools.partial(_fetch, cells, folders, side)
    return None


def _is_url(cell: str) -> bool:
    return cell.startswith(("http://", "https://"))


def _can_be_read(url: str) -> bool:
    with contextlib.suppress(Exception):  # Servers raise errors of many types.
        return bool(_bytes("", url))
    return False


def _in(folder: str, cell: str) -> pathlib.Path:
    return pathlib.Path(folder, os.path.expanduser(cell.removeprefix("file://")))


def _fetch(cells: Sequence[str], folders: Sequence[str], side: int, indices: NDArray) -> NDArray:
    # Not before: bad input is told without JAX.
    from cluster_jax.data import images

    resize = images.Resize(side, "bilinear")

    def picture(i: int) -> NDArray:
        for folder in [""] if _is_url(cells[i]) else folders:
            # Pillow and servers raise errors of many types; a page without one picture is a page.
            with contextlib.suppress(Exception):
                return images.decode(_bytes(folder, cells[i]), resize, 3)
        return np.full((side, side, 3), 128, np.uint8)

    return np.stack(images.map_indices(picture, indices))


def _bytes(folder: str, cell: str) -> bytes:
    if not _is_url(cell):
        return _in(folder, cell).read_bytes()
    with urllib.request.urlopen(cell, timeout=_SECONDS) as answer:
        return answer.read()
