"""Full runs: train, embed, cluster and report, resuming where an earlier call stopped."""

import pathlib
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils
from ml_collections import ConfigDict

from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.data.datasets import Dataset
from cluster_jax.pipeline import build, embedder, outputs, provenance, stages
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.config import config_json, parse_config
from cluster_jax.training.state import State

# Sections that may change in a trained run without training again.
AFTER_TRAINING = ("eval", "note")
# Keys that may change at any time, because they do not affect the result.
AT_ANY_TIME = {
    "train": ("log_every", "checkpoint_every", "keep_checkpoints", "prefetch"),
    "data": ("cache_mb",),
}


def run_pipeline(
    config: ConfigDict | Mapping[str, Any],
    workdir: epath.PathLike | None = None,
    name: str = "run",
    dataset: Dataset | None = None,
) -> dict[str, Any]:
    """Trains, embeds, clusters and reports; skips what an earlier call has done.

    Args:
        config: see `configs/base.py`.
        workdir: folder or bucket path of the run; None: `runs/NAME-HASH` of name and config.
        name: name of the config, for the folder and the title of the report.
        dataset: the images if they are loaded already; None: load those of `config.data`.

    Returns:
        The content of `results.json`; for a new run only on the first process, elsewhere `{}`.

    Raises:
        InputError: the config, the data or the workdir is invalid; nothing was written.
        NotFinite, Preempted: see `training.loop.train`.
    """
    values = config_json(config)
    workdir = epath.Path(workdir or default_workdir(values, name))
    previous = workdirs.claim(
        workdir, values, compared=training_part, required=(workdirs.CLUSTERS,)
    )
    if previous is not None and dataset is not None:
        workdirs.check_images(workdir, workdirs.describe_images(dataset))
    if _agree(previous is not None, workdir) and previous is not None:
        _print(f"{workdir} is finished; to run again, choose another --workdir\n")
        _print(provenance.table(previous))
        return previous
    started = time.perf_counter()
    trainings = stages.build_stages(parse_config(values), workdir, name, dataset)
    _print_start(trainings)
    weights = _prepare(trainings, values)
    _train_and_embed(trainings, weights, values)
    if jax.process_index() != 0:
        return {}
    _print("clustering")
    return outputs.write_outputs(trainings[-1], values, started, _print)


def _print_start(trainings: list[stages.Stage]) -> None:
    run, workdir = trainings[-1].built.training, trainings[-1].workdir
    lengths = " + ".join(f"{stage.built.training.schedule.total:,}" for stage in trainings)
    network = trainings[-1].built.config.network
    noun = "rows" if run.dataset.shown is None else "images"
    work = f"{lengths} steps of {run.schedule.batch_size} {noun}"
    if not run.schedule.total:
        work = f"embedded by {network.name}, which is not trained,"
    _print(
        f"{run.dataset.size:,} {noun} of {run.dataset.name}, {work} on {run.mesh.size} x "
        f"{jax.devices()[0].device_kind}\nworkdir {workdir}"
    )
    if run.dataset.skipped:
        count = len(run.dataset.skipped)
        _print(f"{count} file{'s' if count > 1 else ''} cannot be read; see the report")


def _prepare(trainings: list[stages.Stage], values: dict[str, Any]) -> stages.Weights | None:
    """Runs the last checks before training, then writes the first files of the workdir.

    Returns:
        The network with which the first stage starts, or None.
    """
    last = trainings[-1]
    images = workdirs.describe_images(last.built.training.dataset)
    workdirs.check_images(last.workdir, images)
    weights = stages.initial_weights(trainings)
    if jax.process_index() == 0:
        last.workdir.mkdir(parents=True, exist_ok=True)
        io.write_json(last.workdir / workdirs.CONFIG, values)
        described = {**images, **build.describe_images(last.built)}
        io.write_json(last.workdir / workdirs.IMAGES, described)
    return weights


def _train_and_embed(
    trainings: list[stages.Stage], weights: stages.Weights | None, values: dict[str, Any]
) -> None:
    """Completes the training and writes the embeddings, unless they exist."""
    workdir = trainings[-1].workdir
    if _agree((workdir / workdirs.TRAIN_EMBEDDING).exists(), workdir):
        return
    trainings = embedder.embed_images(trainings, values)
    last = trainings[-1]
    dataset, test = last.built.training.dataset, last.built.test
    starts_from_network = len(trainings) > 1 or last.built.config.init_from is not None

    def embed(file: str, images: Dataset, state: State) -> None:
        features = stages.embed(last, images, state)
        if jax.process_index() == 0:
            io.write_arrays(last.workdir / file, features)

    def before_last(state: State) -> None:
        if starts_from_network:
            embed(workdirs.INITIAL_EMBEDDING, dataset, state)

    state = stages.train(trainings, weights, _print, before_last)
    if test is not None:
        embed(workdirs.TEST_EMBEDDING, test, state)
    # Written last, because its presence marks the training as finished.
    embed(workdirs.TRAIN_EMBEDDING, dataset, state)


def default_workdir(config: Mapping[str, Any], name: str) -> pathlib.Path:
    """`runs/NAME-HASH`, with the hash of all that the training depends on."""
    return workdirs.default_path("runs", name, training_part(config))


def training_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a config that the checkpoints and embeddings depend on."""
    values = {k: v for k, v in config.items() if k not in AFTER_TRAINING}
    for section, keys in AT_ANY_TIME.items():
        values[section] = {k: v for k, v in values.get(section, {}).items() if k not in keys}
    if values["network"]["weights"] is not None:
        # Decides whether anything is trained, see `build.trains`: without that the projector is
        # random, and so would be clusters of the stored projections.
        values["eval"] = {"features": config["eval"]["features"]}
    return values


def _agree(done: bool, workdir: epath.Path) -> bool:
    """Returns `done` after checking that it is the same on all processes.

    All processes must then make the same collective calls.

    Raises:
        InputError: it differs, because the workdir is not shared by all processes.
    """
    if jax.process_count() == 1:
        return done
    if bool(multihost_utils.broadcast_one_to_all(np.int32(done))) != done:
        raise InputError(
            f"{workdir} is not the same folder for all processes; choose a shared --workdir"
        )
    return done


def _print(text: str) -> None:
    if jax.process_index() == 0:
        print(text, flush=True)
