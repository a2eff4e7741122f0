"""Full runs: train, embed, cluster and report, resuming where an earlier call stopped."""

import contextlib
import functools
import json
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils
from ml_collections import ConfigDict

from cluster_jax.core import disk, interrupt, io, lock
from cluster_jax.core.checks import InputError
from cluster_jax.data.datasets import Dataset
from cluster_jax.pipeline import build, embedder, integrity, outputs, parts, provenance, stages
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.config import config_json, parse_config
from cluster_jax.pipeline.parts import Parts
from cluster_jax.training import checked, checkpoint
from cluster_jax.training.state import State

# Sections that may change in a trained run without training again.
AFTER_TRAINING = ("eval", "note")
# Keys that may change at any time, because they do not affect the result.
AT_ANY_TIME = {
    "train": ("log_every", "checkpoint_every", "keep_checkpoints", "prefetch", "on_collapse"),
    "data": ("cache_mb",),
}


def run_pipeline(
    config: ConfigDict | Mapping[str, Any],
    workdir: epath.PathLike | None = None,
    name: str = "run",
    dataset: Dataset | None = None,
    cut_short: bool = False,
) -> dict[str, Any]:
    """Trains, embeds, clusters and reports; skips what an earlier call has done.

    Args:
        config: see `configs/base.py`.
        workdir: folder or bucket path of the run; None: `runs/NAME-HASH` of name and config.
        name: name of the config, for the folder and the title of the report.
        dataset: the images if they are loaded already; None: load those of `config.data`.
        cut_short: evaluates the newest checkpoint of an unfinished training as it stands; without
            it, a later call trains on.

    Returns:
        The content of `results.json`; for a new run only on the first process, elsewhere `{}`.

    Raises:
        InputError: the config, the data or the workdir is invalid; nothing was written.
        NotFinite, Preempted: see `training.loop.train`.
    """
    values = config_json(config)
    checkpoint.wait_for_all("started")
    workdir = epath.Path(workdir or default_workdir(values, name))
    integrity.check_has_config(workdir)
    previous = workdirs.claim(
        workdir,
        values,
        compared=training_part,
        required=(workdirs.CLUSTERS,),
        repair=integrity.put_aside,
    )
    if previous is not None and previous["provenance"].get("cut_short"):
        previous = None  # of a training that was evaluated as it stood
    if previous is not None and dataset is not None:
        workdirs.check_images(workdir, workdirs.describe_images(dataset))
    if _agree(previous is not None, workdir) and previous is not None:
        _print(f"{workdir} is finished; to run again, choose another --workdir\n")
        _print(provenance.table(previous))
        return previous
    started = time.perf_counter()
    disk.check_writable(workdir)
    if jax.process_index() == 0:
        lock.wait(workdir)
    trainings = stages.build_stages(parse_config(values), workdir, name, dataset)
    if cut_short:
        trainings = [*trainings[:-1], _as_it_stands(trainings[-1])]
    _print_start(trainings)
    plan = _plan(trainings, values)
    saved = functools.partial(checkpoint.saved, trainings[-1].checkpoints)
    with disk.explained(workdir, saved), _locked(workdir) as guard:
        trainings = _train_and_embed(trainings, plan, values, guard)
        if jax.process_index() != 0:
            return {}
        _print("clustering")
        guard()
        return outputs.write_outputs(trainings[-1], values, started, _print, cut_short)


def _as_it_stands(stage: stages.Stage) -> stages.Stage:
    """The last stage, ended at its newest checkpoint."""
    steps = checkpoint.steps(stage.checkpoints)
    if not steps:
        raise InputError(
            f"--cut_short needs a checkpoint of the last stage in {stage.workdir}; got none: train "
            "up to one first"
        )
    training = stage.built.training
    schedule = training.schedule._replace(total=max(steps))
    return stage._replace(built=stage.built._replace(training=training._replace(schedule=schedule)))


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


class _Plan(NamedTuple):
    """What is to be done in a workdir.

    Attributes:
        images: see `workdir.describe_images`.
        fingerprint: of what the embeddings are made from.
        files: embedding -> number of steps of the network that makes it.
        missing: those that are not there.
        weights: the network with which the first stage starts, or None.
    """

    images: dict[str, Any]
    fingerprint: str
    files: dict[str, int]
    missing: list[str]
    weights: stages.Weights | None


def _plan(trainings: list[stages.Stage], values: dict[str, Any]) -> _Plan:
    """Runs the last checks before anything is written."""
    last, workdir = trainings[-1], trainings[-1].workdir
    run = last.built.training
    images = workdirs.describe_images(run.dataset)
    workdirs.check_images(workdir, images)
    files = {workdirs.TRAIN_EMBEDDING: run.schedule.total}
    if last.built.test is not None:
        files[workdirs.TEST_EMBEDDING] = run.schedule.total
    if len(trainings) > 1 or last.built.config.init_from is not None:
        files[workdirs.INITIAL_EMBEDDING] = 0
    fingerprint = _fingerprint(values, images)
    missing = [
        name
        for name, step in files.items()
        if not integrity.has_embedding(workdir / name, fingerprint, step)
    ]
    weights = stages.initial_weights(trainings, again=workdirs.INITIAL_EMBEDDING in missing)
    return _Plan(images, fingerprint, files, missing, weights)


def _train_and_embed(
    trainings: list[stages.Stage], plan: _Plan, values: dict[str, Any], guard: Callable[[], None]
) -> list[stages.Stage]:
    """Writes the first files, trains, and writes the embeddings that are missing.

    Returns:
        The stages, on features where the config has images embedded first.
    """
    last, workdir = trainings[-1], trainings[-1].workdir
    if jax.process_index() == 0:
        io.write_json(workdir / workdirs.CONFIG, values, checksum=True)
        described = {**plan.images, **build.describe_images(last.built)}
        io.write_json(workdir / workdirs.IMAGES, described, checksum=True)
        for name in plan.files.keys() - plan.missing:  # left by a kill after the last part
            parts.remove(parts.folder_of(workdir / name))
    if _agree(not plan.missing and checkpoint.damage(last.checkpoints) is None, workdir):
        _end_at_once()
        return embedder.embed_images(trainings, plan.fingerprint, guard)
    trainings = embedder.embed_images(trainings, plan.fingerprint, guard)
    last = trainings[-1]
    run, test = last.built.training, last.built.test

    def embed(name: str, dataset: Dataset, state: State) -> None:
        if name not in plan.missing:
            return
        step, network = plan.files[name], (state.params, state.model_state)
        made_from = f"{plan.fingerprint}:{step}:{checked.checksum(network)}"
        kept = Parts(parts.folder_of(workdir / name), made_from, guard)
        features = stages.embed(last, dataset, state, kept)
        if jax.process_index() == 0:
            guard()
            integrity.write_embedding(workdir / name, features, plan.fingerprint, step)
            parts.remove(kept.folder)

    def before_last(state: State) -> None:
        embed(workdirs.INITIAL_EMBEDDING, run.dataset, state)

    needs_initial = workdirs.INITIAL_EMBEDDING in plan.missing
    state = stages.train(
        trainings, plan.weights, _print, before_last if needs_initial else None, guard
    )
    _end_at_once()
    if test is not None:
        embed(workdirs.TEST_EMBEDDING, test, state)
    embed(workdirs.TRAIN_EMBEDDING, run.dataset, state)
    return trainings


def _end_at_once() -> None:
    """Lets SIGTERM end one of several processes, which have no more steps to agree on saving."""
    if jax.process_count() > 1:
        interrupt.terminate()


@contextlib.contextmanager
def _locked(workdir: epath.Path) -> Iterator[Callable[[], None]]:
    """Makes the workdir and holds its lock; yields what raises once that is lost."""
    if jax.process_index() != 0:
        yield lambda: None
        return
    workdir.mkdir(parents=True, exist_ok=True)
    with lock.locked(workdir) as held:
        try:
            yield held.check
        except OSError:
            held.check()  # A folder that is gone explains any error.
            raise


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


def _fingerprint(values: Mapping[str, Any], images: Mapping[str, Any]) -> str:
    """Identifies what embeddings are made from, beside the number of steps."""
    made_from = training_part(values)
    made_from["train"].pop("duration")
    return workdirs.fingerprint(json.dumps([made_from, images], sort_keys=True).encode())


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
