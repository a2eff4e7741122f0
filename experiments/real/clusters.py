"""A metric of `experiments.run real`: other clusters of the features beside those of the run."""

import numpy as np
from numpy.typing import NDArray

from cluster_jax import metrics
from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.clustering.reduce import reduce
from cluster_jax.clustering.smooth_tree import SmoothTree


def score(features: NDArray, labels: NDArray | None, clusters: NDArray) -> dict[str, float | None]:
    """Returns what k-means on a map and `SmoothTree` find, ACC in percent.

    The map is that of GridShift: UMAP with 15 neighbors to 3 dimensions, of the cosine distance.

    Args:
        features: float32 `[n, d]`, rows of length one, those that the run has clustered.
        labels: int `[n]`, or None; their number of classes is given to k-means.
        clusters: int `[n]`, the clusters of the run; not used.
    """
    found = SmoothTree("cosine", random_state=0).fit(features).labels_
    result = {"tree": float(len(np.unique(found[found >= 0]))), "tree_acc": None, "map_acc": None}
    if labels is None:
        return result
    k = len(np.unique(labels))
    rows = reduce(features, n_components=3, n_neighbors=15, metric="cosine", seed=0)
    of_map = np.asarray(kmeans(rows, k).labels)
    acc = {"tree_acc": found, "map_acc": of_map}
    return result | {name: 100 * metrics.scores(labels, each)["acc"] for name, each in acc.items()}
