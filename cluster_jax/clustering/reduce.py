"""Reduction of features to the few dimensions in which modes are sought."""

import warnings
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

from cluster_jax.clustering.points import numeric

# Rows of one block of principal components.
_ROWS = 16_384
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
        float32 `[n, dimensions]`; for `"none"` the features as they are. Sets too small for the
        method (UMAP: fewer than `dimensions + 2` rows; PCA: fewer rows or columns than
        dimensions) fall back to as many principal components as there are, the other
        coordinates zero.

    Raises:
        ValueError: unknown method, or features or a setting that are not usable.
    """
    if method not in METHODS:
        raise ValueError(f"the reduction must be one of {', '.join(METHODS)}; got {method!r}")
    features = numeric(features, "features")
    if method == "none":
        return features
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
    """Principal components in float64 and bounded memory, signs fixed by the largest entry."""
    n, d = features.shape
    mean = features.mean(axis=0, dtype=np.float64)

    def blocks() -> Iterator[tuple[slice, NDArray]]:
        for start in range(0, n, _ROWS):
            part = slice(start, start + _ROWS)
            yield part, features[part].astype(np.float64) - mean

    if n > d:
        covariance = np.zeros((d, d))
        for _, block in blocks():
            covariance += block.T @ block
        axes = np.linalg.eigh(covariance)[1].T[::-1]
    else:
        axes = np.linalg.svd(features.astype(np.float64) - mean, full_matrices=False)[2]
    axes = axes[:dimensions]
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1)
    axes = axes * np.where(largest < 0, -1, 1)
    reduced = np.zeros((n, dimensions), np.float32)
    for part, block in blocks():
        reduced[part, : len(axes)] = block @ axes.T
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
