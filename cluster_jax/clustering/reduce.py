"""Reduction of features to the few dimensions in which modes are sought."""

import warnings

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

METHODS = ("umap", "tsne", "pca", "none")


def reduce(
    features: ArrayLike,
    *,
    method: str,
    dimensions: int,
    neighbors: int,
    min_dist: float,
    metric: str,
    seed: int,
) -> NDArray:
    """Maps features to `dimensions` coordinates; the same seed gives the same map.

    Args:
        features: finite float `[n, d]`.
        method: `"umap"`, `"tsne"`, `"pca"`, or `"none"` for the features themselves.
        dimensions: of the result; `"none"` ignores it.
        neighbors: UMAP's neighbourhood size, capped at n - 1; t-SNE's perplexity, capped at
            (n - 1) / 3.
        min_dist: UMAP's closest distance of two points of the map.
        metric: distance between features for UMAP and t-SNE, for example `"cosine"`.
        seed: of UMAP and t-SNE.

    Returns:
        float32 `[n, dimensions]`. Sets too small for the method (UMAP: fewer than
        `dimensions + 2` rows; PCA: fewer rows or columns than dimensions) fall back to as many
        principal components as there are, the other coordinates zero.

    Raises:
        ValueError: unknown method, or features or a setting that are not usable.
    """
    features = np.asarray(features)
    if method not in METHODS:
        raise ValueError(f"the reduction must be one of {', '.join(METHODS)}; got {method!r}")
    if features.ndim != 2 or not features.size:
        raise ValueError(f"features must be a non-empty 2-D array; got shape {features.shape}")
    if not np.isfinite(features).all():
        raise ValueError("features contain NaN or infinity: drop or fill those rows")
    if method == "none":
        return features.astype(np.float32)
    if dimensions < 1:
        raise ValueError(f"the number of dimensions must be at least 1; got {dimensions}")
    if method != "pca" and neighbors < 2:
        raise ValueError(f"the number of neighbours must be at least 2; got {neighbors}")
    n = len(features)
    if method == "pca" or n < dimensions + 2 or n < 4:
        return _pca(features, dimensions)
    if method == "umap":
        return _umap(features, dimensions, min(neighbors, n - 1), min_dist, metric, seed)
    return _tsne(features, dimensions, min(float(neighbors), (n - 1) / 3), metric, seed)


def _pca(features: NDArray, dimensions: int) -> NDArray:
    """Principal components by the exact decomposition, signs fixed by the largest entry."""
    centred = features.astype(np.float64) - features.mean(axis=0, dtype=np.float64)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:dimensions]
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1)
    axes = axes * np.where(largest < 0, -1, 1)
    reduced = np.zeros((len(features), dimensions), np.float32)
    reduced[:, : len(axes)] = centred @ axes.T
    return reduced


def _umap(
    features: NDArray, dimensions: int, neighbors: int, min_dist: float, metric: str, seed: int
) -> NDArray:
    with warnings.catch_warnings():
        # A missing TensorFlow, a single thread for the sake of the seed, and disconnected
        # neighbourhoods are what we expect; nothing here asks the user to act.
        warnings.simplefilter("ignore")
        # The first import compiles for seconds: only where it is used.
        from umap import UMAP

        # The spectral start needs more rows than dimensions + 1 components.
        start = "spectral" if len(features) > 3 * dimensions + 10 else "random"
        mapper = UMAP(
            n_components=dimensions,
            n_neighbors=neighbors,
            min_dist=min_dist,
            metric=metric,
            init=start,
            random_state=seed,
            n_jobs=1,
        )
        return np.asarray(mapper.fit_transform(features), np.float32)


def _tsne(features: NDArray, dimensions: int, perplexity: float, metric: str, seed: int) -> NDArray:
    from sklearn.manifold import TSNE

    # Barnes-Hut works up to three dimensions.
    mapper = TSNE(
        n_components=dimensions,
        perplexity=perplexity,
        metric=metric,
        init="random" if min(features.shape) < dimensions else "pca",
        method="barnes_hut" if dimensions <= 3 else "exact",
        random_state=seed,
    )
    # One thread: sums over several depend on their number, and on a busy machine they wait for
    # each other (measured 30 times slower).
    with threadpool_limits(1):
        return np.asarray(mapper.fit_transform(features), np.float32)
