"""Assignment of new images or embeddings to the clusters of a run, with its table and summary.

`runs.place.place` decides on the cluster.
"""

import collections
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from cluster_jax.cli.flags import output_file
from cluster_jax.clustering.base import NO_CLUSTER, Assignment
from cluster_jax.core import checks, io
from cluster_jax.core.checks import InputError
from cluster_jax.core.logs import logger
from cluster_jax.core.names import counted
from cluster_jax.data import datasets
from cluster_jax.data import folder as image_files
from cluster_jax.report import assignments, summary
from cluster_jax.runs import export
from cluster_jax.runs import rows as embeddings
from cluster_jax.runs import run as records
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.place import check_places, place
from cluster_jax.runs.run import Run
from cluster_jax.training.config import parse_config


def predict(
    workdir: epath.PathLike,
    images: epath.PathLike,
    out: epath.PathLike,
    folder: epath.PathLike | None = None,
    *,
    by: str = "link",
) -> tuple[str, dict[str, Any]]:
    """Assigns images to the clusters of a finished run and writes the table.

    Args:
        workdir: folder of the run.
        images: folder, image file, `.npy` or `.npz`; of a run on features `.npy`, `.npz` or `.csv`.
        out: the table to write.
        folder: folder for the images, one folder per cluster or class, and one for those that are
            unlike all images of the run; or None.
        by: see `export.write`.

    Returns:
        A summary for the terminal, and one for programs.

    Raises:
        InputError: the run, the images, `out` or `folder` cannot be used; nothing was written.
    """
    run = records.read(workdir)
    out = _table(out, run, images)
    if folder is not None:
        is_array = os.fspath(images).lower().endswith((".npy", ".npz"))
        export.check_has_files("arrays" if is_array else "folder")
        around = image_files.folders(os.fspath(images))
        if run.config["data"]["name"] == "folder":
            around += image_files.folders(str(run.config["data"]["dir"]))
        export.check(folder, run.workdir, around)
    data = parse_config(run.config).data
    with checks.named({"images must": "--images must", "features must": "--images must"}):
        check_places(run)
        dataset = datasets.load_new(images, data, run.images["shape"])
        for note in dataset.notes:
            logger.warning("%s", note)
        placed = place(run, run.encoder().embed(dataset))
        placed = placed._replace(labels=run.titles(placed.labels))
    # Images of an array are no photos.
    words = ("image", "cluster") if dataset.sources is None else run.words
    text, values = _written(run, placed, dataset.sources, out, words, dataset.skipped)
    if folder is not None:
        sources = dataset.sources or ()
        called = run.cluster_names
        places = export.places(placed.labels, called, words[1], sources, new=placed.is_novel)
        made = export.write(folder, run.workdir, places, os.fspath(images), sources, by)
        text += f"\n{export.told(made, folder)}"
        values["exported"] = str(folder)
    return text, values


def predict_rows(
    workdir: epath.PathLike,
    features: str,
    out: epath.PathLike,
    array: str | None = None,
    ids: str | None = None,
) -> tuple[str, dict[str, Any]]:
    """Assigns new embeddings to the clusters of a run of `cluster` and writes the table.

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
    run = records.read(workdir)
    out = _table(out, run, features)
    rows, names, *_ = embeddings.read_rows(run, features, array, ids)
    blocks = [rows] if isinstance(rows, np.ndarray) else (block for _, block in rows.blocks())
    with checks.named({"X must": "--features must"}):
        parts = [place(run, run.checked(block)) for block in blocks]
    joined: list[Any] = [
        None if column[0] is None else np.concatenate(column) for column in zip(*parts, strict=True)
    ]
    return _written(run, Assignment(*joined), names, out, run.words)


def _table(out: epath.PathLike, run: Run, source: epath.PathLike) -> epath.Path:
    """Returns the table to write, see `output_file`.

    Args:
        out: its path.
        run: the run, of which it is no file.
        source: what the new images or rows are read from.

    Raises:
        InputError: it cannot be written, or would replace a file of the run or the source.
    """
    file = output_file(out)
    place = os.path.realpath(file)
    tables = (workdirs.ASSIGNMENTS, workdirs.DUPLICATES, workdirs.CHANGES)
    is_in_run = os.path.dirname(place) == os.path.realpath(run.workdir)
    is_of_run = is_in_run and (file.name in tables or not place.endswith(".csv"))
    if is_of_run or place == os.path.realpath(os.path.expanduser(source)):
        must = "a file of its own, and in the folder of the run a .csv that no other command writes"
        raise InputError(f"--out must be {must}; got {out}")
    return file


def _written(
    run: Run,
    placed: Assignment,
    names: Sequence[str] | None,
    out: epath.Path,
    words: tuple[str, str],
    skipped: Sequence[tuple[str, str]] = (),
) -> tuple[str, dict[str, Any]]:
    """Writes the table of new rows; returns a summary for the terminal, and one for programs."""
    called = run.cluster_names
    columns = assignments.placed_columns(placed, called)
    if run.known_classes is not None:
        del columns["distance"]
        columns = {"class" if title == "cluster" else title: c for title, c in columns.items()}
    title = run.key if run.is_of_images or names is not None else "row"
    io.write(out, assignments.to_csv({title: names or range(len(placed.labels)), **columns}))
    sizes = collections.Counter(placed.labels.tolist())
    values = {
        "predictions": str(out),
        "rows": len(placed.labels),
        "novel": int(placed.is_novel.sum()),
        "sizes": dict(sorted(sizes.items())),
        "names": {key: called[key] for key in map(str, sizes) if key in called},
        "skipped": dict(skipped),
    }
    lines = [checks.one_line(f"skipped {file} ({reason})") for file, reason in skipped]
    lines += _told(values, words, is_of_classes=run.known_classes is not None)
    return "\n".join([*lines, f"predictions  {out}"]), values


def _told(values: Mapping[str, Any], words: tuple[str, str], *, is_of_classes: bool) -> list[str]:
    """Returns lines for a person: the largest clusters or classes, and counts."""
    noun, group = words
    sizes = values["sizes"]
    order = sorted(sizes, key=lambda label: (-sizes[label], label))
    listed = []
    for label in order[: summary.NAMED]:
        called = values["names"].get(str(label), "")
        called = f"in no {group}" if label == NO_CLUSTER else called
        number, _, things = counted(sizes[label], noun).partition(" ")
        title = (str(label), "") if is_of_classes else (group, str(label))
        listed.append((*title, number, things, called))
    lines = summary.table_lines(listed, left=(0, 3, 4))
    if len(order) > summary.NAMED:
        most = counted(sizes[order[summary.NAMED]], noun)
        lines.append(f"and {len(order) - summary.NAMED} more of at most {most}")
    kind = ("class", "classes") if is_of_classes else (group,)
    groups = counted(len(sizes.keys() - {NO_CLUSTER}), *kind)
    novel = values["novel"]
    others = "earlier photos" if noun == "photo" else f"{noun}s of the run"
    unlike = f"{novel:,} {'is' if novel == 1 else 'are'} unlike all {others}"
    return [*lines, f"Assigned {counted(values['rows'], noun)} to {groups}; {unlike}."]
