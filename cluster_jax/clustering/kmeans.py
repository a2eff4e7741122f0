"""k-means with k-means++ starts and restarts."""

import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.cluster import KMeans as _KMeans
from sklearn.exceptions import ConvergenceWarning


class KMeans(NamedTuple):
    """Labels int32 `[n]`, centers `[k, d]` and inertia (sum of squared distances to them)."""

    labels: NDArray
    centers: NDArray
    inertia: float


def kmeans(features: ArrayLike, k: int, *, restarts: int, seed: int) -> KMeans:
    """Best of several Lloyd runs from k-means++ starts, by inertia.

    Rows of unit length make it a good stand-in for spherical k-means; its centers are then the
    plain means, not scaled to length one.

    Args:
        features: finite float `[n, d]`; float32 stays float32, anything else becomes float64.
        k: number of clusters, 1 to n.
        restarts: number of runs, at least 1.
        seed: of the starts.

    Returns:
        The run of lowest inertia. With fewer than `k` distinct rows some clusters stay empty.

    Raises:
        ValueError: the features, `k` or `restarts` are not usable.
    """
    features = np.asarray(features)
    if features.dtype != np.float32:
        features = features.astype(np.float64)
    if features.ndim != 2 or not features.size:
        raise ValueError(f"features must be a non-empty 2-D array; got shape {features.shape}")
    if not np.isfinite(features).all():
        raise ValueError("features contain NaN or infinity: drop or fill those rows")
    if not 1 <= k <= len(features):
        raise ValueError(f"the number of clusters must be 1 to {len(features)} (rows); got {k}")
    if restarts < 1:
        raise ValueError(f"restarts must be at least 1; got {restarts}")
    with warnings.catch_warnings():
        # Fewer distinct rows than clusters: the result is right, the extra centers are repeats.
        warnings.simplefilter("ignore", ConvergenceWarning)
        best = _KMeans(k, n_init=restarts, random_state=seed).fit(features)
    return KMeans(best.labels_.astype(np.int32), best.cluster_centers_, float(best.inertia_))
