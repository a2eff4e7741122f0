"""Which cut of the tree is the answer. Constants: see `levels`."""

import math

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering import islands, levels, separation
from cluster_jax.clustering.levels import Tree

# A level is compared with those of at least this many times as many groups, which must score more
# by this fraction; if groups are at least so round.
_WITHIN, _GAIN, _ROUND = 0.6, 0.005, 0.85
# Groups of a smaller fraction of the rows say no more than that gain.
_LEAST = 0.005


def choose(tree: Tree, rows: NDArray) -> int:
    """The number of groups of the cut that is the answer.

    Groups without evidence of being separate are merged. Those that are left may be modes of one
    cluster, closer to each other than clusters are: the finest level is taken whose silhouette no
    level of 0.6 times as many groups or more exceeds. Levels still coarser, of which the silhouette
    is often higher, are groups of clusters. Curved clusters, whose rows are nearer to other means
    than to their own, are all kept: silhouettes say nothing of them. Nor do they of groups of five
    to ten rows, less than 1 % of all (`islands`), or of less than 0.5 %, which count only where
    most rows are in such.

    Args:
        tree: from `levels.build`.
        rows: float64 `[n, r]`, those of `levels.build`.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 2)) + 9 * (np.arange(300) % 3)[:, None]
        >>> choose(levels.build(x, x), x)
        3
    """
    k = tree.n_clusters
    if k < 3:
        return k
    groups, merges = levels.cut(tree, k=k), tree.linkage(k)[:, :2].astype(np.int64)
    if separation.roundness(rows, groups) < _ROUND:
        return k
    sizes = np.bincount(groups)
    is_island = (sizes <= islands.MOST) & (sizes < islands.FRACTION * len(groups))
    counts = ~is_island & (sizes >= _LEAST * len(groups))
    if sizes[counts].sum() * 2 < len(groups):
        counts[:] = True
    silhouettes = separation.silhouettes(rows, groups, merges, counts)
    scores = dict(zip(range(k, 1, -1), silhouettes.tolist(), strict=True))
    while True:
        best = max(range(max(2, math.ceil(_WITHIN * k)), k + 1), key=scores.__getitem__)
        if scores[best] <= scores[k] + _GAIN * abs(scores[k]):
            return k
        k = best
