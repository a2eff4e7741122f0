"""`python -m cluster_jax.predict --workdir=W --images=DIR`: new images to a run's clusters.

Writes `predictions.csv` (into W, or where --out says): image, cluster, distance to the cluster's
center in bandwidths, and whether the image is unlike anything that the run was trained on. After
novel class discovery: image, class (a known one by name, or "novel 2"), and the same.
"""

import argparse
import collections
import csv
import sys
import zipfile
import zlib
from collections.abc import Sequence
from io import StringIO
from typing import NoReturn

import numpy as np
from absl import logging
from etils import epath

from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.data import inference_data
from cluster_jax.data.datasets import Dataset
from cluster_jax.evaluation import summary
from cluster_jax.pipeline import inference


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _stop(message)


def predict(workdir: epath.PathLike, images: epath.PathLike, out: epath.PathLike) -> str:
    """Places images in the clusters of a finished run and writes the table.

    Args:
        workdir: of the run.
        images: folder, image file, `.npy` or `.npz`.
        out: the table to write.

    Returns:
        A summary for the terminal.

    Raises:
        InputError: the run, the images or `out` cannot be used; nothing was written.
    """
    run = _read(workdir)
    out = epath.Path(out).expanduser()
    if "://" not in str(out) and not out.parent.is_dir():  # a bucket has no folders
        raise InputError(f"there is no folder {out.parent} for {out.name}; make it first")
    try:
        if run.known is None:
            inference.check(run)
        shape = tuple(run.images["shape"])
        resident = run.results["config"]["data"]["cache_mb"]
        dataset = inference_data.load(images, shape=shape, cache_mb=resident)
        rows = inference.embed(run, inference.restore(run), dataset)
        placed = (inference.classify if run.known else inference.place)(run, rows)
    except InputError:
        raise
    except (ValueError, OSError) as error:
        raise InputError(str(error)) from error
    if run.known:
        table, said = _class_table(dataset, placed), _class_summary(dataset, placed, out)
    else:
        table, said = _table(dataset, placed), _summary(run, dataset, placed, out)
    try:
        io.write(out, table)
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error}") from error
    return said


def _read(workdir: epath.PathLike) -> inference.TrainedRun:
    try:
        return inference.read(workdir)
    except InputError:
        raise
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"a file of the run in {workdir} is damaged ({error}); copy the run there again"
        ) from error


def _table(dataset: Dataset, placed: inference.Assignment) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", "cluster", "distance", "is_novel"])
    rows = zip(dataset.sources or range(dataset.size), *placed, strict=True)
    writer.writerows((name, int(c), f"{d:.6g}", int(u)) for name, c, d, u in rows)
    return text.getvalue()


def _class_table(dataset: Dataset, placed: inference.Assignment) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", "class", "is_novel"])
    names = dataset.sources or range(dataset.size)
    rows = zip(names, placed.labels, placed.is_novel, strict=True)
    writer.writerows((name, label, int(is_novel)) for name, label, is_novel in rows)
    return text.getvalue()


def _class_summary(dataset: Dataset, placed: inference.Assignment, out: epath.PathLike) -> str:
    lines = [f"skipped {file} ({reason})" for file, reason in dataset.skipped]
    counts = collections.Counter(placed.labels.tolist()).most_common()
    lines += [f"{name:<20} {count:>8,} images" for name, count in counts[: summary.NAMED]]
    if len(counts) > summary.NAMED:
        lines.append(f"and {len(counts) - summary.NAMED} more classes")
    found = f"{dataset.size:,} images in {len(counts)} classes, {placed.is_novel.sum():,} unlike"
    return "\n".join([*lines, f"{found} anything seen\npredictions  {out}"])


def _summary(
    run: inference.TrainedRun, dataset: Dataset, placed: inference.Assignment, out: epath.PathLike
) -> str:
    lines = [f"skipped {file} ({reason})" for file, reason in dataset.skipped]
    clusters, counts = np.unique(placed.labels, return_counts=True)
    large = np.isin(clusters, run.clusters.cluster_labels[~run.clusters.outliers])
    order, named = np.argsort(-counts, kind="stable"), summary.NAMED
    order = order[large[order]]
    lines += [f"cluster {clusters[i]:>5}  {counts[i]:>8,} images" for i in order[:named]]
    if len(order) > named:
        lines.append(f"and {len(order) - named} clusters with {counts[order[named]]} or fewer")
    small = len(clusters) - len(order)
    if small:
        lines.append(f"and {small} too small to count with {counts[~large].sum():,} images")
    found = summary.groups(len(order), small, "cluster")
    lines.append(
        f"{dataset.size:,} images in {found}, {placed.is_novel.sum():,} unlike "
        f"anything seen\npredictions  {out}"
    )
    return "\n".join(lines)


def _stop(error: object) -> NoReturn:
    sys.stderr.write(f"error: {error}\n")
    sys.exit(2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = _Parser("python -m cluster_jax.predict", description=__doc__, allow_abbrev=False)
    parser.add_argument("--workdir", required=True, help="folder of a finished run")
    parser.add_argument("--images", required=True, help="folder, image file, .npy or .npz")
    parser.add_argument("--out", help="table to write; default predictions.csv in the workdir")
    given = parser.parse_args(arguments)
    logging.set_verbosity(logging.WARNING)
    try:
        out = given.out or epath.Path(given.workdir).expanduser() / "predictions.csv"
        sys.stdout.write(predict(given.workdir, given.images, out) + "\n")
    except InputError as error:
        _stop(error)


if __name__ == "__main__":
    main()
