"""Finds clusters without their number on generated and real sets, by ours and by what people use.

    python -m experiments.number_of_clusters --half=choose --cache=DIR --out=choose.jsonl
    python -m experiments.number_of_clusters --half=report --cache=DIR --out=report.jsonl
    python -m experiments.number_of_clusters --real NAME=FILE.npz ... --cache=DIR --out=real.jsonl
    python -m experiments.number_of_clusters.tables report.jsonl real.jsonl --out=PATH

About 12 CPU minutes for each half. One line is written for each set and method, and those that a
file has are not computed again; maps are kept in `--cache`. Leiden is left out unless `igraph` and
`leidenalg` are installed. Labels are used to score only.
"""

import argparse
import importlib.util
import json
import pathlib
import time
import warnings
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from threadpoolctl import threadpool_limits

from cluster_jax.clustering.gridshift import GridShift
from cluster_jax.clustering.modes import ModeTree
from cluster_jax.clustering.reduce import reduce
from cluster_jax.core.arrays import normalize_rows
from experiments.number_of_clusters import generate, real
from experiments.number_of_clusters.peers import PEERS, Case
from experiments.number_of_clusters.sets import HALVES, SETS

OURS = "ModeTree"
_MAP_COLUMNS = 3


def sets(half: str | None, files: list[str]) -> Iterator[tuple[str, int, Callable]]:
    """Name, true number of clusters, and a function that loads rows, truth and metric."""
    if half is not None:
        for spec in SETS:
            if spec.half == half:
                yield spec.name, spec.k, lambda spec=spec: (*generate.make(spec), spec.metric)
        return
    for name, path in [(name, None) for name in real.BUNDLED] + [f.split("=", 1) for f in files]:
        n_classes = len(np.unique(real.load(name, path)[1]))
        yield name, n_classes, lambda name=name, path=path: real.load(name, path)


def run_ours(x: NDArray, metric: str) -> tuple[NDArray, dict]:
    """ModeTree, and whether halves of the rows agree with it."""
    model = ModeTree(metric=metric).fit(x)
    started = time.process_time()
    stability = model.stability(x)
    stable = model.labels_ if stability.stable_k is None else model.cut(k=stability.stable_k)
    return model.labels_, {
        "agreement": stability.agreement,
        "stable_k": stability.stable_k,
        "stable": stable,
        "agreement_cpu": time.process_time() - started,
        "probabilities": model.probabilities_,
        "certainties": [c for c in model.tree_.certainties.tolist() if c > 0.01][:50],
    }


def run_gridshift(case: Case) -> tuple[NDArray, dict]:
    """GridShift "auto", rows of small clusters as noise, as `n_large` counts."""
    grid = GridShift().fit(case.points)
    curve = grid.bandwidth_curve_
    assert curve is not None  # With "auto".
    return np.where(grid.outliers_, -1, grid.labels_), {"verdict": curve.verdict}


def scores(truth: NDArray, labels: NDArray, points: NDArray) -> dict:
    """Scores on the rows that are in a cluster; noise goes to the nearest cluster in the map."""
    found = labels >= 0
    inside = truth >= 0
    full = labels
    if found.any() and not found.all():
        from scipy.spatial import cKDTree

        nearest = cKDTree(points[found]).query(points[~found])[1]
        full = labels.copy()
        full[~found] = labels[found][nearest]
    return {
        "k": len(np.unique(labels[found])),
        "ari": adjusted_rand_score(truth[inside], full[inside]),
        "ari_noise": adjusted_rand_score(truth[inside], labels[inside]),
        "nmi": normalized_mutual_info_score(truth[inside], full[inside]),
    }


def calibration(truth: NDArray, labels: NDArray, probabilities: NDArray) -> list[list[float]]:
    """Rows, mean probability, and share right in each tenth of probability; by cluster majority."""
    inside = truth >= 0
    truth, labels, p = truth[inside], labels[inside], probabilities[inside]
    right = np.zeros(len(truth), bool)
    for c in np.unique(labels):
        rows = labels == c
        right[rows] = truth[rows] == np.bincount(truth[rows]).argmax()
    bins = np.minimum((p * 10).astype(int), 9)
    return [
        [int((bins == b).sum()), float(p[bins == b].mean()), float(right[bins == b].mean())]
        for b in np.unique(bins)
    ]


def plain_map(name: str, x: NDArray, metric: str, cache: pathlib.Path) -> NDArray:
    """UMAP of the rows as people use it; up to three columns are their own map."""
    if x.shape[1] <= _MAP_COLUMNS:
        return x.astype(np.float64)
    file = cache / f"{name}-s0.npy"
    if not file.exists():
        np.save(file, reduce(x, metric=metric, seed=0))
    return np.load(file).astype(np.float64)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m experiments.number_of_clusters")
    parser.add_argument("--half", choices=HALVES)
    parser.add_argument("--real", nargs="*", default=[], metavar="NAME=FILE")
    parser.add_argument("--cache", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--methods", nargs="*")
    flags = parser.parse_args()
    flags.cache.mkdir(parents=True, exist_ok=True)
    lines = flags.out.read_text().splitlines() if flags.out.exists() else []
    done = {(line["set"], line["method"]) for line in map(json.loads, lines)}
    warnings.simplefilter("ignore")
    methods = [OURS, "GridShift auto", *PEERS]
    if importlib.util.find_spec("leidenalg") is None:
        methods.remove("Leiden")
    methods = [m for m in methods if flags.methods is None or m in flags.methods]
    for name, k, load in sets(flags.half, flags.real):
        todo = [m for m in methods if (name, m) not in done]
        if not todo:
            continue
        x, truth, metric = load()
        rows = normalize_rows(x) if metric == "cosine" else x
        case = Case(rows, plain_map(name, rows, metric, flags.cache))
        for method in todo:
            started = time.process_time()
            extra: dict = {}
            if method == OURS:
                labels, extra = run_ours(x, metric)
            elif method == "GridShift auto":
                labels, extra = run_gridshift(case)
            else:
                labels = PEERS[method](case)
            cpu = time.process_time() - started - extra.pop("agreement_cpu", 0)
            if "probabilities" in extra:
                extra["stable_scores"] = scores(truth, extra.pop("stable"), case.points)
                extra["calibration"] = calibration(truth, labels, extra.pop("probabilities"))
            line = {"set": name, "method": method, "true": k, "cpu": round(cpu, 2)}
            line |= scores(truth, labels, case.points) | extra
            with flags.out.open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
