"""Provenance of a result: images, settings, uses of labels, machine, and versions."""

import importlib.metadata
import pathlib
import platform
import subprocess
from typing import Any

import jax

from cluster_jax import __version__
from cluster_jax.clustering import custom
from cluster_jax.core.names import counted
from cluster_jax.data.datasets import Dataset
from cluster_jax.evaluation.options import FINDERS, EvalConfig
from cluster_jax.nets import pretrained
from cluster_jax.pipeline.config import AnyConfig, RunConfig
from cluster_jax.report import summary

PACKAGES = ("jax", "flax", "optax", "orbax-checkpoint", "numpy", "scikit-learn", "umap-learn")
# Keys of the section `data` that say which images.
_DATA = ("name", "split", "limit", "image_size")


def describe(
    config: AnyConfig,
    section: EvalConfig,
    dataset: Dataset,
    clustered: Dataset,
    steps: int,
) -> dict[str, Any]:
    """Describes where a result is from: the images trained on and scored, the uses of labels.

    Args:
        config: config of the run.
        section: its section `eval`, with the number of clusters that k-means used.
        dataset: the training images.
        clustered: the images that were clustered and scored.
        steps: number of training steps.
    """
    labeled = dataset.labels is not None
    k, finder = section.kmeans.k, section.method
    bandwidth = "found" if section.gridshift.bandwidth == "auto" else "given"
    uses = ["scoring"] if labeled else []
    methods, batch_size, nrcc = [], None, None
    # What the backbone or the features come from.
    weights, network = config.network.weights, config.network.name
    if isinstance(config, RunConfig):
        methods = [config.method, *([config.term] if config.term else [])]
        batch_size, nrcc = config.train.batch_size, config.nrcc
        if config.embedder is not None:
            weights = config.embedder.weights
            network = f"{network} on features of {config.embedder.name}"
    data = {key: getattr(config.data, key) for key in _DATA}
    if config.data.tail is not None:
        data["tail"] = config.data.tail
        uses.append("the choice of the images of a long tail")
    if config.data.resize is not None:
        data["interpolation"] = config.data.interpolation
    is_given = labeled or k is not None or section.k is not None
    kmeans = "given" if is_given else f"as found by {summary.TITLES.get(finder, finder)}"
    if config.data.classes is not None and dataset.labels is not None:
        chosen = int(dataset.labels.max()) + 1
        uses.append(f"the choice of the images of {counted(chosen, 'class', 'classes')}")
    if dataset.partial_labels is not None:
        images, classes = (
            int((dataset.partial_labels >= 0).sum()),
            int(dataset.partial_labels.max()) + 1,
        )
        uses.append(
            f"training on the {counted(images, 'image')} of "
            f"{counted(classes, 'known class', 'known classes')}"
        )
    if labeled and k is None:
        uses.append("the number of clusters of k-means")
    return {
        "data": data,
        "images_trained": dataset.size if steps else 0,
        "images_scored": clustered.size,
        "images_skipped": sum(not name.endswith("/") for name, _ in dataset.skipped),
        "files_ignored": dict(dataset.ignored),
        "steps": steps,
        "batch_size": batch_size,
        "network": network,
        "pretrained": None if weights is None else pretrained.describe(weights),
        "method": " + ".join(part.name for part in methods) if steps else None,
        "nrcc": nrcc.sampler if nrcc is not None and nrcc.weight else None,
        "labels_used_for": uses,
        "number_of_clusters": {
            finder: "found" if section.k is None else "given",
            "kmeans": kmeans,
        },
        **custom.described(finder, FINDERS),
        # Of NCC, CueCo and CC: what is found in their features is then not found from nothing.
        "clusters_given_to_training": next(filter(None, (m.clusters for m in methods)), None)
        if steps
        else None,
        "bandwidth": bandwidth if finder == "gridshift" else None,
        "checkpoint": "the last one",
        "kmeans_n_init": section.kmeans.n_init,
        "kmeans_metric": section.kmeans.metric,
        "nmi": "arithmetic mean of the entropies",
        "seed": config.seed,
        "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "processes": jax.process_count(),
        **environment(),
        "note": config.note,
    }


def environment() -> dict[str, Any]:
    """Describes machine, versions and commit of a result."""
    machine = f"{platform.machine()}, {platform.system()}"
    return {"machine": machine, "versions": versions(), "commit": commit()}


def versions() -> dict[str, str]:
    """Returns the versions of Python, this package and the packages that affect results."""
    packages = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"python": platform.python_version(), "cluster_jax": __version__, **packages}


def commit() -> str | None:
    """Returns the commit of the checkout; None outside a checkout.

    With "+" if a file is modified, other than pages and results, which experiments write.
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
