"""Trainings on stored features of photos, beside k-means and GridShift on the features themselves.

    python -m experiments.features DIR [--seeds=3] [--only SimCLR ...]

DIR holds imagenette.npz (3,000 photos), cifar10.npz (the first 10,000), tiny_imagenet10.npz (1,500)
and fashion_mnist.npz (the 10,000 test images, a PNG each), by the default encoder; of more than
3,000 rows so many are drawn:

    cluster-jax embed --config=images --config.data.dir=PHOTOS --config.data.labels=folders
        --out=DIR/imagenette.npz
    cluster-jax embed --config=images --config.data.name=cifar10 --config.data.dir=TFDS
        --config.data.split=train+test --config.data.limit=10000 --out=DIR/cifar10.npz

One setting of each config for all sets, never changed by their labels, which score only; k-means
and NCC are given the number of classes. k-means is run twice on rows of length one, the best of 50
starts: the Euclidean one, and the spherical one, whose cosine is that of the losses. Lines that
`features.jsonl` has are not computed again; `features.md` is written at the end.
"""

import pathlib
import tempfile
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from cluster_jax import metrics
from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.clustering.reduce import reduce
from cluster_jax.core import arrays, io
from cluster_jax.core.config import load_config
from cluster_jax.evaluation import clusters
from cluster_jax.pipeline import run as pipeline
from experiments import tables

SETS = ("imagenette", "cifar10", "tiny_imagenet10", "fashion_mnist")
# None: the features themselves.
METHODS = {
    "features": None,
    "SimCLR": "simclr_features",
    "NCC": "ncc_features",
    "SimCLR + NRCC": "nrcc_features",
    "Kernel-InfoNCE": "kernel_infonce_features",
    "CueCo": "cueco_features",
}
ROWS = 3_000
COLUMNS = ("k-means", "spherical k-means", "k-means on the map", "GridShift")


def measure(file: pathlib.Path, name: str | None, seed: int) -> dict[str, Any]:
    """ACC of k-means and GridShift on the features, or on what the config `name` trains on them."""
    stored = io.read_arrays(file)
    drawn = np.sort(np.random.default_rng(0).permutation(len(stored["labels"]))[:ROWS])
    values, labels = stored["features"][drawn], stored["labels"][drawn].astype(np.int64)
    if name is None:
        section = load_config("simclr_features").eval
        rows = arrays.normalize_rows(values.astype(np.float32))
        points = reduce(rows, seed=seed, **section.reduce)
        grid = clusters.run_gridshift(points, **section.gridshift)
        return scores(rows, labels, points, grid.cluster_labels, seed)
    config = load_config(name)
    config.seed = seed
    config.eval.method, config.eval.linear_probe = "gridshift", None
    if "clusters" in config.method:
        config.method.clusters = len(np.unique(labels))
    with tempfile.TemporaryDirectory() as workdir:
        config.data.dir = f"{workdir}/{file.name}"
        io.write_arrays(config.data.dir, {"features": values, "labels": labels})
        workdir = f"{workdir}/run"
        pipeline.run_pipeline(config, workdir)
        embedding = io.read_arrays(pathlib.Path(workdir) / "embedding.npz")
        found = io.read_arrays(pathlib.Path(workdir) / "clusters.npz")
    rows = arrays.normalize_rows(embedding[config.eval.features])
    return scores(rows, labels, found["points"], found["cluster_labels"], seed)


def scores(
    rows: NDArray, labels: NDArray, points: NDArray, found: NDArray, seed: int
) -> dict[str, Any]:
    """ACC of k-means on rows of length one and on their map, and of the clusters found there."""
    k = len(np.unique(labels))

    def accuracy(x: NDArray, metric: str) -> float:
        given = kmeans(x, k, metric=metric, n_init=50, seed=seed).labels
        return metrics.scores(labels, given)["acc"]

    return {
        "k-means": accuracy(rows, "euclidean"),
        "spherical k-means": accuracy(rows, "spherical"),
        "k-means on the map": accuracy(points, "euclidean"),
        "GridShift": metrics.scores(labels, found)["acc"],
        "found": len(np.unique(found)),
    }


def page(lines: list[dict[str, Any]]) -> str:
    """A table for each set, a method a row."""
    parts = []
    for name in SETS:
        rows = []
        for method in METHODS:
            own = [line for line in lines if (line["set"], line["method"]) == (name, method)]
            if own:
                cells = [tables.mean([line[column] for line in own]) for column in COLUMNS]
                rows.append([method, *cells, ", ".join(str(line["found"]) for line in own)])
        parts.append(tables.markdown([name, *COLUMNS, "found"], rows))
    return "\n\n".join(parts)


def main() -> None:
    """Entry point."""
    parser = tables.parser("features", __doc__)
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="methods", default=list(METHODS))
    flags = parser.parse_args()
    out = pathlib.Path(__file__).parent / "features"
    found = tables.Lines(out, "set", "method", "seed")
    for seed in range(flags.seeds):
        for method in flags.only:
            for name in SETS:
                file = flags.dir / f"{name}.npz"
                case = {"set": name, "method": method, "seed": seed}
                if file.exists():
                    found.add(case, lambda: measure(file, METHODS[method], seed))  # noqa: B023
    found.write(f"{parser.prog} DIR", page(found.lines))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        main()
