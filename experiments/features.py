"""Methods on stored features of four sets, beside k-means and GridShift on the features.

python -m experiments.features --features=DIR [--runs=DIR] [--out=PATH] [--only=0/2]

DIR holds imagenette.npz (3,000 photos at 224 pixels), cifar10.npz (10,000 at 128),
tiny_imagenet10.npz (1,500 at 224) and fashion_mnist.npz (10,000 test images at 128), each written
by `cluster-jax embed --config=images` with the frozen EfficientNet-Lite0:

    cluster-jax embed --config=images --config.data.dir=PHOTOS --out=DIR/imagenette.npz
    cluster-jax embed --config=images --config.data.name=cifar10 --config.data.split=train+test
        --config.data.limit=10000 --config.data.image_size=128 --config.augment.size=128
        --out=DIR/cifar10.npz

One setting of each method for all sets, chosen before the first of these runs and never changed by
their labels, which score only (a sketch of SimCLR with tau 0.2 and one with 20 neighbors were
scored on some of the sets, and not taken); k-means, NCC and CueCo are given the number of classes.
k-means is run twice, on rows of length one: the Euclidean one, and the spherical one, whose cosine
is that of the methods' losses. About three hours on two cores; finished runs are reused. Two
processes with --only=0/2 and --only=1/2 can split the runs; a final call without --only writes the
tables.
"""

import pathlib
from collections.abc import Iterator

import numpy as np
from ml_collections import ConfigDict

from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.clustering.reduce import reduce
from cluster_jax.core import devices, io
from cluster_jax.core.config import load_config
from cluster_jax.data import features
from cluster_jax.evaluation import clusters
from cluster_jax.metrics import partition
from cluster_jax.pipeline import provenance
from cluster_jax.pipeline import run as pipeline
from experiments import runs, tables

SETS = ("imagenette", "cifar10", "tiny_imagenet10", "fashion_mnist")
METHODS = {
    "SimCLR": "simclr_features",
    "NCC": "ncc_features",
    "SimCLR + NRCC": "nrcc_features",
    "Kernel-InfoNCE": "kernel_infonce_features",
    "CueCo": "cueco_features",
}
RAW = "features"
COLUMNS = ("k-means", "spherical k-means", "k-means on the map", "GridShift", "found")
# With 10 runs of k-means the seed decides which local optimum is found: on SimCLR's features of
# CIFAR-10, seed 2, the sum of squares is 8,434 with 10 runs and 8,395 with 50.
N_INIT = 50


def main() -> None:
    """Entry point."""
    parser = runs.parser("experiments.features")
    parser.add_argument("--features", required=True, help="folder of the .npz files")
    flags = parser.parse_args()
    devices.use_cores(load_config("simclr_features").train.batch_size)
    folder = pathlib.Path(flags.runs)
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[tuple[str, str], list[dict]] = {}
    for method, name, seed in runs.part(list(_jobs()), flags.only):
        file = folder / f"{name}-{_slug(method)}-seed{seed}.json"
        if not file.exists():
            source = f"{flags.features}/{name}.npz"
            io.write_json(file, _measure(method, source, seed, folder / file.stem))
        found.setdefault((name, method), []).append(io.read_json(file))
    if not flags.only:
        print(_write(found, f"{parser.prog} --features=DIR", flags.out))


def _jobs() -> Iterator[tuple[str, str, int]]:
    """Method, set and seed of each run; a seed is finished before the next one begins."""
    for seed in runs.SEEDS:
        for method in (RAW, *METHODS):
            for name in SETS:
                yield method, name, seed


def _measure(method: str, source: str, seed: int, workdir: pathlib.Path) -> dict:
    dataset = features.load(dir=source, cache_mb=1e4, limit=None)
    if method == RAW:
        return _scores(dataset.fetch(np.arange(dataset.size))[:, 0], dataset.labels, seed)
    config = _config(method, source, seed, len(np.unique(dataset.labels)))
    results = pipeline.run_pipeline(config, workdir, _slug(method))
    rows = io.read_arrays(workdir / "embedding.npz")[config.eval.features]
    stored = io.read_arrays(workdir / "clusters.npz")
    scores = _scores(rows, dataset.labels, seed, stored["points"], stored["cluster_labels"])
    trained = results["provenance"]["commit"]
    return {**scores, "seconds": results["seconds"], "trained at commit": trained}


def _config(method: str, source: str, seed: int, classes: int) -> ConfigDict:
    config = load_config(METHODS[method])
    config.seed, config.data.dir = seed, source
    config.eval.linear_probe = None
    config.eval.method = "gridshift"
    if "clusters" in config.method:
        config.method.clusters = classes
    return config


def _scores(
    rows: np.ndarray,
    labels: np.ndarray,
    seed: int,
    points: np.ndarray | None = None,
    cluster_labels: np.ndarray | None = None,
) -> dict:
    """ACC of k-means and of GridShift on features; the map and its clusters if they are known."""
    k = len(np.unique(labels))
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    if points is None or cluster_labels is None:
        section = load_config("simclr_features").eval
        points = reduce(unit, seed=seed, **section.reduce)
        grid = clusters.run_gridshift(points, None, **section.gridshift)
        cluster_labels = grid.cluster_labels

    def accuracy(x: np.ndarray, metric: str) -> float:
        return partition.accuracy(
            labels, kmeans(x, k, metric=metric, n_init=N_INIT, seed=seed).labels
        )

    return {
        "k-means": accuracy(unit, "euclidean"),
        "spherical k-means": accuracy(unit, "spherical"),
        "k-means on the map": accuracy(points, "euclidean"),
        "GridShift": partition.accuracy(labels, cluster_labels),
        "found": len(np.unique(cluster_labels)),
        "commit": provenance.commit(),
    }


def _write(found: dict[tuple[str, str], list[dict]], command: str, out: str) -> str:
    """Writes a table for each set; returns the text."""
    texts = []
    for name in SETS:
        rows = []
        for method in (RAW, *METHODS):
            of_seeds = found[name, method]
            rows.append([method, *(_cell(c, [r[c] for r in of_seeds]) for c in COLUMNS)])
        texts.append(tables.markdown([name, *COLUMNS], rows))
    results = [r for values in found.values() for r in values]
    trained, scored = (
        ", ".join(sorted({str(r[key]) for r in results if key in r}))
        for key in ("trained at commit", "commit")
    )
    texts.append(
        f"ACC, mean ± standard deviation over seeds {', '.join(map(str, runs.SEEDS))}; found: "
        f"clusters of GridShift. Trained at {trained}, scored at {scored}."
    )
    rows_by_name = {f"{name}, {method}": values for (name, method), values in found.items()}
    return tables.write(out, {"rows": rows_by_name}, tables.origin(command), *texts)


def _cell(column: str, values: list) -> str:
    return ", ".join(map(str, values)) if column == "found" else tables.mean(values)


def _slug(method: str) -> str:
    return METHODS.get(method, RAW)


if __name__ == "__main__":
    main()
