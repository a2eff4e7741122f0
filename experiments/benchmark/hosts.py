"""k-means over the mesh of two processes against one process, on shards.

The rows are Gaussian blobs, twice as many as clusters, with centers N(0, 1) and deviation 1, in
float16.
"""

import os
import pathlib
import socket
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

ROWS, COLUMNS, CLUSTERS, UPDATES, SHARDS, SEED = 1_280_000, 2_048, 1_000, 3, 32, 0
# Written before the first measurement of this size.
PREDICTED = {
    "labels_that_differ": "0, or a few rows between two centers within rounding",
    "largest_difference_of_centers": "below 1e-4, of entries of about 1",
    "tflop": 2e-12 * COLUMNS * CLUSTERS * (ROWS * (UPDATES + 1) + 64 * CLUSTERS * (20 + 9)),
    "tflop_of": "updates of the sample and of all rows, and k-means++ with 8 candidates for each "
    "center",
    "seconds": "400 on two free cores at 70 GFLOP/s; two processes as one within 1.5: they share "
    "two cores, and each update adds up 8 MB of sums",
    "peak_mb": "2,900 in one process: libraries 400, three copies of the sample 1,600, blocks 400, "
    "pages of the mapped shards 500",
}
RUN = """
import sys, time
import jax, numpy as np
from jax.sharding import Mesh
from cluster_jax.clustering.kmeans import kmeans_blocks
from cluster_jax.core import devices
from cluster_jax.data.shards import Shards
from experiments.benchmark import _measure
folder, out, k, updates = *sys.argv[1:3], *map(int, sys.argv[3:])
devices.distribute()
mesh, start = Mesh(np.array(jax.devices()), ("rows",)), time.perf_counter()
found = kmeans_blocks(Shards(folder), k, block_rows=16_384, n_init=1, max_iter=updates, mesh=mesh)
if devices.is_first():
    figures = {"seconds": time.perf_counter() - start, "peak_mb": _measure.memory_mb()}
    np.savez(out, **figures, **found._asdict())
"""


def measure() -> dict[str, Any]:
    """Labels, centers, inertia, seconds and memory of one process of 1 device, and of 2 of 2."""
    with tempfile.TemporaryDirectory() as folder:
        _write(pathlib.Path(folder, "x"))
        one, two = (_run(folder, *counts) for counts in ((1, 1), (2, 2)))
    return {
        "2 processes x 2 devices, 1 process x 1 device": _compare(two, one),
        "seconds": {"1 x 1": one["seconds"], "2 x 2": two["seconds"]},
        "peak_mb": {"1 x 1": one["peak_mb"], "2 x 2, the first": two["peak_mb"]},
        "updates": two["n_iter"],
    }


def _write(folder: pathlib.Path) -> None:
    folder.mkdir()
    rng = np.random.default_rng(SEED)
    centers = rng.standard_normal((2 * CLUSTERS, COLUMNS), np.float32)
    for i in range(SHARDS):
        blobs = centers[rng.integers(0, len(centers), ROWS // SHARDS)]
        rows = blobs + rng.standard_normal(blobs.shape, np.float32)
        np.save(folder / f"{i:03d}.npy", rows.astype(np.float16))


def _run(folder: str, processes: int, devices: int) -> dict:
    """The result of k-means in some processes of some devices each."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    if processes > 1:
        env |= {"JAX_COORDINATOR_ADDRESS": f"localhost:{port}", "JAX_NUM_PROCESSES": str(processes)}
    out = f"{folder}/{processes}x{devices}.npz"
    command = [sys.executable, "-c", RUN, f"{folder}/x", out, str(CLUSTERS), str(UPDATES)]
    started = [
        subprocess.Popen(command, env={**env, "JAX_PROCESS_ID": str(i)}) for i in range(processes)
    ]
    if any(process.wait() for process in started):
        raise RuntimeError(f"k-means in {processes} processes failed")
    with np.load(out) as found:
        return dict(found)


def _compare(a: dict, b: dict) -> dict:
    return {
        "labels_that_differ": int((a["labels"] != b["labels"]).sum()),
        "largest_difference_of_centers": float(np.abs(a["centers"] - b["centers"]).max()),
        "largest_entry_of_centers": float(np.abs(a["centers"]).max()),
        "inertia_ratio_minus_1": float(a["inertia"] / b["inertia"] - 1),
    }
