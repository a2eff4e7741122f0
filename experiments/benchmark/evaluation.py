"""CPU seconds and memory of the stages of an evaluation, at two sizes, with an estimate for more.

Rows of 1,000 generated classes: one eightieth and one fortieth of ImageNet's 1,281,167 images, with
an eighth of ResNet-50's columns. `--only="knn kmeans"` measures some stages. The work of k-NN grows
with the square of the rows, that of the others with the rows; all grow with the columns. So
`imagenet_core_hours` is an estimate for all images and 2,048 columns, from the larger size. k-means
has one run here and ten there, the probe 5 epochs and 100, and a vote 5,000 rows and 50,000.
"""

import resource
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering import tree_fit
from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.core import arrays, devices
from cluster_jax.metrics import knn_accuracy, linear_probe
from cluster_jax.metrics.knn import nearest_voters
from cluster_jax.metrics.probe_settings import ProbeSettings

ROWS, COLUMNS, CLASSES, SEED = (16_014, 32_029), 256, 1_000, 0
IMAGENET = (1_281_167, 2_048)
EPOCHS, SAMPLE, NEIGHBORS = 5, 5_000, 10


def measure(only: str = "knn kmeans probe tree votes") -> dict:
    """CPU seconds of each stage and the peak of memory, by the number of rows."""
    stages: dict[str, Callable[[NDArray, NDArray], object]] = {
        "knn": lambda x, y: knn_accuracy(x, y, n_neighbors=(5, 20)),
        "kmeans": lambda x, y: kmeans(x, CLASSES, n_init=1),
        "probe": lambda x, y: linear_probe(x, y, settings=ProbeSettings(epochs=EPOCHS)),
        "tree": lambda x, y: tree_fit.fit(x, "cosine", None, SEED, None),
        "votes": lambda x, y: nearest_voters(x, x[:SAMPLE], k=NEIGHBORS, mesh=None),
    }
    devices.cpu_devices(devices.cores())
    found: dict[str, dict] = {}
    for n in ROWS:
        x, y = _rows(n)
        for name in only.split():
            start = time.process_time()
            stages[name](x, y)
            seconds = time.process_time() - start
            found.setdefault(name, {})[str(n)] = {"cpu_seconds": seconds, "peak_gb": _peak()}
    for name, by_rows in found.items():
        growth = (IMAGENET[0] / ROWS[-1]) ** (2 if name == "knn" else 1)
        more = {"kmeans": 10, "probe": 100 / EPOCHS, "votes": 50_000 / SAMPLE}.get(name, 1)
        seconds = by_rows[str(ROWS[-1])]["cpu_seconds"]
        by_rows["imagenet_core_hours"] = seconds / 3600 * growth * more * IMAGENET[1] / COLUMNS
    return {"cores": devices.cores(), "stages": found}


def _rows(n: int) -> tuple[NDArray, NDArray]:
    """Unit rows float32 `[n, COLUMNS]` around the centers of their classes, and the classes."""
    rng = np.random.default_rng(SEED)
    labels = rng.integers(0, CLASSES, n)
    centers = rng.normal(size=(CLASSES, COLUMNS)).astype(np.float32)
    noise = rng.standard_normal((n, COLUMNS), np.float32)
    return arrays.normalize_rows(centers[labels] + 1.5 * noise), labels.astype(np.int32)


def _peak() -> float:
    """The largest memory of this process so far, in 10^9 bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
