"""The page of USPS, MNIST and Fashion-MNIST: the methods, the regularizer, others, and curves.

    python -m experiments.run real all --scale=config --data=DIR --seeds 0 1 2
    python -m experiments.peers DIR/usps.npz DIR/mnist_test.npz --out=experiments/real/pixels.jsonl
    python -m experiments.real

DIR has usps.npz, mnist_test.npz and fashion_test.npz, of `images` and `labels`; clothes are in
Debian's package `dataset-fashion-mnist`. The second command clusters the pixels, of clothes with
DIR/fashion_test.npz in the same way. The last one reads the runs in --runs: it clusters their
features by `SmoothTree`, and by k-means on UMAP's map, and measures the checkpoints of seed 0 on
USPS; what `found.jsonl` and `curves.jsonl` have is not computed again. Then it writes `tables.md`
and `curves.svg` of what is there.
"""

import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np
import yaml

from cluster_jax import metrics
from cluster_jax.cli import exit_codes
from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.clustering.reduce import reduce
from cluster_jax.clustering.smooth_tree import SmoothTree
from cluster_jax.core.arrays import normalize_rows
from cluster_jax.core.checks import InputError
from cluster_jax.runs import claims
from cluster_jax.training.config import config_json
from experiments import registry, table, tables
from experiments.peers import summary
from experiments.real import curves
from experiments.tables import Lines

FOLDER = Path(__file__).parent
NUMBERS = ("usps", "usps_terms", "mnist", "fashion")
NOVEL = ("usps_ncl", "mnist_ncl")
SEEDS = range(20)
ABOUT = """# The methods on three sets that others publish on

USPS, 9,298 digits of 16 x 16 pixels, and the test sets of MNIST and Fashion-MNIST, 10,000 digits
and 10,000 clothes of 28 x 28 pixels: each whole. Labels score; besides, they give the number of
clusters to k-means, NCC and CueCo, and NCL trains on those of five digits. Every row is the digits
config of its method, whose settings were tuned on the labels of scikit-learn's digits. None was
chosen by labels of these sets, but for one number: the augmentation of clothes is that of
`nrcc_fashion_mnist`, by a silhouette that was told of ten clusters. A rule of `SmoothTree`, when to
take a deeper level, was chosen on features of SimCLR + NRCC on USPS, seed 0. DIR has usps.npz,
mnist_test.npz and fashion_test.npz, each of `images` and `labels`; clothes are in Debian's package
`dataset-fashion-mnist`, the others where their authors put them. The network is narrower, for speed
([tables.yaml](tables.yaml) has each). The columns `clusters` and `their-ACC` are what GridShift
finds on UMAP's map of the features, without the number. What has not been run has no figure:
SimCLR, with and without NRCC, has five seeds on USPS; the terms of NCC and CueCo have one there."""
FOUND = """## Other clusters of the same features

ACC in percent, mean ± standard deviation over the seeds; all numbers that were found. SmoothTree is
that of 61fba5e47899, which fitted rows in another order. Of the features of 30 of these lines that
are still there (two rows of MNIST, eight of Fashion-MNIST, three seeds each), 2 have another number
of clusters at 0b246e4503bd and 6 another ACC, whose mean is 58.7 (59.1 in these lines), by
`SmoothTree("cosine", random_state=0)` on 2 cores of an AMD EPYC."""
OTHERS = """## What others print

Of the same images, by pixels or by networks that were trained from nothing. All are given the
number of clusters."""
PIXELS = "## Pixels\n\nBy the Euclidean distance."
REGULARIZER = """## What the parts add

ACC in points above the row without NRCC, or above the whole method, paired over the seeds that both
have: mean ± standard error."""
CURVES = """## Accuracy against steps

USPS, seed 0: where a line still rises, its row in the table is not converged. k-means ACC of SimCLR
with and without NRCC jumps by up to 12 points from one checkpoint to the next, where 5-NN hardly
moves from step 300 on: differences of a few points say nothing.

![5-NN accuracy and k-means ACC of each method against steps](curves.svg)"""


class Trained(NamedTuple):
    """A finished run: table, row and seed, its line of the results."""

    number: str
    row: str
    seed: int
    run: registry.Run
    line: Mapping


def finished(number: str, results: Lines) -> Iterator[Trained]:
    """Yields the finished runs of a table."""
    for cell in registry.cells(registry.find("real", number), "config"):
        if cell.run is None:
            continue
        for seed in SEEDS:
            run = cell.run._replace(seed=seed)
            line = results.find(run._asdict())
            if "metrics" in line:
                yield Trained(number, cell.row.name, seed, run, line)


def workdir_of(one: Trained, runs: Path) -> Path | None:
    """Returns the folder of a run, wherever its data lay; None: it is not there."""
    for file in sorted(runs.glob("*/embedding.npz")):
        data = json.loads((file.parent / "config.json").read_text())["data"]["dir"]
        wanted = config_json(registry.build(one.run, str(Path(data).parent)))
        if claims.default_workdir(wanted, one.run.config).name == file.parent.name:
            return file.parent
    return None


def cluster(folder: Path) -> dict[str, float]:
    """Returns ACC in percent of clusters of a run's features, and the number that was found."""
    config = json.loads((folder / "config.json").read_text())
    with np.load(folder / "embedding.npz") as stored:
        rows = normalize_rows(stored[config["eval"]["features"]].astype(np.float32))
    with np.load(config["data"]["dir"]) as stored:
        labels = stored["labels"]
    tree = SmoothTree("cosine", random_state=0).fit(rows)
    points = reduce(rows, n_components=3, n_neighbors=15, metric="cosine", seed=0)
    of_map = np.asarray(kmeans(points, len(np.unique(labels))).labels)
    acc = {"tree": tree.labels_, "map": of_map}
    scored = {name: 100 * metrics.scores(labels, each)["acc"] for name, each in acc.items()}
    return {**scored, "clusters": tree.n_clusters_}


def found_table(number: str, found: Lines) -> str:
    """Returns the table of `cluster` over the seeds."""
    rows: dict[str, list[dict]] = {}
    for line in (line for line in found.lines if line["set"] == number):
        rows.setdefault(line["row"], []).append(line)
    columns = [number, "k-means on UMAP's map, k given", "SmoothTree", "clusters"]
    cells = [
        [
            name,
            tables.mean([line["map"] for line in lines], 1),
            tables.mean([line["tree"] for line in lines], 1),
            ", ".join(str(line["clusters"]) for line in lines),
        ]
        for name, lines in rows.items()
    ]
    return tables.markdown(columns, cells) if cells else ""


def base_of(row: str) -> str | None:
    """Returns the row that a row is compared with; None: with none."""
    if "NRCC" in row:
        return "SimCLR"
    whole, without, _ = row.partition(" without ")
    return whole if without else None


def paired(number: str, trained: Sequence[Trained], found: Lines) -> str:
    """Returns differences of the rows of a table to their base, over the seeds that both have."""

    def of_features(one: Trained, name: str) -> float | None:
        case = {"set": one.number, "row": one.row, "seed": one.seed}
        return found.find(case).get(name)

    compared: dict[str, Callable[[Trained], float | None]] = {
        "k-means, k given": lambda one: 100 * one.line["metrics"]["kmeans"]["acc"],
        "on the map, k given": lambda one: of_features(one, "map"),
        "GridShift, k found": lambda one: 100 * one.line["metrics"]["gridshift"]["acc"],
        "SmoothTree, k found": lambda one: of_features(one, "tree"),
    }
    images = number.partition("_")[0]
    every = {(one.row, one.seed): one for one in trained if one.number in (number, images)}
    rows = []
    for name in dict.fromkeys(one.row for one in trained if one.number == number):
        base = base_of(name)
        seeds = [seed for row, seed in every if row == name and (base, seed) in every]
        if base is None or not seeds:
            continue
        cells = [f"{name}, above {base}", str(len(seeds))]
        for score in compared.values():
            pairs = [(score(every[name, seed]), score(every[base, seed])) for seed in seeds]
            values = [a - b for a, b in pairs if a is not None and b is not None]
            of_fewer = f" ({len(values)} seeds)" if 0 < len(values) < len(seeds) else ""
            cells.append(difference(values) + of_fewer)
        rows.append(cells)
    return tables.markdown([number, "seeds", *compared], rows) if rows else ""


def difference(values: Sequence[float]) -> str:
    """Returns the mean, and its standard error if there are two values or more."""
    if len(values) < 2:
        return "".join(f"{value:+.1f}" for value in values)
    return f"{fmean(values):+.1f} ± {stdev(values) / len(values) ** 0.5:.1f}"


def published() -> str:
    """Returns the table of what others print."""
    rows = yaml.safe_load((FOLDER / "published.yaml").read_text())
    return tables.markdown(["method", "set", "ACC", "NMI", "read in"], rows)


def measure(trained: Iterable[Trained], runs: Path, out: Path, found: Lines) -> None:
    """Adds what the folders of the runs say to `found` and to the curves."""
    known = curves.read(out / "curves.jsonl")
    for one in trained:
        if (folder := workdir_of(one, runs)) is None:
            continue
        print(f"{one.number}: {one.row}, seed {one.seed}", flush=True)
        case = {"set": one.number, "row": one.row, "seed": one.seed}
        found.add(case, partial(cluster, folder))
        if one.number == "usps" and one.seed == 0 and one.row not in known:
            lines = [{"row": one.row, **point} for point in curves.measure(folder, curves.STEPS)]
            with (out / "curves.jsonl").open("a") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = tables.parser("real", __doc__)
    parser.add_argument(
        "--seeds", type=tables.seed, nargs="+", default=[0, 1, 2, 3, 4], help="of the tables"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/experiments"))
    parser.add_argument("--results", type=Path, default=registry.RESULTS)
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the page")
    flags = parser.parse_args(arguments)
    with exit_codes.handle_errors():
        if not flags.results.is_file():
            must = "--results must be a file that experiments.run has written"
            raise InputError(f"{must}; there is no {flags.results}")
        results = registry.stored(flags.results)
        found = Lines(flags.out / "found.jsonl", "set", "row", "seed")
        pixels = Lines(flags.out / "pixels.jsonl", "set", "method", "seed")
        every = [one for number in NUMBERS for one in finished(number, results)]
        measure(every, flags.runs, flags.out, found)
        shown = curves.read(flags.out / "curves.jsonl")
        if shown:
            tables.write(flags.out / "curves.svg", curves.draw(shown))
        source = tables.origin("python -m experiments.real", tables.CLUSTERS)
        for name in tables.OF_LINES:
            source[name] = tables.values(name, found.lines + pixels.lines)
        parts = [
            ABOUT,
            table.pages("real", [*NUMBERS, *NOVEL], "config", flags.seeds, results),
            FOUND,
            *(found_table(number, found) for number in NUMBERS),
            f"{PIXELS}\n\n{summary(pixels.lines)}" if pixels.lines else "",
            REGULARIZER,
            *(paired(number, every, found) for number in NUMBERS),
            CURVES if shown else "",
            OTHERS,
            published(),
            "Of the clusters of features and pixels: " + tables.sentence(source),
        ]
        tables.write(flags.out / "tables.md", "\n\n".join(part for part in parts if part) + "\n")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
