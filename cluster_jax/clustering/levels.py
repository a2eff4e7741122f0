"""Clusters inside clusters.

The steps of `choose_k` are repeated inside each cluster. If clusters with 95 % of the rows split,
the parts of all are the next level, and so on. The clusters are those of the deepest level of which
more than 5 % of the clusters, or of the rows, are apart, see `separation`, else those of the first:
rows along a curve split again and again, and all their parts touch.
"""

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering import choose_k, representation, separation, tree
from cluster_jax.clustering.representation import Smoother

# Share of the rows that must be in clusters that split, for all parts to become the next level.
# That level is taken if more than the rest, 5 %, is apart there. For a clear answer, as many rows
# must be in clusters that surely have no parts, see `verdict`.
NEARLY_ALL = 0.95
# Fewest rows that are searched for clusters inside a cluster.
_MIN_SPLIT = 20


def deepest(x: NDArray, rows: Smoother, labels: NDArray, rng: np.random.Generator) -> NDArray:
    """Returns the clusters of the deepest level, int64 `[n]`, see the docstring of the module.

    Args:
        x: the features `[n, d]`.
        rows: their representation.
        labels: int64 `[n]`, the clusters of the first level.
        rng: draws the sets without clusters.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 8)) + 9 * (np.arange(300) % 3)[:, None]
        >>> rows = representation.fit(x, "euclidean")
        >>> labels = choose_k.partition(rows, tree.ward(rows.smooth), 3)
        >>> np.bincount(deepest(x, rows, labels, np.random.default_rng(0))).tolist()
        [100, 100, 100]
    """
    result = labels
    while (parts := _deeper(x, rows.metric, labels, rng)) is not None:
        labels = parts
        together = separation.unions(separation.compare(x, rows, labels))
        if separation.share_apart(together, labels)[0] > 1 - NEARLY_ALL:
            result = labels
    return result


def _deeper(x: NDArray, metric: str, labels: NDArray, rng: np.random.Generator) -> NDArray | None:
    """Returns the parts of all clusters, int64 `[n]`; None unless clusters of 95 % of rows split.

    A cluster that does not split is one part.
    """
    whole = n_parts = 0
    result = np.zeros(len(x), np.int64)
    for members in sorted(tree.members(labels), key=len, reverse=True):
        parts = _inside(x[members], metric, rng)
        whole += 0 if parts.any() else len(parts)
        if whole > (1 - NEARLY_ALL) * len(x):
            return None
        result[members] = n_parts + parts
        n_parts += int(parts.max()) + 1
    return result


def _inside(x: NDArray, metric: str, rng: np.random.Generator) -> NDArray:
    """Returns the clusters of the rows `[m, d]` of a cluster, int64 `[m]`; one of few rows."""
    if len(x) < _MIN_SPLIT:
        return np.zeros(len(x), np.int64)
    rows = representation.fit(x, metric)
    labels, _ = choose_k.search(rows)
    return choose_k.split(x, rows, labels, rng)[0]
