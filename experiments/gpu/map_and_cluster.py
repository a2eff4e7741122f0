"""`python -m experiments.gpu.map_and_cluster FEATURES EVAL OUT PARENT`: UMAP and GridShift."""

import importlib.util
import os
import pathlib
import sys
import threading
import time

import numpy as np

from cluster_jax.clustering.reduce import reduce
from cluster_jax.core import io
from cluster_jax.evaluation import clusters


def available() -> bool:
    """Whether UMAP is installed."""
    return importlib.util.find_spec("umap") is not None


def main(features_file: str, eval_file: str, out: str, parent: str) -> None:
    """Writes GridShift's scores; the section `eval` of the config has the settings.

    Ends with the process `parent`: the next slice starts it anew.
    """
    start = time.monotonic()
    threading.Thread(target=_end_with_parent, args=(int(parent),), daemon=True).start()
    with np.load(features_file, allow_pickle=False) as file:
        features, labels = file["features"].astype(np.float32), file["labels"]
    section = io.read_json(eval_file)
    points = reduce(features, seed=0, **section["reduce"])
    metrics = clusters.run_gridshift(points, labels, **section["gridshift"]).metrics
    io.write_json(out, {**metrics, "seconds": time.monotonic() - start})
    pathlib.Path(features_file).unlink()


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
