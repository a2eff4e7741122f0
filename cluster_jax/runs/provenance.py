"""Provenance of a result: images, uses of labels, machine, and versions."""

import functools
import importlib.metadata
import pathlib
import platform
import subprocess
from collections.abc import Mapping
from typing import Any

import jax

from cluster_jax import __version__
from cluster_jax.clustering import custom
from cluster_jax.core.names import counted
from cluster_jax.evaluation import own
from cluster_jax.evaluation.options import FINDERS, EvalConfig
from cluster_jax.nets import pretrained
from cluster_jax.report import summary
from cluster_jax.runs.run import Run
from cluster_jax.training.config import AnyConfig, RunConfig, parse_config

PACKAGES = ("jax", "flax", "optax", "orbax-checkpoint", "numpy", "scikit-learn", "umap-learn")
# Keys of the section `data` that say which images.
_DATA = ("name", "split", "limit", "image_size", "interpolation")


def describe(run: Run, section: EvalConfig, steps: int) -> dict[str, Any]:
    """Returns the entry "provenance" of the results of a run, beside the entry "config".

    It has what the config does not say: of images and weights what they were, where numbers of
    clusters are from, what labels were used for, hashes of modules, machine and versions.

    Args:
        run: the run of images.
        section: its section `eval`, in which a number of clusters of k-means that is None was that
            of the labels, or that of the clusters found.
        steps: number of training steps; 0: nothing was trained, and the entries of a training are
            None.
    """
    config = parse_config(run.config)
    finder = section.method
    k = section.kmeans.n_clusters
    # What the backbone or the features come from.
    weights = config.network.weights
    batch_size = given = None
    if isinstance(config, RunConfig):
        batch_size = config.train.batch_size
        methods = [config.method, *([config.term] if config.term else [])]
        # NCC, CueCo and CC get it: clusters found in their features are not independent of it.
        given = next((method.n_clusters for method in methods if method.n_clusters), None)
        if config.encoder is not None:
            weights = pretrained.overrides(config.encoder)["weights"]
    is_given = run.truth is not None or k is not None or section.n_clusters is not None
    kmeans = "given" if is_given else f"as found by {summary.TITLES.get(finder, finder)}"
    return {
        "data": {key: getattr(config.data, key) for key in _DATA},
        # Novel class discovery trains on images with a known class, too, which are not scored.
        "images_trained": len(run.store) if steps and run.store is not None else 0,
        "images_scored": len(run.columns),
        "images_skipped": sum(not name.endswith("/") for name, _ in run.skipped),
        "files_ignored": run.source["ignored"],
        "steps": steps,
        "batch_size": batch_size,
        "pretrained": None if weights is None else pretrained.describe(weights),
        "clusters_given_to_training": given,
        "labels_used_for": _uses_of_labels(run, config, counts=k is None),
        "number_of_clusters": {
            finder: "found" if section.n_clusters is None else "given",
            "kmeans": kmeans,
        },
        **custom.file_hash(finder, FINDERS),
        **({"metric_files": own.files(section.metrics)} if section.metrics else {}),
        "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        **environment(),
    }


def _uses_of_labels(run: Run, config: AnyConfig, *, counts: bool) -> list[str]:
    """Returns the uses of labels in words; `[]` if no labels were used.

    Args:
        run: the run.
        config: its config.
        counts: whether true labels, if there are any, gave the number of clusters of k-means.
    """
    labels = run.truth
    uses = ["scoring"] if labels is not None else []
    if config.data.classes is not None and labels is not None:
        chosen = counted(int(labels.max()) + 1, "class", "classes")
        uses.append(f"the choice of the images of {chosen}")
    if (known := run.images.get("known")) is not None:
        classes = counted(known["classes"], "known class", "known classes")
        uses.append(f"training on the {counted(known['images'], 'image')} of {classes}")
    if labels is not None and counts:
        uses.append("the number of clusters of k-means")
    return uses


def environment() -> dict[str, Any]:
    """Returns the entries "machine", "versions" and "commit" of a result."""
    machine = f"{platform.machine()}, {platform.system()}"
    return {"machine": machine, "versions": versions(), "commit": commit()}


@functools.cache
def versions() -> Mapping[str, str]:
    """Returns the versions of Python, this package and the packages that affect results."""
    packages = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"python": platform.python_version(), "cluster_jax": __version__, **packages}


@functools.cache
def commit() -> str | None:
    """Returns the commit of the checkout, 12 digits; None outside a checkout, and if git fails.

    It is asked for once in a process, which has loaded the code.

    It ends with "+" if a tracked file is modified, except files `.jsonl` and `.md`, which
    experiments write.
    """
    folder = pathlib.Path(__file__).resolve().parent.parent.parent
    if not (folder / ".git").exists():
        return None

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        head = git("rev-parse", "--short=12", "HEAD")
        others = ("--", ".", ":(exclude)*.jsonl", ":(exclude)*.md")
        changed = git("status", "--porcelain", "--untracked-files=no", *others)
        return head + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
