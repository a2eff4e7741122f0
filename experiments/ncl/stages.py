"""Runs that share the trainings before the last one."""

import pathlib
import shutil

from ml_collections import ConfigDict

from cluster_jax import pipeline


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
    return pipeline.run(config, workdir, name)


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.lower())
