"""Assignment of new images to the clusters of a run, with its table and summary."""

import collections
import functools
import json
from collections.abc import Sequence

import jax
import numpy as np
from etils import epath

from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.data import datasets
from cluster_jax.evaluation import assignments, summary
from cluster_jax.pipeline import export, inference, parts
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.inference import Assignment, TrainedRun
from cluster_jax.pipeline.parts import Batch, Parts


def predict(
    workdir: epath.PathLike,
    images: epath.PathLike,
    out: epath.PathLike,
    folder: epath.PathLike | None = None,
) -> str | None:
    """Assigns images to the clusters of a finished run and writes the table.

    Args:
        workdir: folder of the run.
        images: folder, image file, `.npy` or `.npz`; of a run on features `.npy`, `.npz` or `.csv`.
        out: the table to write.
        folder: new folder for links to the images, one folder per cluster or class; or None.

    Returns:
        A summary for the terminal; of several processes, of which each assigns a share of the
        images, the first alone writes the table, and the others return None.

    Raises:
        InputError: the run, the images, `out` or `folder` cannot be used; nothing was written.
    """
    run = inference.read(workdir)
    out = epath.Path(out).expanduser()
    if "://" not in str(out) and not out.parent.is_dir():  # a bucket has no folders
        raise InputError(f"--out must be in an existing folder; got {out}")
    path = epath.Path(images).expanduser()
    root = path if path.is_dir() else path.parent
    if folder is not None:
        export.check_has_images(run.config.data.name)
        export.check(folder, path if path.is_dir() else None)
    kept = parts.folder_of(out)
    made = _assign(run, images, kept)
    if made is None:
        return None
    files, skipped = made.pop("files", None), made.pop("skipped").tolist()
    assignment = Assignment(**made)
    sources = None if files is None else files.tolist()
    columns: dict[str, assignments.Column] = {"image": sources or range(len(assignment.labels))}
    if run.known is None:
        columns |= {"cluster": assignment.labels, "distance": assignment.distances}
    else:
        columns |= {"class": assignment.labels}
    columns |= {"is_novel": assignment.is_novel}
    try:
        io.write(out, assignments.to_csv(columns))
    except OSError as error:
        raise InputError(f"--out must be a writable file; got {out} ({error})") from error
    parts.remove(kept)
    text = describe(run, skipped, assignment, out)
    if folder is not None:
        load = functools.partial(datasets.load_new, images, run.config.data, run.images["shape"])
        count = export.write(folder, assignment.labels, root, sources, load)
        text += f"\nexported     {count:,} folders to {folder}"
    return text


def describe(
    run: TrainedRun,
    skipped: Sequence[tuple[str, str]],
    assignment: Assignment,
    out: epath.PathLike,
) -> str:
    """Summary for the terminal: skipped files, the largest clusters or classes, and counts."""
    sizes = collections.Counter(assignment.labels.tolist())
    order = sorted(sizes, key=lambda label: (-sizes[label], label))
    large, limit = order, summary.NAMED
    if run.known is None:
        # A cluster counts if it has training images that are not outliers.
        counted = set(run.clusters.cluster_labels[~run.clusters.outliers].tolist())
        large = [label for label in order if label in counted]
        groups = summary.groups(len(large), len(order) - len(large), "cluster")
    else:
        groups = f"{len(order)} {'class' if len(order) == 1 else 'classes'}"
    lines = [f"skipped {file} ({reason})" for file, reason in skipped]
    for label in large[:limit]:
        name = f"cluster {label:>5} " if run.known is None else f"{label:<20}"
        lines.append(f"{name} {_images(sizes[label], 8)}")
    if len(large) > limit:
        lines.append(f"and {len(large) - limit} more of at most {_images(sizes[large[limit]])}")
    if len(order) > len(large):
        rest = sum(sizes[label] for label in order if label not in large)
        lines.append(f"and {len(order) - len(large)} too small to count, with {_images(rest)}")
    count, novel = len(assignment.labels), int(assignment.is_novel.sum())
    lines += [
        f"Assigned {_images(count)} to {groups}; {novel:,} {'is' if novel == 1 else 'are'} "
        "unlike all training images.",
        f"predictions  {out}",
    ]
    return "\n".join(lines)


def _images(count: int, width: int = 0) -> str:
    return f"{count:>{width},} {'image' if count == 1 else 'images'}"


def _assign(run: TrainedRun, images: epath.PathLike, kept: epath.Path) -> Batch | None:
    """The entries of an `Assignment`, `files` if there are some, and `skipped` files.

    Args:
        run: the run.
        images: the images, of which each process assigns a share.
        kept: folder of shares and parts.
    """
    assign = inference.place if run.known is None else inference.classify
    share = None if jax.process_count() == 1 else lambda count: parts.share(count, inference.BATCH)
    try:
        if run.known is None:
            inference.check(run)
        dataset = datasets.load_new(images, run.config.data, run.images["shape"], share)
        about = [io.plain(run.results), workdirs.describe_images(dataset)]
        made_from = workdirs.fingerprint(json.dumps(about, sort_keys=True).encode())

        def make(kept: Parts) -> Batch:
            made = assign(run, inference.make_embed(run)(dataset, kept))._asdict()
            if dataset.sources is not None:
                made["files"] = np.array(dataset.sources)
            return {**made, "skipped": np.array(dataset.skipped, str).reshape(-1, 2)}

        return parts.shared(Parts(kept, made_from), make)
    except (ValueError, OSError) as error:
        raise InputError(str(error)) from error
