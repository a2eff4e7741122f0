"""Clusters of a sample, all other rows placed by their neighbors, against those of all rows.

`cluster` takes a sample of features that do not fit into memory, and `SmoothTree` of any above
10,000 rows. GridShift in UMAP's map of all rows is compared with that of the sample at 100,000
rows; the tree at 30,000, because Ward's linkage of 100,000 takes 40 GB of distances.
"""

import pathlib
import tempfile
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from cluster_jax.clustering import smooth_tree
from cluster_jax.data.shards import Shards
from cluster_jax.evaluation import clusters
from cluster_jax.evaluation.options import ClusterOptions
from cluster_jax.pipeline import large
from experiments.number_of_clusters import generate
from experiments.number_of_clusters.sets import Set

ROWS, TREE_ROWS, COLUMNS, SEED = 100_000, 30_000, 64, 20261125
# Clusters, largest per smallest, Bayes error.
SETS = {"separate": (40, 10.0, 0.0), "overlapping": (20, 10.0, 0.05)}
# Adjusted Rand index between the two, written before measuring.
PREDICTED = {"separate": 0.99, "overlapping": "gridshift 0.85, tree 0.95"}


def measure() -> dict[str, Any]:
    """Number of clusters, scores and seconds of both ways, and how far their labels agree."""
    found = {}
    for name, (k, sizes, error) in SETS.items():
        spec = Set(name, "blobs", k, ROWS, COLUMNS, SEED, sizes, 1.0, error, 0.0, 0.0)
        x, truth = generate.make(spec)
        found[name] = {
            "gridshift": _compare(x, truth, "gridshift"),
            "tree": _compare(x[:TREE_ROWS], truth[:TREE_ROWS], "tree"),
        }
    return found


def _compare(x: NDArray, truth: NDArray, method: Any) -> dict[str, Any]:
    reduce = "umap" if method == "gridshift" else "none"
    options = ClusterOptions(method, None, reduce, 3, 15, 0.0, "euclidean", "auto", 1, 1, 0)
    start, most = time.perf_counter(), smooth_tree.MAX_ROWS
    smooth_tree.MAX_ROWS = len(x)
    everything = clusters.cluster(x, truth, options, print).cluster_labels
    smooth_tree.MAX_ROWS, between = most, time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        np.save(pathlib.Path(folder) / "rows.npy", x)
        sampled = large.cluster_shards(Shards(folder), truth, options, print).labels
    seconds = {"all": between - start, "sample": time.perf_counter() - between}
    return {
        "agreement_ari": adjusted_rand_score(everything, sampled),
        **{
            way: {
                "clusters": len(np.unique(labels)),
                "ari": adjusted_rand_score(truth, labels),
                "seconds": seconds[way],
            }
            for way, labels in (("all", everything), ("sample", sampled))
        },
    }
