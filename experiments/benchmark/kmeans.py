"""k-means against faiss and scikit-learn: 60,000 x 256 float32, 20 iterations from one start.

Every run returns labels and centers, except that faiss returns only centers (its labels would take
another pass). Inertias are computed here from the final centers, the same way for all. The rows are
normal noise, on which none converges within 20 iterations.
"""

import concurrent.futures
import importlib.metadata
import multiprocessing
import os
import pathlib
import statistics
import time
import warnings
from collections.abc import Callable

import jax
import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering.kmeans import kmeans

ROWS, DIMENSIONS, CLUSTERS, ITERATIONS, REPEATS = 60_000, 256, (10, 1000), 20, 5
LARGE_ROWS, LARGE_CLUSTERS, LARGE_ITERATIONS = 1_000_000, 1000, 2
BLOCK = 2000
SEED = 0


def measure() -> tuple[dict, dict]:
    """Times and inertias, measured alternately in this process; memory in a process for each."""
    _use_cores()
    x = _rows(ROWS)
    figures = {f"k{k}": _compare(x, k) for k in CLUSTERS}
    for k in CLUSTERS:
        figures[f"k{k}"]["peak_mb"] = {
            name: _in_fresh_process(_peak, name, k) for name in ("nothing", *_runners(x, k))
        }
    figures["large"] = _in_fresh_process(_large)
    setup = {
        "data": "standard normal, float32; initial centers: the first K rows",
        "rows": ROWS,
        "dimensions": DIMENSIONS,
        "max_iter": ITERATIONS,
        "repeats": REPEATS,
        "seed": SEED,
        "cores": _cores(),
        "devices": jax.device_count(),
        **{name: importlib.metadata.version(name) for name in ("faiss-cpu", "scikit-learn")},
        "warm-up": "one untimed call of each (compilation excluded)",
        "seconds": "median over the repeats; seconds_range: smallest and largest",
        "inertia_ratio": "ours over theirs, both in float64 from the final centers and the rows",
        "ratio": "our time over that of the faster of the two in the same round",
        "start": "one iteration from k-means++ minus one from given centers; one run of "
        "scikit-learn's kmeans_plusplus",
        "peak_mb": "of a process that generates the rows and clusters them once; 'nothing': only "
        "generates them",
        "large": f"{LARGE_ROWS} rows, K = {LARGE_CLUSTERS}, {LARGE_ITERATIONS} iterations, "
        "compilation included",
    }
    return figures, setup


def _compare(x: NDArray, k: int) -> dict:
    runners = _runners(x, k)
    times = {name: [] for name in runners}
    inertias = {name: _inertia(x, runner()) for name, runner in runners.items()}
    for _ in range(REPEATS):
        for name, runner in runners.items():
            times[name].append(_time(runner))
    ratios = [
        ours / min(others) for ours, *others in zip(*(times[name] for name in runners), strict=True)
    ]
    ours = inertias.pop("ours")
    starts = [
        _time(lambda: _ours(x, k, None, 1)) - _time(lambda: _ours(x, k, x[:k], 1))
        for _ in range(REPEATS + 1)
    ][1:]
    return {
        "time_ratio": statistics.median(ratios),
        "time_ratio_range": [min(ratios), max(ratios)],
        "seconds": {name: statistics.median(seconds) for name, seconds in times.items()},
        "seconds_range": {name: [min(seconds), max(seconds)] for name, seconds in times.items()},
        "inertia_ratio": {name: ours / other for name, other in inertias.items()},
        "start_seconds": {
            "ours": statistics.median(starts),
            "scikit-learn": _time(lambda: _peer_start(x, k)),
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


def _large() -> dict:
    """A million rows, in a separate process."""
    _use_cores()
    x = _rows(LARGE_ROWS)
    seconds = _time(lambda: _ours(x, LARGE_CLUSTERS, x[:LARGE_CLUSTERS], LARGE_ITERATIONS))
    return {"seconds": seconds, "peak_mb": _peak_mb(), "rows_mb": x.nbytes / 1e6}


def _peak(name: str, k: int) -> float:
    _use_cores()
    x = _rows(ROWS)
    if name != "nothing":
        _runners(x, k)[name]()
    return _peak_mb()


def _in_fresh_process(function: Callable, *arguments):
    """Calls a function of this file in a new process."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(function, *arguments).result()


def _rows(count: int) -> NDArray:
    return np.random.default_rng(SEED).standard_normal((count, DIMENSIONS), dtype=np.float32)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _use_cores() -> None:
    """One CPU device per core, as `devices.use_cores` sets them up for training."""
    jax.config.update("jax_num_cpu_devices", _cores())


def _peak_mb() -> float:
    """Of this process only; on Linux `ru_maxrss` starts from the parent's value."""
    status = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1e3


def _time(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
