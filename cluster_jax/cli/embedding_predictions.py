"""Assignment of new embeddings to the clusters of a run of `cluster`: table and summary."""

from collections.abc import Iterable
from operator import itemgetter
from typing import Any

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.cli.flags import output_file
from cluster_jax.cli.predictions import describe, values, write_table
from cluster_jax.clustering.base import Assignment
from cluster_jax.core import checks
from cluster_jax.report import assignments
from cluster_jax.runs import rows as embeddings
from cluster_jax.runs import run as records


def predict(
    workdir: epath.PathLike,
    features: str,
    out: epath.PathLike,
    array: str | None = None,
    ids: str | None = None,
) -> tuple[str, dict[str, Any]]:
    """Assigns new embeddings to the clusters of a finished run and writes the table.

    Args:
        workdir: folder of the run.
        features: file or folder of embeddings, as of the run.
        out: the table to write.
        array: array or column of the file.
        ids: column or array of the file that names the rows, see `tables.read_rows`.

    Returns:
        A summary for the terminal, and one for programs.

    Raises:
        InputError: the run, the embeddings or `out` cannot be used; nothing was written.
    """
    run, out = records.read(workdir), output_file(out)
    rows, names, *_ = embeddings.read_rows(run, features, array, ids)
    blocks: Iterable[NDArray] = (
        [rows] if isinstance(rows, np.ndarray) else map(itemgetter(1), rows.blocks())
    )
    with checks.named({"X must": "--features must"}):
        parts = [run.place(run.checked(block)) for block in blocks]
    joined: list[Any] = [
        None if column[0] is None else np.concatenate(column) for column in zip(*parts, strict=True)
    ]
    placed = Assignment(*joined)
    called = run.cluster_names
    columns = assignments.placed_columns(placed, called)
    write_table(out, {"row": names or range(len(placed.labels)), **columns})
    large = set(run.labels.tolist())
    text = describe(placed, called, out, large=large, words=("row", "cluster"))
    return text, values(placed, called, out)
