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

import json
import math
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
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
from cluster_jax.training.config import config_json
from cluster_jax.training.loop import Preempted
from experiments import registry, table, tables
from experiments.registry import Run
from experiments.tables import Lines


def planned(flags: Namespace) -> list[Run]:
    """Runs of the tables, each once; a seed of all rows comes before the next seed."""
    chosen = [registry.find(flags.paper, number) for number in flags.numbers]
    cells = [cell for one in chosen for cell in registry.cells(one, flags.scale)]
    names = list(dict.fromkeys(cell.row.name for cell in cells))
    for name in flags.rows or ():
        if name not in names:
            raise InputError(f"--rows must be some of {'; '.join(names)}; got {name!r}")
    runs = [cell.run for cell in cells if cell.run and cell.row.name in (flags.rows or names)]
    seeded = [run._replace(seed=seed) for seed in flags.seeds for run in runs]
    return list({json.dumps(run, sort_keys=True): run for run in seeded}.values())


def run_all(flags: Namespace, found: Lines) -> int:
    """Runs what is not finished; returns how many runs failed.

    Args:
        flags: those of `main`, with the numbers of the tables.
        found: the results, to which those of the runs are added.

    Raises:
        InputError: an argument is invalid.
    """
    wanted = planned(flags)
    left = [run for run in wanted if "metrics" not in found.find(run._asdict())]
    print(f"{len(wanted)} runs, {len(wanted) - len(left)} of them finished")
    trains = [registry.build(run).train for run in left]
    sizes = {size for train in trains for size in (train.batch_size, train.labeled_batch_size)}
    # A number of devices that divides all batches.
    devices.use_cores(math.gcd(*(sizes - {None})))
    command = f"python -m experiments.run {flags.paper} {flags.table} --scale={flags.scale}"
    origin, failures, started = tables.origin(command), 0, time.perf_counter()
    for i, run in enumerate(left):
        minutes = (time.perf_counter() - started) / max(i, 1) * (len(left) - i) / 60
        to_go = f", about {minutes:.0f} min left" if i else ""
        print(f"[{i + 1}/{len(left)}] {run.config}, seed {run.seed}{to_go}", flush=True)
        row = run._asdict()
        try:
            row |= _measure(run, flags, origin)
        except Preempted:
            raise
        # Whatever one run raises, the others go on.
        except Exception as error:
            failures += 1
            row["error"] = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"failed: {row['error']}", flush=True)
        found.append(row)
    return failures


def _measure(run: Run, flags: Namespace, origin: dict) -> dict:
    """Metrics and provenance of a run."""
    config = registry.build(run, flags.data)
    if registry.TAIL in run.changes:
        file = long_tail(config, run.changes[registry.TAIL], flags.runs)
        config.data.update(name="arrays", dir=str(file))
    name = workdirs.default_workdir(config_json(config), run.config).name
    found = pipeline.run_pipeline(config, flags.runs / name, run.config)
    automatic = "float32" if jax.default_backend() == "cpu" else "bfloat16, losses float32"
    dtype = config.network.dtype
    about = {**found["provenance"], **origin, "seconds": found["seconds"]}
    about["config_digest"] = registry.digest(config)
    about["precision"] = automatic if dtype == "auto" else dtype
    return {"metrics": _numbers(found["metrics"]), "provenance": about}


def _numbers(metrics: Any) -> Any:
    """Metrics without their lists and curves."""
    if isinstance(metrics, Mapping):
        kept = {name: _numbers(value) for name, value in metrics.items()}
        return {name: value for name, value in kept.items() if value is not None}
    return metrics if isinstance(metrics, int | float | str) else None


def long_tail(config: ConfigDict, tail: float, folder: Path) -> Path:
    """Writes a long-tailed set: class sizes fall geometrically, in the order of the classes.

    Class k of K keeps `int(n * (1 / tail) ** (k / (K - 1)))` random images, at least one, where n
    are the images of the smallest class: the profile of Cao et al. (2019), "Learning Imbalanced
    Datasets with Label-Distribution-Aware Margin Loss", which NRCC and NCC take. NRCC's Table 12
    counts 60,000 images in such a set of CIFAR, which has 20,431 of 10 classes.
    """
    data = parse_section(DataConfig, "data", config.data)
    dataset = datasets.load(data)
    labels, kept = np.asarray(dataset.labels), []
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the exit code is 1 if a run failed."""
    parser = tables.parser("run", __doc__)
    parser.add_argument("paper")
    parser.add_argument("table")
    parser.add_argument("--scale", default="digits")
    parser.add_argument("--rows", nargs="+", help="names; all if not given")
    parser.add_argument("--seeds", type=int, nargs="+", help="such as 0 1 2")
    parser.add_argument("--show", action="store_true", help="run nothing")
    parser.add_argument("--data", help="folder of the data sets")
    parser.add_argument("--runs", type=Path, default=Path("runs/experiments"))
    parser.add_argument("--results", type=Path, default=registry.RESULTS)
    parser.add_argument("--out", type=Path, help="file of the page")
    flags = parser.parse_args(arguments)
    flags.seeds = flags.seeds or list(range(registry.SEEDS.get(flags.scale, 1)))
    with exit_codes.handle_errors():
        numbers = registry.tables(flags.paper) if flags.table == "all" else flags.table.split(",")
        flags.numbers = list(numbers)
        found = registry.stored(flags.results)
        failures = 0 if flags.show else run_all(flags, found)
        text = table.pages(flags.paper, flags.numbers, flags.scale, flags.seeds, found)
        print(text)
        if flags.out:
            flags.out.write_text(text)
        return exit_codes.FAILURE if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
