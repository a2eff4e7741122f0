"""What people use to find clusters without their number.

Every function takes rows `[n, d]`, of length one if they are compared by cosine, and returns labels
int `[n]`; the noise of HDBSCAN goes to the nearest row in a cluster.
"""

import functools
from collections.abc import Callable, Iterable
from importlib.util import find_spec

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray
from sklearn.cluster import HDBSCAN, KMeans
from sklearn.decomposition import PCA
from sklearn.metrics import silhouette_score
from sklearn.mixture import GaussianMixture

from cluster_jax.clustering.reduce import reduce
from cluster_jax.core import knn
from cluster_jax.core.checks import InputError

# Packages that peers need besides the dependencies of ours.
NEEDS = {"Leiden": "leidenalg", "EVoC": "evoc"}
# Rows on which k-means and mixtures are fitted, and on which silhouettes are taken.
_FITTED, _SCORED = 5_000, 1_500
# Numbers of clusters that are tried: all up to 12, then 15 % apart, at least 4 rows each.
_MOST, _RATIO = 250, 1.15
# Components of a mixture, at most, and principal components in which it is fitted.
_COMPONENTS, _AXES = 40, 20


def installed(titles: Iterable[str], only: list[str] | None) -> list[str]:
    """The titles of the methods to run: those in `only`, None: all whose packages are there.

    Raises:
        InputError: the package of one in `only` is not installed.
    """
    lacking = {title: name for title, name in NEEDS.items() if not find_spec(name)}
    for title in lacking.keys() & set(only or ()):
        raise InputError(f"{title} needs a package: pip install {lacking[title]}")
    return only or [title for title in titles if title not in lacking]


def umap(x: NDArray) -> NDArray:
    """Three dimensions by UMAP with 15 neighbors; up to three columns are their own map."""
    return x if x.shape[1] <= 3 else reduce(x, metric="euclidean", seed=0)


def hdbscan(x: NDArray, min_cluster_size: int) -> NDArray:
    """HDBSCAN; all rows are one cluster where it finds none."""
    size = max(2, min(min_cluster_size, len(x) - 1))
    labels = HDBSCAN(min_cluster_size=size, copy=True).fit(x.astype(np.float64)).labels_
    return without_noise(x, labels)


def without_noise(x: NDArray, labels: NDArray) -> NDArray:
    """Rows without a cluster (-1) go to that of the nearest other row; one cluster if none has."""
    found = labels >= 0
    if not found.any():
        return np.zeros(len(x), np.int64)
    nearest = knn.nearest(x, x[found], 1).indices
    return np.where(found, labels, labels[found][nearest[:, 0]])


def kmeans_silhouette(x: NDArray) -> NDArray:
    """k-means with the number of clusters of the highest silhouette; at least two."""
    rng = default_rng(0)
    fitted = _sample(x, _FITTED, rng)
    scored = _sample(fitted, _SCORED, rng)

    @functools.cache
    def fit(k: int) -> tuple[float, KMeans]:
        model = KMeans(k, n_init=2, max_iter=50, random_state=0).fit(fitted)
        labels = model.predict(scored)
        is_valid = 2 <= len(np.unique(labels)) < len(scored)
        return (silhouette_score(scored, labels) if is_valid else -1.0), model

    most = max(2, min(_MOST, len(fitted) // 4))
    grid = list(range(2, min(12, most) + 1))
    if most > 12:
        steps = 1 + max(1, int(np.log(most / 12) / np.log(_RATIO)))
        grid += sorted({int(k) for k in np.geomspace(12, most, steps)} - {12})
    i = grid.index(max(grid, key=lambda k: fit(k)[0]))
    near = range(grid[max(0, i - 1)] + 1, grid[min(len(grid) - 1, i + 1)])
    return fit(max([*grid, *near], key=lambda k: fit(k)[0]))[1].predict(x)


def mixture_bic(x: NDArray) -> NDArray:
    """Gaussian mixture with full covariances, the number of components by the BIC."""
    # A covariance needs more rows than columns.
    axes = min(_AXES, len(x) // 3)
    points = PCA(axes, random_state=0).fit_transform(x) if x.shape[1] > axes else x
    fitted = _sample(points, _FITTED, default_rng(0)).astype(np.float64)
    best: tuple[float, GaussianMixture] | None = None
    for k in [*range(1, 13), 15, 18, 21, 25, 30, 35, _COMPONENTS]:
        if k * 5 > len(fitted):
            break
        model = GaussianMixture(k, random_state=0, reg_covar=1e-6 * float(fitted.var() or 1))
        bic = model.fit(fitted).bic(fitted)
        if best is None or bic < best[0]:
            best = bic, model
        elif k > 2 * best[1].n_components + 4:
            break
    # One component is always tried.
    assert best is not None
    return best[1].predict(points.astype(np.float64))


PEERS: dict[str, Callable[[NDArray, NDArray], NDArray]] = {
    "k-means, silhouette": lambda x, points: kmeans_silhouette(x),
    "UMAP + k-means, silhouette": lambda x, points: kmeans_silhouette(points),
    "UMAP + HDBSCAN 15": lambda x, points: hdbscan(points, 15),
    "UMAP + HDBSCAN n/100": lambda x, points: hdbscan(points, max(5, len(x) // 100)),
    "HDBSCAN 15": lambda x, points: hdbscan(x, 15),
    "mixture, BIC": lambda x, points: mixture_bic(x),
}


def _sample(x: NDArray, size: int, rng: np.random.Generator) -> NDArray:
    return x if len(x) <= size else x[np.sort(rng.choice(len(x), size, replace=False))]
