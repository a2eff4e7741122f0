"""What changes when a constant of `SmoothTree` is halved or doubled.

    python -m experiments.number_of_clusters.constants --data=DIR

Writes `constants.md` and `constants.json`: differences of the mean ARI on parts of the choosing
draws, of the share of single classes of photos that are kept whole, and of rare kinds that are
found.
"""

import pathlib
import warnings

import numpy as np
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

from cluster_jax.clustering import copies, number, smooth, smooth_tree
from experiments import tables
from experiments.number_of_clusters import __main__ as experiment
from experiments.number_of_clusters import real

# Constant: halved, doubled; shares go half of the way to 0 and to 1.
CONSTANTS: dict[str, tuple[float, float]] = {
    "MAX_AXES": (32, 128),
    "FEW_AXES": (1, 6),
    "PER_ROOT": (0.3, 1.2),
    "MAX_NEIGHBORS": (5, 20),
    "N_ROUNDS": (1, 4),
    "SHRINKAGE": (0.05, 0.2),
    "DENSE_SIZE": (12, 50),
    "NEARNESS": (0.15, 0.6),
    "MIN_ROWS": (3, 12),
    "MIN_GAP": (0.05, 0.2),
    "CLEAR_DEVIATIONS": (2, 8),
    "CLEAR_GAP": (0.15, 0.6),
    "NEARLY_ALL": (0.9, 0.975),
    "MOST_LINKS": (0.8, 0.95),
    "DENSE_SHARE": (0.375, 0.875),
}


def cases(data: pathlib.Path) -> dict[str, list[real.Case]]:
    """Title of each list and some of its cases, small enough to run them many times."""
    every = experiment.lists(data, [], seed=100)

    def some(title: str, most: int, count: int, step: int = 1) -> list[real.Case]:
        return [case for case in every[title]() if len(case.rows) <= most][::step][:count]

    return {
        "photos": some("photos", 600, 10),
        "few photos": some("few photos", 100, 18, 2),
        "copies": some("copies of photos", 400, 8),
        "rare kinds": some("rare kinds", 200, 12),
        "generated": some("generated", 1_400, 8),
        "low-dimensional": some("low-dimensional", 800, 10),
        "one class kept": some("one class of photos", 100, 24, 6),
    }


def score(own: list[real.Case], title: str) -> float:
    """Mean ARI, the best of several truths; the share kept whole, or of rare kinds found."""
    values = []
    for case in own:
        labels = smooth_tree.SmoothTree(case.metric).fit(case.rows).labels_
        truths = [(t[t >= 0], labels[t >= 0]) for t in case.truths]
        values.append(max(adjusted_rand_score(*pair) for pair in truths))
        if title == "rare kinds":
            rare = case.truths[0] == case.truths[0][-1]
            found = labels == np.bincount(labels[rare]).argmax()
            values[-1] = float((rare & found).sum() >= 0.5 * (rare | found).sum())
    return float(np.mean(values))


def main() -> None:
    """Entry point."""
    parser = tables.parser("number_of_clusters.constants", __doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    lists = cases(parser.parse_args().data)
    warnings.simplefilter("ignore")

    def scores() -> list[float]:
        return [score(own, title) for title, own in lists.items()]

    base = scores()
    rows = [["as it is", *(f"{value:.3f}" for value in base)]]
    for name, values in CONSTANTS.items():
        homes = [each for each in (smooth, number, smooth_tree, copies) if hasattr(each, name)]
        before = getattr(homes[0], name)
        for value in values:
            for home in homes:
                setattr(home, name, value)
            changed = zip(scores(), base, strict=True)
            rows.append([f"{name} = {value:g}", *(f"{new - old:+.3f}" for new, old in changed)])
            print(*rows[-1], flush=True)
        for home in homes:
            setattr(home, name, before)
    about = tables.origin(parser.prog + " --data=DIR")
    about["machine"] += ", one core"
    sizes = ", ".join(f"{len(own)} {title}" for title, own in lists.items())
    tables.write(
        pathlib.Path(__file__).parent / "constants",
        {"rows": rows},
        about,
        "# Constants of SmoothTree, halved and doubled",
        f"Mean ARI (of single classes the share kept whole, of rare kinds the share found) and its "
        f"changes on some of the choosing draws; sets: {sizes}.",
        tables.markdown(["", *lists], rows),
    )


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
