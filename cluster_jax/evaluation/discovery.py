"""Figures of novel class discovery: classes of the labeled part, of the novel one, of both."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from cluster_jax.clustering import out_of_sample
from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.data import splits
from cluster_jax.metrics import partition

# Nearest training images that vote on the class of an image which may be of any; as many as the
# map of nrcc_digits is made with.
VOTERS = 15
# A novel head whose highest probability is on average less than this part of the way from a guess,
# 1 / C^u, to certainty is close to the constant output, which the pairwise loss has as a trap.
DECIDED = 0.25


class NetworkOutputs(NamedTuple):
    """An embedding of images and their classes.

    Attributes:
        features: float32 `[n, d]`, rows of length one.
        labeled_logits: logits of the known classes `[n, C^l]`.
        novel_logits: logits of the novel classes `[n, C^u]`.
        true_labels: classes int32 `[n]`, known ones first, or None.
    """

    features: np.ndarray
    labeled_logits: np.ndarray
    novel_logits: np.ndarray
    true_labels: np.ndarray | None


class Discovery(NamedTuple):
    """What was discovered.

    Attributes:
        metrics: see `discover`; None for what needs labels, without them.
        classes: int32 `[n]` of all training images: the given class of a labeled one, C^l and
            the argmax of the novel head for the others.
        novelty_threshold: how far, by 1 - cosine, a new image may be from all of them
            (see `out_of_sample.novelty_threshold`).
        cluster_labels: int32, the novel class of each unlabeled image, counted from 0.
        distances: float32, of the features of each of these from the mean of its novel class.
    """

    metrics: dict[str, Any]
    classes: np.ndarray
    novelty_threshold: float
    cluster_labels: np.ndarray
    distances: np.ndarray


def with_number(config: Mapping[str, Any], known: np.ndarray | None) -> Mapping[str, Any]:
    """The config with the number of novel classes for k-means too, where it names none."""
    classes, kmeans = config["method"].get("classes"), config["eval"]["kmeans"]
    if known is None or classes is None or kmeans["k"] is not None:
        return config
    return {**config, "eval": {**config["eval"], "kmeans": {**kmeans, "k": classes}}}


def name(label: int, known: Sequence[str]) -> str:
    """A known class by its name, the j-th novel one as "novel j"."""
    return known[label] if label < len(known) else splits.novel_name(label - len(known))


def discover(
    train: NetworkOutputs,
    known: np.ndarray,
    before: np.ndarray | None,
    test: NetworkOutputs | None,
    *,
    n_init: int,
    seed: int,
) -> Discovery:
    """Classes of the training images, and their accuracy.

    Novel classes are matched to true ones by the Hungarian method on the unlabeled images alone,
    as in NCL section 4.1; labeled ones have their names. With the part of a test image unknown
    (`"all_acc"`) its nearest training images vote on its class among all, novel ones named as on
    the training images.

    Args:
        train: the training images.
        known: int32 `[n]`, the class of labeled ones, -1 for the others.
        before: features `[n, d]`, rows of length one, at the first step of the discovery, or None.
        test: images that no training saw, or None.
        n_init: of k-means, the baseline.
        seed: of k-means.

    Returns:
        Metrics `{"novel_classes", "confidence", "undecided", "novel": {"acc", "nmi", ...},
        "labeled_acc", "all_acc", "kmeans_before_acc", "test": {"novel_acc", "labeled_acc",
        "all_acc"} | None}` and classes. `"confidence"`, the mean of the novel head's highest
        probability on unlabeled images, needs no label; `"undecided"` says that it is low (see
        `summary.doubt`).
    """
    new = known < 0
    old, count = train.labeled_logits.shape[1], train.novel_logits.shape[1]
    found = np.argmax(train.novel_logits, axis=1)
    classes = np.where(new, old + found, known).astype(np.int32)
    right = float(np.mean(np.argmax(train.labeled_logits[~new], axis=1) == known[~new]))
    confidence = float(np.mean(np.max(special.softmax(train.novel_logits[new], axis=1), axis=1)))
    metrics: dict[str, Any] = {
        "novel_classes": count,
        "confidence": confidence,
        "undecided": confidence < 1 / count + DECIDED * (1 - 1 / count),
        "novel": {**dict.fromkeys(partition.SCORES), "n_clusters": len(np.unique(found[new]))},
        "labeled_acc": right,
        "all_acc": None,
        "kmeans_before_acc": None,
        "test": None,
    }
    if train.true_labels is not None:
        novel = partition.scores(train.true_labels[new], found[new])
        metrics |= {"novel": novel, "all_acc": _mean(novel["acc"], right, new)}
        if before is not None:
            groups = kmeans(before[new], count, n_init=n_init, seed=seed).labels
            metrics["kmeans_before_acc"] = partition.accuracy(train.true_labels[new], groups)
    if test is not None and test.true_labels is not None and train.true_labels is not None:
        names = partition.matching(train.true_labels[new], found[new])
        metrics["test"] = _test(train, classes, names, test)
    clusters = found[new].astype(np.int32)
    distances = _from_means(train.features[new], clusters)
    return Discovery(
        metrics, classes, out_of_sample.novelty_threshold(train.features), clusters, distances
    )


def _from_means(rows: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    _, own = np.unique(clusters, return_inverse=True)
    means = np.stack([rows[own == c].mean(axis=0) for c in range(own.max() + 1)])
    return np.linalg.norm(rows - means[own], axis=1).astype(np.float32)


def _mean(novel: float, labeled: float, new: np.ndarray) -> float:
    share = float(np.mean(new))
    return share * novel + (1 - share) * labeled


def _test(
    train: NetworkOutputs, classes: np.ndarray, names: Mapping[int, int], test: NetworkOutputs
) -> dict[str, float]:
    """`names` are the true classes of the novel head's, by the unlabeled training images."""
    old = train.labeled_logits.shape[1]
    new = test.true_labels >= old
    near = out_of_sample.neighbors(test.features, train.features, VOTERS)
    voted = [c if c < old else names.get(c - old, -1) for c in out_of_sample.vote(near, classes)]
    right = np.argmax(test.labeled_logits[~new], axis=1) == test.true_labels[~new]
    return {
        "novel_acc": partition.accuracy(
            test.true_labels[new], np.argmax(test.novel_logits[new], axis=1)
        ),
        "labeled_acc": float(np.mean(right)),
        "all_acc": float(
            np.mean([v == label for v, label in zip(voted, test.true_labels, strict=True)])
        ),
    }
