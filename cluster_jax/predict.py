"""`python -m cluster_jax.predict --workdir=W --images=DIR`: new images to a run's clusters.

Writes `predictions.csv` (into W, or where --out says): image, cluster, distance to the cluster's
centre in bandwidths, and whether the image is unlike anything that the run was trained on. After
novel class discovery: image, class (a known one by name, or "novel 2"), and the same.
"""

import argparse
import collections
import csv
import io
import sys
import zipfile
import zlib
from collections.abc import Sequence
from typing import NoReturn

import numpy as np
from absl import logging
from etils import epath

from cluster_jax import finished, settings, storage
from cluster_jax.data import unseen
from cluster_jax.data.datasets import Dataset
from cluster_jax.evaluation import summary


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
        raise settings.InputError(f"there is no folder {out.parent} for {out.name}; make it first")
    try:
        if run.known is None:
            finished.check(run)
        shape = tuple(run.images["shape"])
        resident = run.results["config"]["data"]["resident_mb"]
        dataset = unseen.load(images, shape=shape, resident_mb=resident)
        rows = finished.embed(run, finished.restore(run), dataset)
        placed = (finished.classify if run.known else finished.place)(run, rows)
    except settings.InputError:
        raise
    except (ValueError, OSError) as error:
        raise settings.InputError(str(error)) from error
    if run.known:
        table, said = _class_table(dataset, placed), _class_summary(dataset, placed, out)
    else:
        table, said = _table(dataset, placed), _summary(run, dataset, placed, out)
    try:
        storage.write(out, table)
    except OSError as error:
        raise settings.InputError(f"{out} cannot be written: {error}") from error
    return said


def _read(workdir: epath.PathLike) -> finished.Finished:
    try:
        return finished.read(workdir)
    except settings.InputError:
        raise
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise settings.InputError(
            f"a file of the run in {workdir} is damaged ({error}); copy the run there again"
        ) from error


def _table(dataset: Dataset, placed: finished.Placed) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", "cluster", "distance", "unlike_anything_seen"])
    rows = zip(dataset.sources or range(dataset.size), *placed, strict=True)
    writer.writerows((name, int(c), f"{d:.6g}", int(u)) for name, c, d, u in rows)
    return text.getvalue()


def _class_table(dataset: Dataset, placed: finished.Placed) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", "class", "unlike_anything_seen"])
    names = dataset.sources or range(dataset.size)
    rows = zip(names, placed.labels, placed.unlike, strict=True)
    writer.writerows((name, label, int(unlike)) for name, label, unlike in rows)
    return text.getvalue()


def _class_summary(dataset: Dataset, placed: finished.Placed, out: epath.PathLike) -> str:
    lines = [f"skipped {file} ({reason})" for file, reason in dataset.skipped]
    counts = collections.Counter(placed.labels.tolist()).most_common()
    lines += [f"{name:<20} {count:>8,} images" for name, count in counts[: summary.NAMED]]
    if len(counts) > summary.NAMED:
        lines.append(f"and {len(counts) - summary.NAMED} more classes")
    found = f"{dataset.size:,} images in {len(counts)} classes, {placed.unlike.sum():,} unlike"
    return "\n".join([*lines, f"{found} anything seen\npredictions  {out}"])


def _summary(
    run: finished.Finished, dataset: Dataset, placed: finished.Placed, out: epath.PathLike
) -> str:
    lines = [f"skipped {file} ({reason})" for file, reason in dataset.skipped]
    clusters, counts = np.unique(placed.labels, return_counts=True)
    large = np.isin(clusters, run.clusters["clusters"][~run.clusters["outliers"]])
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
        f"{dataset.size:,} images in {found}, {placed.unlike.sum():,} unlike "
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
    except settings.InputError as error:
        _stop(error)


if __name__ == "__main__":
    main()
