"""Runs that share all training stages but the last."""

import pathlib
import shutil
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from cluster_jax.pipeline import run as pipeline


def results(
    rows: Mapping[str, ConfigDict], folder: pathlib.Path, seeds: Sequence[int], part: str | None
) -> dict[str, list[dict]]:
    """Results of each row and seed; the first row trains the stages that all rows share.

    Args:
        rows: name of each row -> its config.
        folder: of the runs; finished runs are reused.
        seeds: run for each row.
        part: `"I/N"`: only every N-th row, starting with row I; None: all rows.
    """
    start, step = (int(x) for x in (part or "0/1").split("/"))
    first = next(iter(rows))
    return {
        name: [run(config, folder, name, seed, first) for seed in seeds]
        for name, config in list(rows.items())[start::step]
    }


def run(config: ConfigDict, folder: pathlib.Path, name: str, seed: int, first: str) -> dict:
    """One run; all rows but `first` copy its stages, which must be finished."""
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
