"""Assignment of new images to the clusters of a run, with its table and summary."""

import collections

from etils import epath

from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.data import inference_data
from cluster_jax.data.images import Dataset
from cluster_jax.evaluation import assignments, summary
from cluster_jax.pipeline import export, inference
from cluster_jax.pipeline.inference import Assignment, TrainedRun


def predict(
    workdir: epath.PathLike,
    images: epath.PathLike,
    out: epath.PathLike,
    folder: epath.PathLike | None = None,
) -> str:
    """Assigns images to the clusters of a finished run and writes the table.

    Args:
        workdir: folder of the run.
        images: folder, image file, `.npy` or `.npz`; of a run on features `.npy`, `.npz` or `.csv`.
        out: the table to write.
        folder: new folder for links to the images, one folder per cluster or class; or None.

    Returns:
        A summary for the terminal.

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
    dataset, assignment = _assign(run, images)
    columns: dict[str, assignments.Column] = {"image": dataset.sources or range(dataset.size)}
    if run.known is None:
        columns |= {"cluster": assignment.labels, "distance": assignment.distances}
    else:
        columns |= {"class": assignment.labels}
    columns |= {"is_novel": assignment.is_novel}
    try:
        io.write(out, assignments.to_csv(columns))
    except OSError as error:
        raise InputError(f"--out must be a writable file; got {out} ({error})") from error
    text = describe(run, dataset, assignment, out)
    if folder is not None:
        count = export.write(folder, assignment.labels, root, dataset.sources, lambda: dataset)
        text += f"\nexported     {count:,} folders to {folder}"
    return text


def describe(run: TrainedRun, dataset: Dataset, assignment: Assignment, out: epath.PathLike) -> str:
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
    lines = [f"skipped {file} ({reason})" for file, reason in dataset.skipped]
    for label in large[:limit]:
        name = f"cluster {label:>5} " if run.known is None else f"{label:<20}"
        lines.append(f"{name} {_images(sizes[label], 8)}")
    if len(large) > limit:
        lines.append(f"and {len(large) - limit} more of at most {_images(sizes[large[limit]])}")
    if len(order) > len(large):
        rest = sum(sizes[label] for label in order if label not in large)
        lines.append(f"and {len(order) - len(large)} too small to count, with {_images(rest)}")
    novel = int(assignment.is_novel.sum())
    lines += [
        f"Assigned {_images(dataset.size)} to {groups}; {novel:,} {'is' if novel == 1 else 'are'} "
        "unlike all training images.",
        f"predictions  {out}",
    ]
    return "\n".join(lines)


def _images(count: int, width: int = 0) -> str:
    return f"{count:>{width},} {'image' if count == 1 else 'images'}"


def _assign(run: TrainedRun, images: epath.PathLike) -> tuple[Dataset, Assignment]:
    try:
        if run.known is None:
            inference.check(run)
        dataset = inference_data.load(images, run.config.data, run.images["shape"])
        features = inference.make_embed(run)(dataset)
        assign = inference.place if run.known is None else inference.classify
        return dataset, assign(run, features)
    except (ValueError, OSError) as error:
        raise InputError(str(error)) from error
