"""Peers on the same rows, with the number of clusters given and not.

    python -m experiments.peers FILE.npz ... [--seeds=3] [--only "SmoothTree" ...]

A file holds `features` `[n, d]`, compared by cosine, or `images`, by Euclidean distance of their
pixels, and `labels`, which score and, in the rows of "k given", say how many clusters there are.
Lines that `peers.jsonl` has are not computed again; `peers.md` is written at the end. A peer whose
package is not installed is left out. CPU seconds leave out what numba compiles once.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs
from threadpoolctl import threadpool_limits

from cluster_jax import metrics
from cluster_jax.cli import exit_codes
from cluster_jax.clustering import reduce, representation
from cluster_jax.clustering.smooth_tree import SmoothTree
from cluster_jax.core import checks, knn
from experiments import tables
from experiments.number_of_clusters import peers, real

FOLDER = Path(__file__).parent
ABOUT = """# Peers on the same features

Pixels of the digits, by the Euclidean distance; else photos of ImageNet's classes, by the cosine of
features by EfficientNet-Lite2, which was trained on the labels of ImageNet. ACC, and after the
semicolon the number of clusters where it is found. Labels score, and give k in the rows that say
so."""


def _kmeans(x: NDArray, k: int, seed: int) -> NDArray:
    return KMeans(k, n_init=10, random_state=seed).fit_predict(x)


def _drowcula(x: NDArray, k: int, seed: int) -> NDArray:
    """k-means on the map that DROWCULA takes: UMAP of 10 neighbors in three dimensions."""
    from umap import UMAP

    points = UMAP(10, 3, metric="euclidean", random_state=seed).fit_transform(x)
    return KMeans(k, n_init=200, max_iter=10_000, random_state=seed).fit_predict(points)


def _leiden(x: NDArray, seed: int) -> NDArray:
    """Leiden's modularity on the graph of 15 nearest neighbors."""
    import igraph
    import leidenalg

    near = knn.nearest(x, x, 15, exclude_self=True).indices
    pairs = np.stack([np.repeat(np.arange(len(x)), near.shape[1]), near.ravel()], axis=1)
    graph = igraph.Graph(len(x), np.unique(np.sort(pairs, axis=1), axis=0).tolist())
    kind = leidenalg.ModularityVertexPartition
    return np.array(leidenalg.find_partition(graph, kind, seed=seed).membership)


def _evoc(x: NDArray, seed: int) -> NDArray:
    import evoc

    return peers.without_noise(x, np.asarray(evoc.EVoC(random_state=seed).fit_predict(x)))


# Rows, number of classes (for rows of "k given"), seed, metric -> labels.
METHODS: dict[str, Callable[[NDArray, int, int, str], NDArray]] = {
    "SmoothTree, k given": lambda x, k, seed, metric: (
        SmoothTree(metric, n_clusters=k, random_state=seed).fit(x).labels_
    ),
    "k-means on smooth rows, k given": lambda x, k, seed, metric: _kmeans(
        representation.fit(x, metric).smooth, k, seed
    ),
    "k-means, k given": lambda x, k, seed, _: _kmeans(x, k, seed),
    "DROWCULA: UMAP + k-means, k given": lambda x, k, seed, _: _drowcula(x, k, seed),
    "SmoothTree": lambda x, _, seed, metric: SmoothTree(metric, random_state=seed).fit(x).labels_,
    "k-means, silhouette": lambda x, *_: peers.kmeans_silhouette(x),
    "UMAP + HDBSCAN n/100": lambda x, _k, seed, _: peers.hdbscan(
        reduce(x, metric="euclidean", seed=seed), max(5, len(x) // 100)
    ),
    "Leiden": lambda x, _k, seed, _: _leiden(x, seed),
    "EVoC": lambda x, _k, seed, _: _evoc(x, seed),
}


def run(x: NDArray, y: NDArray, metric: str, title: str, seed: int) -> dict:
    """Scores and CPU seconds of a method."""
    started = time.process_time()
    labels = METHODS[title](x, len(np.unique(y)), seed, metric)
    seconds = round(time.process_time() - started, 2)
    found = metrics.scores(y, np.asarray(labels).astype(np.int64))
    kept = {name: found[name] for name in ("acc", "nmi", "ari")}
    return {**kept, "k": found["n_clusters"], "seconds": seconds}


def summary(lines: list[dict]) -> str:
    """ACC of every method on every whole set, with the k that was found, and all CPU seconds."""
    names = list(dict.fromkeys(line["set"] for line in lines))
    rows = []
    for title, own in _by_method(lines):
        cells, means = [], []
        for cell in ([line for line in own if line["set"] == name] for name in names):
            means += [np.mean([line["acc"] for line in cell])] if cell else []
            found = "" if title.endswith("given") else f"; {_numbers(cell)}"
            cells.append(f"{means[-1]:.3f}{found}" if cell else "")
        every = f"{np.mean(means):.3f}" if len(means) == len(names) else ""
        rows.append([title, *cells, every, _seconds(own)])
    return tables.markdown(["ACC; k found", *names, "mean", "CPU s a set"], rows)


def _by_method(lines: list[dict]) -> list[tuple[str, list[dict]]]:
    """The lines of every method that has some."""
    groups = [(title, [line for line in lines if line["method"] == title]) for title in METHODS]
    return [(title, own) for title, own in groups if own]


def _numbers(lines: list[dict]) -> str:
    return ", ".join(map(str, dict.fromkeys(line["k"] for line in lines)))


def _seconds(lines: list[dict]) -> str:
    return f"{np.mean([line['seconds'] for line in lines]):.1f}"


def page(lines: list[dict]) -> str:
    """The summary, and a table for every set."""
    parts = [summary(lines)]
    for name in dict.fromkeys(line["set"] for line in lines):
        rows = []
        for title, cell in _by_method([line for line in lines if line["set"] == name]):
            row = [title, *(tables.mean([x[m] for x in cell]) for m in ("acc", "nmi", "ari"))]
            rows.append([*row, _numbers(cell), _seconds(cell)])
        parts.append(tables.markdown([name, "ACC", "NMI", "ARI", "k", "CPU s"], rows))
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = tables.parser("peers", __doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--only", nargs="*", choices=METHODS)
    parser.add_argument("--out", type=Path, default=FOLDER / "peers.jsonl")
    flags = parser.parse_args(arguments)
    with exit_codes.handle_errors():
        checks.whole("--seeds", flags.seeds, least=1)
        found = tables.Lines(flags.out, "set", "method", "seed")
        titles = peers.installed(METHODS, flags.only)
        cases = list(map(real.read, flags.files))
        blobs, classes = make_blobs(400, 8, centers=8, random_state=0)
        # What numba compiles once counts for no set.
        for title in titles if cases else []:
            run(blobs.astype(np.float32), classes, "euclidean", title, 0)
        for case in cases:
            x, y = case.scaled(), case.truths[0]
            for seed in range(flags.seeds):
                for title in titles:
                    entries = {"set": case.name, "method": title, "seed": seed}
                    found.add(entries, partial(run, x, y, case.metric, title, seed))
        found.write(f"{parser.prog} FILES --seeds={flags.seeds}", ABOUT, page(found.lines))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        main()
