"""Finds clusters without their number on photos, generated and real sets, ours beside peers.

    python -m experiments.number_of_clusters --data=DIR [--real FILE.npz ...] [--seed=810000]

DIR holds `features/tiny95.npz` and `features/cifar100_50.npz` (frozen EfficientNet-Lite0),
`features/tiny95_lite2.npz` (Lite2) and `lowdim`, two batteries of Gagolewski's suite; for rare
kinds, if they are there, also Imagenette and ten classes of Tiny-ImageNet by `cluster-jax embed`,
`features/imagenette_lite2.npz` and `features/tiny_imagenet10_lite2.npz`. Constants were chosen with
`--seed=100`. Labels are used to score only. Lines that `results.jsonl` has are not computed again;
`results.md` is written at the end.
"""

import collections
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

from cluster_jax.cli import exit_codes
from cluster_jax.clustering import tree_fit
from cluster_jax.data.arrays import existing
from cluster_jax.metrics import partition
from experiments import tables
from experiments.number_of_clusters import generate, peers, real
from experiments.number_of_clusters.generate import Case, Set

OURS = "SmoothTree"
FOLDER = Path(__file__).parent
# Rows of a generated set, at most: peers are slow.
_MOST_ROWS = 3_000


def lists(data: Path, files: list[Path], seed: int) -> dict[str, tuple]:
    """Title of each list, and the function that yields its cases with its arguments."""
    features, other = data / "features", seed + 50_000
    curved = ("moons", "rings", "chains")
    return {
        "photos": (real.photos, features, seed, 40),
        "photos, Lite2": (real.photos, features, seed, 20, (real.LITE2,)),
        "few photos": (real.few, features, seed, 36),
        "copies of photos": (real.copied, features, seed, 24),
        "rare kinds": (real.rare, features, seed, 30, real.LARGE, 12),
        "rare kinds, Lite2": (real.rare, features, seed, 60, real.LARGE_LITE2, 30),
        "one class of photos": (real.single_classes, features),
        "generated": (made, other, 1, lambda s: s.n <= _MOST_ROWS and s.d > 3),
        "low-dimensional": (real.low_dimensional, data / "lowdim"),
        "real": (real.tables, files),
        "huge and small clusters": (generate.huge, other, 20),
        "few rows": (generate.few_rows, other, 30),
        "levels": (made, other, 2, lambda s: s.kind == "hierarchy" and s.d > 3),
        "curved": (made, other, 6, lambda s: s.kind in curved and s.d < 4),
        "random centers in few columns": (generate.random_centers, other, 16),
    }


def made(seed: int, times: int, is_wanted: Callable[[Set], bool]) -> Iterator[Case]:
    """The wanted ones of the families, so many times with other seeds."""
    for i in range(times):
        yield from map(generate.case, filter(is_wanted, generate.families(seed + 1000 * i)))


def scores(truth: NDArray, labels: NDArray) -> dict:
    """ARI, and true and found numbers of clusters, on the rows that are not noise."""
    inside = truth >= 0
    return {
        "ari": adjusted_rand_score(truth[inside], labels[inside]),
        "true": len(np.unique(truth[inside])),
        "k": len(np.unique(labels[inside])),
    }


def reliability(truth: NDArray, labels: NDArray, probabilities: NDArray) -> list[list[float]]:
    """Rows, sum of probabilities, and rows right (by cluster majority) in tenths of probability."""
    inside = truth >= 0
    truth, labels, probabilities = truth[inside], labels[inside], probabilities[inside]
    counts = partition.contingency(truth, labels)
    majority = counts.classes[counts.table.argmax(axis=0)]
    right = truth == majority[np.searchsorted(counts.clusters, labels)]
    tenth = np.minimum((probabilities * 10).astype(int), 9)
    rows = [tenth == t for t in range(10)]
    return [[int(r.sum()), float(probabilities[r].sum()), int(right[r].sum())] for r in rows]


def run(case: Case, x: NDArray, method: str, points: Callable[[], NDArray]) -> dict:
    """Scores and CPU seconds of a method on rows `x`, whose map is `points()`."""
    started = time.process_time()
    extra: dict = {}
    if method == OURS:
        found = tree_fit.fit(case.rows, case.metric, originals=case.originals)
        labels = found.labels
        extra = {"verdict": found.verdict, "gap": found.gap}
    else:
        labels = peers.PEERS[method](x, points() if "UMAP" in method else x)
    seconds = time.process_time() - started
    best, truth = max(((scores(t, labels), t) for t in case.truths), key=lambda s: s[0]["ari"])
    if case.name.startswith("rare"):
        own = truth == truth[-1]
        cluster = labels == np.bincount(labels[own]).argmax()
        extra["overlap"] = float((own & cluster).sum() / (own | cluster).sum())
    if method == OURS:
        extra["reliability"] = reliability(truth, labels, found.membership.probabilities)
    return {"seconds": round(seconds, 2), **best, **extra}


def complete(lines: list[dict]) -> list[dict]:
    """The lines of methods that have run on all sets of their list."""
    sets = collections.Counter(line["method"] for line in lines)
    return [line for line in lines if sets[line["method"]] == max(sets.values())]


def table(lines: list[dict]) -> str:
    """A row for each method: sets of several clusters, then those of one."""
    names = sorted({line["method"] for line in lines}, key=lambda m: (m != OURS, m))
    columns = ["sets", "ARI", "k exact", "abs log2(k/K)", "one cluster kept whole", "CPU s"]
    rare = ["rare kind found"] if "overlap" in lines[0] else []
    rows = []
    for name in names:
        own = [line for line in lines if line["method"] == name]
        several = [line for line in own if line["true"] > 1]
        whole = [line["k"] == 1 for line in own if line["true"] == 1]
        rows.append(
            [
                name,
                len(several),
                _mean([line["ari"] for line in several], 3),
                _mean([line["k"] == line["true"] for line in several]),
                _mean([abs(np.log2(line["k"] / line["true"])) for line in several]),
                f"{_mean(whole)} of {len(whole)}" if whole else "",
                f"{sum(line['seconds'] for line in own):,.0f}",
                *(_mean([line["overlap"] >= 0.5 for line in several]) for _ in rare),
            ]
        )
    return tables.markdown(["method", *columns, *rare], rows)


def _mean(values: list, digits: int = 2) -> str:
    return f"{np.mean(values):.{digits}f}" if values else ""


def verdicts(lines: list[dict]) -> str:
    """How often the answer is clear, and how good it is then; reliability of probabilities."""
    own = [line for line in lines if line["method"] == OURS]
    clear = [line for line in own if line["verdict"] == "clear"]
    text = f"Clear: {len(clear)} of {len(own)} sets"
    if clear:
        near = sum(line["ari"] > 0.7 for line in clear)
        exact = sum(line["k"] == line["true"] for line in clear)
        text += f", {near} of these with an ARI above 0.7, {exact} with k exact"
    text += "."
    several = [line["reliability"] for line in own if line["true"] > 1]
    if not several:
        return text
    tenths = [t for t in np.sum(several, axis=0) if t[0] >= 100]
    cells = ", ".join(f"{p / n:.2f}: {right / n:.2f}" for n, p, right in tenths)
    return f"{text} Mean probability: share of rows right, in tenths of 100 rows and more: {cells}."


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    methods, titles = [OURS, *peers.PEERS], lists(Path(), [], 0)
    parser = tables.parser("number_of_clusters", __doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--real", type=Path, nargs="*", default=[], metavar="FILE")
    parser.add_argument("--seed", type=tables.seed, default=810_000)
    parser.add_argument("--only", nargs="*", choices=methods)
    parser.add_argument("--lists", nargs="*", choices=titles)
    parser.add_argument("--out", type=Path, default=FOLDER / "results.jsonl")
    flags = parser.parse_args(arguments)
    with exit_codes.handle_errors():
        warnings.simplefilter("ignore")
        for file in flags.real:
            existing(str(file), (".npz",))
        found = tables.Lines(flags.out, "list", "set", "method")
        every = lists(flags.data, flags.real, flags.seed)
        for title in flags.lists or every:
            cases, *rest = every[title]
            for case in cases(*rest):
                measure(title, case, flags.only or methods, found)
        about = f"# The number of clusters, not given\n\n{(FOLDER / 'notes.md').read_text()}"
        command = f"{parser.prog} --data=DIR --real FILES --seed={flags.seed}"
        found.write(command, about.strip(), "\n\n".join(page(found.lines)))


def measure(title: str, case: Case, methods: list[str], found: tables.Lines) -> None:
    """Adds the results of methods on a case of a list, unless they are there."""
    x = case.scaled()
    points = cache(partial(peers.umap, x))
    for method in methods:
        entries = {"list": title, "set": case.name, "method": method}
        found.add(entries, partial(run, case, x, method, points))


def page(lines: list[dict]) -> list[str]:
    """Title, table and verdicts of every list."""
    parts = []
    for title in dict.fromkeys(line["list"] for line in lines):
        own = complete([line for line in lines if line["list"] == title])
        parts += [f"## {title}", table(own), verdicts(own)]
    return parts


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
