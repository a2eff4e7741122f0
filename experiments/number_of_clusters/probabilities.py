"""Measures how often new photos belong to their cluster, beside the probability that they do.

    python -m experiments.number_of_clusters.probabilities tiny95_lite2.npz

The file has features of the default encoder and labels, as `cluster-jax embed` writes them. Each of
twelve draws takes 4 to 40 classes, fits SmoothTree to one half of their rows and places the other
half. A new row belongs to its cluster if most fitted rows of the cluster are of its class. Labels
only score.
"""

import functools
import pathlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from cluster_jax.clustering.smooth_tree import SmoothTree
from experiments import tables

OUT = pathlib.Path(__file__).with_suffix("")
DRAWS, MIN_CLASSES, MAX_CLASSES = 12, 4, 40
EDGES = np.array([0.0, 0.3, 0.5, 0.7, 0.9, 1.0])


def placed(x: NDArray, y: NDArray, seed: int) -> dict[str, Any]:
    """Returns counts of new rows, sums of their probabilities, and counts of those that belong.

    Args:
        x: features `[n, d]`.
        y: classes int `[n]`.
        seed: of the draw.
    """
    rng = np.random.default_rng(seed)
    count = int(rng.integers(MIN_CLASSES, MAX_CLASSES + 1))
    classes = rng.choice(np.unique(y), count, replace=False)
    rows = rng.permutation(np.flatnonzero(np.isin(y, classes)))
    fitted, new = np.array_split(rows, 2)
    model = SmoothTree(metric="cosine", random_state=0).fit(x[fitted])
    found = model.locate(x[new])
    counts = np.zeros((model.n_clusters_, y.max() + 1))
    np.add.at(counts, (model.labels_, y[fitted]), 1)
    belongs = counts.argmax(axis=1)[found.labels] == y[new]
    at = np.clip(np.digitize(found.probabilities, EDGES) - 1, 0, len(EDGES) - 2)
    each = (None, found.probabilities, belongs)
    by_bin = [np.bincount(at, weights, len(EDGES) - 1) for weights in each]
    names = ("rows", "probability", "belongs")
    sums = {name: values.tolist() for name, values in zip(names, by_bin, strict=True)}
    return {"classes": count, "clusters": model.n_clusters_, **sums}


def main() -> None:
    """Runs the draws that are not in the file yet, and writes the page."""
    parser = tables.parser("number_of_clusters.probabilities", __doc__)
    parser.add_argument("file", type=pathlib.Path)
    file = parser.parse_args().file
    with np.load(file) as data:
        x, y = data["features"], data["labels"]
    found = tables.Lines(OUT, "seed")
    with threadpool_limits(1):
        for seed in range(DRAWS):
            found.add({"seed": seed}, functools.partial(placed, x, y, seed))
    names = ("rows", "probability", "belongs")
    rows, probability, belongs = (np.sum([line[n] for line in found.lines], axis=0) for n in names)
    shown = [
        (f"{low:.1f} to {high:.1f}", f"{n:,.0f}", f"{claimed / n:.2f}", f"{true / n:.2f}")
        for low, high, n, claimed, true in zip(
            EDGES[:-1], EDGES[1:], rows, probability, belongs, strict=True
        )
    ]
    columns = ["probability", "new photos", "its mean", "share that belongs"]
    about = (__doc__ or "").split("\n\n")[2]
    table = tables.markdown(columns, shown)
    found.write(f"{parser.prog} {file.name}", "# Probabilities of new photos", about, table)


if __name__ == "__main__":
    main()
