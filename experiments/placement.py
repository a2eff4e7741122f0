"""How to place new rows in the clusters of others: rules compared on held-out digits.

python -m experiments.placement --embeddings FILE... [--workdir=DIR] [--out=experiments/placement]

FILE: the `embedding.npz` of runs of nrcc_digits. Of each, a fifth of the rows is held out, the rest
is clustered as the pipeline does, and each rule places the rows held out. DIR: a finished run of
nrcc_digits whose network embeds images that are no digits. Under a minute a file on one core.
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
from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.data import inference_data
from cluster_jax.evaluation import evaluate
from cluster_jax.pipeline import inference, provenance
from experiments import machine

SPLITS = (0, 1, 2)
HELD_OUT = 0.2
NEIGHBORS, DIMENSIONS, SEED = 15, 3, 0
NOTE = (
    "UMAP (15 neighbors, min_dist 0, cosine, 3-D) and GridShift with a bandwidth found, as the "
    "pipeline runs them; projections, rows of length one. 'digit': share of the held-out rows "
    "whose cluster's commonest digit (over the training rows) is theirs. 'together': ARI on the "
    "held-out rows with a clustering of all rows together. 'own': share of the training rows "
    "that the rule gives their own label. 'like 1-NN': ARI between the rules' answers. The labels "
    "score, nothing else; the networks were trained on all rows, the held-out ones too."
)


def umap() -> Any:
    """The pipeline's UMAP, as an object that can place new rows."""
    from umap import UMAP

    return UMAP(
        n_components=DIMENSIONS, n_neighbors=NEIGHBORS, min_dist=0.0, metric="cosine",
        random_state=SEED, n_jobs=1,
    )  # fmt: skip


def compare(x: np.ndarray, digits: np.ndarray, together: np.ndarray, split: int) -> dict:
    """All rules on one split: rule -> figures."""
    held, kept = _split(len(x), split)
    start = time.perf_counter()
    mapper = umap()
    points = mapper.fit_transform(x[kept])
    rebuild = time.perf_counter() - start
    grid = GridShift().fit(points)
    labels = grid.labels_
    commonest = _commonest(labels, digits[kept])
    apart: dict[str, np.ndarray] = {}

    def alone(rows: np.ndarray) -> np.ndarray:
        apart["alone"] = np.concatenate([mapper.transform(row[None, :]) for row in rows])
        return grid.predict(apart["alone"])

    def batch(rows: np.ndarray) -> np.ndarray:
        apart["batch"] = mapper.transform(rows)
        return grid.predict(apart["batch"])

    def nearest(k: int) -> Callable[[np.ndarray], np.ndarray]:
        return lambda rows: out_of_sample.vote(out_of_sample.neighbors(rows, x[kept], k), labels)

    rules = {
        "UMAP rebuilt, row by row": alone,
        "UMAP rebuilt, one batch": batch,
        "nearest row": nearest(1),
        "5 nearest rows vote": nearest(5),
        "15 nearest rows vote": nearest(15),
    }
    mapper.transform(x[held][:1])  # compiles
    found = {}
    answers = {}
    for name, rule in rules.items():
        start = time.perf_counter()
        answers[name] = rule(x[held])
        found[name] = {
            "digit": float((commonest[answers[name]] == digits[held]).mean()),
            "together": adjusted_rand_score(together[held], answers[name]),
            "ms a row": (time.perf_counter() - start) / len(held) * 1e3,
        }
    moved = np.linalg.norm(apart["alone"] - apart["batch"], axis=1).max() / grid.bandwidth_
    for name, rule in rules.items():
        found[name]["own"] = float((rule(x[kept][:300]) == labels[:300]).mean())
        found[name]["like 1-NN"] = adjusted_rand_score(answers["nearest row"], answers[name])
    whole = _commonest(together[kept], digits[kept])
    found["all rows clustered together"] = {
        "digit": float((whole[together[held]] == digits[held]).mean()), "together": 1.0,
    }  # fmt: skip
    groups = KMeans(10, n_init=10, random_state=SEED).fit(x[kept])
    near = out_of_sample.neighbors(x[held], x[kept], NEIGHBORS)
    novelty_threshold = out_of_sample.novelty_threshold(x[kept])
    return {
        "rules": found,
        "rebuild, seconds": rebuild,
        "row by row and batch apart, bandwidths": float(moved),
        "k-means: votes agree with the nearest center": float(
            (out_of_sample.vote(near, groups.labels_) == groups.predict(x[held])).mean()
        ),
        "unlike anything seen, held-out rows": float(
            (near.distance[:, 0] > novelty_threshold).mean()
        ),
        "clusters": len(grid.cluster_centers_),
    }


def left_out(x: np.ndarray, digits: np.ndarray) -> list[float]:
    """For each digit, kept from the training rows: the share of its rows found unlike them."""
    found = []
    for digit in range(10):
        others = x[digits != digit]
        novelty_threshold = out_of_sample.novelty_threshold(others)
        near = out_of_sample.neighbors(x[digits == digit], others, 1)
        found.append(float((near.distance[:, 0] > novelty_threshold).mean()))
    return found


def foreign(workdir: str) -> dict[str, float]:
    """Share of images that are no digits found unlike the digits, by the network of a run."""
    run = inference.read(workdir)
    net = inference.restore(run)
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
    shape = tuple(run.images["shape"])
    found = {}
    for name, pixels in images.items():
        dataset = inference_data.load(pixels, shape=shape, cache_mb=100.0)
        found[name] = float(
            inference.place(run, inference.embed(run, net, dataset)).is_novel.mean()
        )
    return found


def measure(files: list[str]) -> dict[str, Any]:
    """Figures of every file and split."""
    digits = load_digits().target
    runs = {}
    for file in files:
        x = evaluate.unit(io.read_arrays(file)["projection"])
        if len(x) != len(digits):
            raise InputError(f"{file} has {len(x)} rows, not the 1797 of the digits")
        together = GridShift().fit_predict(umap().fit_transform(x))
        runs[file.split("/")[-2]] = {
            "splits": [compare(x, digits, together, split) for split in SPLITS],
            "unlike anything seen, a digit left out": left_out(x, digits),
        }
    return runs


def table(runs: Mapping[str, Any]) -> str:
    """Medians (smallest to largest) over runs and splits, by rule."""
    splits = [s for run in runs.values() for s in run["splits"]]
    titles = ("digit", "together", "own", "like 1-NN", "ms a row")
    lines = ["| rule | " + " | ".join(titles) + " |", "|---|" + "---:|" * len(titles)]
    for rule in splits[0]["rules"]:
        cells = [_cell([s["rules"][rule][t] for s in splits if t in s["rules"][rule]])
                 for t in titles]  # fmt: skip
        lines.append(f"| {rule} | " + " | ".join(cells) + " |")
    lines.append("")
    for title in splits[0]:
        if title != "rules":
            lines.append(f"- {title}: {_cell([s[title] for s in splits])}")
    for name, run in runs.items():
        shares = run["unlike anything seen, a digit left out"]
        text = ", ".join(f"{s:.2f}" for s in shares)
        lines.append(f"- unlike anything seen, digit 0, 1, ... 9 left out, {name}: {text}")
    return "\n".join(lines)


def _split(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.random.default_rng(seed).permutation(count)
    held = int(HELD_OUT * count)
    return np.sort(order[:held]), np.sort(order[held:])


def _commonest(labels: np.ndarray, digits: np.ndarray) -> np.ndarray:
    """The commonest digit of each cluster; -1 for a cluster without rows."""
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
        warnings.simplefilter("ignore")  # UMAP's: no TensorFlow, one thread for the seed
        runs = measure(arguments.embeddings)
    strange = foreign(arguments.workdir) if arguments.workdir else {}
    about = {
        "command": "python -m experiments.placement --embeddings FILE... --workdir=DIR",
        "runs": list(runs),
        "splits": SPLITS,
        "held_out": HELD_OUT,
        "machine": machine.describe(),
        "versions": provenance.versions(),
        "commit": provenance.commit(),
        "note": NOTE,
    }
    result = {"runs": runs, "foreign": strange, "provenance": about}
    io.write_json(f"{arguments.out}.json", result)
    versions = ", ".join(f"{k} {v}" for k, v in about["versions"].items())
    lines = [
        table(runs),
        *(f"- unlike anything seen, {name}: {share:.3f}" for name, share in strange.items()),
        "",
        f"Median (smallest to largest) over {len(runs)} runs ({', '.join(runs)}) and "
        f"{len(SPLITS)} splits. {NOTE}",
        "",
        f"Command: `{about['command']}`. Hardware: {about['machine']}, one core, other work beside "
        f"it. Versions: {versions}. Commit: {about['commit']}.",
    ]
    text = "\n".join(lines) + "\n"
    io.write(f"{arguments.out}.md", text)
    print(text)


if __name__ == "__main__":
    main()
