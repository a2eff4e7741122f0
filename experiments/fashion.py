"""Every method on Fashion-MNIST from pixels, beside clusters of the pixels themselves.

    python -m experiments.fashion FOLDER [--seeds=3]

FOLDER holds the four files `*-ubyte.gz` of Fashion-MNIST, as of the Debian package
`dataset-fashion-mnist`. All 70,000 images are trained on and scored. Settings: see
`configs/nrcc_fashion_mnist.py`; what was compared to choose its augmentation is in `CANDIDATES`.
Runs that `fashion.jsonl` has are not repeated; `fashion.md` is written at the end.
"""

import gzip
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cluster_jax import metrics
from cluster_jax.cli import exit_codes
from cluster_jax.clustering import kmeans, reduce
from cluster_jax.core import io
from experiments import results, table, tables
from experiments import run as runner
from experiments.registry import Run

FOLDER = pathlib.Path(__file__).parent
ARRAYS = pathlib.Path("runs/experiments/fashion_mnist.npz")  # what the files hold, for the runs
CONFIG = "nrcc_fashion_mnist"
# What all methods share with the config of NRCC, and what the scores do not need.
SHARED = {
    "data.name": "arrays",
    "data.split": None,
    "network.width": 16,
    "train.duration": "800 steps",
    "eval.method": "tree",
    "eval.knn": (5,),
    "eval.linear_probe": None,
}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "SimCLR": ("nrcc_digits", {"nrcc.weight": 0.0}),
    "SimCLR + NRCC": ("nrcc_digits", {}),
    "NCC": ("ncc_digits", {"method.warmup": "200 steps", "method.update_every": "1 epoch"}),
    "CueCo": ("cueco_digits", {"method.queue": 4_096}),
    "Kernel-InfoNCE": ("kernel_infonce_digits", {}),
}
PIXELS = ("k-means on pixels", "UMAP + k-means on pixels")
# Augmentations that were compared, all with flips: silhouettes of k-means on the UMAP map of
# backbone and projection: `reduce` and `kmeans` with seed 0, `silhouette_score` of 5,000 rows.
CANDIDATES = {
    "crops of at least 0.6, jitter 0.6, noise 0.08": (0.580, 0.626),
    "crops of at least 0.3, jitter 0.4": (0.607, 0.535),
    "crops of at least 0.3, jitter 0.4, noise 0.08": (0.593, 0.582),
    "crops of at least 0.6, jitter 0.4": (0.586, 0.554),
    "crops of at least 0.1, jitter 0.4": (0.583, 0.542),
    "crops of at least 0.6, jitter 0.4, noise 0.08": (0.576, 0.569),
    "rotation 0.1, scale 0.15, shift 2, shear 0.1, jitter 0.4": (0.562, 0.534),
    "crops of at least 0.3": (0.513, 0.487),
}
PROVENANCE = {
    "data": {"name": "fashion_mnist"},
    "images_trained": 0,
    "images_scored": 70_000,
    "labels_used_for": ["scoring", "the number of clusters of k-means"],
    "number_of_clusters": {"kmeans": "given"},
    "kmeans_n_init": 10,
}
COLUMNS = {
    "ACC": "kmeans.acc",
    "NMI": "kmeans.nmi",
    "ARI": "kmeans.ari",
    "found: ACC": "tree.acc",
    "found: NMI": "tree.nmi",
    "clusters": "tree.n_clusters",
    "5-NN": "knn.5",
}


def write_arrays(folder: pathlib.Path) -> None:
    """Writes all images uint8 `[70000, 28, 28]` and labels, training images first."""
    arrays = {}
    for name, kind, start in (("images", "images-idx3", 16), ("labels", "labels-idx1", 8)):
        parts = []
        for part in ("train", "t10k"):
            with gzip.open(folder / f"{part}-{kind}-ubyte.gz") as file:
                parts.append(np.frombuffer(file.read(), np.uint8, offset=start))
        arrays[name] = np.concatenate(parts)
    arrays["images"] = arrays["images"].reshape(-1, 28, 28)
    ARRAYS.parent.mkdir(parents=True, exist_ok=True)
    np.savez(ARRAYS, **arrays)


def plan(name: str) -> Run:
    """The run of a method, or of clusters of the pixels."""
    if name in PIXELS:
        return Run("", {"name": name}, function="fashion")
    config, changes = METHODS[name]
    return Run(config, {**SHARED, **changes}, images=CONFIG)


def run(*, seed: int, name: str) -> dict[str, Any]:
    """Scores of k-means, k given, on the pixels or on their map by UMAP."""
    with np.load(ARRAYS) as file:
        pixels, labels = file["images"], file["labels"]
    rows = pixels.reshape(len(pixels), -1) / np.float32(255)
    if name.startswith("UMAP"):
        rows = reduce(rows, seed=seed, metric="euclidean")
    return {"kmeans": metrics.scores(labels, kmeans(rows, 10, seed=seed).labels)}


def page(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Mean and deviation of all scores of every method."""
    lines, blocks = [], []
    for name in (*PIXELS, *METHODS):
        keys = (results.key(plan(name), seed) for seed in range(len(rows)))
        own = [rows[key] for key in keys if "metrics" in rows.get(key, {})]
        blocks += [row["provenance"] for row in own]
        line = [name, len(own)]
        for column, path in COLUMNS.items():
            found = [table.entry(row["metrics"], path) for row in own]
            if None in found or not found:
                line.append("")
            elif column == "clusters":
                line.append(", ".join(f"{value:g}" for value in found))
            else:
                line.append(tables.mean(found))
        lines.append(line)
    about = {**blocks[0], "command": "python -m experiments.fashion FOLDER"}
    about["commit"] = ", ".join(sorted({f"{block['commit']}" for block in blocks}))
    text = tables.markdown(["", "seeds", *COLUMNS], lines)
    chosen = tables.markdown(
        ["augmentation", "backbone", "projection"],
        ([name, *(f"{value:.3f}" for value in pair)] for name, pair in CANDIDATES.items()),
    )
    return "\n\n".join([text, chosen, tables.sentence(about)]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the exit code is 1 if a run failed."""
    parser = tables.parser("fashion", __doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=pathlib.Path, default=FOLDER / "fashion.jsonl")
    parser.add_argument("--runs", type=pathlib.Path, default=pathlib.Path("runs/experiments"))
    flags = parser.parse_args(arguments)
    flags.data = str(ARRAYS)
    wanted = [(plan(name), seed) for seed in range(flags.seeds) for name in (*PIXELS, *METHODS)]
    with exit_codes.handle_errors():
        write_arrays(flags.folder)
        failures = runner.run_all(flags, parser.prog, wanted)
        rows, _ = results.read(flags.results)
        io.write(flags.results.with_suffix(".md"), page(rows))
    return exit_codes.FAILURE if failures else exit_codes.SUCCESS


if __name__ == "__main__":
    raise SystemExit(main())
