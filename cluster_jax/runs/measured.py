"""What is measured of a state of a run: everything that follows from its clusters.

All functions are pure. They are called after each step that changes the clusters of a run, so that
scores, verdict, sizes, outliers and the tree are always those of the clusters that are shown.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering import gridshift, membership, placing
from cluster_jax.clustering import tree as trees
from cluster_jax.clustering.base import CLEAR, NO_CLUSTER
from cluster_jax.clustering.placing import ByTree
from cluster_jax.core import arrays, io
from cluster_jax.evaluation import clusters
from cluster_jax.evaluation.clusters import MIN_CLUSTER_ROWS, SILHOUETTE_ROWS
from cluster_jax.metrics.silhouette import silhouette
from cluster_jax.report import duplicates, report
from cluster_jax.runs.run import Run


def described(run: Run) -> Run:
    """Returns a run whose distances, outliers, probabilities and tree are those of its clusters.

    Rows whose cluster a person has decided have probability 1 and are no outliers. A run without
    probabilities gets none. A name has no effect.
    """
    rows = run.rows
    x = run.likeness
    labels = run.labels[rows]
    decided = run.columns["decided"][rows]
    codes = np.unique(labels, return_inverse=True)[1]
    means = arrays.cluster_means(x, codes)
    run = dataclasses.replace(
        run,
        distances=arrays.distances_to_centers(x, means, codes).astype(np.float32),
        outliers=_outliers(run, rows),
        linkage=_linkage(run),
    )
    if not isinstance(run.placer, ByTree):
        return dataclasses.replace(run, probabilities=None)
    ids, leaves = placing.coded(run.labels[run.placer.sample])
    around = membership.shares(run.placer.smoother, leaves)
    sure = membership.of_known_rows(ids, labels, around[run.placer.leaves[rows]])
    shares = None
    if run.shares is not None:
        of_all = membership.of_known_rows(ids, run.labels, around[run.placer.leaves])
        shares = np.where(run.columns["decided"], 1.0, of_all.probabilities).astype(np.float32)
    return dataclasses.replace(
        run,
        shares=shares,
        probabilities=np.where(decided, 1.0, sure.probabilities),
        second_labels=np.where(decided, NO_CLUSTER, sure.second_labels),
        second_probabilities=np.where(decided, 0.0, sure.second_probabilities),
    )


def _linkage(run: Run) -> NDArray:
    """Returns the tree of the clusters, see `Run.linkage`.

    It is the part above them of the tree of rows where they are a cut of it, and else that of their
    mean features.
    """
    placer = run.placer
    if run.tree is not None and isinstance(placer, ByTree) and run.is_of_fit:
        leaves = run.labels[placer.sample]
        return trees.cluster_linkage(run.tree, np.unique(leaves, return_inverse=True)[1])
    labels = run.labels[run.rows]
    features = run.features if run.store is not None else run.likeness
    is_in = labels != NO_CLUSTER
    return trees.linkage_of_means(features[is_in], labels[is_in])


def _outliers(run: Run, rows: NDArray) -> NDArray:
    """Returns which of these rows, int `[l]`, are in clusters too small to count, bool `[l]`.

    No cluster is too small if the number of clusters was given, as that of novel classes.
    """
    labels = run.labels[rows]
    is_in = labels != NO_CLUSTER
    ids, codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    counted = sizes[ids != NO_CLUSTER]
    is_given = run.options.n_clusters is not None or run.known_classes is not None
    if is_given or not len(counted):
        return np.zeros(len(rows), bool)
    least = min(MIN_CLUSTER_ROWS, counted.max())
    if run.method == "gridshift":
        least = gridshift.min_cluster_size(counted)
    return (sizes < least)[codes] & is_in & ~run.columns["decided"][rows]


def scores(run: Run, x: NDArray | None = None) -> dict[str, Any]:
    """Returns the metrics of the clusters that are shown, for the method that has found them.

    They are what the last fit has told of its own clusters, `Run.fit`, of which the verdict and the
    values that judge it are left out where other clusters are shown; the scores by true labels, of
    the rows that have one; the numbers of large clusters and of outliers; and for embeddings the
    sizes and the silhouette. After a training no clusters are said to be clear: it drives its own
    images apart, also within a kind (all 15 runs of `experiments/log.md` were clear at an ARI of
    0.25 to 0.50).

    Args:
        run: the run; in novel class discovery before its clusters become the novel classes.
        x: float `[m, d]`, the rows that are described, if the run does not store them. None without
            them: the silhouette is None then.
    """
    # Of images without a known class; of embeddings all, also where a sample is described.
    scored = run.rows if run.is_of_images else slice(None)
    every = run.labels[scored]
    truth = None if run.truth is None else run.truth[scored]
    metrics = {name: value for name, value in run.fit.items() if name != "is_shown"}
    if not run.is_of_fit:
        metrics = dict.fromkeys(metrics.keys() & {"verdict", "gap"})
    elif run.is_trained and metrics.get("verdict") == CLEAR:
        metrics["verdict"] = None
    metrics |= _agreement(truth, every)
    if run.method != "kmeans":
        is_out = run.outliers
        if len(is_out) != len(every):  # A sample of the rows is described.
            is_out = _outliers(run, np.arange(len(every)))
        small = np.setdiff1d(every[is_out], every[~is_out])
        metrics["n_large"] = metrics["n_clusters"] - len(small)
        metrics["outliers"] = int(is_out.sum())
    if run.is_of_images:
        return metrics
    ids, sizes = np.unique(every[every != NO_CLUSTER], return_counts=True)
    if x is None and run.store is not None:
        x = run.features
    own = None
    labels = run.labels[run.rows]
    is_in = labels != NO_CLUSTER
    if x is not None and is_in.any():
        how: dict[str, Any] = {"metric": str(run.options.metric), "sample_size": SILHOUETTE_ROWS}
        own = silhouette(x[is_in], labels[is_in], seed=run.config["seed"], **how)
    matching = metrics.get("matching")
    if matching is not None and run.label_names is not None:
        metrics["matching"] = {key: run.label_names[label] for key, label in matching.items()}
    sizes_of = dict(zip(ids.tolist(), sizes.tolist(), strict=True))
    return {**metrics, "silhouette": own, "cluster_sizes": sizes_of}


def _agreement(truth: NDArray | None, labels: NDArray) -> dict[str, Any]:
    """Returns `clusters.scores` of the rows whose true label is known, int `[n]`, -1 if not."""
    n_clusters = len(np.unique(labels[labels != NO_CLUSTER]))
    is_known = np.zeros(len(labels), bool) if truth is None else truth >= 0
    if truth is None or not is_known.any():
        return clusters.scores(None, labels)
    return clusters.scores(truth[is_known], labels[is_known]) | {"n_clusters": n_clusters}


def measured(run: Run, x: NDArray | None = None) -> Run:
    """Returns a run whose results are those of the clusters that are shown; writes nothing.

    Results that do not depend on the clusters stay. For the arguments see `scores`.
    """
    results = dict(run.results)
    metrics = dict(results["metrics"])
    if run.known_classes is None:
        metrics[run.method] = scores(run, x)
    elif run.is_corrected:
        metrics["discovery"] = _discovery(run, metrics["discovery"])
    provenance = dict(results["provenance"])
    if run.known_classes is None:
        provenance["number_of_clusters"] = _origins(run, provenance)
    results |= {"metrics": metrics, "provenance": provenance}
    if run.is_of_images:
        results["doubtful_images"] = count_doubtful(run)
        repeated = run.duplicates
        results["duplicates"] = None if repeated is None else duplicates.counts(repeated)
    return dataclasses.replace(run, results=io.plain(results))


def _origins(run: Run, provenance: Mapping[str, Any]) -> dict[str, str]:
    """Returns where the numbers of clusters are from, by method, see `summary.score_rows`."""
    origin = "found" if run.options.n_clusters is None else "given"
    if run.is_corrected:
        origin = "corrected"
    elif not run.is_of_fit:
        origin = "kept"
    return {**provenance.get("number_of_clusters", {}), run.method: origin}


def _discovery(run: Run, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the metrics of novel class discovery after a person has corrected the classes.

    The accuracy on all classes is that of `discovery.scores.discover`: the share of images that are
    right, of the known classes by the classifier, of the novel ones by their clusters.
    """
    rows = run.rows
    labels = run.labels[rows]
    labels = np.where(labels < 0, labels, labels - len(run.known_classes or ()))
    novel = _agreement(None if run.truth is None else run.truth[rows], labels)
    metrics = {**metrics, "novel": novel}
    if metrics["all_acc"] is not None:
        share = len(rows) / len(run.columns)
        metrics["all_acc"] = share * novel["acc"] + (1 - share) * metrics["labeled_acc"]
    return metrics


def count_doubtful(run: Run) -> int | None:
    """Returns the number of doubtful images, see `report.doubtful`; None without probabilities."""
    if run.membership is None:
        return None
    is_copy = duplicates.are_copies(run.duplicates, run.rows)
    is_decided = run.columns["decided"][run.rows]
    return int(report.is_doubtful(run.membership, is_copy, is_decided).sum())
