"""Runs that share the trainings before the last one."""

import pathlib
import shutil
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from cluster_jax.pipeline import run as pipeline


def results(
    rows: Mapping[str, ConfigDict], folder: pathlib.Path, seeds: Sequence[int], part: str | None
) -> dict[str, list[dict]]:
    """Results of each row and seed; the first row of all trains the stages that all share.

    Args:
        rows: config of each row.
        folder: of the runs; those that are finished are not run again.
        seeds: of each row.
        part: `"I/N"`: of every N-th row from I on; None: of all.
    """
    start, step = (int(x) for x in (part or "0/1").split("/"))
    first = next(iter(rows))
    return {
        name: [run(config, folder, name, seed, first) for seed in seeds]
        for name, config in list(rows.items())[start::step]
    }


def run(config: ConfigDict, folder: pathlib.Path, name: str, seed: int, first: str) -> dict:
    """A run of a seed; all but `first` take its stages, which must be finished."""
    workdir = folder / f"{_slug(name)}-seed{seed}"
    shared = folder / f"{_slug(first)}-seed{seed}" / "stages"
    if name != first and not workdir.exists():
        partial = workdir.with_name(f"{workdir.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(shared, partial / "stages")
        partial.rename(workdir)
    config.seed = seed
    return pipeline.run_pipeline(config, workdir, name)


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.lower())
