"""Memory of `cluster-jax report` on a folder of `cluster`, by the number of its rows.

Features of 8 columns in two shards, read in blocks, k-means with 10 clusters; then a name for one
cluster. Each command runs in a process of its own, whose most memory is stated.
"""

import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

ROWS, SEED = (200_000, 400_000, 800_000), 0
_CLUSTER = ("cluster", "--method=kmeans", "--k=10", "--n_init=1", "--report=no")
_CODE = """
import resource, sys
from cluster_jax.cli import app
from cluster_jax.data import tables
tables.LARGE = 0
app.main(sys.argv[1:])
print("PEAK", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def measure() -> dict[str, Any]:
    """Most memory of both commands in MB, and bytes a row more of `report`."""
    found: dict[str, Any] = {"cluster_mb": {}, "report_mb": {}}
    with tempfile.TemporaryDirectory() as name:
        for rows in ROWS:
            folder = pathlib.Path(name) / str(rows)
            _write(folder / "shards", rows)
            out = f"--out={folder}/run"
            found["cluster_mb"][rows] = _peak(*_CLUSTER, f"--features={folder}/shards", out)
            file = _corrections(folder)
            found["report_mb"][rows] = _peak("report", f"{folder}/run", f"--corrections={file}")
    more = found["report_mb"][ROWS[-1]] - found["report_mb"][ROWS[0]]
    return {**found, "report_bytes_a_row": 1e6 * more / (ROWS[-1] - ROWS[0])}


def _write(folder: pathlib.Path, rows: int) -> None:
    folder.mkdir(parents=True)
    values = np.random.default_rng(SEED).normal(size=(rows, 8)).astype(np.float32)
    values += 10 * np.eye(8, dtype=np.float32)[np.arange(rows) % 8]
    for i, part in enumerate(np.array_split(values, 2)):
        np.save(folder / f"{i}.npy", part)


def _corrections(folder: pathlib.Path) -> pathlib.Path:
    from cluster_jax.report import assignments, decisions

    run = decisions.clustered(assignments.read_workdir(folder / "run"))[1].run
    lines = ["image,cluster,correction,to", f",,run,{run}", ",0,name,first", ",,end,", ""]
    (folder / "corrections.csv").write_text("\n".join(lines))
    return folder / "corrections.csv"


def _peak(*command: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", _CODE, *command], check=True, text=True, capture_output=True
    )
    return int(done.stdout.rsplit("PEAK", 1)[1]) / 1e3
