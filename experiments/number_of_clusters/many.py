"""Finds many separate clusters in many rows: time and memory, ours beside peers.

    python -m experiments.number_of_clusters.many [--only METHOD ...] [--sets NAME ...]

Clusters are Gaussians of deviation 1 around centers of deviation 2 in each column, which overlap in
none of them. Every method runs in a process of its own, on all cores. EVoC is run if it is
installed. A memory map is read by the process, so that its rows count as memory only while they are
used.
"""

import concurrent.futures
import multiprocessing
import resource
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from cluster_jax.cli import exit_codes
from experiments import tables
from experiments.number_of_clusters import peers

FOLDER = Path(__file__).parent
# Name of a set: rows, columns, clusters.
SETS = {
    "60,000 rows": (60_000, 128, 800),
    "100,000 rows": (100_000, 128, 2_000),
    "200,000 rows": (200_000, 128, 10_000),
    "1,000,000 rows": (1_000_000, 256, 5_000),
}


def smooth_tree(file: str) -> NDArray:
    """`SmoothTree`, which reads the file a part at a time."""
    from cluster_jax import SmoothTree
    from cluster_jax.data.arrays import Shards

    return SmoothTree("euclidean").fit(Shards(file)).labels_


def evoc(file: str) -> NDArray:
    """EVoC with its defaults; rows without a cluster are one."""
    from evoc import EVoC

    return EVoC(random_state=0).fit_predict(np.load(file))


METHODS: dict[str, Callable[[str], NDArray]] = {
    "SmoothTree": smooth_tree,
    "UMAP + HDBSCAN 15": lambda file: peers.hdbscan(peers.umap(np.load(file)), 15),
    "EVoC": evoc,
}


def write(file: Path, n: int, d: int, k: int) -> NDArray:
    """Writes a set as `.npy` and returns the cluster of each row."""
    rng = np.random.default_rng(n)
    centers = 2 * rng.standard_normal((k, d), np.float32)
    truth = rng.permutation(np.arange(n) % k)
    rows = np.lib.format.open_memmap(file, "w+", np.float32, (n, d))
    for start in range(0, n, 2**16):
        own = truth[start : start + 2**16]
        rows[start : start + 2**16] = centers[own] + rng.standard_normal((len(own), d), np.float32)
    rows.flush()
    return truth


def run(method: str, file: str) -> tuple[NDArray, float, float]:
    """Labels of a method, its seconds, and the most memory of this process in GB."""
    warnings.simplefilter("ignore")
    started = time.perf_counter()
    labels = METHODS[method](file)
    seconds = time.perf_counter() - started
    return labels, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(method: str, file: str, truth: NDArray) -> dict:
    """The figures of a method in a process of its own."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
        labels, seconds, gigabytes = pool.submit(run, method, file).result()
    found = {"seconds": seconds, "gigabytes": gigabytes, "k": len(np.unique(labels))}
    return {**found, "ari": adjusted_rand_score(truth, labels)}


def table(lines: list[dict]) -> str:
    """A row for each set and method."""
    columns = ["rows", "columns", "clusters", "method", "found", "ARI", "s", "GB"]
    rows = [
        [*(f"{number:,}" for number in SETS[line["set"]]), line["method"], f"{line['k']:,}",
         f"{line['ari']:.3f}", f"{line['seconds']:.0f}", f"{line['gigabytes']:.2f}"]
        for line in lines
    ]  # fmt: skip
    return tables.markdown(columns, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = tables.parser("number_of_clusters.many", __doc__)
    parser.add_argument("--only", nargs="*", choices=METHODS)
    parser.add_argument("--sets", nargs="*", choices=SETS)
    parser.add_argument("--out", type=Path, default=FOLDER / "many.jsonl")
    flags = parser.parse_args(arguments)
    with exit_codes.handle_errors():
        found = tables.Lines(flags.out, "set", "method")
        chosen = peers.installed(METHODS, flags.only)
        for name in flags.sets or SETS:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "rows.npy"
                truth = write(file, *SETS[name])
                for method in chosen:
                    how = partial(measure, method, str(file), truth)
                    found.add({"set": name, "method": method}, how)
        about = "# Many clusters\n\n" + (__doc__ or "").split("\n\n")[2]
        found.write(parser.prog, about, table(found.lines), cores="all cores")


if __name__ == "__main__":
    main()
