"""How to assign new rows to existing clusters: rules compared on held-out digits.

python -m experiments.placement --embeddings FILE... [--workdir=DIR] [--out=experiments/placement]

FILE: the `embedding.npz` of runs of nrcc_digits. A fifth of the rows of each is held out, the rest
is clustered as in the pipeline, and each rule assigns the held-out rows. DIR: a finished run of
nrcc_digits whose network embeds images that are not digits. Under a minute per file on one core.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score

from cluster_jax.clustering import out_of_sample
from cluster_jax.clustering.gridshift import GridShift
from cluster_jax.core import arrays, io
from cluster_jax.core.checks import InputError
from cluster_jax.data import inference_data
from cluster_jax.pipeline import inference, trained_run
from experiments import tables

SPLITS = (0, 1, 2)
HELD_OUT = 0.2
NEIGHBORS, DIMENSIONS, SEED = 15, 3, 0
NOTE = (
    "UMAP (15 neighbors, min_dist 0, cosine, 3-D) and GridShift with bandwidth 'auto', as in the "
    "pipeline, on L2-normalized projections. 'digit': fraction of the held-out rows that are of "
    "their cluster's most common digit (over the training rows). 'together': ARI on the held-out "
    "rows with a clustering of all rows together. 'own': fraction of the training rows to which "
    "the rule gives their own label. 'like 1-NN': ARI with the answers of the nearest row. Labels "
    "are used for scoring only; the networks were trained on all rows, including the held-out ones."
)


def umap() -> Any:
    """The pipeline's UMAP, as an object that can transform new rows."""
    from umap import UMAP

    return UMAP(
        n_components=DIMENSIONS, n_neighbors=NEIGHBORS, min_dist=0.0, metric="cosine",
        random_state=SEED, n_jobs=1,
    )  # fmt: skip


def compare(x: np.ndarray, digits: np.ndarray, together: np.ndarray, split: int) -> dict:
    """Scores of all rules on one split."""
    test, train = _split(len(x), split)
    start = time.perf_counter()
    mapper = umap()
    points = mapper.fit_transform(x[train])
    rebuild = time.perf_counter() - start
    grid = GridShift().fit(points)
    labels = grid.labels_
    majority_digit = _most_common(labels, digits[train])
    mapped: dict[str, np.ndarray] = {}

    def row_by_row(rows: np.ndarray) -> np.ndarray:
        mapped["row by row"] = np.concatenate([mapper.transform(row[None, :]) for row in rows])
        return grid.predict(mapped["row by row"])

    def batch(rows: np.ndarray) -> np.ndarray:
        mapped["batch"] = mapper.transform(rows)
        return grid.predict(mapped["batch"])

    def nearest(k: int) -> Callable[[np.ndarray], np.ndarray]:
        return lambda rows: out_of_sample.vote(out_of_sample.neighbors(rows, x[train], k), labels)

    rules = {
        "UMAP rebuilt, row by row": row_by_row,
        "UMAP rebuilt, one batch": batch,
        "nearest row": nearest(1),
        "5 nearest rows vote": nearest(5),
        "15 nearest rows vote": nearest(15),
    }
    mapper.transform(x[test][:1])  # compiles
    scores = {}
    labels_by_rule = {}
    for name, rule in rules.items():
        start = time.perf_counter()
        labels_by_rule[name] = rule(x[test])
        scores[name] = {
            "digit": float((majority_digit[labels_by_rule[name]] == digits[test]).mean()),
            "together": adjusted_rand_score(together[test], labels_by_rule[name]),
            "ms a row": (time.perf_counter() - start) / len(test) * 1e3,
        }
    discrepancy = (
        np.linalg.norm(mapped["row by row"] - mapped["batch"], axis=1).max() / grid.bandwidth_
    )
    for name, rule in rules.items():
        scores[name]["own"] = float((rule(x[train][:300]) == labels[:300]).mean())
        scores[name]["like 1-NN"] = adjusted_rand_score(
            labels_by_rule["nearest row"], labels_by_rule[name]
        )
    majority = _most_common(together[train], digits[train])
    scores["all rows clustered together"] = {
        "digit": float((majority[together[test]] == digits[test]).mean()), "together": 1.0,
    }  # fmt: skip
    k_means = KMeans(10, n_init=10, random_state=SEED).fit(x[train])
    neighbors = out_of_sample.neighbors(x[test], x[train], NEIGHBORS)
    novelty_threshold = out_of_sample.novelty_threshold(x[train])
    return {
        "rules": scores,
        "rebuild, seconds": rebuild,
        "row by row and batch apart, bandwidths": float(discrepancy),
        "k-means: votes agree with the nearest center": float(
            (out_of_sample.vote(neighbors, k_means.labels_) == k_means.predict(x[test])).mean()
        ),
        "unlike anything seen, held-out rows": float(
            (neighbors.distances[:, 0] > novelty_threshold).mean()
        ),
        "clusters": len(grid.cluster_centers_),
    }


def unseen_digits(x: np.ndarray, digits: np.ndarray) -> list[float]:
    """For each digit, left out of the training rows: the fraction of its rows flagged as novel."""
    fractions = []
    for digit in range(10):
        others = x[digits != digit]
        novelty_threshold = out_of_sample.novelty_threshold(others)
        neighbors = out_of_sample.neighbors(x[digits == digit], others, 1)
        fractions.append(float((neighbors.distances[:, 0] > novelty_threshold).mean()))
    return fractions


def other_images(workdir: str) -> dict[str, float]:
    """Fraction of images that are not digits flagged as novel, with the network of a run."""
    run = trained_run.read(workdir)
    embed = inference.make_embed(run)
    digits = np.rint(load_digits().images * (255 / 16)).astype(np.uint8)
    rng = np.random.default_rng(0)
    images = {
        "the training images": digits,
        "uniform noise": rng.integers(0, 256, digits.shape).astype(np.uint8),
        "pixels shuffled": rng.permuted(digits.reshape(-1, 64), axis=1).reshape(digits.shape),
        "black and white exchanged": 255 - digits,
        "left and right exchanged": digits[:, :, ::-1],
        "all black": np.zeros((1, 8, 8), np.uint8),
    }
    fractions = {}
    for name, pixels in images.items():
        dataset = inference_data.load(pixels, run.config.data, run.images["shape"])
        fractions[name] = float(inference.place(run, embed(dataset)).is_novel.mean())
    return fractions


def measure(files: list[str]) -> dict[str, Any]:
    """Results for every file and split."""
    digits = load_digits().target
    runs = {}
    for file in files:
        x = arrays.normalize_rows(io.read_arrays(file)["projection"])
        if len(x) != len(digits):
            raise InputError(f"{file} must have the {len(digits)} rows of the digits; got {len(x)}")
        together = GridShift().fit_predict(umap().fit_transform(x))
        runs[file.split("/")[-2]] = {
            "splits": [compare(x, digits, together, split) for split in SPLITS],
            "unlike anything seen, a digit left out": unseen_digits(x, digits),
        }
    return runs


def texts(runs: Mapping[str, Any]) -> list[str]:
    """Table of medians (smallest to largest) over runs and splits, by rule; other figures."""
    splits = [s for run in runs.values() for s in run["splits"]]
    titles = ("digit", "together", "own", "like 1-NN", "ms a row")
    rows = [
        [rule, *(_cell([s["rules"][rule][t] for s in splits if t in s["rules"][rule]])
                 for t in titles)]
        for rule in splits[0]["rules"]
    ]  # fmt: skip
    lines = [f"- {t}: {_cell([s[t] for s in splits])}" for t in splits[0] if t != "rules"]
    for name, run in runs.items():
        fractions = ", ".join(f"{s:.2f}" for s in run["unlike anything seen, a digit left out"])
        lines.append(f"- unlike anything seen, digit 0, 1, ... 9 left out, {name}: {fractions}")
    return [tables.markdown(["rule", *titles], rows), "\n".join(lines)]


def _split(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.random.default_rng(seed).permutation(count)
    n_test = int(HELD_OUT * count)
    return np.sort(order[:n_test]), np.sort(order[n_test:])


def _most_common(labels: np.ndarray, digits: np.ndarray) -> np.ndarray:
    """The most common digit of each cluster; -1 for a cluster without rows."""
    counts = np.zeros((labels.max() + 1, 10), int)
    np.add.at(counts, (labels, digits), 1)
    return np.where(counts.any(axis=1), counts.argmax(axis=1), -1)


def _cell(values: list[float]) -> str:
    if not values:
        return ""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.3g} ({low:.3g} to {high:.3g})"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m experiments.placement")
    parser.add_argument("--embeddings", nargs="+", required=True)
    parser.add_argument("--workdir", help="a finished run of nrcc_digits")
    parser.add_argument("--out", default="experiments/placement")
    arguments = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # UMAP: no TensorFlow, a single thread because of the seed
        runs = measure(arguments.embeddings)
    foreign = other_images(arguments.workdir) if arguments.workdir else {}
    about = tables.origin(
        "python -m experiments.placement --embeddings FILE... --workdir=DIR",
        runs=list(runs),
        splits=SPLITS,
        held_out=HELD_OUT,
        note=NOTE,
    )
    text = tables.write(
        arguments.out,
        {"runs": runs, "foreign": foreign},
        about,
        *texts(runs),
        "\n".join(f"- unlike anything seen, {name}: {s:.3f}" for name, s in foreign.items()),
        f"Median (smallest to largest) over {len(runs)} runs ({', '.join(runs)}) and "
        f"{len(SPLITS)} splits, on one core beside other processes. {NOTE}",
    )
    print(text)


if __name__ == "__main__":
    main()
