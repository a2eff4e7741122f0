"""Whether rows are in the right cluster as often as their probabilities say.

    python -m experiments.number_of_clusters.probabilities FILE.npz ...

A file has `features` `[n, d]` and `labels`. Each of twelve draws takes 4 to 40 of its classes, fits
`SmoothTree` to one half of their rows, and places the other half, the new rows. A row is in the
right cluster if most fitted rows of that cluster are of its class. Labels only score.
`probabilities.jsonl` has a line for each draw, and `probabilities.md` the sums.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from cluster_jax.cli import exit_codes
from cluster_jax.clustering.smooth_tree import SmoothTree
from experiments import tables
from experiments.number_of_clusters import real

FILE = Path(__file__).with_suffix(".jsonl")
DRAWS, FEWEST, MOST = 12, 4, 40
EDGES = np.array([0.0, 0.3, 0.5, 0.7, 0.9, 1.0])
KINDS = ("new", "fitted")
ABOUT = """# Probabilities of rows

How often a row is in the right cluster, beside the probability of its cluster: new rows, which were
placed, and the rows of the fit. Twelve draws of 4 to 40 classes of each file, of which one half is
fitted. A cluster's right class is that of most of its fitted rows."""


def measure(x: NDArray, y: NDArray, seed: int) -> dict[str, list[list[float]]]:
    """Returns the number of rows, the sum of their probabilities, and how many are right.

    Args:
        x: features `[n, d]`.
        y: classes int `[n]`.
        seed: of the draw.

    Returns:
        For new and fitted rows three lists with an entry for each interval of `EDGES`.
    """
    rng = np.random.default_rng(seed)
    count = int(rng.integers(FEWEST, MOST + 1))
    classes = rng.choice(np.unique(y), min(count, len(np.unique(y))), replace=False)
    fitted, new = np.array_split(rng.permutation(np.flatnonzero(np.isin(y, classes))), 2)
    model = SmoothTree("cosine", random_state=0).fit(x[fitted])
    counts = np.zeros((model.n_clusters_, y.max() + 1))
    np.add.at(counts, (model.labels_, y[fitted]), 1)
    located = model.assign(x[new])
    assert located.probabilities is not None
    rows = {
        "new": (located.labels, located.probabilities, y[new]),
        "fitted": (model.labels_, model.probabilities_, y[fitted]),
    }
    return {name: _sums(counts.argmax(axis=1), *rows[name]) for name in KINDS}


def _sums(classes: NDArray, labels: NDArray, told: NDArray, y: NDArray) -> list[list[float]]:
    """Returns the sums of `measure` of some rows."""
    is_right = classes[labels] == y
    at = np.clip(np.digitize(told, EDGES) - 1, 0, len(EDGES) - 2)
    weights = (np.ones(len(told)), told, is_right)
    return [np.bincount(at, each, len(EDGES) - 1).tolist() for each in weights]


def page(lines: list[dict]) -> str:
    """Returns the table: an interval of probabilities, their mean, and the share that is right."""
    rows = []
    for name in dict.fromkeys(line["set"] for line in lines):
        for kind in KINDS:
            own = [line[kind] for line in lines if line["set"] == name]
            for i, (number, told, right) in enumerate(np.sum(own, axis=0).T):
                interval = f"{EDGES[i]:.1f} to {EDGES[i + 1]:.1f}"
                share = (f"{told / number:.2f}", f"{right / number:.2f}") if number else ("", "")
                rows.append([f"{name}, {kind} rows", interval, f"{number:,.0f}", *share])
    return tables.markdown(["set", "probability", "rows", "mean", "right"], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = tables.parser("number_of_clusters.probabilities", __doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=FILE)
    flags = parser.parse_args(arguments)
    with exit_codes.handle_errors():
        found = tables.Lines(flags.out, "set", "seed")
        for case in list(map(real.read, flags.files)):
            for seed in range(DRAWS):
                run = partial(measure, case.rows, case.truths[0], seed)
                found.add({"set": case.name, "seed": seed}, run)
        found.write(f"{parser.prog} FILES", ABOUT, page(found.lines))


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
