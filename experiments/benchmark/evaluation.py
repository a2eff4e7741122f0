"""Seconds and memory of the stages of an evaluation, at a part of ImageNet's size, and estimates.

Rows of 1,000 generated classes with the 2,048 columns of ResNet-50: one fortieth and one tenth of
ImageNet's 1,281,167 images, and for k-NN one eightieth and one fortieth, since its work grows with
the square of the rows. Each stage has a process of its own for each size, so that `peak_gb` is its
own; `x_gb` of these are the rows. `--only="knn kmeans"` measures some stages. `imagenet` is an
estimate for all images, from the larger size: k-means has one run here and ten there, the probe 5
epochs and 100, and a vote 5,000 rows and 50,000. `tree` is SmoothTree with the placing of all rows.
"""

import multiprocessing
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering import tree_fit
from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.core import arrays, devices
from cluster_jax.metrics import knn_accuracy, linear_probe
from cluster_jax.metrics.knn import nearest_voters
from cluster_jax.metrics.probe_settings import ProbeSettings

IMAGES = 1_281_167
ROWS, ROWS_OF_KNN = (32_029, 128_117), (16_014, 32_029)
COLUMNS, CLASSES, SEED = 2_048, 1_000, 0
EPOCHS, SAMPLE, NEIGHBORS = 5, 5_000, 10
_work: dict[str, Callable[[NDArray, NDArray], object]] = {
    "knn": lambda x, y: knn_accuracy(x, y, n_neighbors=(5, 20)),
    "kmeans": lambda x, y: kmeans(x, CLASSES, n_init=1),
    "probe": lambda x, y: linear_probe(x, y, settings=ProbeSettings(epochs=EPOCHS)),
    "tree": lambda x, y: tree_fit.fit(x, "cosine", None, SEED, None),
    "votes": lambda x, y: nearest_voters(x, x[:SAMPLE], k=NEIGHBORS, mesh=None),
}


def measure(only: str = "knn kmeans probe tree votes") -> dict:
    """Seconds of each stage and the peak of memory, by the number of rows."""
    found: dict[str, dict] = {}
    for name in only.split():
        sizes = ROWS_OF_KNN if name == "knn" else ROWS
        found[name] = {str(n): _in_a_process(name, n) for n in sizes}
        growth = (IMAGES / sizes[-1]) ** (2 if name == "knn" else 1)
        more = {"kmeans": 10, "probe": 100 / EPOCHS, "votes": 50_000 / SAMPLE}.get(name, 1)
        largest = found[name][str(sizes[-1])]
        found[name]["imagenet"] = {
            "core_hours": largest["cpu_seconds"] / 3600 * growth * more,
            "hours": largest["seconds"] / 3600 * growth * more,
            "peak_gb": largest["peak_gb"] * IMAGES / sizes[-1],
        }
    return {"cores": devices.cores(), "stages": found}


def _in_a_process(name: str, n: int) -> dict[str, float]:
    """What `_stage` measures in a new process."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(_stage, name, n).result()


def _stage(name: str, n: int) -> dict[str, float]:
    """Seconds of a stage on n rows, of the wall and of the cores, and the peak of memory."""
    devices.cpu_devices(devices.cores())
    x, y = _rows(n)
    start, cpu_start = time.perf_counter(), time.process_time()
    _work[name](x, y)
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu_start,
        "peak_gb": _peak(),
        "x_gb": x.nbytes / 1e9,
    }


def _rows(n: int) -> tuple[NDArray, NDArray]:
    """Unit rows float32 `[n, COLUMNS]` around the centers of their classes, and the classes."""
    rng = np.random.default_rng(SEED)
    labels = rng.integers(0, CLASSES, n)
    centers = rng.normal(size=(CLASSES, COLUMNS)).astype(np.float32)
    rows = np.empty((n, COLUMNS), np.float32)
    for part in arrays.blocks(n, COLUMNS):
        noise = rng.standard_normal((len(labels[part]), COLUMNS), np.float32)
        rows[part] = arrays.normalize_rows(centers[labels[part]] + 1.5 * noise)
    return rows, labels.astype(np.int32)


def _peak() -> float:
    """The largest memory of this process so far, in 10^9 bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
