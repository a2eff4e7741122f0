"""The page of USPS and MNIST: tables of the methods, of the regularizer, of others, and curves.

    python -m experiments.run real all --scale=config --data=DIR --seeds 0 1 2
    python -m experiments.peers DIR/usps.npz DIR/mnist_test.npz --out=experiments/real/pixels.jsonl
    python -m experiments.real

DIR has the two files, of `images` and `labels`. The second command clusters the pixels; the last
one measures the checkpoints of seed 0 on USPS in --runs that `curves.jsonl` does not have, and
writes `tables.md` and `curves.svg` of what is there.
"""

import json
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev

import yaml

from cluster_jax.cli import exit_codes
from cluster_jax.runs import workdir as workdirs
from cluster_jax.training.config import config_json
from experiments import registry, table, tables
from experiments.peers import summary
from experiments.real import curves
from experiments.registry import Cell
from experiments.tables import Lines

FOLDER = Path(__file__).parent
NUMBERS = ("usps", "mnist")
ABOUT = """# The methods on two sets that others publish on

USPS, 9,298 digits of 16 x 16 pixels, and the test set of MNIST, 10,000 digits of 28 x 28 pixels:
each whole, without labels, which only score. Every row is the digits config of its method. No
setting was chosen on these sets: all were tuned on the labels of scikit-learn's digits, and the
network is narrower, for speed ([tables.yaml](tables.yaml) has each). `own.map_acc` is the ACC of
k-means on UMAP's map of the features, with k given; `clusters` and `their-ACC` are what GridShift
finds on that map, `own.tree` and `own.tree_acc` what `SmoothTree` finds in the features."""
OTHERS = """## What others print

Of networks that were trained from nothing on the same images. All give the number of clusters; the
networks are wider, and their settings were chosen with labels, as ours were on other digits."""
REGULARIZER = """## Does the regularizer help?

SimCLR + NRCC minus SimCLR in percent, paired over the seeds, mean ± standard error:"""
CURVES = """## Accuracy against steps

USPS, seed 0: where a line still rises, its row in the table is not converged.

![5-NN accuracy and k-means ACC of each method against steps](curves.svg)"""
COMPARED = {
    "k-means, k given": ("metrics.kmeans.acc", 100.0),
    "k-means on the map, k given": ("metrics.own.map_acc", 1.0),
    "GridShift, k found": ("metrics.gridshift.acc", 100.0),
    "SmoothTree, k found": ("metrics.own.tree_acc", 1.0),
}
SEEDS = range(20)


def cells(number: str) -> list[Cell]:
    """Returns the rows of a table that are trained."""
    return [cell for cell in registry.cells(registry.find("real", number), "config") if cell.run]


def paired(number: str, results: Lines) -> str:
    """Returns differences of the rows with NRCC to SimCLR over the seeds that both have."""
    scores: dict[str, dict[int, dict]] = {}
    for cell in cells(number):
        if cell.run:
            lines = {seed: results.find(cell.run._replace(seed=seed)._asdict()) for seed in SEEDS}
            finished = {seed: line for seed, line in lines.items() if "metrics" in line}
            scores[cell.row.name] = finished
    base, rows = scores["SimCLR"], []
    for name in (name for name in scores if "NRCC" in name):
        both = sorted(base.keys() & scores[name].keys())
        if len(both) > 1:
            row = [name, str(len(both))]
            for path, factor in COMPARED.values():
                pairs = [(scores[name][seed], base[seed]) for seed in both]
                values = [factor * (table.entry(a, path) - table.entry(b, path)) for a, b in pairs]
                row.append(f"{fmean(values):+.1f} ± {stdev(values) / len(values) ** 0.5:.1f}")
            rows.append(row)
    return tables.markdown([number, "seeds", *COMPARED], rows) if rows else ""


def published() -> str:
    """Returns the table of what others print."""
    rows = yaml.safe_load((FOLDER / "published.yaml").read_text())
    return tables.markdown(["method", "set", "ACC", "NMI", "read in"], rows)


def measure_curves(file: Path, runs: Path, cells_of_curves: Iterable[Cell]) -> None:
    """Adds what the checkpoints of the finished runs say to a file of lines."""
    known = curves.read(file)
    for cell in cells_of_curves:
        if cell.run is None or cell.row.name in known:
            continue
        for workdir in runs.glob(f"{cell.run.config}-*"):
            if _is_of(workdir, cell):
                found = curves.measure(workdir)
                lines = [json.dumps({"row": cell.row.name, **point}) + "\n" for point in found]
                with file.open("a") as opened:
                    opened.writelines(lines)
                print(f"{cell.row.name}: {len(found)} checkpoints", flush=True)


def _is_of(workdir: Path, cell: Cell) -> bool:
    """Whether a run is that of a row, wherever the data lie."""
    if cell.run is None or not (workdir / "config.json").exists():
        return False
    stored = json.loads((workdir / "config.json").read_text())
    folder = Path(stored["data"]["dir"]).parent
    wanted = config_json(registry.build(cell.run, str(folder)))
    return workdirs.default_workdir(wanted, cell.run.config).name == workdir.name


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = tables.parser("real", __doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the tables")
    parser.add_argument("--runs", type=Path, default=Path("runs/experiments"))
    parser.add_argument("--results", type=Path, default=registry.RESULTS)
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the page")
    flags = parser.parse_args(arguments)
    with exit_codes.handle_errors():
        results, file = registry.stored(flags.results), flags.out / "curves.jsonl"
        measure_curves(file, flags.runs, cells("usps"))
        found, pixels = curves.read(file), Lines(FOLDER / "pixels.jsonl", "set", "method", "seed")
        if found:
            tables.write(flags.out / "curves.svg", curves.draw(found))
        parts = [
            ABOUT,
            table.pages("real", list(NUMBERS), "config", flags.seeds, results),
            "## Pixels\n\n" + summary(pixels.lines) if pixels.lines else "",
            REGULARIZER,
            *(paired(number, results) for number in NUMBERS),
            CURVES if found else "",
            OTHERS,
            published(),
        ]
        tables.write(flags.out / "tables.md", "\n\n".join(part for part in parts if part) + "\n")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
