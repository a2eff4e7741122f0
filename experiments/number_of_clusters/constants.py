"""What changes when a constant of `SmoothTree` is halved or doubled.

    python -m experiments.number_of_clusters.constants --data=DIR

Writes `constants.md` and `constants.json`: differences of the mean ARI on photos, generated and
low-dimensional sets (a part of the choosing draws), and of the share of single classes of photos
that are kept whole.
"""

import argparse
import pathlib
import warnings
from collections.abc import Callable

import numpy as np
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

from cluster_jax.clustering import smooth, smooth_tree
from experiments import tables
from experiments.number_of_clusters import __main__ as experiment
from experiments.number_of_clusters import real

# Constant: halved, doubled; shares and ratios go half of the way to 0 and to 1.
CONSTANTS: dict[str, tuple[float, float]] = {
    "MAX_AXES": (32, 128),
    "AXES_PER_SIGNAL": (1, 4),
    "FEW_AXES": (1, 6),
    "N_NEIGHBORS": (5, 20),
    "N_ROUNDS": (1, 4),
    "SHRINKAGE": (0.05, 0.2),
    "ROWS_PER_VALUE": (10, 40),
    "MAX_ROWS": (5_000, 20_000),
    "K_RATIO": (1.06, 1.24),
    "MAX_K": (150, 600),
    "MIN_GAP": (0.05, 0.2),
    "CLEAR_GAP": (0.15, 0.6),
    "NEARLY_ALL": (0.8, 0.95),
    "MIN_CLUSTER_SIZE": (12, 50),
    "DENSE_SHARE": (0.5, 0.875),
}


def lists(data: pathlib.Path) -> dict[str, list[real.Case]]:
    """Title of each list and its cases, small enough to run them many times."""
    every = experiment.lists(data, [], choose=True)

    def small(title: str, rows: int) -> list[real.Case]:
        return [case for case in every[title]() if len(case.rows) <= rows]

    return {
        "photos": small("photos", 10_000)[:20],
        "generated": small("generated", 2_000),
        "low-dimensional": small("low-dimensional", 1_500),
        "one class kept": small("one class of photos", 100)[::2],
    }


def score(cases: list[real.Case]) -> float:
    """Mean ARI, the best of several truths; of one class, the share kept whole."""
    values = []
    for case in cases:
        labels = smooth_tree.SmoothTree(case.metric).fit(case.rows).labels_
        inside = [(t[t >= 0], labels[t >= 0]) for t in case.truths]
        values.append(max(adjusted_rand_score(*pair) for pair in inside))
    return float(np.mean(values))


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m experiments.number_of_clusters.constants")
    parser.add_argument("--data", type=pathlib.Path, required=True)
    cases = lists(parser.parse_args().data)
    warnings.simplefilter("ignore")

    def scores() -> list[float]:
        return [score(own) for own in cases.values()]

    base = scores()
    sizes = ", ".join(f"{len(own)} {title}" for title, own in cases.items())
    rows = [["as it is", *(f"{value:.3f}" for value in base)]]
    for name, values in CONSTANTS.items():
        for value in values:
            changed = zip(_with(name, value, scores), base, strict=True)
            rows.append([f"{name} = {value:g}", *(f"{new - old:+.3f}" for new, old in changed)])
            print(*rows[-1], flush=True)
    about = tables.origin("python -m experiments.number_of_clusters.constants --data=DIR")
    about["machine"] += ", one core"
    tables.write(
        pathlib.Path(__file__).parent / "constants",
        {"rows": rows},
        about,
        "# Constants of SmoothTree, halved and doubled",
        f"Mean ARI and its changes; sets: {sizes}.",
        tables.markdown(["", *cases], rows),
    )


def _with(name: str, value: float, run: Callable[[], list[float]]) -> list[float]:
    """The result of `run` with another value of a constant, wherever it is imported."""
    homes = [module for module in (smooth, smooth_tree) if hasattr(module, name)]
    before = getattr(homes[0], name)
    for module in homes:
        setattr(module, name, value)
    try:
        return run()
    finally:
        for module in homes:
            setattr(module, name, before)


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
