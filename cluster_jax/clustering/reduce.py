"""Reduction of features to the few dimensions in which modes are sought."""

import warnings
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

from cluster_jax.clustering.validation import numeric

# Rows of one block of principal components.
_ROWS = 16_384
METHODS = ("umap", "tsne", "pca", "none")


def reduce(
    features: ArrayLike,
    *,
    method: str,
    n_components: int,
    n_neighbors: int,
    min_dist: float,
    metric: str,
    seed: int,
) -> NDArray:
    """Maps features to `n_components` coordinates; the same seed gives the same map.

    Args:
        features: finite float `[n, d]`.
        method: `"umap"`, `"tsne"`, `"pca"`, or `"none"` for the features themselves.
        n_components: of the result; `"none"` ignores it.
        n_neighbors: UMAP's neighborhood size, capped at n - 1; t-SNE's perplexity, capped at
            (n - 1) / 3.
        min_dist: UMAP's closest distance of two points of the map.
        metric: distance between features for UMAP and t-SNE, for example `"cosine"`.
        seed: of UMAP and t-SNE.

    Returns:
        float32 `[n, dimensions]`; for `"none"` the features as they are. Sets too small for the
        method (UMAP: fewer than `n_components + 2` rows; PCA: fewer rows or columns than
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
    if n_components < 1:
        raise ValueError(f"n_components must be at least 1; got {n_components}")
    if method != "pca" and n_neighbors < 2:
        raise ValueError(f"n_neighbors must be at least 2; got {n_neighbors}")
    n = len(features)
    if method == "pca" or n < n_components + 2 or n < 4:
        return _pca(features, n_components)
    if method == "umap":
        return _umap(features, n_components, min(n_neighbors, n - 1), min_dist, metric, seed)
    return _tsne(features, n_components, min(float(n_neighbors), (n - 1) / 3), metric, seed)


def _pca(features: NDArray, n_components: int) -> NDArray:
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
    axes = axes[:n_components]
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1)
    axes = axes * np.where(largest < 0, -1, 1)
    reduced = np.zeros((n, n_components), np.float32)
    for part, block in blocks():
        reduced[part, : len(axes)] = block @ axes.T
    return reduced


def _umap(
    features: NDArray, n_components: int, n_neighbors: int, min_dist: float, metric: str, seed: int
) -> NDArray:
    with warnings.catch_warnings():
        # A missing TensorFlow, a single thread for the sake of the seed, and disconnected
        # neighborhoods are what we expect; nothing here asks the user to act.
        warnings.simplefilter("ignore")
        # The first import compiles for seconds: only where it is used.
        from umap import UMAP

        # The spectral start needs more rows than dimensions + 1 components.
        start = "spectral" if len(features) > 3 * n_components + 10 else "random"
        mapper = UMAP(
            n_components=n_components,
            n_neighbors=n_neighbors,
            min_dist=min_dist,
            metric=metric,
            init=start,
            random_state=seed,
            n_jobs=1,
        )
        return np.asarray(mapper.fit_transform(features), np.float32)


def _tsne(
    features: NDArray, n_components: int, perplexity: float, metric: str, seed: int
) -> NDArray:
    from sklearn.manifold import TSNE

    # Barnes-Hut works up to three dimensions.
    mapper = TSNE(
        n_components=n_components,
        perplexity=perplexity,
        metric=metric,
        init="random" if min(features.shape) < n_components else "pca",
        method="barnes_hut" if n_components <= 3 else "exact",
        random_state=seed,
    )
    # One thread: sums over several depend on their number, and on a busy machine they wait for
    # each other (measured 30 times slower).
    with threadpool_limits(1):
        return np.asarray(mapper.fit_transform(features), np.float32)
