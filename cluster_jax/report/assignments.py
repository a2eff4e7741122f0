"""CSV tables: cluster assignments of images or rows, and duplicates."""

import csv
import types
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering.base import Assignment
from cluster_jax.clustering.membership import Membership
from cluster_jax.report.duplicates import Duplicates

Column = Sequence[Any] | NDArray


def escaped(name: str) -> str:
    r"""Returns a name as it is if it is valid UTF-8, so that a table joins others by it.

    Of a file name that is not, each invalid byte becomes `\xNN`, and each backslash two.

    Example:
        >>> escaped("a\\b "), escaped("caf\udce9.png")
        ('a\\b ', 'caf\\xe9.png')
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        name = name.replace("\\", "\\\\")
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def to_csv(columns: Mapping[str, Column]) -> str:
    """Returns a table as the text of a CSV file in UTF-8, with a header line.

    Args:
        columns: title -> the entries of all rows, the same number in each column. In lists and
            other sequences, texts are ids or files, see `escaped`. In arrays,
            texts are names of clusters, and are not escaped; booleans are written as 0 and 1,
            floats with six significant digits.

    Raises:
        ValueError: columns differ in length.
    """
    # The writer quotes a cell with a character of its line end, and readers take a carriage return
    # that is not quoted for the end of a line. In the file a line ends with \n alone.
    lines = list[str]()
    file = types.SimpleNamespace(write=lambda line: lines.append(f"{line[:-2]}\n"))
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows(zip(*map(cells, columns.values()), strict=True))
    return "".join(lines)


def placed_columns(placed: Assignment, names: Mapping[str, str]) -> dict[str, Column]:
    """Returns the columns of new rows: cluster, distance, novelty, probabilities if known, name.

    Args:
        placed: the clusters of the rows.
        names: cluster, as text -> its name, "" for one that is missing here; empty: there is no
            column of names.
    """
    columns: dict[str, Column] = {
        "cluster": placed.labels,
        "distance": placed.distances,
        "novelty": placed.novelty,
        "is_novel": placed.is_novel,
        **sure_columns(placed.membership),
    }
    if names:
        columns["name"] = np.array([names.get(str(label), "") for label in placed.labels.tolist()])
    return columns


def sure_columns(membership: Membership | None) -> dict[str, Column]:
    """Returns the columns of probabilities, in which no second cluster is ""; {} for None."""
    if membership is None:
        return {}
    return {
        "probability": membership.probabilities,
        "second_cluster": ["" if c < 0 else c for c in membership.second_labels.tolist()],
        "second_probability": membership.second_probabilities,
    }


def duplicates_csv(sources: Sequence[str] | None, repeated: Duplicates) -> str:
    """Returns the text of `duplicates.csv`, a line for each image in a group, below a header.

    Args:
        sources: file of each image of the run; None: an image is named by its index.
        repeated: the duplicates.
    """
    images: list = repeated.images.tolist()
    if sources is not None:
        images = [sources[i] for i in images]
    facts = repeated.facts
    columns: dict[str, Column] = {
        "group": repeated.groups,
        "kind": np.where(repeated.is_exact, "exact", "near"),
        "image": images,
        "width": facts["width"],
        "height": facts["height"],
        "bytes": [size or "" for size in facts["bytes"].tolist()],  # An array has none.
        "taken": facts["taken"].astype(str),
        "keep": repeated.keep,
        "similarity": repeated.similarities,
    }
    return to_csv(columns)


def cells(column: Column) -> Sequence[Any]:
    """Returns the cells of a column as `to_csv` writes them."""
    if not isinstance(column, np.ndarray):
        return [escaped(cell) if isinstance(cell, str) else cell for cell in column]
    if column.dtype.kind == "f":
        return [f"{value:.6g}" for value in column.tolist()]
    if column.dtype.kind == "b":
        return column.astype(int).tolist()
    return column.tolist()
