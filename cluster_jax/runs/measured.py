"""What is measured of a state of a run: everything that follows from its clusters.

All functions are pure. They are called after each step that changes the clusters of a run, so that
scores, verdict, sizes, outliers and the tree are always those of the clusters that are shown.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering import gridshift, membership
from cluster_jax.clustering import tree as trees
from cluster_jax.clustering.base import CLEAR, NO_CLUSTER
from cluster_jax.clustering.placing import ByCenters, ByTree
from cluster_jax.core import arrays, io
from cluster_jax.evaluation import clusters
from cluster_jax.evaluation.options import CLUSTERINGS
from cluster_jax.metrics.silhouette import silhouette
from cluster_jax.report import duplicates, report
from cluster_jax.runs.run import Run

# Size of the random sample of rows on which the silhouette is computed.
SILHOUETTE_ROWS = 4_000
# Smallest cluster of SmoothTree that counts; the rows of smaller clusters are outliers.
MIN_CLUSTER_ROWS = 5


def described(run: Run, x: NDArray | None = None) -> Run:
    """Returns a run whose distances, outliers, probabilities and tree are those of its clusters.

    Rows whose cluster a person has decided have probability 1, those in no cluster 0, and both are
    no outliers. Only the clusters of a `SmoothTree` have probabilities. A name has no effect.

    Args:
        run: the run.
        x: float `[m, d]`, the rows that are described, where the run does not store them. None
            without them: distances are those of their micro-clusters then.
    """
    run = dataclasses.replace(
        run,
        distances=_distances(run, x),
        outliers=_are_outliers(run)[run.rows],
        linkage=_linkage(run),
    )
    placer = run.placer
    if not isinstance(placer, ByTree):
        return dataclasses.replace(
            run, probabilities=None, second_labels=None, second_probabilities=None
        )
    ids, _, _, around = placer.groups(run.labels)
    sure = membership.of_known_rows(ids, run.labels, around[placer.leaves])
    is_decided = run.columns["decided"]
    return dataclasses.replace(
        run,
        probabilities=np.where(is_decided & (sure.labels != NO_CLUSTER), 1.0, sure.probabilities),
        second_labels=np.where(is_decided, NO_CLUSTER, sure.second_labels),
        second_probabilities=np.where(is_decided, 0.0, sure.second_probabilities),
    )


def _distances(run: Run, x: NDArray | None) -> NDArray:
    """Returns the distances of the m rows to the centers of their clusters, float32 `[m]`.

    As of new rows, see `place.place`: the center is the mean of the cluster, of the leaves of a
    tree; it is that of k-means while its clusters are shown. With the cosine, k-means measures
    1 - cosine. For the arguments see `described`.
    """
    placer = run.placer
    labels = run.labels[run.rows]
    ids, codes = np.unique(labels, return_inverse=True)
    if x is not None and isinstance(placer, ByTree):
        rows = placer.smoother.project(x)
    else:
        rows = run.likeness
    centers = arrays.cluster_means(rows, codes)
    if isinstance(placer, ByTree):
        known, _, of_leaves, _ = placer.groups(run.labels)
        place = {label: i for i, label in enumerate(known.tolist())}
        for code, label in enumerate(ids.tolist()):
            # A person may have left a cluster to nothing but copies.
            if label != NO_CLUSTER and label in place:
                centers[code] = of_leaves[place[label]]
    if isinstance(placer, ByCenters):
        if np.array_equal(run.labels, placer.labels):
            centers = placer.centers[ids]
        if placer.voters.metric == "cosine":  # Half the squared distance of unit rows.
            directions = arrays.normalize_rows(centers)
            halves = arrays.distances_to_centers(rows, directions, codes) ** 2 / 2
            return halves.astype(np.float32)
    return arrays.distances_to_centers(rows, centers, codes).astype(np.float32)


def _linkage(run: Run) -> NDArray:
    """Returns the tree of the clusters, see `Run.linkage`; where they stay, `next_state` keeps it.

    It is Ward's tree of their mean smooth rows, as where a fit has found them; of another method
    than `SmoothTree` it is that of their mean features.
    """
    if isinstance(run.placer, ByTree):
        rows, leaves = run.placer.smoother.smooth, run.placer.leaves
        labels = run.labels
    else:
        rows = run.features if run.store is not None else run.likeness
        labels, leaves = run.labels[run.rows], np.arange(len(rows))
    is_in = labels != NO_CLUSTER
    if not is_in.any():
        return np.empty((0, 4))
    return trees.linkage_of_clusters(rows, leaves[is_in], labels[is_in])


def _are_outliers(run: Run) -> NDArray:
    """Returns which of the n rows are in clusters too small to count, bool `[n]`.

    No cluster is too small if the number of clusters was given, as that of novel classes; but a row
    that a module of the user's own has put into no cluster is alone, see `custom.fit`. Where a
    sample was clustered, its rows alone are counted.
    """
    labels = run.labels
    ids, codes = np.unique(labels, return_inverse=True)
    rows = np.arange(len(labels))
    if run.method != "tree" and (most := run.fit.get("rows_clustered")) is not None:
        rows = run.rows[clusters.sampled(len(run.rows), most, run.config["seed"])]
    sizes = np.bincount(codes[rows], minlength=len(ids))
    counted = sizes[(ids != NO_CLUSTER) & (sizes > 0)]
    is_custom = run.method not in CLUSTERINGS
    is_given = run.options.n_clusters is not None
    if not len(counted) or run.known_classes is not None or (is_given and not is_custom):
        return np.zeros(len(labels), bool)
    least = min(2 if is_given else MIN_CLUSTER_ROWS, counted.max())
    if run.method == "gridshift":
        least = gridshift.min_cluster_size(counted)
    return (sizes < least)[codes] & (labels != NO_CLUSTER) & ~run.columns["decided"]


def scores(run: Run, x: NDArray | None = None) -> dict[str, Any]:
    """Returns the metrics of the clusters that are shown, for the method that has found them.

    They are what the last fit has told of its own clusters, `Run.fit`, of which the verdict and the
    values that judge it are left out where other clusters are shown; the scores by true labels, of
    the rows that have one; the numbers of large clusters and of outliers; and for embeddings the
    sizes and the silhouette. After a training no clusters are said to be clear: it drives its own
    images apart, also within a kind (all 15 runs of `experiments/log.md` were clear at an ARI of
    0.25 to 0.50).

    Args:
        run: the run, of which no class is known.
        x: float `[m, d]`, the rows that are described, if the run does not store them. None without
            them: the silhouette is None then.
    """
    metrics = {name: value for name, value in run.fit.items() if name != "is_shown"}
    if not run.is_of_fit:
        metrics = dict.fromkeys(metrics.keys() & {"verdict", "gap"})
    elif run.is_trained and metrics.get("verdict") == CLEAR:
        metrics["verdict"] = None
    metrics |= _agreement(run.truth, run.labels)
    if run.method != "kmeans":
        is_out = _are_outliers(run)
        small = np.setdiff1d(run.labels[is_out], run.labels[~is_out])
        metrics["n_large"] = metrics["n_clusters"] - len(small)
        metrics["outliers"] = int(is_out.sum())
    if run.is_of_images:
        return metrics
    ids, sizes = np.unique(run.labels[run.labels != NO_CLUSTER], return_counts=True)
    if x is None and run.store is not None:
        x = run.features
    own = None
    labels = run.labels[run.rows]
    is_in = labels != NO_CLUSTER
    if x is not None and is_in.any():
        how: dict[str, Any] = {"metric": str(run.options.metric), "sample_size": SILHOUETTE_ROWS}
        x = x if is_in.all() else x[is_in]  # Many rows are not copied without need.
        own = silhouette(x, labels[is_in], seed=run.config["seed"], **how)
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
    metrics, provenance = dict(results["metrics"]), dict(results["provenance"])
    origins = dict(provenance.get("number_of_clusters", {}))
    if run.known_classes is None:
        metrics[run.method] = scores(run, x)
        origins[run.method] = run.origin
    else:
        metrics["discovery"] = _discovery(run, metrics["discovery"])
        origins.pop("novel head", None)
        if run.is_corrected:
            origins["novel head"] = "corrected"
    provenance["number_of_clusters"] = origins
    results |= {"metrics": metrics, "provenance": provenance}
    if run.is_of_images:
        results["doubtful_images"] = count_doubtful(run)
        repeated = run.duplicates
        results["duplicates"] = None if repeated is None else duplicates.counts(repeated)
    return dataclasses.replace(run, results=io.plain(results))


def _discovery(run: Run, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the metrics of novel class discovery for the classes that are shown.

    The accuracy on all classes is that of `discovery.scores.discover`: the share of images that are
    right, of the known classes by the classifier, of the novel ones by their clusters. An unlabeled
    image that a person has moved to a known class is in no novel class, so that it is wrong.
    """
    is_unlabeled = ~run.has_class
    labels = run.labels[is_unlabeled] - len(run.known_classes or ())
    labels = np.where(labels < 0, NO_CLUSTER, labels)
    novel = _agreement(None if run.truth is None else run.truth[is_unlabeled], labels)
    metrics = {**metrics, "novel": novel}
    if metrics["all_acc"] is not None:
        share = float(np.mean(is_unlabeled))
        acc = novel["acc"] or 0.0  # None: no image is in a novel class.
        metrics["all_acc"] = share * acc + (1 - share) * metrics["labeled_acc"]
    return metrics


def count_doubtful(run: Run) -> int | None:
    """Returns the number of doubtful images, see `report.doubtful`; None without probabilities."""
    membership = run.membership
    if membership is None:
        return None
    is_copy = duplicates.are_copies(run.duplicates, run.rows)
    is_decided = run.columns["decided"][run.rows]
    return int(report.is_doubtful(membership, is_copy, is_decided).sum())
