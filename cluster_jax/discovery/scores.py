"""Novel class discovery: classes of the images, and their accuracy."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from cluster_jax.clustering import placing
from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.clustering.label_spreading import among, label_spreading
from cluster_jax.core import knn
from cluster_jax.discovery import splits
from cluster_jax.evaluation import clusters
from cluster_jax.metrics import partition

# Number of nearest training images that vote on the class of a new image, which may be known or
# novel; as many as UMAP's neighbors in nrcc_digits.
VOTERS = 15
# The mean of the novel head's highest probability should be at least this fraction of the way from
# a guess, 1 / C^u, to certainty. Below, the head is close to a constant output, a poor minimum of
# the pairwise loss.
MIN_CONFIDENCE = 0.25


class NetworkOutputs(NamedTuple):
    """Network outputs for `n` images, and their true classes.

    Attributes:
        features: float32 `[n, d]`, rows of length one.
        labeled_logits: logits of the known classes `[n, C^l]`.
        novel_logits: logits of the novel classes `[n, C^u]`.
        true_labels: classes int32 `[n]`, known ones first, or None.
    """

    features: NDArray
    labeled_logits: NDArray
    novel_logits: NDArray
    true_labels: NDArray | None


class Discovery(NamedTuple):
    """Classes of the training images.

    Attributes:
        metrics: see `discover`; a metric that needs labels is None without them.
        classes: int32 `[n]` of all training images: the given class of a labeled one, C^l plus
            the novel class of an unlabeled one.
        novelty_threshold: a new image is novel if its distance, 1 - cosine, to the nearest training
            image is larger (see `placing.novelty_threshold`).
    """

    metrics: dict[str, Any]
    classes: NDArray
    novelty_threshold: float


def name(label: int, known_names: Sequence[str]) -> str:
    """Returns the name of a class; that of the j-th novel one is "novel j", and of -1 "none"."""
    if label < 0:
        return "none"
    if label < len(known_names):
        return known_names[label]
    return splits.novel_name(label - len(known_names))


def spread_probabilities(
    train: NetworkOutputs, partial_labels: NDArray, nearest: NDArray | None
) -> NDArray:
    """Returns the novel head's probabilities of unlabeled images after label spreading.

    `methods.ncl` spreads the cosines of its pseudo-labels in the same way.

    Args:
        train: the training images.
        partial_labels: int32 `[n]`, -1 for unlabeled images.
        nearest: int `[n, k]`, neighbors of each image that the data set provides, the nearest
            first; or None.

    Returns:
        float64 `[u, C^u]`.
    """
    unlabeled = np.flatnonzero(partial_labels < 0)
    probabilities = special.softmax(train.novel_logits[unlabeled], axis=1)
    others = None if nearest is None else among(nearest, unlabeled)
    return label_spreading(probabilities, train.features[unlabeled], others)


def discover(
    train: NetworkOutputs,
    partial_labels: NDArray,
    initial_features: NDArray | None,
    test: NetworkOutputs | None,
    *,
    scores: NDArray | None,
    n_init: int,
    seed: int,
) -> Discovery:
    """Returns the classes of the training images, and their accuracy.

    Novel classes are matched to true ones by the Hungarian method on the unlabeled images alone,
    as in NCL section 4.1; known classes need no matching. `"all_acc"` is the accuracy without
    knowing whether an image is of a known or a novel class (task-agnostic): the nearest training
    images vote, and novel classes are matched as on the training images.

    Args:
        train: the training images.
        partial_labels: int32 `[n]`, the class of labeled ones, -1 for the others.
        initial_features: features `[n, d]`, rows of length one, at the first step of the
            discovery, or None.
        test: held-out images, or None.
        scores: float `[u, C^u]` of the unlabeled training images, whose classes are its argmax;
            None: the novel head's logits.
        n_init: of k-means, the baseline.
        seed: of k-means.

    Returns:
        Metrics `{"novel_classes", "confidence", "undecided", "novel": {"acc", "nmi", ...},
        "labeled_acc", "all_acc", "kmeans_before_acc", "test": {"novel_acc", "labeled_acc",
        "all_acc"} | None}` and classes. `"confidence"`, the mean of the novel head's highest
        probability on unlabeled images, needs no label; `"undecided"`: it is low (see
        `summary.doubt`).
    """
    unlabeled = partial_labels < 0
    n_known = train.labeled_logits.shape[1]
    n_novel = train.novel_logits.shape[1]
    logits = train.novel_logits[unlabeled]
    cluster_labels = np.argmax(logits if scores is None else scores, axis=1).astype(np.int32)
    classes = partial_labels.astype(np.int32)
    classes[unlabeled] = n_known + cluster_labels
    labeled_acc = _share_right(train.labeled_logits, partial_labels, ~unlabeled)
    confidence = float(np.mean(np.max(special.softmax(logits, axis=1), axis=1)))
    metrics: dict[str, Any] = {
        "novel_classes": n_novel,
        "confidence": confidence,
        "undecided": confidence < 1 / n_novel + MIN_CONFIDENCE * (1 - 1 / n_novel),
        "novel": clusters.scores(None, cluster_labels),
        "labeled_acc": labeled_acc,
        "all_acc": None,
        "kmeans_before_acc": None,
        "test": None,
    }
    if train.true_labels is not None:
        true_labels = train.true_labels[unlabeled]
        metrics["novel"] = clusters.scores(true_labels, cluster_labels)
        share = float(np.mean(unlabeled))
        metrics["all_acc"] = share * metrics["novel"]["acc"] + (1 - share) * labeled_acc
        if initial_features is not None:
            baseline = kmeans(initial_features[unlabeled], n_novel, n_init=n_init, seed=seed).labels
            metrics["kmeans_before_acc"] = partition.accuracy(true_labels, baseline)
        if test is not None:
            matching = partition.matching(true_labels, cluster_labels)
            metrics["test"] = _test_metrics(train, classes, matching, test)
    return Discovery(metrics, classes, placing.novelty_threshold(train.features))


def _test_metrics(
    train: NetworkOutputs, classes: NDArray, matching: Mapping[int, int], test: NetworkOutputs
) -> dict[str, float] | None:
    """Returns accuracies on test images; `matching` from training: novel class -> true class."""
    if test.true_labels is None:
        return None
    n_known = train.labeled_logits.shape[1]
    labels = test.true_labels
    novel = labels >= n_known
    nearest = knn.nearest(test.features, train.features, VOTERS, metric="cosine")
    votes = knn.vote(nearest, classes).argmax(axis=1)
    predicted = [c if c < n_known else matching.get(c - n_known, -1) for c in votes]
    return {
        "novel_acc": partition.accuracy(labels[novel], test.novel_logits[novel].argmax(axis=1)),
        "labeled_acc": _share_right(test.labeled_logits, labels, ~novel),
        "all_acc": float(np.mean(np.asarray(predicted) == labels)),
    }


def _share_right(logits: NDArray, labels: NDArray, where: NDArray) -> float:
    """Returns the share of images, of those in `where`, whose highest logit is their label."""
    return float(np.mean(np.argmax(logits[where], axis=1) == labels[where]))
