"""Assignment of new images to the clusters of a run, with its table and summary.

`pipeline.inference.place` decides on the cluster.
"""

import collections
import contextlib
import functools
import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import jax
import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.cli.flags import output_file
from cluster_jax.core import buckets, checks, io
from cluster_jax.core.checks import InputError
from cluster_jax.core.logs import logger
from cluster_jax.core.names import counted
from cluster_jax.data import datasets
from cluster_jax.data import folder as image_files
from cluster_jax.data.images import Dataset, photo_facts
from cluster_jax.encoding import encoder
from cluster_jax.encoding.embed import Batch, Parts
from cluster_jax.pipeline import export, inference
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.features import share, shared
from cluster_jax.pipeline.inference import Assignment, TrainedRun
from cluster_jax.report import assignments, decisions, placement, report_data, summary
from cluster_jax.report.decisions import NO_CLUSTER, Decisions


def predict(
    workdir: epath.PathLike,
    images: epath.PathLike,
    out: epath.PathLike,
    folder: epath.PathLike | None = None,
    page: epath.PathLike | None = None,
    *,
    by: str = "link",
    corrections: Sequence[epath.PathLike] = (),
) -> tuple[str, dict[str, Any]] | None:
    """Assigns images to the clusters of a finished run and writes the table.

    Args:
        workdir: folder of the run.
        images: folder, image file, `.npy` or `.npz`; of a run on features `.npy`, `.npz` or `.csv`.
        out: the table to write.
        folder: new folder for the images, one folder per cluster or class; or None.
        page: file for a page of the images in their clusters, see `report.placement`; or None.
        by: see `export.write`.
        corrections: files that a page of the same images has saved.

    Returns:
        A summary for the terminal, and one for programs; of several processes, of which each
        assigns a share of the images, the first alone writes the table, and the others return None.

    Raises:
        InputError: the run, the images, `out`, `folder` or `page` cannot be used; nothing was
            written.
    """
    run = inference.read(workdir)
    out, path = output_file(out), buckets.path(images)
    if folder is not None or page is not None:
        export.check_has_images(run.config.data.name)
    if folder is not None:
        export.check(folder, image_files.folders(os.fspath(images)), by=by)
    page = None if page is None else output_file(page, flag="--report")
    if page == out:
        raise InputError(f"--report must be another file than the table; got {page}")
    if corrections and run.known_classes is not None:
        raise InputError("--corrections must be left out for a run with known classes; got some")
    arrays = _assign(run, images, out)
    if arrays is None:
        return None
    files, skipped = arrays.pop("files", None), arrays.pop("skipped").tolist()
    assignment = Assignment(**arrays)
    sources = None if files is None else files.tolist()
    named, is_decided = dict[int, str](), None
    if corrections:
        assignment, named, is_decided = _corrected(run, assignment, sources, corrections)
    names = {**run.names, **{str(cluster): name for cluster, name in named.items()}}
    columns = assignments.placed_columns(assignment, names)
    if run.known_classes is not None:
        del columns["distance"]
        columns = {"class" if title == "cluster" else title: c for title, c in columns.items()}
    write_table(out, {"image": sources or range(len(assignment.labels)), **columns})
    Parts(out, "").remove()
    words, large = inference.words(run, sources), large_clusters(run)
    text = describe(assignment, names, out, large=large, skipped=skipped, words=words)
    made_values = values(assignment, names, out, skipped)
    load = _loader(run, images)
    if page is not None:
        title = f"{path.name}, in the groups of {epath.Path(workdir).name}"
        is_folder = path.is_dir()
        folder_uri = inference.image_folder("folder", str(path), sources) if is_folder else None
        paths = [("workdir", workdir), ("images", images), ("out", out), ("report", page)]
        paths += [("corrections", file) for file in corrections]
        flags = [f"--{name}={_absolute(path)}" for name, path in paths]
        command = shlex.join(["cluster-jax", "predict", *flags, "--corrections=corrections.csv"])
        loaded = load(share=range)
        made_page = _page(
            title, run, assignment, names, loaded, is_decided, folder_uri, command, words
        )
        io.write(page, made_page.encode("utf-8", "backslashreplace"))
        text += f"\nreport       {page}"
        made_values["report"] = str(page)
    if folder is not None:
        root = image_files.root(os.fspath(images))
        folders = {**export.names_of_folders(run), **named}
        labels = assignment.labels
        count = export.write(folder, labels, root, sources, load, folders, by, words[1])
        text += f"\nexported     {counted(count, 'folder')} to {folder}"
        made_values["exported"] = str(folder)
    return text, made_values


def write_table(out: epath.Path, columns: Mapping[str, assignments.Column]) -> None:
    """Writes a table; raises an `InputError` if the file cannot be written."""
    try:
        io.write(out, assignments.to_csv(columns))
    except OSError as error:
        raise InputError(f"--out must be a writable file; got {out} ({error})") from error


def _absolute(path: epath.PathLike) -> str:
    """Returns a path that means the same in every folder."""
    text = os.fspath(path)
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))


def _corrected(
    run: TrainedRun,
    assignment: Assignment,
    sources: Sequence[str] | None,
    files: Sequence[epath.PathLike],
) -> tuple[Assignment, dict[int, str], NDArray]:
    """Returns new images as a person has moved them, cluster names, and which were decided on."""
    names = sources or list(map(str, range(len(assignment.labels))))
    clusters = decisions.Clusters(
        names, assignment.labels, assignment.distances, "image", run.computed.run
    )
    of_run = frozenset(run.clusters.cluster_labels.tolist()) - {NO_CLUSTER}
    decided = Decisions(merged=run.decisions.merged, created=run.decisions.created | of_run)
    for file in files:
        decided = decisions.join(decided, decisions.read(file, clusters, decided))
    labels, sure = decided.labels(clusters), assignment.membership
    if sure is not None:
        labels, *now = decisions.decided_membership(decided, clusters, sure)
        assignment = Assignment(labels, assignment.distances, assignment.is_novel, *now)
    return assignment._replace(labels=labels), dict(decided.named), decided.is_decided(clusters)


def describe(
    placed: Assignment,
    names: Mapping[str, str],
    out: epath.PathLike,
    *,
    large: Set[int] | None,
    skipped: Sequence[tuple[str, str]] = (),
    words: tuple[str, str] = ("image", "cluster"),
) -> str:
    """Summarizes for the terminal: skipped files, the largest clusters or classes, and counts.

    Args:
        placed: the new images, or rows.
        names: cluster or class, as text -> its name.
        out: the table that was written.
        large: the clusters that count; None: they are classes.
        skipped: unreadable files, and why.
        words: what an image and a cluster are called.
    """
    noun, group = words
    sizes, limit = collections.Counter(placed.labels.tolist()), summary.NAMED
    order = sorted(sizes, key=lambda label: (-sizes[label], label))
    lines = [checks.one_line(f"skipped {file} ({reason})") for file, reason in skipped]
    for label in order[:limit]:
        name = f"{label:<20}" if large is None else f"{group} {label:>5} "
        called = f"in no {group}" if label == NO_CLUSTER else names.get(str(label), "")
        number, _, things = counted(sizes[label], noun).partition(" ")
        lines.append(f"{name} {number:>8} {things}  {called}".rstrip())
    if len(order) > limit:
        lines.append(
            f"and {len(order) - limit} more of at most {counted(sizes[order[limit]], noun)}"
        )
    return "\n".join([*lines, f"{_fact(placed, large, *words)}.", f"predictions  {out}"])


def values(
    placed: Assignment,
    names: Mapping[str, str],
    out: epath.PathLike,
    skipped: Sequence[tuple[str, str]] = (),
) -> dict[str, Any]:
    """Returns what `describe` says, for programs: see there for the arguments."""
    sizes = collections.Counter(placed.labels.tolist())
    return {
        "predictions": str(out),
        "rows": len(placed.labels),
        "novel": int(placed.is_novel.sum()),
        "sizes": dict(sorted(sizes.items())),
        "names": {key: names[key] for key in map(str, sizes) if key in names},
        "skipped": dict(skipped),
    }


def large_clusters(run: TrainedRun) -> Set[int] | None:
    """Returns clusters with training images that are not outliers; None: there are classes."""
    stored = run.clusters
    return None if run.known_classes else set(stored.cluster_labels[~stored.outliers].tolist())


def _fact(placed: Assignment, large: Set[int] | None, noun: str, group: str) -> str:
    """Says how many images were assigned to how many clusters or classes; no full stop."""
    used = [label for label in np.unique(placed.labels).tolist() if label != NO_CLUSTER]
    groups = counted(len(used), "class", "classes")
    if large is not None:
        n_large = len(large & set(used))
        groups = summary.groups(n_large, len(used) - n_large, group)
    novel = int(placed.is_novel.sum())
    verb = "is" if novel == 1 else "are"
    count = counted(len(placed.labels), noun)
    others = "earlier photos" if noun == "photo" else f"{noun}s of the run"
    return f"Assigned {count} to {groups}; {novel:,} {verb} unlike all {others}"


def _page(
    title: str,
    run: TrainedRun,
    assignment: Assignment,
    names: Mapping[str, str],
    images: Dataset,
    is_decided: NDArray | None,
    folder: str | None,
    command: str,
    words: tuple[str, str],
) -> str:
    """Renders the page of new images, beside the run's if these are still where they were."""
    dataset, typical = None, dict[int, NDArray | None]()
    with contextlib.suppress(InputError):
        dataset = inference.training_images(run)
    labels, of_page = assignment.labels, dict(names)
    if run.known_classes is None:
        stored = run.clusters
        for cluster in report_data.clusters_by_size(stored.cluster_labels, stored.distances):
            shown = cluster.members[: placement.N_TYPICAL]
            if cluster.id >= 0:
                typical[cluster.id] = None if dataset is None else dataset.fetch(shown)
    else:
        classes, labels = np.unique(labels, return_inverse=True)
        of_page = {str(i): name for i, name in enumerate(classes.tolist())}
    new = placement.NewImages(
        labels,
        assignment.is_novel,
        images.sources,
        images.fetch,
        {int(cluster): name for cluster, name in of_page.items()},
        typical,
        membership=assignment.membership,
        is_decided=is_decided,
        folder=folder,
        facts=photo_facts(images),
        run=run.computed.run if run.known_classes is None else "",
        next_cluster=run.decisions.next_cluster(run.computed),
        command=command if run.known_classes is None else None,
        steps=inference.steps(run),
    )
    return placement.page(title, _fact(assignment, large_clusters(run), *words), new)


def _loader(run: TrainedRun, images: epath.PathLike) -> Callable[..., Dataset]:
    """Returns `datasets.load_new` of images for a run."""
    return functools.partial(datasets.load_new, images, run.config.data, run.images["shape"])


def _assign(run: TrainedRun, images: epath.PathLike, out: epath.Path) -> Batch | None:
    """Returns the entries of an `Assignment`, `files` if there are some, and `skipped` files.

    Args:
        run: the run.
        images: the images, of which each process assigns a share.
        out: table, beside which shares and parts are kept.
    """
    part = None if jax.process_count() == 1 else lambda count: share(count, encoder.BATCHES[-1])
    words = {"images must": "--images must", "features must": "--images must"}
    with checks.named(words):
        inference.check(run)
        dataset = _loader(run, images)(share=part)
        for note in dataset.notes if jax.process_index() == 0 else ():
            logger.warning("%s", note)
        about = [io.plain(run.results), workdirs.describe_images(dataset)]
        made_from = workdirs.fingerprint(json.dumps(about, sort_keys=True).encode())

        def make(kept: Parts) -> Batch:
            placed = inference.place(run, inference.encoder(run).embed(dataset, kept))._asdict()
            stored = {name: values for name, values in placed.items() if values is not None}
            if dataset.sources is not None:
                stored["files"] = np.array(dataset.sources)
            return {**stored, "skipped": np.array(dataset.skipped, str).reshape(-1, 2)}

        return shared(Parts(out, made_from), make)
