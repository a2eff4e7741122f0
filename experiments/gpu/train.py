"""The longest honest training that fits: resumable, evaluated at fixed epochs, nothing selected."""

import contextlib
import functools
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.core import arrays, io
from cluster_jax.core.checks import InputError
from cluster_jax.core.config import load_config
from cluster_jax.data.images import Dataset
from cluster_jax.metrics import knn, partition
from cluster_jax.pipeline import build, embed
from cluster_jax.pipeline.config import config_json
from cluster_jax.training import checkpoint, log, loop
from cluster_jax.training.loop import TrainingRun
from cluster_jax.training.state import State
from experiments.gpu import carry, map_and_cluster, neighbors, pieces, settings

EMBED_BATCH = 4096
NEIGHBORS = (5, 20)
CARRY_PIECE_MB = 15.0
# Seconds kept at the end of a slice for a checkpoint, the last evaluation, and packing.
RESERVE = 45.0
LOG_LINES = 50
PAPER_BATCH, WORTH = 256, 1.1


def measure(
    item: Mapping[str, Any],
    *,
    dataset: Dataset,
    out: pathlib.Path,
    resume: pathlib.Path | None,
    earlier: Mapping[str, Any] | None,
    rates: Mapping[str, Any],
    seconds: float,
    write: Callable[[dict[str, Any], bool], None],
    tiny: bool,
) -> None:
    """Trains an item's method until its last epoch or the end of the slice.

    The learning rate is that of the whole training from the first slice on. After every
    `evaluate_every` epochs the clean images are embedded: k-NN and k-means on the device,
    UMAP and GridShift in a process beside the training. Labels only score; the last step counts.

    Args:
        item: "method", "sampler", "network", "epochs", "evaluate_every".
        dataset: images with labels.
        out: folder of the results; the state is kept and packed in it.
        resume: folder of packed states by the name of the item, or None.
        earlier: figures of the previous slice of this item, or None.
        rates: figures of the rate items by name, from which batch and precision are chosen.
        seconds: left in this slice.
        write: takes the figures so far and whether the item is complete.
        tiny: sizes of the dry run.

    Raises:
        InputError: the packed state is damaged or of another config.
    """
    start = time.monotonic()
    packed = None if resume is None else resume / item["name"]
    packed = packed if packed is not None and (packed / pieces.MANIFEST).exists() else None
    config = _config(item, earlier, packed, rates, tiny)
    run = settings.build_run(config, dataset).training
    total = run.schedule.total
    steps_per_epoch = total // item["epochs"]
    every = item["evaluate_every"] * steps_per_epoch
    workdir = out / "train" / item["name"]
    about = {"name": item["name"], "config": config_json(config)}
    initial = build.initial_state(run)
    if packed is not None:
        initial = carry.unpack(packed, initial, about)
    figures = dict(earlier or {"history": [], "config": about["config"], "seconds": 0.0})
    before = figures["seconds"]
    embed_all = functools.partial(_projections, run)
    jobs: list[_MapJob] = []
    done = _steps_done(workdir, int(initial.step))
    state = _train_to(run, done, initial, workdir, embed_all)
    with _end_of_slice(seconds - RESERVE * (not tiny)) as ended:
        while True:
            is_due = done == total or (done > 0 and done % every == 0)
            if is_due and not any(line["step"] == done for line in figures["history"]):
                line, features = _evaluate(run, state, done, steps_per_epoch)
                jobs.append(_MapJob(features, dataset.labels, config, workdir, line))
                figures["history"].append(line)
                figures["seconds"] = before + time.monotonic() - start
                _collect(jobs, wait=0.0)
                write(figures, False)
            if done == total or ended.is_set():
                break
            goal = min(total, (done // every + 1) * every)
            try:
                state = _train_to(run, goal, state, workdir, embed_all)
                done = goal
            except loop.Preempted:
                done = _steps_done(workdir, 0)
                state = _train_to(run, done, build.initial_state(run), workdir, embed_all)
                break
    figures |= {"step": done, "epoch": done / steps_per_epoch, "steps": total, **_logged(workdir)}
    folder = out / "carry" / item["name"]
    for old in sorted(folder.glob("*")):
        old.unlink()
    figures["carried"] = carry.pack(state, about, folder, CARRY_PIECE_MB)
    figures["seconds"] = before + time.monotonic() - start
    write(figures, False)
    _collect(jobs, wait=max(0.0, seconds - (time.monotonic() - start) - 2.0))
    write(figures, done == total)


def _train_to(
    run: TrainingRun,
    step: int,
    state: State,
    workdir: pathlib.Path,
    embed_all: Callable[[State], dict[str, np.ndarray]],
) -> State:
    """The state after `step` steps, from the newest checkpoint or from `state`, which is donated.

    Only the end is moved: the schedules of the run are those of the whole training.
    """
    segment = run._replace(schedule=run.schedule._replace(total=step))
    return loop.train(segment, state, workdir=workdir, embed=embed_all)


def _logged(workdir: pathlib.Path) -> dict[str, Any]:
    """Median rate and last loss of the last lines of the log; E-steps are part of the rate."""
    lines = log.read(workdir)[-LOG_LINES:]
    if not lines:
        return {}
    rate = statistics.median(line["images_per_second"] for line in lines)
    return {"images_per_second": rate, "loss": lines[-1]["loss"]}


def choose(item: Mapping[str, Any], rates: Mapping[str, Any]) -> tuple[int, str]:
    """Batch and precision by rate alone: the fastest, but the paper's batch if 10 % do not pay.

    Where nothing was measured: the paper's batch, bfloat16.
    """
    measured = {
        (entry["item"]["batch"], entry["item"]["dtype"]): entry["figures"]["images_per_second"]
        for entry in rates.values()
        if entry["item"]["method"] == "byol"
        and entry["item"]["network"] == item["network"]
        and not entry["item"].get("sampler")
        and entry["item"].get("side", 32) == 32
        and entry["item"].get("views", "paper") == "paper"
        and "images_per_second" in entry["figures"]
    }
    if not measured:
        return PAPER_BATCH, "bfloat16"
    batch, dtype = max(measured, key=lambda choice: measured[choice])
    if measured.get((PAPER_BATCH, dtype), 0.0) * WORTH >= measured[batch, dtype]:
        batch = PAPER_BATCH
    return batch, dtype


def _config(
    item: Mapping[str, Any],
    earlier: Mapping[str, Any] | None,
    packed: pathlib.Path | None,
    rates: Mapping[str, Any],
    tiny: bool,
) -> ConfigDict:
    """The config of an earlier slice; else the paper's with the chosen batch and precision."""
    if earlier:
        return ConfigDict(earlier["config"])
    if packed is not None:
        return ConfigDict(io.read_json(packed / pieces.MANIFEST)["about"]["config"])
    batch, dtype = choose(item, rates)
    config = load_config("ncc_cifar10" if item["method"] == "ncc" else "nrcc_cifar10")
    config.nrcc.weight = 0.1 if item.get("sampler") else 0.0
    config.data.update(name="arrays", split=None)
    config.network.update(name=item["network"], dtype=dtype)
    config.train.update(batch_size=batch, duration=f"{item['epochs']} epochs", log_every=100)
    if tiny:
        settings.tiny_config(config)
        config.train.duration = f"{item['epochs']} epochs"
    return config


def _steps_done(workdir: pathlib.Path, first: int) -> int:
    """Step of the newest checkpoint on this machine, or `first`, that of the initial state."""
    folder = workdir / checkpoint.FOLDER
    steps = [int(path.name) for path in folder.glob("*") if path.name.isdigit()]
    return max(steps, default=first)


@contextlib.contextmanager
def _end_of_slice(seconds: float) -> Iterator[threading.Event]:
    """Sends this process SIGTERM after `seconds`, which the training loop answers by saving.

    Outside the loop the signal only sets the event.
    """
    ended = threading.Event()
    previous = signal.signal(signal.SIGTERM, lambda *_: ended.set())
    timer = threading.Timer(max(seconds, 0.1), os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()
    try:
        yield ended
    finally:
        timer.cancel()
        signal.signal(signal.SIGTERM, previous)


def _projections(run: TrainingRun, state: State) -> dict[str, np.ndarray]:
    """What NCC's E-step clusters."""
    return _embed(run, state, _projection_of(run.method.embed))


@functools.lru_cache(maxsize=4)
def _projection_of(function: Callable) -> Callable:
    """The projection alone; one function, so that it is compiled once."""

    def projection(params: Any, model_state: Any, images: jax.Array) -> dict[str, jax.Array]:
        return {"projection": function(params, model_state, images)["projection"]}

    return projection


def _embed(run: TrainingRun, state: State, function: Callable) -> dict[str, np.ndarray]:
    return embed.embed(
        run.method._replace(embed=function),
        state.params,
        state.model_state,
        run.dataset,
        batch_size=EMBED_BATCH,
        mesh=run.mesh,
    )


def _evaluate(
    run: TrainingRun, state: State, step: int, steps_per_epoch: int
) -> tuple[dict[str, Any], np.ndarray]:
    """k-NN and k-means on the backbone's features of all images, and these features."""
    start = time.monotonic()
    features = arrays.normalize_rows(_embed(run, state, run.method.embed)["backbone"])
    labels = run.dataset.labels
    nearest = neighbors.nearest(features, max(NEIGHBORS))
    fitted = kmeans(features, len(np.unique(labels)), seed=run.schedule.seed)
    line = {
        "step": step,
        "epoch": step / steps_per_epoch,
        "knn": knn.vote(nearest, labels, labels, NEIGHBORS),
        "kmeans": partition.scores(labels, fitted.labels),
        "gridshift": None,
        "evaluation_seconds": time.monotonic() - start,
    }
    return line, features


class _MapJob:
    """UMAP and GridShift of one evaluation, in a process of its own on the host's other cores."""

    def __init__(
        self,
        features: np.ndarray,
        labels: np.ndarray,
        config: ConfigDict,
        workdir: pathlib.Path,
        line: dict[str, Any],
    ):
        self._line = line
        self._result = workdir / f"gridshift-{line['step']}.json"
        if not map_and_cluster.available():
            line["gridshift"] = "umap-learn is not installed"
            self._process = None
            return
        file = workdir / f"features-{line['step']}.npz"
        np.savez(file, features=features.astype(np.float16), labels=labels)
        io.write_json(workdir / "eval.json", config_json(config)["eval"])
        command = [sys.executable, "-m", "experiments.gpu.map_and_cluster", str(file)]
        command += [str(workdir / "eval.json"), str(self._result)]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        self._process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)

    def collect(self, wait: float) -> None:
        """Puts the result into the line if it is there within `wait` seconds."""
        if self._process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait)
        if self._process.poll() is None:
            return
        failed = {"error": f"exit status {self._process.returncode}"}
        exists = self._result.exists()
        self._line["gridshift"] = io.read_json(self._result) if exists else failed
        self._process = None


def _collect(jobs: list[_MapJob], wait: float) -> None:
    """Results of the jobs that end within `wait` seconds together."""
    end = time.monotonic() + wait
    for job in jobs:
        job.collect(max(0.0, end - time.monotonic()))


def check_resume(resume: pathlib.Path | None) -> None:
    """Raises an `InputError` unless `--resume` is a folder with a packed state."""
    if resume is not None and not any(resume.glob(f"*/{pieces.MANIFEST}")):
        raise InputError(
            f"--resume must be the folder `carry` of an earlier slice; {resume} holds no packed "
            "state"
        )
