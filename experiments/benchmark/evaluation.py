"""Seconds and memory of the stages of an evaluation, at a part of ImageNet's size, and estimates.

    python -m experiments.benchmark evaluation --only="kmeans 128117"

`--only` has a stage and a number of rows, or several such pairs, separated by commas; without it
all of `PLANS` are measured. Rows of 1,000 generated classes have the 2,048 columns of ResNet-50:
128,117 are a tenth of ImageNet's 1,281,167 images. Each pair has a process of its own, so that
`peak_gb` is its own; `base_gb` of these are the program, and `x_gb` the rows. `imagenet` is an
estimate for all images: k-means has one run here and ten there, the probe 5 epochs and 100, and a
vote 5,000 rows and 50,000; the work of k-NN grows with the square of the rows, and what a stage
takes beside the program with the rows. `tree` is SmoothTree with the placing of all rows.
"""

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering import tree_fit
from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.core import arrays, devices, sharded_knn
from cluster_jax.core.checks import InputError
from cluster_jax.metrics import knn_accuracy, linear_probe
from cluster_jax.metrics.probe_settings import ProbeSettings

IMAGES = 1_281_167
PLANS = ("probe 128117", "knn 32029", "kmeans 128117", "tree 128117", "votes 128117")
COLUMNS, CLASSES, SEED = 2_048, 1_000, 0
EPOCHS, SAMPLE, NEIGHBORS = 5, 5_000, 10
# Times that an evaluation does what is measured once.
REPEATS = {"kmeans": 10, "probe": 100 / EPOCHS, "votes": 50_000 / SAMPLE}
_work: dict[str, Callable[[NDArray, NDArray], object]] = {
    "knn": lambda x, y: knn_accuracy(x, y, n_neighbors=(5, 20)),
    "kmeans": lambda x, y: kmeans(x, CLASSES, n_init=1),
    "probe": lambda x, y: linear_probe(x, y, settings=ProbeSettings(epochs=EPOCHS)),
    "tree": lambda x, y: tree_fit.fit(x, "cosine", None, SEED, None),
    "votes": lambda x, y: sharded_knn.nearest_for(x, x[:SAMPLE], k=NEIGHBORS, mesh=None),
}


def measure(only: str | None = None) -> dict:
    """Seconds of each stage, and the peak of its memory, of every stage and size that are named.

    Args:
        only: "STAGE ROWS", several separated by commas; None: `PLANS`.

    Raises:
        InputError: there is no such stage, or the rows are no number.
    """
    plans = [configure(name) for name in (only.split(",") if only else PLANS)]
    found = {}
    for name, n in plans:
        measured = in_a_process(name, n)
        found[f"{name} {n}"] = measured | {"imagenet": estimate(name, n, measured)}
        print(f"{name} {n}: {found[f'{name} {n}']}", file=sys.stderr)
    return {"cores": devices.cores(), "stages": found}


def configure(name: str) -> tuple[str, int]:
    """The stage and the number of rows of "STAGE ROWS".

    Raises:
        InputError: they are not a stage and a number of at least `SAMPLE`.
    """
    stage, _, rows = name.strip().partition(" ")
    if stage not in _work or not rows.isdecimal() or int(rows) < SAMPLE:
        must = f"STAGE one of {', '.join(_work)} and ROWS at least {SAMPLE:,}"
        raise InputError(f'--only must be "STAGE ROWS" as in "{PLANS[0]}", {must}; got {name!r}')
    return stage, int(rows)


def estimate(name: str, n: int, measured: Mapping[str, float]) -> dict[str, float]:
    """Hours and memory of a stage for all images, by those of n rows."""
    growth = (IMAGES / n) ** (2 if name == "knn" else 1) * REPEATS.get(name, 1)
    base = measured["base_gb"]
    return {
        "core_hours": measured["cpu_seconds"] / 3600 * growth,
        "hours": measured["seconds"] / 3600 * growth,
        "peak_gb": base + (measured["peak_gb"] - base) * IMAGES / n,
    }


def in_a_process(name: str, n: int) -> dict[str, float]:
    """What `_stage` measures in a new process."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(_stage, name, n).result()


def _stage(name: str, n: int) -> dict[str, float]:
    """Seconds of a stage on n rows, of the wall and of the cores, and the peak of memory."""
    devices.cpu_devices(devices.cores())
    base = _peak()
    x, y = _rows(n)
    start, cpu_start = time.perf_counter(), time.process_time()
    _work[name](x, y)
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu_start,
        "peak_gb": _peak(),
        "base_gb": base,
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
