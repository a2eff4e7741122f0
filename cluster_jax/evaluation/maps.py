"""The map of the report: rows in two dimensions, which decide no cluster."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering.reduce import MAP_COLUMNS, reduce, tsne
from cluster_jax.core import checks, knn

# Rows that t-SNE draws; the others are placed among them. Its steps, in none of which neighbors
# attract each other more, as that draws a small cluster on one spot; and how coarsely it sums what
# is far away. Chosen without labels: the map takes at most a tenth of a run, and as many neighbors
# as possible stay neighbors.
DRAWN = 900
_QUICK = {"max_iter": 250, "early_exaggeration": 1.0, "angle": 1.0}


def of_tree(smooth: NDArray, leaves: NDArray, *, method: str, **options: Any) -> NDArray:
    """Returns the map float32 `[n, c]` of rows that `SmoothTree` has clustered.

    A row lies on its leaf: a copy on its original, because maps part equal rows, and a row of a
    micro-cluster on that of the micro-cluster.

    Args:
        smooth: the smooth rows `[m, r]`, one of each leaf; up to three columns are their own map.
        leaves: int `[n]`, the leaf of each row.
        method: see `reduce`.
        options: further arguments of `reduce` but `metric`; `seed` is one of them.
    """
    if method != "none" and smooth.shape[1] > MAP_COLUMNS:
        smooth = drawn(smooth, method=method, **{**options, "metric": "euclidean"})
    return smooth[leaves].astype(np.float32)


def drawn(rows: NDArray, *, method: str, **options: Any) -> NDArray:
    """Returns the map float32 `[n, c]` of rows `[n, d]`; by t-SNE, c is two, see `by_tsne`.

    If a library fails, the map has principal components, so that no clusters are lost.

    Args:
        rows: numbers `[n, d]`.
        method: see `reduce`.
        options: further arguments of `reduce`.
    """
    try:
        if method == "tsne":
            of_map = {key: value for key, value in options.items() if key != "n_components"}
            return by_tsne(rows, **of_map)
        return reduce(rows, method=method, **options).astype(np.float32)
    except (ImportError, OSError, RuntimeError) as error:
        reason = checks.short(" ".join(str(error).split()), 200)
        checks.warn(f"the map is drawn by PCA, because {method.upper()} failed: {reason}", 2)
        return reduce(rows, method="pca", **options)


def by_tsne(x: NDArray, *, n_neighbors: int, metric: str, seed: int) -> NDArray:
    """Returns a map of rows float32 `[n, 2]` by t-SNE (van der Maaten and Hinton, 2008).

    It starts at the principal components, and needs no compilation. At most `DRAWN` rows, a random
    sample, are drawn; any other row lies at the mean of the three of these nearest to it.

    Args:
        x: finite numbers `[n, d]`, where n and d are 1 or more.
        n_neighbors: perplexity, capped at (n - 1) / 3.
        metric: distance between rows, `"cosine"` or `"euclidean"`.
        seed: random seed of the sample.

    Example:
        >>> by_tsne(np.eye(9), n_neighbors=2, metric="euclidean", seed=0).shape
        (9, 2)
    """
    x = np.asarray(x, np.float32 if x.dtype == np.float32 else np.float64)
    x = x / (np.abs(x).max() or 1)  # A map has no unit.
    sample = np.arange(len(x))
    if len(x) > DRAWN:
        sample = np.sort(np.random.default_rng(seed).choice(len(x), DRAWN, replace=False))
    rows = x[sample]
    if len(rows) < 4 or not np.ptp(rows, axis=0).any():
        return reduce(x, method="pca", n_components=2)
    perplexity = min(float(n_neighbors), (len(rows) - 1) / 3)
    points = tsne(rows, 2, perplexity, metric, seed, **_QUICK)
    if len(sample) == len(x):
        return points
    placed = points[knn.nearest(x, rows, 3, metric=metric).indices].mean(axis=1)
    placed[sample] = points
    return placed
