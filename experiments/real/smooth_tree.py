"""A metric of `experiments.run real`: the clusters of `SmoothTree` beside those of GridShift."""

import numpy as np
from numpy.typing import NDArray

from cluster_jax import metrics
from cluster_jax.clustering.smooth_tree import SmoothTree


def score(features: NDArray, labels: NDArray | None, clusters: NDArray) -> dict[str, float | None]:
    """Returns the number of clusters of `SmoothTree`, and their ACC in percent with labels.

    Args:
        features: float32 `[n, d]`, rows of length one, those that the run has clustered.
        labels: int `[n]`, or None.
        clusters: int `[n]`, the clusters of the run; not used.
    """
    found = SmoothTree("cosine", random_state=0).fit(features).labels_
    acc = None if labels is None else 100 * metrics.scores(labels, found)["acc"]
    return {"tree": float(len(np.unique(found[found >= 0]))), "tree_acc": acc}
