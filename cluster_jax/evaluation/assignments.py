"""The table of images and their clusters."""

import csv
import io

from cluster_jax.data import splits
from cluster_jax.data.images import Dataset
from cluster_jax.evaluation import discovery
from cluster_jax.evaluation.discovery import Discovery
from cluster_jax.evaluation.evaluate import Evaluation

COLUMNS = ("image", "cluster", "distance", "outlier", "kmeans_cluster")


def text(dataset: Dataset, found: Evaluation, discovered: Discovery | None) -> str:
    """One line for each image.

    In novel class discovery with its class, and without a cluster for labeled images, which are
    not clustered.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    names = dataset.sources or range(dataset.size)
    distances = (f"{d:.6g}" for d in found.distances)
    outliers = found.outliers.astype(int)
    clustered = zip(found.cluster_labels, distances, outliers, found.kmeans_labels, strict=True)
    if dataset.known is None:
        writer.writerow(COLUMNS)
        writer.writerows((name, *rest) for name, rest in zip(names, clustered, strict=True))
        return file.getvalue()
    known = splits.known_names(dataset)
    classes = dataset.known if discovered is None else discovered.classes
    writer.writerow((*COLUMNS, "class"))
    for name, given, label in zip(names, dataset.known, classes, strict=True):
        rest = next(clustered) if given < 0 else ("",) * (len(COLUMNS) - 1)
        writer.writerow((name, *rest, discovery.name(label, known) if label >= 0 else ""))
    return file.getvalue()
