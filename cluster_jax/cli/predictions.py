"""Assignment of new images or embeddings to the clusters of a run, with its table and summary.

`runs.run.Run.place` decides on the cluster.
"""

import collections
import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
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
from cluster_jax.data.images import Dataset
from cluster_jax.encoding import encoder
from cluster_jax.encoding.embed import Batch, Parts
from cluster_jax.report import assignments, summary
from cluster_jax.runs import export
from cluster_jax.runs import rows as embeddings
from cluster_jax.runs import run as records
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.config import parse_config
from cluster_jax.runs.features import share, shared
from cluster_jax.runs.run import Run


def predict(
    workdir: epath.PathLike,
    images: epath.PathLike,
    out: epath.PathLike,
    folder: epath.PathLike | None = None,
    *,
    by: str = "link",
) -> tuple[str, dict[str, Any]] | None:
    """Assigns images to the clusters of a finished run and writes the table.

    Args:
        workdir: folder of the run.
        images: folder, image file, `.npy` or `.npz`; of a run on features `.npy`, `.npz` or `.csv`.
        out: the table to write.
        folder: new folder for the images, one folder per cluster or class; or None.
        by: see `export.write`.

    Returns:
        A summary for the terminal, and one for programs; of several processes, of which each
        assigns a share of the images, the first alone writes the table, and the others return None.

    Raises:
        InputError: the run, the images, `out` or `folder` cannot be used; nothing was written.
    """
    run, out = records.read(workdir), output_file(out)
    if folder is not None:
        is_array = os.fspath(images).lower().endswith((".npy", ".npz"))
        export.check_has_files("arrays" if is_array else "folder")
        export.check(folder, image_files.folders(os.fspath(images)))
    arrays = _assign(run, images, out)
    if arrays is None:
        return None
    files, skipped = arrays.pop("files", None), arrays.pop("skipped").tolist()
    placed, sources = Assignment(**arrays), None if files is None else files.tolist()
    # Images of an array are no photos.
    words = ("image", "cluster") if sources is None else run.words
    text, values = _written(run, placed, sources, out, words, skipped)
    Parts(out, "").remove()
    if folder is not None:
        root, names = image_files.root(os.fspath(images)), export.names_of_folders(run)
        load = functools.partial(_loader(run, images), share=range)
        source_files = sources or []
        places = export.places(placed.labels, names, words[1], source_files)
        count = export.write(folder, places, export.Images(root, source_files, load), by)
        text += f"\nexported     {counted(count, 'folder')} to {folder}"
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
    run, out = records.read(workdir), output_file(out)
    rows, names, *_ = embeddings.read_rows(run, features, array, ids)
    blocks = [rows] if isinstance(rows, np.ndarray) else (block for _, block in rows.blocks())
    with checks.named({"X must": "--features must"}):
        parts = [run.place(run.checked(block)) for block in blocks]
    joined: list[Any] = [
        None if column[0] is None else np.concatenate(column) for column in zip(*parts, strict=True)
    ]
    return _written(run, Assignment(*joined), names, out, run.words)


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
    if run.known is not None:
        del columns["distance"]
        columns = {"class" if title == "cluster" else title: c for title, c in columns.items()}
    is_free = run.key not in columns and (run.is_of_images or names is not None)
    title = run.key if is_free else "row"
    try:
        text = assignments.to_csv({title: names or range(len(placed.labels)), **columns})
        io.write(out, text)
    except OSError as error:
        raise InputError(f"--out must be a writable file; got {out} ({error})") from error
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
    lines += _told(values, words, is_of_classes=run.known is not None)
    return "\n".join([*lines, f"predictions  {out}"]), values


def _told(values: Mapping[str, Any], words: tuple[str, str], *, is_of_classes: bool) -> list[str]:
    """Returns lines for a person: the largest clusters or classes, and counts."""
    (noun, group), sizes, limit = words, values["sizes"], summary.NAMED
    order, lines = sorted(sizes, key=lambda label: (-sizes[label], label)), []
    for label in order[:limit]:
        name = f"{label:<20}" if is_of_classes else f"{group} {label:>5} "
        called = values["names"].get(str(label), "")
        called = f"in no {group}" if label == NO_CLUSTER else called
        number, _, things = counted(sizes[label], noun).partition(" ")
        lines.append(f"{name} {number:>8} {things}  {called}".rstrip())
    if len(order) > limit:
        most = counted(sizes[order[limit]], noun)
        lines.append(f"and {len(order) - limit} more of at most {most}")
    kind = ("class", "classes") if is_of_classes else (group,)
    groups, novel = counted(len(sizes.keys() - {NO_CLUSTER}), *kind), values["novel"]
    others = "earlier photos" if noun == "photo" else f"{noun}s of the run"
    unlike = f"{novel:,} {'is' if novel == 1 else 'are'} unlike all {others}"
    return [*lines, f"Assigned {counted(values['rows'], noun)} to {groups}; {unlike}."]


def _loader(run: Run, images: epath.PathLike) -> Callable[..., Dataset]:
    """Returns `datasets.load_new` of images for a run."""
    data = parse_config(run.config).data
    return functools.partial(datasets.load_new, images, data, run.images["shape"])


def _assign(run: Run, images: epath.PathLike, out: epath.Path) -> Batch | None:
    """Returns the entries of an `Assignment`, `files` if there are some, and `skipped` files.

    Args:
        run: the run.
        images: the images, of which each process assigns a share.
        out: table, beside which shares and parts are kept.
    """
    part = None if jax.process_count() == 1 else lambda count: share(count, encoder.BATCHES[-1])
    words = {"images must": "--images must", "features must": "--images must"}
    with checks.named(words):
        if run.known is None:
            run.check_places()
        dataset = _loader(run, images)(share=part)
        for note in dataset.notes if jax.process_index() == 0 else ():
            logger.warning("%s", note)
        about = [io.plain(run.results), run.state, workdirs.describe_images(dataset)]
        made_from = workdirs.fingerprint(json.dumps(about, sort_keys=True).encode())

        def make(kept: Parts) -> Batch:
            placed = run.place(run.encoder().embed(dataset, kept))._asdict()
            stored = {name: values for name, values in placed.items() if values is not None}
            if dataset.sources is not None:
                stored["files"] = np.array(dataset.sources)
            return {**stored, "skipped": np.array(dataset.skipped, str).reshape(-1, 2)}

        return shared(Parts(out, made_from), make)
