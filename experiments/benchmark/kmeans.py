"""k-means against faiss and scikit-learn: 60,000 x 256 float32, 20 iterations from one start.

Every run returns labels and centers, except that faiss returns only centers (its labels would take
another pass). Inertias are computed here from the final centers, the same way for all. The rows are
normal noise, on which none converges within 20 iterations, as is asserted; the first K rows are the
initial centers. Compilation is left out. The time ratio is ours over the faster of the two in the
same round.
"""

import importlib.metadata
import warnings
from functools import partial

import jax
import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import pairwise_distances_argmin_min

from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.core import devices
from experiments.benchmark import _measure

ROWS, DIMENSIONS, CLUSTERS, ITERATIONS, REPEATS = 60_000, 256, (10, 1000), 20, 5
SEED = 0


def measure() -> dict:
    """Times and inertias, measured alternately."""
    # As `devices.use_cores`.
    jax.config.update("jax_num_cpu_devices", devices.cores())
    x = np.random.default_rng(SEED).standard_normal((ROWS, DIMENSIONS), dtype=np.float32)
    figures: dict = {f"k{k}": _compare(x, k) for k in CLUSTERS}
    peers = ("faiss-cpu", "scikit-learn")
    return figures | {"versions": {name: importlib.metadata.version(name) for name in peers}}


def _compare(x: NDArray, k: int) -> dict:
    runners = {"ours": _ours, "faiss": _faiss, "scikit-learn": _scikit_learn}
    calls = {name: partial(run, x, k) for name, run in runners.items()}
    inertias = {name: _inertia(x, call()) for name, call in calls.items()}
    times = _measure.alternate(calls, REPEATS)
    faster = list(map(min, times["faiss"], times["scikit-learn"]))
    ours = inertias.pop("ours")
    return {
        "time_ratio": _measure.ratios(times["ours"], faster),
        "seconds": {name: _measure.spread(values) for name, values in times.items()},
        "inertia_ratio": {name: ours / other for name, other in inertias.items()},
    }


def _inertia(x: NDArray, centers: NDArray) -> float:
    """Sum of squared distances to the nearest center in float64."""
    rows = x.astype(np.float64)
    _, distances = pairwise_distances_argmin_min(rows, np.asarray(centers, np.float64))
    return float((distances**2).sum())


def _ours(x: NDArray, k: int) -> NDArray:
    result = kmeans(x, x[:k], n_init=1, max_iter=ITERATIONS, seed=SEED)
    assert result.n_iter == ITERATIONS
    return result.centers


def _faiss(x: NDArray, k: int) -> NDArray:
    import faiss

    run = faiss.Kmeans(x.shape[1], k, niter=ITERATIONS, max_points_per_centroid=len(x))
    run.train(x, init_centroids=x[:k])
    assert run.obj[-1] < run.obj[-2]
    return run.centroids


def _scikit_learn(x: NDArray, k: int) -> NDArray:
    from sklearn.cluster import KMeans

    run = KMeans(k, init=x[:k], n_init=1, tol=0, max_iter=ITERATIONS, algorithm="lloyd")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.fit(x)
    assert run.n_iter_ == ITERATIONS
    return run.cluster_centers_
