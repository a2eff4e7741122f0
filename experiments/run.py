"""Runs variants times seeds of a table: `python -m experiments.run PAPER TABLE --scale=digits`.

PAPER is nrcc, ncc, cueco, kernel_infonce, ncl, digits or real, or a file of your own, see below.
TABLE is a number ("2", "A4", "figure4"), several ("2,3"), or "all". Scales: `config` is the digits
config of each method, `digits` a third of its steps; `full` is the paper's setting and needs an
accelerator; its sets are read from --data=DIR, as `data.dir` in configs/base.py. The table of the
README is `python -m experiments.run real usps --scale=config --data=DIR`.

A file of your own has configs by name or file, values of their keys, and what is scored:

    tables:
      rates:
        title: Two learning rates
        metrics: ACC 5-NN
        rows:
        - [low, {config: byol_digits, changes: {optimizer.learning_rate: 0.001}}, kmeans]
        - [mine, {config: my/config.py}, kmeans]

`python -m experiments.run FILE.yaml` runs all of its tables at the scale `config`, five seeds each,
and keeps the results in FILE.jsonl. Nothing is drawn, and UMAP runs only if a row scores GridShift.

Every finished run adds a line to experiments/results.jsonl (--results=FILE) and is not run again;
tables of all papers share runs, and processes may share a file if their --rows or --seeds differ.
On several hosts, start the command on each, as `cluster-jax train`; all read --results=FILE on a
shared disk, and the first one writes.
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
from cluster_jax.runs import claims
from cluster_jax.training.config import config_json
from cluster_jax.training.loop import Preempted
from experiments import registry, table, tables
from experiments.registry import Run
from experiments.tables import Lines


def planned(flags: Namespace) -> list[Run]:
    """Runs of the tables, each once; a seed of all rows comes before the next seed."""
    chosen = [registry.find(flags.paper, number) for number in flags.numbers]
    cells = [cell for one in chosen for cell in registry.cells(one, flags.scale)]
    rows = flags.rows or [cell.row.name for cell in cells]
    runs = [cell.run for cell in cells if cell.run and cell.row.name in rows]
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
    has_map = registry.needs_map(flags.paper)
    left = [run for run in wanted if not _is_finished(run, found, has_map)]
    trains = [registry.build(run).train for run in left]
    sizes = {size for train in trains for size in (train.batch_size, train.labeled_batch_size)}
    # A number of devices that divides all batches.
    devices.use_cores(math.gcd(*(sizes - {None})))
    devices.distribute()
    _say(f"{len(wanted)} runs, {len(wanted) - len(left)} of them finished")
    command = f"python -m experiments.run {flags.paper} {flags.table} --scale={flags.scale}"
    failures, started = 0, time.perf_counter()
    for i, run in enumerate(left):
        minutes = (time.perf_counter() - started) / max(i, 1) * (len(left) - i) / 60
        to_go = f", about {minutes:.0f} min left" if i else ""
        _say(f"[{i + 1}/{len(left)}] {run.config}, seed {run.seed}{to_go}")
        row = run._asdict()
        try:
            row |= _measure(run, flags, has_map, command)
        except Preempted:
            raise
        # Whatever one run raises, the others go on.
        except Exception as error:
            failures += 1
            row["error"] = " ".join(f"{type(error).__name__}: {error}".split())
            _say(f"failed: {row['error']}")
        if devices.is_first():
            found.append(row)
    return failures


def _say(text: str) -> None:
    """Prints a line, of several hosts on the first one."""
    if devices.is_first():
        print(text, flush=True)


def _is_finished(run: Run, found: Lines, has_map: bool) -> bool:
    """Whether a run has the metrics of a table, of which one may have a map and one none."""
    line = found.find(run._asdict())
    if "metrics" not in line:
        return False
    is_clustered = registry.build(run).eval.method == "gridshift" and has_map
    return not is_clustered or "gridshift" in line["metrics"]


def _measure(run: Run, flags: Namespace, has_map: bool, command: str) -> dict:
    """Metrics and provenance of a run; without a map those of GridShift are left out."""
    config = registry.build(run, flags.data)
    if registry.TAIL in run.changes:
        file = long_tail(config, run.changes[registry.TAIL], flags.runs)
        config.data.update(name="arrays", dir=str(file))
    name = claims.default_workdir(config_json(config), run.config).name
    digest, needs_umap = registry.digest(config), config.eval.method == "gridshift"
    if needs_umap and not has_map:
        config.eval.reduce = "pca"
    found = pipeline.run_pipeline(config, flags.runs / name, run.config, report=False)
    if not found:
        raise InputError(
            f"{flags.runs / name} has features; one host clusters them: start it alone"
        )
    automatic = "float32" if jax.default_backend() == "cpu" else "bfloat16, losses float32"
    dtype = config.network.dtype
    origin = tables.origin(command, tables.TRAININGS)
    about = {**found["provenance"], **origin, "seconds": found["seconds"]}
    about["config_digest"] = digest
    about["precision"] = automatic if dtype == "auto" else dtype
    metrics = _numbers(found["metrics"])
    if needs_umap and not has_map:
        metrics.pop("gridshift")
    return {"metrics": metrics, "provenance": about}


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
    parser.add_argument("table", nargs="?", help="all if not given, of a file of your own")
    parser.add_argument("--scale", help="digits, or config for a file of your own")
    parser.add_argument("--rows", nargs="+", help="names; all if not given")
    parser.add_argument("--seeds", type=tables.seed, nargs="+", help="such as 0 1 2")
    parser.add_argument("--show", action="store_true", help="run nothing")
    parser.add_argument("--data", help="folder of the data sets")
    parser.add_argument("--runs", type=Path, default=Path("runs/experiments"))
    parser.add_argument("--results", type=Path, help="file of the results")
    parser.add_argument("--out", type=Path, help="file of the page")
    flags = parser.parse_args(arguments)
    with exit_codes.handle_errors():
        _fill_in(flags)
        found = registry.stored(flags.results)
        failures = 0 if flags.show else run_all(flags, found)
        if devices.is_first():
            text = table.pages(flags.paper, flags.numbers, flags.scale, flags.seeds, found)
            print(text or f"No run of these tables is finished in {flags.results}")
            if flags.out:
                tables.write(flags.out, text)
        return exit_codes.FAILURE if failures else 0


def _fill_in(flags: Namespace) -> None:
    """Sets what is not given: other values for a paper than for a file of one's own.

    Raises:
        InputError: there is no such paper, file, table or row.
    """
    every, is_own = registry.tables(flags.paper), flags.paper not in registry.GROUPS
    if flags.table is None and not is_own:
        raise InputError(f"TABLE of {flags.paper} must be given: all, or {', '.join(every)}")
    flags.table = flags.table or "all"
    flags.numbers = list(every) if flags.table == "all" else flags.table.split(",")
    rows = [row for number in flags.numbers for row in registry.find(flags.paper, number).rows]
    names = list(dict.fromkeys(row.name for row in rows))
    for name in flags.rows or ():
        if name not in names:
            raise InputError(f"--rows must be some of {'; '.join(names)}; got {name!r}")
    flags.scale = flags.scale or ("config" if is_own else "digits")
    flags.seeds = flags.seeds or list(range(registry.SEEDS.get(flags.scale, 1)))
    own = Path(flags.paper).with_suffix(".jsonl")
    flags.results = flags.results or (own if is_own else registry.RESULTS)


if __name__ == "__main__":
    raise SystemExit(main())
