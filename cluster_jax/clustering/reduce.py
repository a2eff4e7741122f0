"""Reduction of features to a few dimensions, for a map, or to find clusters in them."""

import tempfile
import threading
import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

from cluster_jax.core import checks, knn
from cluster_jax.core.arrays import numeric

METHODS = ("umap", "tsne", "pca", "none")
# With at most so many columns, features are their own map.
MAP_COLUMNS = 3
# UMAP compares fewer rows than this by a Python loop over all pairs, which takes most of its time.
_SMALL = 4_096
# Maps of larger features do not fit float32.
_LARGEST = 1e37
# numba may have no layer for threads, and then ends the process if two of them draw.
_ONE_AT_A_TIME = threading.Lock()


def reduce(
    features: ArrayLike,
    *,
    method: str = "umap",
    n_components: int = 3,
    n_neighbors: int = 15,
    metric: str = "cosine",
    seed: int = 0,
) -> NDArray:
    """Returns features in `n_components` dimensions; the same seed gives the same result.

    Args:
        features: finite float `[n, d]`.
        method: `"umap"`, `"tsne"`, `"pca"`, or `"none"` for the features themselves.
        n_components: dimensions of the result; `"none"` ignores it.
        n_neighbors: UMAP's neighborhood size, capped at n - 1; t-SNE's perplexity, capped at
            (n - 1) / 3. At least 2; `"pca"` and `"none"` ignore it.
        metric: distance between features for UMAP and t-SNE, for example `"cosine"`.
        seed: random seed of UMAP and t-SNE, from 0 to 2^32 - 1.

    Returns:
        float32 `[n, n_components]`; for `"none"` the features in their own dtype. For fewer than
        `n_components + 2` rows, or fewer than four, the result of every method but `"none"` are
        principal components. If there are fewer principal components than `n_components`, the last
        columns are zero.

    Raises:
        ValueError: unknown method or metric, features that are not finite or, except for `"none"`,
            beyond 1e37 (the result is float32), or an argument out of range.
        TypeError: the features cannot be converted to an array of numbers, such as a sparse matrix,
            or `n_components` is not a whole number.

    Example:
        >>> reduce([[0.0, 5.0], [2.0, 5.0], [4.0, 5.0]], method="pca", n_components=1).tolist()
        [[-2.0], [0.0], [2.0]]
    """
    checks.one_of("method", method, METHODS)
    x = numeric(features, "features")
    if method == "none":
        return x
    checks.at_most("the size of features", float(np.abs(x).max(initial=0)), _LARGEST)
    checks.whole("n_components", n_components, 1)
    if method != "pca":
        checks.at_least("n_neighbors", n_neighbors, 2)
    n = len(x)
    if method == "pca" or n < n_components + 2 or n < 4:
        return _pca(x, n_components)
    if method == "umap":
        # Points may lie on each other, which packs clusters densely.
        options = {"n_components": n_components, "min_dist": 0.0, "metric": metric}
        return _umap(x, min(n_neighbors, n - 1), seed, options)
    return tsne(x, n_components, min(float(n_neighbors), (n - 1) / 3), metric, seed)


def _pca(x: NDArray, n_components: int) -> NDArray:
    """Returns principal components, float32 `[n, n_components]`, with the signs of scikit-learn.

    They are computed in float64. Columns beyond the number of components are zero.
    """
    # Imported only where it is used, like the other methods.
    from sklearn.decomposition import PCA

    # Far from zero, scikit-learn's covariance would be a difference of large numbers.
    centered = x.astype(np.float64)
    centered -= centered.mean(axis=0)
    largest = np.abs(centered).max(initial=0.0) or 1.0  # Of this unit squares are numbers.
    reduced = np.zeros((len(x), n_components), np.float32)
    if len(x) < 2:
        return reduced
    count = min(n_components, *x.shape)
    # Never "auto": for many columns its answer is random.
    solver = "covariance_eigh" if len(x) > x.shape[1] else "full"
    # The explained variance, which nothing here reads, is 0 / 0 for equal rows.
    with np.errstate(invalid="ignore"):
        components = PCA(count, svd_solver=solver).fit_transform(centered / largest)
    reduced[:, :count] = largest * components
    return reduced


def _umap(x: NDArray, n_neighbors: int, seed: int, options: dict[str, Any]) -> NDArray:
    """Returns UMAP's map float32 `[n, n_components]`; `options` has further arguments of `UMAP`."""
    # The spectral initialization needs more rows than n_components + 1 eigenvectors.
    init = "spectral" if len(x) > 3 * options["n_components"] + 10 else "random"
    options = {**options, "init": init, "n_neighbors": n_neighbors, "n_jobs": 1}
    with warnings.catch_warnings():
        # UMAP warns of a missing TensorFlow, of the single thread that a seed implies, and of
        # disconnected neighborhoods: all are expected.
        warnings.simplefilter("ignore")
        graph = _neighbor_graph(x, n_neighbors, options["metric"])
        with _ONE_AT_A_TIME:
            mapper = _imported_umap()(**options, random_state=seed, precomputed_knn=graph)
            return np.asarray(mapper.fit_transform(x), np.float32)


def _imported_umap() -> Any:
    """Returns umap-learn's class, whose import takes seconds."""
    try:
        from umap import UMAP
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        # Numba needs a folder for its cache where neither the packages nor a home can be written.
        import numba

        numba.config.CACHE_DIR = tempfile.mkdtemp(prefix="numba_")
        from umap import UMAP
    return UMAP


def _neighbor_graph(
    x: NDArray, n_neighbors: int, metric: str
) -> tuple[NDArray | None, NDArray | None, None]:
    """Returns exact neighbors and distances `[n, n_neighbors]` as UMAP's `precomputed_knn`.

    All three entries are None, so that UMAP searches by itself, for 4,096 rows or more, and for
    metrics other than `"cosine"` and `"euclidean"`. A row is its own first neighbor.
    """
    if len(x) >= _SMALL or metric not in ("cosine", "euclidean"):
        return None, None, None
    rows = x
    if metric == "cosine":
        # UMAP's cosine distance of two zeros is 0, and of a zero and another row 1. So it is if
        # zeros have a column of their own.
        rows = np.concatenate([x, ~x.any(axis=1, keepdims=True)], axis=1)
    found = knn.nearest(rows, rows, n_neighbors, metric=metric)
    return found.indices, found.distances.astype(np.float32), None


def tsne(
    x: NDArray, n_components: int, perplexity: float, metric: str, seed: int, **options: float
) -> NDArray:
    """Returns t-SNE's map float32 `[n, n_components]` of rows `[n, d]`.

    The perplexity is at most (n - 1) / 3; `options` has more arguments of scikit-learn's `TSNE`.

    Example:
        >>> tsne(np.eye(9), 2, 2.0, "euclidean", 0, max_iter=250).shape
        (9, 2)
    """
    from sklearn.manifold import TSNE

    # Barnes-Hut works up to three dimensions.
    mapper = TSNE(
        n_components=n_components,
        perplexity=perplexity,
        metric=metric,
        init="random" if min(x.shape) < n_components else "pca",
        method="barnes_hut" if n_components <= 3 else "exact",
        random_state=seed,
        **options,
    )
    # On one thread: the sums of several depend on their number, and on a busy machine they wait for
    # each other (measured 30 times slower).
    with threadpool_limits(1):
        return np.asarray(mapper.fit_transform(x), np.float32)
