"""Runs of the pipeline for several configs and seeds, and the table of their metrics."""

import argparse
import hashlib
import json
import math
import pathlib
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ml_collections import ConfigDict

from cluster_jax.core import devices
from cluster_jax.pipeline import run as pipeline
from cluster_jax.pipeline.config import config_json
from experiments import tables

METRICS = {
    "k-means ACC": ("kmeans", "acc"),
    "k-means NMI": ("kmeans", "nmi"),
    "GridShift ACC": ("gridshift", "acc"),
    "GridShift NMI": ("gridshift", "nmi"),
    "clusters found": ("gridshift", "n_clusters"),
    "5-NN": ("knn", "5"),
    "gradient share": ("gradient_share",),
}
SEEDS = (0, 1, 2)
SPEED = "images/s"
Job = TypeVar("Job")


def parser(module: str, document: str | None = None) -> argparse.ArgumentParser:
    """The flags that experiments share; finished runs in the folder of `--runs` are reused."""
    made = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=document,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    name = module.removeprefix("experiments.")
    made.add_argument("--runs", default=f"runs/{name.replace('.', '-')}", help="folder of the runs")
    made.add_argument("--out", default=module.replace(".", "/"), help="table, without extension")
    made.add_argument(
        "--only", help="I/N: run only every N-th, starting with I, and write no table"
    )
    return made


def part(jobs: Sequence[Job], only: str | None) -> Sequence[Job]:
    """The jobs that a process with the flag `--only` does."""
    first, step = map(int, (only or "0/1").split("/"))
    return jobs[first::step]


def make(
    flags: argparse.Namespace,
    command: str,
    rows: Mapping[str, ConfigDict],
    note: str | Callable[[Mapping[str, list[dict]]], str],
    *,
    metrics: Mapping[str, tuple[str, ...]] = METRICS,
    seeds: Sequence[int] = SEEDS,
    shares_stages: bool = False,
    measure_speeds: Callable[[Mapping[str, ConfigDict]], Mapping[str, list[float]]] | None = None,
) -> None:
    """Runs each config with each seed, then writes and prints the table.

    Args:
        flags: see `parser`.
        command: that makes the table.
        rows: name of each row of the table -> its config.
        note: how the runs were made, or a function of the results that says so.
        metrics: title of each column -> its path in the metrics.
        seeds: run for each row.
        shares_stages: whether all rows share the stages before the last; those of the first row,
            which must be finished, are copied.
        measure_speeds: measures images/s of the rows; None: no such column.
    """
    sections = [config.train for config in rows.values()]
    sizes = {s[key] for s in sections for key in ("batch_size", "labeled_batch_size")}
    devices.use_cores(math.gcd(*filter(None, sizes)))
    folder = pathlib.Path(flags.runs)
    first = next(iter(rows.values())) if shares_stages else None
    results: dict[str, list[dict]] = {name: [] for name in rows}
    for name, seed in part([(name, seed) for name in rows for seed in seeds], flags.only):
        results[name].append(run(rows[name], seed, folder, first))
    if not flags.only:
        speeds = measure_speeds and measure_speeds(rows)
        print(write(flags.out, command, results, note, metrics, speeds))


def run(
    config: ConfigDict, seed: int, folder: pathlib.Path, first: ConfigDict | None = None
) -> dict[str, Any]:
    """Results of a config with a seed; equal configs share a run, also across tables."""
    workdir, shared = (
        folder / f"{c.method.name}-{_digest(c)}-seed{seed}" for c in (config, first or config)
    )
    if workdir != shared and not workdir.exists():
        partial = workdir.with_name(f"{workdir.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(shared / "stages", partial / "stages")
        partial.rename(workdir)
    seeded = config.copy_and_resolve_references()
    seeded.seed = seed
    return pipeline.run_pipeline(seeded, workdir, config.method.name)


def write(
    path: str,
    command: str,
    results: Mapping[str, Sequence[dict]],
    note: str | Callable[[Mapping[str, Any]], str],
    metrics: Mapping[str, tuple[str, ...]] = METRICS,
    speeds: Mapping[str, Sequence[float]] | None = None,
) -> str:
    """Writes the table of mean and standard deviation over the seeds; see `make`."""
    summary: dict[str, dict[str, dict]] = {name: {} for name in results}
    for name, found in results.items():
        for title, keys in metrics.items():
            values = [_at(r["metrics"], keys) for r in found]
            if None not in values:
                summary[name][title] = _spread(values)
        if speeds:
            summary[name][SPEED] = _spread(speeds[name])
    origins = [r["provenance"] for found in results.values() for r in found]
    commits, seeds = (sorted({str(o[key]) for o in origins}) for key in ("commit", "seed"))
    kept = {key: origins[0][key] for key in ("devices", "images_trained", "images_scored")}
    text = note if isinstance(note, str) else note(results)
    about = tables.origin(command, seeds=seeds, note=text, **kept)
    about["commit"] = ", ".join(commits)
    titles = [t for t in (*metrics, SPEED) if any(t in row for row in summary.values())]
    cells = [[name, *(_cell(t, row.get(t)) for t in titles)] for name, row in summary.items()]
    return tables.write(
        path,
        {"rows": summary},
        about,
        tables.markdown(["", *titles], cells),
        f"Mean ± standard deviation over seeds {', '.join(seeds)}. "
        f"{kept['images_trained']:,} training images, {kept['images_scored']:,} scored. {text}",
    )


def _digest(config: ConfigDict) -> str:
    text = json.dumps(config_json(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _spread(values: Sequence[float]) -> dict[str, Any]:
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"values": list(values), "mean": statistics.fmean(values), "std": std}


def _cell(title: str, column: Mapping[str, Any] | None) -> str:
    if column is None:
        return ""
    if title == SPEED:
        return f"{column['mean']:,.0f}"
    if title.endswith("found"):
        return ", ".join(map(str, column["values"]))
    return tables.mean(column["values"])


def _at(metrics: Any, keys: tuple[str, ...]) -> float | None:
    for key in keys:
        metrics = metrics.get(key)
        if metrics is None:
            return None
    return metrics
