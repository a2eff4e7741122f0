"""What `ImageClusterer` says about a run: its clusters, those of k-means, or its classes."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering.tree import cluster_linkage
from cluster_jax.pipeline import inference
from cluster_jax.pipeline.inference import TrainedRun


class Fitted(NamedTuple):
    """The fitted attributes, see `ImageClusterer`; there they end with an underscore."""

    labels: NDArray
    distances: NDArray
    outliers: NDArray
    n_clusters: int
    linkage: NDArray
    tree: NDArray | None = None
    probabilities: NDArray | None = None


def found(run: TrainedRun) -> Fitted:
    """The clusters that were found without being told their number."""
    stored = run.clusters
    return Fitted(
        stored.cluster_labels.astype(np.int64),
        stored.distances.astype(np.float64),
        stored.outliers,
        len(np.unique(stored.cluster_labels[~stored.outliers])),
        stored.linkage,
        stored.tree,
        stored.probabilities,
    )


def given(run: TrainedRun) -> Fitted:
    """The clusters of k-means."""
    labels = run.clusters.kmeans_labels.astype(np.int64)
    return Fitted(
        labels,
        inference.kmeans_distances(run, run.features, labels),
        run.clusters.outliers,
        len(np.unique(labels)),
        cluster_linkage(run.features, labels),
    )


def classes(run: TrainedRun) -> Fitted:
    """The classes of novel class discovery, by name; the novel ones are counted."""
    codes, unlabeled = inference.class_labels(run), run.clusters.unlabeled_rows
    labels = inference.class_names(run, codes)
    outliers = np.zeros(len(codes), bool)
    outliers[unlabeled] = run.clusters.outliers
    return Fitted(
        labels,
        inference.class_distances(run, run.all_features, codes),
        outliers,
        len(np.unique(codes[unlabeled])),
        cluster_linkage(run.all_features, labels),
    )
