"""k-means against faiss and scikit-learn: 60,000 x 256 float32, 20 iterations from one start.

Every run returns labels and centers, except that faiss returns only centers (its labels would take
another pass). Inertias are computed here from the final centers, the same way for all. The rows are
normal noise, on which none converges within 20 iterations; the first K rows are the initial
centers. Compilation is left out, except of a million rows. The time ratio is ours over the faster
of the two in the same round; the start is one iteration from k-means++ less one from given centers,
beside one run of scikit-learn's kmeans_plusplus. The peak of memory is that of a process that
generates the rows and clusters them once; "nothing" only generates them.
"""

import importlib.metadata
import statistics
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.core import devices
from experiments.benchmark import _measure

ROWS, DIMENSIONS, CLUSTERS, ITERATIONS, REPEATS = 60_000, 256, (10, 1000), 20, 5
LARGE_ROWS, LARGE_CLUSTERS, LARGE_ITERATIONS = 1_000_000, 1000, 2
BLOCK = 2000
SEED = 0


def measure() -> dict[str, Any]:
    """Times and inertias, measured alternately in this process; memory in a process for each."""
    _use_cores()
    x = _rows(ROWS)
    figures: dict[str, Any] = {f"k{k}": _compare(x, k) for k in CLUSTERS}
    for k in CLUSTERS:
        figures[f"k{k}"]["peak_mb"] = {
            name: _measure.alone(_peak, name, k) for name in ("nothing", *_runners(x, k))
        }
    figures["large"] = _measure.alone(_large)
    peers = ("faiss-cpu", "scikit-learn")
    return figures | {"versions": {name: importlib.metadata.version(name) for name in peers}}


def _compare(x: NDArray, k: int) -> dict[str, Any]:
    runners = _runners(x, k)
    inertias = {name: _inertia(x, runner()) for name, runner in runners.items()}
    times = _measure.alternate(runners, REPEATS)
    faster = list(map(min, times["faiss"], times["scikit-learn"]))
    inits = {"drawn": None, "given": x[:k]}
    starts = _measure.alternate(
        {name: lambda init=init: _ours(x, k, init, 1) for name, init in inits.items()}, REPEATS + 1
    )
    own = [drawn - given for drawn, given in zip(*starts.values(), strict=True)]
    ours = inertias.pop("ours")
    return {
        "time_ratio": _measure.ratios(times["ours"], faster),
        "seconds": {name: _measure.spread(values) for name, values in times.items()},
        "inertia_ratio": {name: ours / other for name, other in inertias.items()},
        "start_seconds": {
            "ours": statistics.median(own[1:]),
            "scikit-learn": _measure.seconds(_peer_start, x, k),
        },
    }


def _inertia(x: NDArray, centers: NDArray) -> float:
    """Sum of squared distances to the nearest center in float64, computed in blocks of rows."""
    centers = np.asarray(centers, np.float64)
    half = (centers**2).sum(1) / 2
    total = 0.0
    for start in range(0, len(x), BLOCK):
        rows = x[start : start + BLOCK].astype(np.float64)
        nearest = (half[None] - rows @ centers.T).argmin(1)
        total += float(((rows - centers[nearest]) ** 2).sum())
    return total


def _runners(x: NDArray, k: int) -> dict[str, Callable[[], NDArray]]:
    """Each runs once and returns its final centers."""
    return {
        "ours": lambda: _ours(x, k, x[:k], ITERATIONS),
        "faiss": lambda: _faiss(x, k),
        "scikit-learn": lambda: _scikit_learn(x, k),
    }


def _ours(x: NDArray, k: int, init: NDArray | None, max_iter: int) -> NDArray:
    result = kmeans(x, k, n_init=1, max_iter=max_iter, seed=SEED, init=init)
    if result.n_iter != max_iter:
        raise RuntimeError(f"k-means converged after {result.n_iter} of {max_iter} iterations")
    return result.centers


def _faiss(x: NDArray, k: int) -> NDArray:
    import faiss

    run = faiss.Kmeans(x.shape[1], k, niter=ITERATIONS, max_points_per_centroid=len(x))
    run.train(x, init_centroids=x[:k])
    if not run.obj[-1] < run.obj[-2]:
        raise RuntimeError(f"faiss converged within {ITERATIONS} iterations")
    return run.centroids


def _scikit_learn(x: NDArray, k: int) -> NDArray:
    from sklearn.cluster import KMeans

    run = KMeans(k, init=x[:k], n_init=1, tol=0, max_iter=ITERATIONS, algorithm="lloyd")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.fit(x)
    if run.n_iter_ != ITERATIONS:
        raise RuntimeError(f"scikit-learn converged after {run.n_iter_} iterations")
    return run.cluster_centers_


def _peer_start(x: NDArray, k: int) -> None:
    from sklearn.cluster import kmeans_plusplus

    kmeans_plusplus(x, k, random_state=SEED)


def _large() -> dict[str, float]:
    """A million rows, in a separate process."""
    _use_cores()
    x = _rows(LARGE_ROWS)
    seconds = _measure.seconds(_ours, x, LARGE_CLUSTERS, x[:LARGE_CLUSTERS], LARGE_ITERATIONS)
    return {"seconds": seconds, "peak_mb": _measure.memory_mb(), "rows_mb": x.nbytes / 1e6}


def _peak(name: str, k: int) -> float:
    _use_cores()
    x = _rows(ROWS)
    if name != "nothing":
        _runners(x, k)[name]()
    return _measure.memory_mb()


def _rows(count: int) -> NDArray:
    return np.random.default_rng(SEED).standard_normal((count, DIMENSIONS), dtype=np.float32)


def _use_cores() -> None:
    """One CPU device per core, as `devices.use_cores` sets them up for training."""
    jax.config.update("jax_num_cpu_devices", devices.cores())
