"""The table of images and their clusters."""

import csv
import io

import numpy as np

from cluster_jax.data.images import Dataset
from cluster_jax.evaluation.discovery import Discovery
from cluster_jax.evaluation.evaluate import Evaluation


def text(dataset: Dataset, found: Evaluation, discovered: Discovery | None) -> str:
    """One line for each image that was clustered; with its class in novel class discovery."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    chosen = np.arange(dataset.size) if dataset.known is None else np.flatnonzero(dataset.known < 0)
    names = (dataset.sources[i] if dataset.sources else i for i in chosen)
    columns = [names, found.clusters, (f"{d:.6g}" for d in found.distances)]
    columns += [found.outliers.astype(int), found.kmeans_clusters]
    titles = ["image", "cluster", "distance", "outlier", "kmeans_cluster"]
    if discovered:
        titles.append("class")
        old = int(dataset.known.max()) + 1
        columns.append(f"novel {c - old}" for c in discovered.classes[chosen])
    writer.writerow(titles)
    writer.writerows(zip(*columns, strict=True))
    return file.getvalue()
