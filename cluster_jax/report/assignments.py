"""CSV tables: cluster assignments of images or rows, and duplicates."""

import csv
import io
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.clustering.base import Assignment
from cluster_jax.clustering.membership import Membership
from cluster_jax.core import buckets
from cluster_jax.core.checks import InputError
from cluster_jax.data.images import Dataset, PhotoFacts
from cluster_jax.discovery import scores as discovery
from cluster_jax.discovery import splits
from cluster_jax.discovery.scores import Discovery
from cluster_jax.evaluation.clusters import Clustering
from cluster_jax.evaluation.evaluate import Evaluation
from cluster_jax.report.duplicates import Duplicates

Column = Sequence[Any] | NDArray


def escaped(name: str) -> str:
    r"""Escapes a file name as valid UTF-8: undecodable bytes and \r as `\xNN`, backslashes doubled.

    Example:
        >>> escaped("caf\udce9.png"), unescaped(escaped("caf\udce9.png")) == "caf\udce9.png"
        ('caf\\xe9.png', True)
        >>> escaped("a\rb"), unescaped(escaped("a\rb")) == "a\rb"
        ('a\\x0db', True)
    """
    # Some readers of CSV take a carriage return for the end of a line.
    name = name.replace("\\", "\\\\").replace("\r", "\\x0d")
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def unescaped(name: str) -> str:
    """Inverts `escaped`: returns the file name of an escaped text."""

    def replace(match: re.Match) -> str:
        byte = match[1]
        return "\\" if byte is None else bytes([int(byte, 16)]).decode("utf-8", "surrogateescape")

    return re.sub(r"\\(?:x([0-9a-f]{2})|\\)", replace, name)


class Table(NamedTuple):
    """Content of `assignments.csv`, and the titles of names and of clusters.

    Attributes:
        columns: title -> cells; of names see `unescaped`.
        name: title of the names.
        cluster: title of the clusters; in novel class discovery, of the classes.
    """

    columns: dict[str, list[str]]
    name: str
    cluster: str

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self.columns[self.name])


def read_workdir(workdir: epath.PathLike) -> Table:
    """Reads `assignments.csv` of a workdir.

    Raises:
        InputError: the file does not exist, or has no column of names or of clusters.
    """
    file = buckets.path(workdir) / "assignments.csv"
    if not file.exists():
        raise InputError(
            f"arguments must be workdirs of finished runs; got {workdir}, which "
            f"{'has no assignments.csv' if file.parent.exists() else 'does not exist'}"
        )
    columns = read(file)
    names = [title for title in columns if title in ("image", "row")]
    order = ("cluster", "class") if names[:1] == ["row"] else ("class", "cluster")
    clusters = [title for title in order if title in columns]
    if not names or not clusters:
        raise InputError(
            f"{file} must have a column of names and one of clusters; got {[*columns]}"
        )
    return Table(columns, names[0], clusters[0])


def numbers(table: Table, title: str, rows: Sequence[int], empty: float) -> NDArray | None:
    """Returns a column of some rows as float64, or None; an empty cell has the value `empty`."""
    if title not in table.columns:
        return None
    cells = table.columns[title]
    return np.array([float(cells[i] or empty) for i in rows])


def read(file: epath.Path) -> dict[str, list[str]]:
    """Reads the columns of a table that `to_csv` has written; of names see `unescaped`.

    A cell that a line lacks is empty.
    """
    text = file.read_bytes().decode("utf-8-sig", "replace")
    before = csv.field_size_limit(sys.maxsize)  # Of the process; ids may be long.
    try:
        lines = csv.reader(io.StringIO(text))
        columns: dict[str, list[str]] = {title: [] for title in next(lines, [])}
        for line in filter(None, lines):
            missing = [""] * (len(columns) - len(line))
            for column, cell in zip(columns.values(), [*line, *missing], strict=False):
                column.append(cell)
        return columns
    finally:
        csv.field_size_limit(before)


def to_csv(columns: Mapping[str, Column]) -> str:
    """Formats a table as CSV in UTF-8, with a header line.

    Args:
        columns: title -> one entry for each row. Strings are escaped, see `escaped`; in arrays,
            booleans are written as 0 and 1, floats with six significant digits.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*map(_cells, columns.values()), strict=True))
    return file.getvalue()


def images_csv(
    dataset: Dataset,
    evaluation: Evaluation,
    discovered: Discovery | None,
    facts: PhotoFacts | None = None,
) -> str:
    """Formats the table `assignments.csv` of a run, one row per training image.

    Its columns are those of `rows_csv`, the date, width, height and bytes of files, and the cluster
    by k-means. In novel class discovery, there
    is also a column of classes, and the cells of clusters are empty for labeled images, which are
    not clustered.
    """
    columns = _cluster_columns(evaluation.clustering)
    columns["kmeans_cluster"] = evaluation.kmeans_labels
    if dataset.partial_labels is not None:
        unlabeled = dataset.partial_labels < 0
        columns = {title: _scatter_cells(_cells(c), unlabeled) for title, c in columns.items()}
        known_classes = splits.known_names(dataset)
        classes = dataset.partial_labels if discovered is None else discovered.classes
        columns["class"] = [discovery.name(c, known_classes) if c >= 0 else "" for c in classes]
    if facts is not None:
        columns |= {"taken": facts.taken, "width": facts.width, "height": facts.height}
        columns["bytes"] = facts.bytes
    return to_csv({"image": dataset.sources or range(dataset.size), **columns})


def rows_csv(names: Sequence[str] | None, result: Clustering) -> str:
    """Formats the table `assignments.csv` of the command `cluster`, one row per row of features.

    Its columns are the cluster, the distance to its center, the outlier flag, and the position in a
    map of up to three dimensions. For clusters of `SmoothTree` there are also the probability of
    the cluster, and the second most probable cluster, if there is one, with its probability.

    Args:
        names: name of each row; None: rows are numbered.
        result: the clusters.
    """
    rows = range(len(result.cluster_labels)) if names is None else names
    return to_csv({"row": rows, **_cluster_columns(result)})


def columns_of(table: Table) -> dict[str, list[Any]]:
    """Returns the columns of a table as `to_csv` takes them."""
    return {title: list(map(unescaped, cells)) for title, cells in table.columns.items()}


def _cluster_columns(result: Clustering) -> dict[str, Column]:
    columns: dict[str, Column] = {
        "cluster": result.cluster_labels,
        "distance": result.distances,
        "outlier": result.outliers,
    }
    if result.points.shape[1] <= 3:
        axes = zip("xyz", result.points.T, strict=False)
        columns |= {f"map_{axis}": values for axis, values in axes}
    columns |= _sure_columns(result.membership)
    return columns


def placed_columns(placed: Assignment, names: Mapping[str, str]) -> dict[str, Column]:
    """Makes columns of new rows: cluster, distance, novelty, how sure it is where known, name.

    Args:
        placed: the clusters of the rows.
        names: cluster, as text -> its name; none: there is no such column.
    """
    columns: dict[str, Column] = {
        "cluster": placed.labels,
        "distance": placed.distances,
        "is_novel": placed.is_novel,
        **_sure_columns(placed.membership),
    }
    if names:
        columns["name"] = [names.get(str(label), "") for label in placed.labels.tolist()]
    return columns


def _sure_columns(membership: Membership | None) -> dict[str, Column]:
    if membership is None:
        return {}
    return {
        "probability": membership.probabilities,
        "runner_up": ["" if c < 0 else c for c in membership.runners_up.tolist()],
        "runner_up_probability": membership.runner_up_probabilities,
    }


def duplicates_csv(sources: Sequence[str] | None, repeated: Duplicates) -> str:
    """Formats the table `duplicates.csv`, one row per image in a group; a header without groups."""
    images: list = repeated.images.tolist()
    if sources is not None:
        images = [sources[i] for i in images]
    kinds = np.where(repeated.is_exact, "exact", "near")
    facts = repeated.facts
    columns: dict[str, Column] = {
        "group": repeated.groups,
        "kind": kinds,
        "image": images,
        "width": facts.width,
        "height": facts.height,
        "bytes": [size or "" for size in facts.bytes.tolist()],  # An array has none.
        "taken": facts.taken,
        "keep": repeated.keep,
        "similarity": repeated.similarities,
    }
    return to_csv(columns)


def _cells(column: Column) -> Sequence[Any]:
    if not isinstance(column, np.ndarray):
        return [escaped(cell) if isinstance(cell, str) else cell for cell in column]
    if column.dtype.kind == "f":
        return [f"{value:.6g}" for value in column.tolist()]
    return column.astype(int).tolist() if column.dtype.kind == "b" else column.tolist()


def _scatter_cells(cells: Sequence[Any], where: NDArray) -> list[Any]:
    """Distributes cells, in order, to the rows where `where` is true; other rows are empty."""
    following = iter(cells)
    return [next(following) if is_filled else "" for is_filled in where]
