"""Runs variants times seeds of a table: `python -m experiments.run PAPER TABLE --scale=digits`.

PAPER is nrcc, ncc, cueco, kernel_infonce or ncl, or digits, or a file of your own such as
`experiments/digits/tables.yaml`: values of keys of a config times seeds, in one table. TABLE is a
number ("2", "A4", "figure4"), several ("2,3"), or "all". Scales: `config` is the digits config
of each method, `digits` a third of its steps; `full` is the paper's setting and needs an
accelerator; its sets are read from --data=DIR, as `data.dir` in configs/base.py. The table of the
README is `python -m experiments.run digits methods --scale=config`.

Every finished run adds a line to experiments/results.jsonl (--results=FILE) and is not run again;
tables of all papers share runs, and processes may share a file if their --rows or --seeds differ.
An interrupted run is continued from its workdir in --runs. A run that fails leaves its sentence in
the file, is not tried again in the same call, and is in the next. In the end the page of the table
is printed, ours as mean ± standard deviation over the seeds beside the paper's (--show: nothing
else is done); what is missing is a gap with its reason, and the page names the provenance in which
rows or seeds differ.
"""

import argparse
import math
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from cluster_jax.cli import exit_codes
from cluster_jax.core import devices
from cluster_jax.core.checks import InputError
from cluster_jax.core.config import parse_section
from cluster_jax.data import datasets
from cluster_jax.data.images import DataConfig, subset
from cluster_jax.runs import begin as pipeline
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.config import config_json
from cluster_jax.training.loop import Preempted
from experiments import registry, results, table, tables
from experiments.registry import Run


def numbers_of(paper: str, argument: str) -> list[str]:
    """The numbers of the tables that the argument stands for."""
    return list(registry.tables(paper)) if argument == "all" else argument.split(",")


def seeds_of(flags: argparse.Namespace) -> list[int]:
    """The seeds that the flags ask for."""
    return flags.seeds or list(range(registry.SEEDS.get(flags.scale, 1)))


def planned(flags: argparse.Namespace) -> list[tuple[Run, int]]:
    """Runs and seeds of the tables, each once; a seed of all rows comes before the next seed."""
    chosen = [registry.find(flags.paper, n) for n in numbers_of(flags.paper, flags.table)]
    cells = [cell for one in chosen for cell in registry.cells(one, flags.scale)]
    names = list(dict.fromkeys(cell.row.name for cell in cells))
    for name in flags.rows or ():
        if name not in names:
            raise InputError(f"--rows must be some of {'; '.join(names)}; got {name!r}")
    cells = [cell for cell in cells if not flags.rows or cell.row.name in flags.rows]
    found = {}
    for seed in seeds_of(flags):
        for cell in cells:
            if cell.run is not None:
                found[results.key(cell.run, seed)] = (cell.run, seed)
    return list(found.values())


def run_all(flags: argparse.Namespace, command: str) -> int:
    """Runs what is not finished; returns how many runs failed.

    Args:
        flags: see `parser`.
        command: for the provenance.

    Raises:
        InputError: an argument is invalid.
    """
    wanted = planned(flags)
    finished, warning = results.read(flags.results)
    if warning:
        print(warning)
    open_runs = [
        (run, seed)
        for run, seed in wanted
        if "metrics" not in finished.get(results.key(run, seed), {})
    ]
    print(f"{len(wanted)} runs, {len(wanted) - len(open_runs)} of them finished")
    if not open_runs:
        return 0
    _use_cores(open_runs)
    shared, started, failures = results.origin(command), time.perf_counter(), 0
    for i, (run, seed) in enumerate(open_runs):
        mean = (time.perf_counter() - started) / max(i, 1)
        left = f", about {mean * (len(open_runs) - i) / 60:.0f} min left" if i else ""
        print(f"[{i + 1}/{len(open_runs)}] {run.config}, seed {seed}{left}", flush=True)
        row = {**run._asdict(), "seed": seed}
        try:
            row |= _measure(run, seed, flags, shared)
        except Preempted:
            raise
        except Exception as error:  # whatever one run raises, the others go on
            failures += 1
            row["error"] = sentence(error)
            print(f"failed: {row['error']}", flush=True)
        results.append(flags.results, row)
    return failures


def sentence(error: Exception) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, InputError) else f"{type(error).__name__}: {text}"


def _use_cores(runs: Sequence[tuple[Run, int]]) -> None:
    """Splits the CPU into devices that divide the batches of all runs."""
    sizes = set()
    for run in {run.config: run for run, _ in runs}.values():
        train = registry.build(run, 0).train
        sizes |= {train.batch_size, train.labeled_batch_size} - {None}
    devices.use_cores(math.gcd(*sizes))


def _measure(
    run: Run, seed: int, flags: argparse.Namespace, shared: dict[str, Any]
) -> dict[str, Any]:
    """Metrics and provenance of a run."""
    config = registry.build(run, seed, flags.data)
    if registry.TAIL in run.changes:
        file = long_tail(config, run.changes[registry.TAIL], flags.runs)
        config.data.update(name="arrays", dir=str(file))
    name = workdirs.default_workdir(config_json(config), run.config).name
    found = pipeline.run_pipeline(config, flags.runs / name, run.config)
    metrics = results.numbers(found["metrics"])
    origin = {**found["provenance"], **shared, "seconds": found["seconds"]}
    origin |= {"config": run.config, "config_digest": results.config_digest(config)}
    if config.network.dtype != "auto":
        origin["precision"] = config.network.dtype
    return {"metrics": metrics, "provenance": origin}


def long_tail(config: ConfigDict, tail: float, folder: pathlib.Path) -> pathlib.Path:
    """Writes a long-tailed set: class sizes fall geometrically, in the order of the classes.

    Class k of K keeps `int(n * (1 / tail) ** (k / (K - 1)))` random images, at least one, where n
    are the images of the smallest class: the profile of Cao et al. (2019), "Learning Imbalanced
    Datasets with Label-Distribution-Aware Margin Loss", which NRCC and NCC take. NRCC's Table 12
    counts 60,000 images in such a set of CIFAR, which has 20,431 of 10 classes.
    """
    data = parse_section(DataConfig, "data", config.data)
    dataset = datasets.load(data)
    labels, kept = dataset.labels, []
    counts = np.bincount(labels)
    for k in range(len(counts)):
        size = max(1, int(counts.min() * (1 / tail) ** (k / (len(counts) - 1))))
        rows = np.flatnonzero(labels == k)
        kept.append(rows[subset(len(rows), size)])
    rows = np.sort(np.concatenate(kept))
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{data.name}_{data.label}_{data.split}_{tail:g}.npz"
    np.savez(file, images=dataset.fetch(rows), labels=labels[rows])
    return file


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    parser = tables.parser("run", __doc__)
    parser.add_argument("paper")
    parser.add_argument("table")
    parser.add_argument("--scale", default="digits")
    parser.add_argument("--rows", nargs="+", help="names of the rows; all if not given")
    parser.add_argument("--seeds", type=int, nargs="+", help="such as 0 1 2, see registry.SEEDS")
    parser.add_argument("--show", action="store_true", help="the page of what has been run only")
    parser.add_argument("--data", help="folder of the data sets")
    parser.add_argument("--runs", type=pathlib.Path, default=pathlib.Path("runs/experiments"))
    parser.add_argument("--results", type=pathlib.Path, default=results.FILE)
    parser.add_argument("--out", type=pathlib.Path, help="file of the page")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the exit code is 1 if a run failed."""
    flags = parser().parse_args(arguments)
    command = f"python -m experiments.run {flags.paper} {flags.table} --scale={flags.scale}"
    with exit_codes.handle_errors():
        failures = 0 if flags.show else run_all(flags, command)
        rows, warning = results.read(flags.results)
        numbers, seeds = numbers_of(flags.paper, flags.table), seeds_of(flags)
        text = table.pages(flags.paper, numbers, flags.scale, seeds, rows)
        print(text + (f"\n({warning}.)\n" if warning else ""))
        if flags.out:
            flags.out.write_text(text)
        return exit_codes.FAILURE if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
