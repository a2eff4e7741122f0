"""Evaluation of an embedding: scores of clusters, k-NN, linear probe, and collapse."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.core import arrays, hosts
from cluster_jax.core.devices import say
from cluster_jax.evaluation import clusters, own
from cluster_jax.evaluation.clusters import Clustering
from cluster_jax.evaluation.options import EvalConfig
from cluster_jax.evaluation.stages import NOWHERE, Stages
from cluster_jax.metrics import knn
from cluster_jax.metrics.collapse import collapse
from cluster_jax.metrics.linear_probe import linear_probe


class Evaluation(NamedTuple):
    """Metrics of an embedding of `n` images.

    Attributes:
        metrics: `{METHOD: {...}, "kmeans": {...}, "knn": {...}, ...}`, where METHOD is
            `eval.method`, "gridshift" or "tree" (see `clusters.run_gridshift` and
            `clusters.run_tree`), and "own" has the numbers of the config's own metrics. Scores that
            need labels are None without labels.
        kmeans_labels: int32 `[n]`, clusters by k-means.
    """

    metrics: dict[str, Any]
    kmeans_labels: NDArray


def evaluate(
    embedding: Mapping[str, NDArray],
    clustering: Clustering,
    true_labels: NDArray | None,
    config: EvalConfig,
    *,
    seed: int,
    test: tuple[NDArray, NDArray] | None = None,
    stages: Stages = NOWHERE,
) -> Evaluation:
    """Scores the clusters of an embedding, and beside them those of k-means.

    Labels are used to score, and for the number of clusters of k-means if that is None. Of several
    processes the first one calls this, see `hosts.on_all`: k-means, k-NN and the linear probe are
    computed by the devices of all.

    Args:
        embedding: `{"backbone": [n, d], "projection": [n, e]}`; has `config.features`.
        clustering: the clusters that are shown, with their scores as metrics, see
            `runs.measured.scores`, and the tree of `config.method`.
        true_labels: int32 `[n]`, or None.
        config: the section `eval`.
        seed: random seed of k-means and the linear probe.
        test: features `[m, d]` and classes `[m]` to score the linear probe on; None: it holds out a
            part of each class.
        stages: where an interrupted evaluation has kept k-means, k-NN and the linear probe.
    """
    features = embedding[config.features]
    x = arrays.normalize_rows(features)
    rows = x if clustering.tree is None else clustering.tree.smooth_rows(x)
    k = config.kmeans.n_clusters
    if k is None:
        k = clustering.metrics["n_large"] if true_labels is None else len(np.unique(true_labels))
    k = min(k, len(rows))  # An update may have left fewer than were asked for.
    how: dict[str, Any] = {"metric": config.kmeans.metric, "n_init": config.n_init, "seed": seed}
    mesh = hosts.mesh_of_all()
    if mesh is not None:
        say(f"k-means, k-NN and the linear probe on {mesh.size} devices")
    kmeans_labels = stages.arrays(
        "kmeans", lambda: {"labels": hosts.on_all(kmeans, mesh, rows, n_clusters=k, **how).labels}
    )["labels"]
    accuracies: Mapping[str, float | None] = {}
    probe: Mapping[str, float | None] = {}
    if true_labels is not None:
        if config.knn:
            accuracies = stages.values(
                "knn",
                lambda: knn.knn_accuracy(x, true_labels, n_neighbors=config.knn, mesh=mesh),
            )
        # To hold out a part of each class, the probe needs a class of two images.
        possible = test is not None or np.bincount(true_labels).max() > 1
        if config.linear_probe is not None and possible:
            how = {"settings": config.linear_probe, "test": test, "seed": seed, "mesh": mesh}
            probe = stages.values(
                "linear_probe", lambda: linear_probe(features, true_labels, **how, top=(1, 5))
            )
    metrics = {
        config.method: clustering.metrics,
        "kmeans": {**clusters.scores(true_labels, kmeans_labels), "k_given": k},
        "knn": {str(k): accuracies.get(str(k)) for k in config.knn},
        "linear_probe": probe.get("1"),
        "linear_probe_top_5": probe.get("5"),
        "collapse": {name: collapse(f) for name, f in embedding.items()},
    }
    if config.metrics:
        metrics["own"] = own.scores(config.metrics, x, true_labels, clustering.cluster_labels)
    return Evaluation(metrics, kmeans_labels.astype(np.int32))
