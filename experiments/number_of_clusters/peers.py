"""What people use to find clusters without their number, each on the same map or the same graph.

Every function takes a `Case` and returns labels int `[n]`, -1 for noise.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn.cluster import HDBSCAN, KMeans
from sklearn.metrics import silhouette_score
from sklearn.mixture import BayesianGaussianMixture
from sklearn.neighbors import NearestNeighbors

# Rows on which k-means and mixtures are fitted, and on which silhouettes are taken.
_FITTED, _SCORED = 5_000, 1_500
# Numbers of clusters that are tried: all up to 12, then 15 % apart, at least 4 rows each.
_MOST, _RATIO = 250, 1.15
_COMPONENTS = 100


class Case(NamedTuple):
    """A set to cluster.

    Attributes:
        rows: float32 `[n, d]`, of length one if they are compared by cosine.
        points: float64 `[n, c]`, the map, or the rows where they have up to three columns.
    """

    rows: NDArray
    points: NDArray


def hdbscan(case: Case, min_cluster_size: int) -> NDArray:
    """HDBSCAN on the map."""
    size = min(min_cluster_size, len(case.points) - 1)
    return HDBSCAN(min_cluster_size=size, copy=True).fit(case.points).labels_


def kmeans_silhouette(x: NDArray) -> NDArray:
    """k-means with the number of clusters of the highest silhouette; at least two."""
    rng = np.random.default_rng(0)
    fitted = _sample(x, _FITTED, rng)
    scored = _sample(fitted, _SCORED, rng)
    results: dict[int, tuple[float, KMeans]] = {}

    def try_k(k: int) -> None:
        if k in results:
            return
        model = KMeans(k, n_init=2, max_iter=50, random_state=0).fit(fitted)
        labels = model.predict(scored)
        distinct = len(np.unique(labels))
        valid = 2 <= distinct < len(scored)
        results[k] = (silhouette_score(scored, labels) if valid else -1.0, model)

    most = max(2, min(_MOST, len(fitted) // 4))
    ks = (
        sorted(
            {
                int(k)
                for k in np.geomspace(12, most, 1 + max(1, int(np.log(most / 12) / np.log(_RATIO))))
            }
        )
        if most > 12
        else []
    )
    grid = [*range(2, min(12, most) + 1), *(k for k in ks if k > 12)]
    for k in grid:
        try_k(k)
    best = max(grid, key=lambda k: results[k][0])
    i = grid.index(best)
    for k in range(grid[max(0, i - 1)] + 1, grid[min(len(grid) - 1, i + 1)]):
        try_k(k)
    best = max(results, key=lambda k: results[k][0])
    return results[best][1].predict(x)


def leiden(case: Case) -> NDArray:
    """Leiden's modularity, resolution 1, on the graph of 15 nearest neighbors of the rows."""
    import igraph  # type: ignore[import-not-found]  # Optional, like the next.
    import leidenalg  # type: ignore[import-not-found]  # Optional.

    search = NearestNeighbors(
        n_neighbors=16, algorithm="brute" if case.rows.shape[1] > 15 else "auto"
    )
    nearest = search.fit(case.rows).kneighbors(return_distance=False, n_neighbors=15)
    edges = np.stack([np.repeat(np.arange(len(nearest)), 15), nearest.ravel()], axis=1)
    graph = igraph.Graph(n=len(nearest), edges=edges).simplify()
    partition = leidenalg.find_partition(
        graph, leidenalg.RBConfigurationVertexPartition, resolution_parameter=1.0, seed=0
    )
    return np.asarray(partition.membership)


def gmeans(x: NDArray) -> NDArray:
    """G-means (Hamerly and Elkan 2003): splits while a cluster is not normal, level 0.0001."""
    fitted = _sample(x, _FITTED, np.random.default_rng(0)).astype(np.float64)
    centers = fitted.mean(axis=0, keepdims=True)
    while len(centers) < _MOST:
        labels = KMeans(len(centers), init=centers, n_init=1, max_iter=50).fit_predict(fitted)
        grown: list[NDArray] = []
        for c in range(len(centers)):
            members = fitted[labels == c]
            halves = _normality_split(members)
            grown.extend([members.mean(axis=0)] if halves is None else halves)
        if len(grown) == len(centers):
            break
        centers = np.stack(grown)
    model = KMeans(len(centers), init=centers, n_init=1, max_iter=50).fit(fitted)
    return model.predict(x.astype(np.float64))


def _normality_split(members: NDArray) -> list[NDArray] | None:
    """Two centers, or None where the rows are normal along the line between them."""
    if len(members) < 16:
        return None
    pair = KMeans(2, n_init=1, random_state=0).fit(members).cluster_centers_
    direction = pair[0] - pair[1]
    if not direction.any():
        return None
    projected = members @ direction
    if projected.std() == 0:
        return None
    z = np.sort((projected - projected.mean()) / projected.std(ddof=1))
    n = len(z)
    cdf = np.clip(stats.norm.cdf(z), 1e-12, 1 - 1e-12)
    i = np.arange(1, n + 1)
    statistic = -n - np.mean((2 * i - 1) * (np.log(cdf) + np.log(1 - cdf[::-1])))
    is_normal = statistic * (1 + 4 / n - 25 / n**2) < 1.8692
    return None if is_normal else list(pair)


def dp_mixture(case: Case) -> NDArray:
    """Variational Dirichlet-process mixture of Gaussians on the map."""
    fitted = _sample(case.points, _FITTED, np.random.default_rng(0))
    count = max(1, min(_COMPONENTS, len(fitted) // 10))
    model = BayesianGaussianMixture(
        n_components=count,
        max_iter=60,
        random_state=0,
        weight_concentration_prior=0.01,
        reg_covar=1e-6 * float(fitted.var() or 1),
    )
    return model.fit(fitted).predict(case.points)


PEERS: dict[str, Callable[[Case], NDArray]] = {
    "HDBSCAN 15": lambda case: hdbscan(case, 15),
    "HDBSCAN n/100": lambda case: hdbscan(case, max(5, len(case.points) // 100)),
    "map k-means silhouette": lambda case: kmeans_silhouette(case.points),
    "features k-means silhouette": lambda case: kmeans_silhouette(case.rows),
    "Leiden": leiden,
    "map G-means": lambda case: gmeans(case.points),
    "features G-means": lambda case: gmeans(case.rows),
    "DP mixture": dp_mixture,
}


def _sample(x: NDArray, size: int, rng: np.random.Generator) -> NDArray:
    return x if len(x) <= size else x[np.sort(rng.choice(len(x), size, replace=False))]
