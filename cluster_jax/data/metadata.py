"""What is known of rows beside their features: columns of text, joined by the names of the rows."""

import contextlib
import functools
import itertools
import os
import pathlib
import re
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster_jax.core import checks
from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted
from cluster_jax.data import tables
from cluster_jax.data.shards import Shards

# Title -> the cell of each row; a cell is empty where nothing is known.
Metadata = Mapping[str, Sequence[str]]
# Titles of `assignments.csv` of embeddings, also of those read in blocks, of what corrections and
# updates add, and of `predictions.csv`.
TAKEN = (
    *("row", "cluster", "distance", "outlier", "map_x", "map_y", "map_z", "probability"),
    *("runner_up", "runner_up_probability", "found_cluster", "corrected", "name"),
    *("since", "share", "in_sample", "is_novel"),
)
# How the title of a column of files of pictures ends.
_PICTURES = ("image", "picture", "photo", "thumbnail", "file", "filename", "path")
_SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".webp")
_TRIED, _SECONDS = 3, 10  # cells of a column that are tried; for a server that has a picture


class Rows(NamedTuple):
    """Features `[n, d]`, in memory or in shards, and what else is known of their rows.

    Attributes:
        values: the features.
        names: name of each row, or None.
        metadata: of the rows.
    """

    values: NDArray | Shards
    names: tuple[str, ...] | None
    metadata: Metadata


def read_rows(path: str, array: str | None, ids: str | None, file: str | None) -> Rows:
    """Reads the features of a command, and the metadata of their rows.

    Args:
        path: of the features, like the next two see `tables.read_table`.
        array: what holds the features, or None.
        ids: what names the rows, or None.
        file: a table of metadata, or None.

    Raises:
        InputError: a file cannot be used.
    """
    shards = tables.open_large(path)
    if shards is None:
        table = tables.read_table(path, array, ids)
    else:
        table = tables.Table(shards[:0], tables.read_names(ids, len(shards)))
    rows = Rows(table.values if shards is None else shards, table.names, table.metadata)
    rows = rows._replace(metadata=allowed(rows.metadata, path))
    if file is None:
        return rows
    count = len(rows.values)
    return rows._replace(
        metadata=updated(rows.metadata, *read(file, rows.names, count, range(count)))
    )


def read(
    path: str, names: Sequence[str] | None, count: int, new: Collection[int]
) -> tuple[Metadata, Sequence[int]]:
    """Reads a table of metadata, whose column of ids names rows.

    This column is the one that names most of them, among those with a title that names rows, see
    `tables.names_rows`; or the first.

    Args:
        path: CSV, TSV, Parquet, Arrow or JSON lines.
        names: name of each row; None: they are numbered from 0.
        count: number of rows.
        new: rows that should be in the table; a warning counts those that are not.

    Returns:
        The columns without titles of ours; and for each row its place in them, -1 for none.

    Raises:
        InputError: the file cannot be read, has a title of ours, an id repeats, or none of them is
            that of a row.
    """
    with checks.named({"data.dir": "--metadata"}):  # of an empty one
        table = _decoded(tables.read_texts(path), path)
    are_numbered = names is None
    names = list(map(_key, map(str, range(count)) if names is None else names))
    known_names = frozenset(names)
    titled = list(filter(tables.names_rows, table)) or list(table)[:1]
    keys = {title: list(map(_key, table[title])) for title in titled}
    key = max(keys, key=lambda title: sum(name in known_names for name in keys[title]), default="")
    if not table.get(key):
        raise InputError(f"{path} must have a row for each id; got no rows")
    if key in known_names and not are_numbered:
        raise InputError(f"{path} must have a line of titles; got {key!r}, the id of a row, in it")
    if len(table) == 1:
        raise InputError(f"{path} must have columns beside that of ids; got {key!r} alone")
    ids = keys[key]
    place = {name: i for i, name in enumerate(ids)}
    at = [place.get(name, -1) for name in names]
    if set(at) == {-1}:
        raise InputError(
            f"{path} must have the ids of rows in its column {key!r}, such as "
            f"{checks.short(repr(names[0]))}; got {checks.short(repr(ids[0]))}"
        )
    if len(place) < len(ids):
        repeated = next(name for i, name in enumerate(ids) if place[name] != i)
        raise InputError(
            f"{path} must have each id once; got {checks.short(repr(repeated))} in several "
            f"lines of {key!r}"
        )
    more = {title: cells for title, cells in table.items() if title not in ("", key)}
    if clash := [title for title in more if title in TAKEN]:
        raise InputError(
            f"{path} must not have columns that assignments.csv has; got {', '.join(clash)}: "
            "rename them"
        )
    n_described, unused, said = sum(at[i] >= 0 for i in new), len(ids) - len({*at} - {-1}), []
    if n_described < len(new):
        rows = counted(len(new), "row" if len(new) == count else "new row")
        said.append(f"describes {n_described:,} of {rows}{', numbered from 0' * are_numbered}")
    if unused:
        said.append(f"has ids of {counted(unused, 'other row')}")
    if said:
        checks.warn(f"{path} {', and '.join(said)}", 2)
    return more, at


def _key(name: str) -> str:
    """Removes from an id what a table of floats, or a person, adds to it.

    Example:
        >>> _key(" 7.0"), _key("7.25"), _key("a.0")
        ('7', '7.25', 'a.0')
    """
    return re.sub(r"^(-?\d+)\.0+$", r"\1", name.strip())


def allowed(columns: Metadata, path: str) -> Metadata:
    """Removes titles of ours from the metadata of a file of features; a warning names these."""
    if clash := [title for title in columns if title in TAKEN]:
        checks.warn(
            f"{path}: {', '.join(clash)} is left out, because assignments.csv has such a column",
            2,
        )
    return _decoded({t: cells for t, cells in columns.items() if t not in TAKEN}, path)


def _decoded(table: Metadata, path: str) -> dict[str, Sequence[str]]:
    """Replaces bytes that are no UTF-8 in a table's titles; a warning tells of any in the table."""
    decoded = {
        title.strip().encode("utf-8", "surrogateescape").decode("utf-8", "replace"): cells
        for title, cells in table.items()
    }
    try:
        for title, cells in table.items():
            "".join([title, *cells]).encode()
    except UnicodeEncodeError as error:
        byte = repr(os.fsencode(error.object[error.start]))[2:-1]
        checks.warn(
            f"{path} must be in UTF-8; got the byte {byte}, which stays as it is: save it again", 2
        )
    return decoded


def updated(before: Metadata, more: Metadata, at: Sequence[int]) -> Metadata:
    """Updates the metadata of rows: those in a table take the place of those that were known.

    Args:
        before: those of the first rows.
        more: the table.
        at: for each row its place in the table, -1 for none.
    """

    def cells(title: str) -> Sequence[str]:
        old, new = before.get(title, ()), more.get(title)
        old = [*old, *[""] * (len(at) - len(old))]
        if new is None:
            return old
        return [cell if i < 0 else new[i] for cell, i in zip(old, at, strict=True)]

    return {title: cells(title) for title in {**before, **more}}


def pictures(
    metadata: Metadata, folders: Sequence[str], side: int
) -> Callable[[NDArray], NDArray] | None:
    """Returns what shows the pictures of rows, if a column has their paths or URLs; else None.

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
    from cluster_jax.data import decode, images

    resize = decode.Resize(side, "bilinear")

    def picture(i: int) -> NDArray:
        for folder in [""] if _is_url(cells[i]) else folders:
            # Pillow and servers raise errors of many types; a page without one picture is a page.
            with contextlib.suppress(Exception):
                return decode.decode(_bytes(folder, cells[i]), resize, 3)
        return np.full((side, side, 3), 128, np.uint8)

    return np.stack(images.map_indices(picture, indices))


def _bytes(folder: str, cell: str) -> bytes:
    if not _is_url(cell):
        return _in(folder, cell).read_bytes()
    with urllib.request.urlopen(cell, timeout=_SECONDS) as answer:
        return answer.read()
