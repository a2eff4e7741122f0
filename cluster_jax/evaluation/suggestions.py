"""Suggested names of clusters: ImageNet classes predicted by a pretrained network."""

import importlib.resources

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from cluster_jax.core.arrays import blocks
from cluster_jax.nets import pretrained

COUNT = 3


def class_names() -> list[str]:
    """Returns the 1,000 classes of ImageNet-1k in the order of the network's logits."""
    file = importlib.resources.files("cluster_jax.evaluation") / "imagenet_classes.txt"
    return file.read_text().splitlines()


def suggest(features: NDArray, cluster_labels: NDArray, count: int = COUNT) -> dict[int, list[str]]:
    """Suggests names for clusters: the ImageNet classes of highest mean probability.

    The names are hints for a reader and are never scored: an object of no ImageNet class gets the
    name of a class that looks similar.

    Args:
        features: float `[n, 1280]` of an unchanged EfficientNet-Lite2, not normalized.
        cluster_labels: integers `[n]`.
        count: number of names of each cluster.

    Returns:
        Cluster -> names, the most probable first.

    Example:
        >>> suggest(np.zeros((2, 1280)), np.array([3, 3]), count=1)
        {3: ['megalith']}
    """
    kernel, bias = pretrained.lite2_classifier()
    names = class_names()
    clusters, members = np.unique(cluster_labels, return_inverse=True)
    sums = np.zeros((len(clusters), len(names)))
    for block in blocks(len(features), len(names)):
        np.add.at(sums, members[block], softmax(features[block] @ kernel + bias, axis=1))
    best = np.argsort(-sums, axis=1, kind="stable")[:, :count]
    return {
        int(cluster): [names[i] for i in row] for cluster, row in zip(clusters, best, strict=True)
    }
