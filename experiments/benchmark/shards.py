"""The command `cluster` on features that do not fit into memory, read in blocks from shards.

The rows are Gaussian blobs with centers N(0, 1) and deviation 0.5, in float16.
Memory is the highest resident memory of a process that runs the command, files it maps included.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import jax
import numpy as np
from sklearn.metrics import adjusted_rand_score

from cluster_jax.clustering.kmeans import kmeans_blocks
from cluster_jax.data.shards import Shards

COLUMNS, BLOBS, SHARD_ROWS, SEED = 256, 200, 500_000, 0
# Rows for k-means of all rows, and for SmoothTree, which places rows by their neighbors.
ROWS, TREE_ROWS = 10_000_000, 2_000_000
DEVICE_ROWS = 500_000
# Written before the first measurement.
PREDICTED = {
    "kmeans": {
        "gigabytes_read": "5.12 a pass; passes: a check with its fingerprint, updates + 1",
        "updates": "20 to 40; written before the first measurement with a stop at 1,000 changes",
        "tflop_per_pass": 2e-12 * ROWS * COLUMNS * BLOBS,
        "peak_mb": 1400,
        "peak_mb_of": "libraries 700, three blocks in float32 200, labels, distances, and the "
        "table 130, sample and its silhouette 300",
    },
    "tree": {
        "gigabytes_read": "1.02 a pass, two passes",
        "tflop_placing": 2e-12 * TREE_ROWS * (10_000 * 64 + COLUMNS * 64),
        "peak_mb": 1900,
        "peak_mb_of": "libraries 900, distances of 10,000 rows in Ward's linkage 800, blocks 200",
    },
    "devices": "the same labels on one device and on four; centers within 1e-4",
}
RUN = """
import json, sys, time
start = time.perf_counter()
from cluster_jax.cli import cluster
from experiments.benchmark import _measure
cluster.main(sys.argv[1:])
figures = {"seconds": time.perf_counter() - start, "peak_mb": _measure.memory_mb()}
print(json.dumps(figures))
"""


def measure() -> dict[str, Any]:
    """Peak memory, seconds and adjusted Rand index of both methods; devices against each other."""
    jax.config.update("jax_num_cpu_devices", 4)
    with tempfile.TemporaryDirectory() as folder:
        everything, part = (pathlib.Path(folder, name) for name in ("all", "part"))
        truth = _write(everything)
        part.mkdir()
        for i in range(TREE_ROWS // SHARD_ROWS):
            os.link(everything / f"{i:03d}.npy", part / f"{i:03d}.npy")
        return {
            "kmeans": _run(everything, truth, "--method=kmeans", f"--k={BLOBS}"),
            "tree": _run(part, truth[:TREE_ROWS]),
            "devices": _devices(part),
        }


def _write(folder: pathlib.Path) -> np.ndarray:
    """Writes the shards; returns the blob of each row."""
    folder.mkdir()
    rng = np.random.default_rng(SEED)
    centers = rng.standard_normal((BLOBS, COLUMNS), np.float32)
    truth = rng.integers(0, BLOBS, ROWS, np.int32)
    for i, blobs in enumerate(np.split(truth, ROWS // SHARD_ROWS)):
        noise = rng.standard_normal((SHARD_ROWS, COLUMNS), np.float32)
        np.save(folder / f"{i:03d}.npy", (centers[blobs] + noise / 2).astype(np.float16))
    return truth


def _run(folder: pathlib.Path, truth: np.ndarray, *flags: str) -> dict:
    workdir = folder.parent / f"run of {folder.name}"
    command = [f"--features={folder}", f"--workdir={workdir}", *flags]
    done = subprocess.run([sys.executable, "-c", RUN, *command], stdout=subprocess.PIPE, check=True)
    results = json.loads((workdir / "results.json").read_text())
    (metrics,) = results["metrics"].values()
    table = np.loadtxt(workdir / "assignments.csv", np.int32, delimiter=",", skiprows=1, usecols=1)
    return {
        **json.loads(done.stdout.splitlines()[-1]),
        "ari": adjusted_rand_score(truth, table),
        "clusters": metrics["n_clusters"],
        "updates": metrics.get("updates"),
        "rows_used": results["provenance"]["rows_used"],
    }


def _devices(folder: pathlib.Path) -> dict:
    """k-means of some rows on one device and on four."""
    rows = Shards(str(folder / "000.npy"))[:DEVICE_ROWS]
    one, four = (
        kmeans_blocks(rows, BLOBS, mesh=jax.make_mesh((n,), ("i",), devices=jax.devices()[:n]))
        for n in (1, 4)
    )
    return {
        "labels_that_differ": int((one.labels != four.labels).sum()),
        "largest_difference_of_centers": float(np.abs(one.centers - four.centers).max()),
        "updates": [one.n_iter, four.n_iter],
    }
