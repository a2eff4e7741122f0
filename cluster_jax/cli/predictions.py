"""Assignment of new images to the clusters of a run, with its table and summary.

`pipeline.inference.place` decides on the cluster.
"""

import collections
import contextlib
import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
from absl import logging
from etils import epath
from numpy.typing import NDArray

from cluster_jax.cli.flags import output_file
from cluster_jax.core import checks, io
from cluster_jax.core.checks import InputError
from cluster_jax.data import datasets, scan
from cluster_jax.data.images import Dataset
from cluster_jax.evaluation import assignments, placement, report_data, summary
from cluster_jax.pipeline import embed, export, inference
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.embed import Batch, Parts
from cluster_jax.pipeline.inference import Assignment, TrainedRun


def predict(
    workdir: epath.PathLike,
    images: epath.PathLike,
    out: epath.PathLike,
    folder: epath.PathLike | None = None,
    page: epath.PathLike | None = None,
) -> str | None:
    """Assigns images to the clusters of a finished run and writes the table.

    Args:
        workdir: folder of the run.
        images: folder, image file, `.npy` or `.npz`; of a run on features `.npy`, `.npz` or `.csv`.
        out: the table to write.
        folder: new folder for links to the images, one folder per cluster or class; or None.
        page: file for a page of the images in their clusters, see `evaluation.placement`; or None.

    Returns:
        A summary for the terminal; of several processes, of which each assigns a share of the
        images, the first alone writes the table, and the others return None.

    Raises:
        InputError: the run, the images, `out`, `folder` or `page` cannot be used; nothing was
            written.
    """
    run = inference.read(workdir)
    out, path = output_file(out), epath.Path(images).expanduser()
    if folder is not None or page is not None:
        export.check_has_images(run.config.data.name)
    if folder is not None:
        export.check(folder, path if path.is_dir() else None)
    page = None if page is None else output_file(page, flag="--report")
    if page == out:
        raise InputError(f"--report must be another file than the table; got {page}")
    made = _assign(run, images, out)
    if made is None:
        return None
    files, skipped = made.pop("files", None), made.pop("skipped").tolist()
    assignment = Assignment(**made)
    sources = None if files is None else files.tolist()
    of_cluster = {"cluster": assignment.labels, "distance": assignment.distances}
    columns: dict[str, assignments.Column] = {
        "image": sources or range(len(assignment.labels)),
        **(of_cluster if run.known is None else {"class": assignment.labels}),
        "is_novel": assignment.is_novel,
    }
    names = assignments.given_names(workdir)
    if names:
        columns["cluster_name"] = [names.get(str(label), "") for label in assignment.labels]
    try:
        io.write(out, assignments.to_csv(columns))
    except OSError as error:
        raise InputError(f"--out must be a writable file; got {out} ({error})") from error
    Parts(out, "").remove()
    text = describe(run, skipped, assignment, names, out)
    load = _loader(run, images)
    if page is not None:
        title = f"{path.name}, in the clusters of {epath.Path(workdir).name}"
        made_page = _page(title, run, assignment, names, sources, load(share=range).fetch)
        io.write(page, made_page.encode("utf-8", "backslashreplace"))
        text += f"\nreport       {page}"
    if folder is not None:
        root = scan.root(os.fspath(images))
        count = export.write(folder, assignment.labels, root, sources, load)
        text += f"\nexported     {count:,} folders to {folder}"
    return text


def describe(
    run: TrainedRun,
    skipped: Sequence[tuple[str, str]],
    assignment: Assignment,
    names: Mapping[str, str],
    out: epath.PathLike,
) -> str:
    """Summary for the terminal: skipped files, the largest clusters or classes, and counts."""
    sizes, limit = collections.Counter(assignment.labels.tolist()), summary.NAMED
    order = sorted(sizes, key=lambda label: (-sizes[label], label))
    lines = [f"skipped {file} ({reason})" for file, reason in skipped]
    for label in order[:limit]:
        name = f"cluster {label:>5} " if run.known is None else f"{label:<20}"
        lines.append(f"{name} {_images(sizes[label], 8)}  {names.get(str(label), '')}".rstrip())
    if len(order) > limit:
        lines.append(f"and {len(order) - limit} more of at most {_images(sizes[order[limit]])}")
    return "\n".join([*lines, f"{_fact(run, assignment)}.", f"predictions  {out}"])


def _fact(run: TrainedRun, assignment: Assignment) -> str:
    """How many images were assigned to how many clusters or classes; no full stop."""
    used = np.unique(assignment.labels).tolist()
    groups = summary.count(len(used), "class", "classes")
    if run.known is None:
        # A cluster counts if it has training images that are not outliers.
        counted = set(run.clusters.cluster_labels[~run.clusters.outliers].tolist())
        n_large = len(counted.intersection(used))
        groups = summary.groups(n_large, len(used) - n_large, "cluster")
    novel = int(assignment.is_novel.sum())
    verb = "is" if novel == 1 else "are"
    text = f"Assigned {_images(len(assignment.labels))} to {groups}; {novel:,} {verb} unlike all"
    return f"{text} training images"


def _page(
    title: str,
    run: TrainedRun,
    assignment: Assignment,
    names: Mapping[str, str],
    sources: Sequence[str] | None,
    fetch: Callable[[NDArray], NDArray],
) -> str:
    """The page of new images, beside those of the run if these are still where they were."""
    dataset, typical = None, {}
    with contextlib.suppress(InputError):
        dataset = inference.training_images(run)
    if run.known is None:
        stored, named = run.clusters, {**report_data.suggested_names(run.results), **names}
        for cluster in report_data.clusters_by_size(stored.cluster_labels, stored.distances, named):
            shown = cluster.members[: placement.N_TYPICAL]
            own = None if dataset is None else dataset.fetch(shown)
            typical[cluster.id] = f"Cluster {cluster.title}", own
    return placement.page(
        title,
        _fact(run, assignment),
        assignment.labels,
        assignment.is_novel,
        sources or [f"image {i}" for i in range(len(assignment.labels))],
        fetch,
        typical,
    )


def _loader(run: TrainedRun, images: epath.PathLike) -> Callable[..., Dataset]:
    """`datasets.load_new` of images for a run."""
    return functools.partial(
        datasets.load_new,
        images,
        run.config.data,
        run.images["shape"],
        ranges=run.images.get("ranges", {}),
    )


def _images(count: int, width: int = 0) -> str:
    return f"{count:>{width},} {'image' if count == 1 else 'images'}"


def _assign(run: TrainedRun, images: epath.PathLike, out: epath.Path) -> Batch | None:
    """The entries of an `Assignment`, `files` if there are some, and `skipped` files.

    Args:
        run: the run.
        images: the images, of which each process assigns a share.
        out: table, beside which shares and parts are kept.
    """
    share = None if jax.process_count() == 1 else lambda count: embed.share(count, inference.BATCH)
    words = {"images must": "--images must", "features must": "--images must"}
    with checks.named(words), checks.input_errors(ValueError, OSError):
        inference.check(run)
        dataset = _loader(run, images)(share=share)
        for note in dataset.notes if jax.process_index() == 0 else ():
            logging.warning("%s", note)
        about = [io.plain(run.results), workdirs.describe_images(dataset)]
        made_from = workdirs.fingerprint(json.dumps(about, sort_keys=True).encode())

        def make(kept: Parts) -> Batch:
            made = inference.place(run, inference.make_embed(run)(dataset, kept))._asdict()
            if dataset.sources is not None:
                made["files"] = np.array(dataset.sources)
            return {**made, "skipped": np.array(dataset.skipped, str).reshape(-1, 2)}

        return embed.shared(Parts(out, made_from), make)
