"""UMAP and GridShift of a training's evaluations, in processes on the host's other cores."""

import contextlib
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from cluster_jax.core import io
from cluster_jax.pipeline.config import config_json
from experiments.gpu import map_and_cluster


class MapJob(NamedTuple):
    """The process of one evaluation, and where its scores go."""

    line: dict[str, Any]
    result: pathlib.Path
    process: subprocess.Popen


def _files(workdir: pathlib.Path, line: Mapping[str, Any]) -> tuple[pathlib.Path, pathlib.Path]:
    """Features of an evaluation, kept until they are clustered, and GridShift's scores."""
    return workdir / f"features-{line['step']}.npz", workdir / f"gridshift-{line['step']}.json"


def keep(
    workdir: pathlib.Path, line: Mapping[str, Any], features: np.ndarray, labels: np.ndarray
) -> None:
    """Keeps the features of an evaluation for its job, in float16."""
    file, result = _files(workdir, line)
    result.unlink(missing_ok=True)
    partial = file.with_name("partial.npz")
    np.savez(partial, features=features.astype(np.float16), labels=labels)
    partial.rename(file)


def start(workdir: pathlib.Path, line: dict[str, Any], config: ConfigDict) -> list[MapJob]:
    """The job of an evaluation; none if its result is there, or cannot be."""
    file, result = _files(workdir, line)
    if line["gridshift"] is not None:
        return []
    if result.exists():
        line["gridshift"] = io.read_json(result)
        return []
    if not map_and_cluster.available():
        line["gridshift"] = "umap-learn is not installed"
        return []
    if not file.exists():
        line["gridshift"] = "its features are on another machine"
        return []
    io.write_json(workdir / "eval.json", config_json(config)["eval"])
    command = [sys.executable, "-m", "experiments.gpu.map_and_cluster", str(file)]
    command += [str(workdir / "eval.json"), str(result), str(os.getpid())]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    return [MapJob(line, result, process)]


@contextlib.contextmanager
def running(
    workdir: pathlib.Path, history: Iterable[dict[str, Any]], config: ConfigDict
) -> Iterator[list[MapJob]]:
    """The jobs that an earlier slice did not finish; all that still run are ended on leaving."""
    jobs = [job for line in history for job in start(workdir, line, config)]
    try:
        yield jobs
    finally:
        for job in jobs:
            job.process.kill()
            job.process.wait()


def collect(jobs: Iterable[MapJob], wait: float) -> None:
    """Puts into their lines the results of the jobs that end within `wait` seconds together."""
    end = time.monotonic() + wait
    for job in jobs:
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.process.wait(max(0.0, end - time.monotonic()))
        if job.process.poll() is not None and job.line["gridshift"] is None:
            failed = {"error": f"exit status {job.process.returncode}"}
            exists = job.result.exists()
            job.line["gridshift"] = io.read_json(job.result) if exists else failed
