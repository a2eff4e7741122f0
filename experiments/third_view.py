"""Does NRCC's third view help, and does its gradient? Six views, tested in pairs of equal seeds.

    python -m experiments.third_view [FILE.npz] [--seeds=5]

Without a file on scikit-learn's digits, with `fashion_mnist.npz` (see `experiments.fashion`) on
10,000 of its images, with `cifar10.npz` on features of images; every training takes a third of the
steps of its config. The one score that is tested, k-means ACC, was fixed before the first run; the
view that is mostly gradient was added after three seeds of the others on features. Runs that
`third_view.jsonl` has are not repeated; `third_view.md` is written at the end.
"""

import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from cluster_jax.cli import exit_codes
from cluster_jax.core import io
from experiments import registry, results, run, table, tables
from experiments.registry import Run

FOLDER = pathlib.Path(__file__).parent
SETS: dict[str, Run] = {
    "cifar10": Run("nrcc_features"),
    "digits": Run("nrcc_digits"),
    "fashion_mnist": Run(
        "nrcc_fashion_mnist", {"data.name": "arrays", "data.split": None, "data.limit": 10_000}
    ),
}
VIEWS: dict[str, Mapping[str, Any]] = {
    "no third view": {"nrcc.weight": 0.0},
    "augmentation": {"nrcc.sampler": "augment"},
    "noise": {"nrcc.sampler": "noise"},
    "SGHMC, published constants": {},
    "SGHMC, normalized gradient": {"nrcc.sghmc.normalize_gradient": True},
    # Also larger steps and less noise.
    "SGHMC, mostly gradient": registry.variants("nrcc")["normalized"].changes,
}
# What is tested: the first against the second.
PAIRS = (
    ("SGHMC, published constants", "no third view"),
    ("SGHMC, published constants", "augmentation"),
    ("SGHMC, published constants", "noise"),
    ("SGHMC, normalized gradient", "noise"),
    ("SGHMC, mostly gradient", "noise"),
)
PATHS = {
    "k-means ACC": "kmeans.acc",
    "k-means NMI": "kmeans.nmi",
    "found clusters NMI": "gridshift.nmi tree.nmi",
    "5-NN": "knn.5",
}
POWER = 0.8


def plan(name: str, view: str) -> Run:
    """The run of a view on a set."""
    changes = {"note": name, "eval.linear_probe": None, **SETS[name].changes, **VIEWS[view]}
    return SETS[name]._replace(changes=changes, steps=1 / 3)


def metric(row: Mapping[str, Any], paths: str) -> float:
    """A metric of a run; the first of several paths that it has."""
    found = (table.entry(row["metrics"], path) for path in paths.split())
    return next(float(value) for value in found if value is not None)


def compare(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float, float]:
    """Mean and deviation of paired differences, p of their t-test, and what it would have found.

    The last is the difference that a test at 0.05 finds with a probability of 0.8, if differences
    spread as these do.

    Example:
        >>> [round(x, 3) for x in compare([3.0, 4.0, 5.0], [2.0, 2.0, 2.0])]
        [2.0, 1.0, 0.074, 3.098]
    """
    differences = np.subtract(first, second)
    n, spread = len(differences), float(differences.std(ddof=1))
    p = float(stats.ttest_1samp(differences, 0).pvalue) if spread else 1.0
    quantiles = stats.t.ppf(0.975, n - 1) + stats.t.ppf(POWER, n - 1)
    return float(differences.mean()), spread, p, float(quantiles * spread / np.sqrt(n))


def holm(values: Sequence[float]) -> list[float]:
    """The p values, corrected for their number by Holm.

    Example:
        >>> holm([0.04, 0.01])
        [0.04, 0.02]
    """
    corrected, highest = [0.0] * len(values), 0.0
    for place, i in enumerate(np.argsort(values, kind="stable")):
        highest = max(highest, min(1.0, values[i] * (len(values) - place)))
        corrected[i] = highest
    return corrected


def page(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """A table of scores and one of paired tests, for every set."""
    parts, blocks = [], []
    for name in SETS:
        cells = {view: [] for view in VIEWS}
        for view, own in cells.items():
            keys = (results.key(plan(name, view), seed) for seed in range(len(rows)))
            own += [rows[key] for key in keys if "metrics" in rows.get(key, {})]
            blocks += [row["provenance"] for row in own]
        if min(map(len, cells.values())) < 2:
            continue
        lines = [
            [view, *(tables.mean([metric(row, path) for row in own]) for path in PATHS.values())]
            for view, own in cells.items()
        ]
        parts.append(tables.markdown([name, *PATHS], lines))
        tests = []
        for pair in PAIRS:
            sides = (
                {row["seed"]: 100 * metric(row, "kmeans.acc") for row in cells[view]}
                for view in pair
            )
            first, second = sides
            seeds = sorted(first.keys() & second.keys())
            tests.append(compare([first[s] for s in seeds], [second[s] for s in seeds]))
        corrected = holm([p for _, _, p, _ in tests])
        lines = [
            [
                " against ".join(pair),
                f"{mean:+.2f} ± {spread:.2f}",
                f"{p:.3f}",
                f"{q:.3f}",
                f"{least:.2f}",
            ]
            for pair, (mean, spread, p, least), q in zip(PAIRS, tests, corrected, strict=True)
        ]
        columns = [f"{name}, k-means ACC in points", "difference", "p", "p, Holm", "found at 80 %"]
        parts.append(tables.markdown(columns, lines))
    about = {**blocks[0], "command": "python -m experiments.third_view [FILE.npz]"}
    about["commit"] = ", ".join(sorted({f"{block['commit']}" for block in blocks}))
    seconds = statistics.fmean(block["seconds"]["train_and_embed"] for block in blocks)
    note = f"A training took {seconds:.0f} s on average. {tables.sentence(about)}"
    return "\n\n".join([*parts, note]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the exit code is 1 if a run failed."""
    parser = tables.parser("third_view", __doc__)
    parser.add_argument("data", nargs="?", type=pathlib.Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--results", type=pathlib.Path, default=FOLDER / "third_view.jsonl")
    parser.add_argument("--runs", type=pathlib.Path, default=pathlib.Path("runs/experiments"))
    flags = parser.parse_args(arguments)
    name = "digits" if flags.data is None else flags.data.stem
    flags.data = flags.data and str(flags.data)
    wanted = [(plan(name, view), seed) for seed in range(flags.seeds) for view in VIEWS]
    with exit_codes.handle_errors():
        failures = run.run_all(flags, f"{parser.prog} {name}", wanted)
        rows, _ = results.read(flags.results)
        io.write(flags.results.with_suffix(".md"), page(rows))
    return exit_codes.FAILURE if failures else exit_codes.SUCCESS


if __name__ == "__main__":
    raise SystemExit(main())
