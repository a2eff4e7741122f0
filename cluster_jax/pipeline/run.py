"""Full runs: train, embed, cluster and report, resuming where an earlier call stopped."""

import contextlib
import json
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils
from ml_collections import ConfigDict

from cluster_jax.core import disk, interrupt, io
from cluster_jax.core.checks import InputError
from cluster_jax.data import folder
from cluster_jax.data.datasets import Dataset
from cluster_jax.evaluation import summary
from cluster_jax.pipeline import (
    build,
    embedder,
    outputs,
    parts,
    pretrained_features,
    stages,
    trained_run,
)
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.config import config_json, parse_config
from cluster_jax.pipeline.embed import embed, readable_images
from cluster_jax.pipeline.parts import Parts
from cluster_jax.training import checkpoint, log
from cluster_jax.training import state as states
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
        dataset: the images if they are loaded already; None: load `config.data`.
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
    previous = workdirs.claim(
        workdir,
        values,
        compared=training_part,
        required=(workdirs.CLUSTERS,),
    )
    if previous is not None and previous["provenance"].get("cut_short"):
        previous = None  # of a training that was evaluated as it stood
    if previous is not None and dataset is not None:
        workdirs.check_images(workdir, workdirs.describe_images(dataset))
    if _agree(previous is not None, workdir) and previous is not None:
        _print(f"{workdir} is finished; to run again, choose another --workdir\n")
        _print(summary.run_table(previous))
        return previous
    started = time.perf_counter()
    disk.check(workdir)
    if jax.process_index() == 0:
        workdirs.check_unused(workdir)
    parsed = parse_config(values)
    trainings: list[stages.Stage] = []
    if build.trains(parsed):
        trainings = stages.build_stages(parsed, workdir, name, dataset)
        inputs = trainings[-1].built.inputs
    else:
        inputs = build.load_inputs(parsed, dataset)
    if cut_short:
        trainings = [*trainings[:-1], _as_it_stands(workdir, trainings)]
    _print_start(inputs, trainings, workdir)
    plan = _plan(inputs, trainings, values, workdir)
    is_first = jax.process_index() == 0
    lock = workdirs.locked(workdir) if is_first else contextlib.nullcontext(lambda: None)
    with disk.explained(workdir), lock as guard:
        _write_first_files(inputs, plan, values, workdir)
        if trainings:
            inputs = _train_and_embed(trainings, plan, guard)
        elif not _agree(not plan.missing, workdir):
            _write_frozen(inputs, plan, guard, workdir)
        if jax.process_index() != 0:
            return {}
        guard()
        return _cluster_and_write(inputs, plan, values, name, workdir, started, cut_short)


class InMemory(NamedTuple):
    """A run of a pretrained network that is not trained, in memory.

    Attributes:
        values: the config as JSON values.
        images: content of `images.json`.
        features: embeddings of the images.
        outputs: clusters, metrics and report.
        run: for new images.
    """

    values: dict[str, Any]
    images: dict[str, Any]
    features: outputs.Features
    outputs: outputs.Outputs
    run: trained_run.TrainedRun


def run_in_memory(
    config: ConfigDict | Mapping[str, Any], name: str, dataset: Dataset
) -> InMemory | None:
    """Embeds and clusters images like `run_pipeline`, without a workdir.

    Args:
        config: see `run_pipeline`.
        name: title of the report.
        dataset: the images.

    Returns:
        The run; None where a network is trained, whose checkpoints need a workdir.

    Raises:
        InputError: the config or the data are invalid.
    """
    values = config_json(config)
    parsed = parse_config(values)
    if build.trains(parsed):
        return None
    started = time.perf_counter()
    inputs = build.load_inputs(parsed, dataset)
    _print_start(inputs, [], None)
    embedding, checksum = _embed_frozen(inputs, lambda checksum: None)
    features = outputs.Features(embedding)
    _print("clustering")
    made = outputs.cluster(
        inputs, features, values, name=name, steps=0, records=[], started=started
    )
    _print(summary.run_table(made.results))
    images = {
        **workdirs.describe_images(inputs.dataset),
        **build.describe_images(inputs),
        workdirs.WEIGHTS: checksum,
    }
    run = trained_run.join(
        None,
        inputs.config,
        made.results,
        images,
        features.train,
        made.clusters,
        readable_images(inputs.dataset, features.train).sources,
    )
    return InMemory(values, images, features, made, run)


def write_run(workdir: epath.PathLike, memory: InMemory) -> None:
    """Writes a run in memory into a workdir, as `run_pipeline` would have left it."""
    workdir = epath.Path(workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    io.write_json(workdir / workdirs.CONFIG, memory.values, checksum=True)
    io.write_json(workdir / workdirs.IMAGES, memory.images, checksum=True)
    described = {key: memory.images[key] for key in ("size", "sha256")}
    workdirs.write_embedding(
        workdir / workdirs.TRAIN_EMBEDDING,
        memory.features.train,
        _fingerprint(memory.values, described),
        0,
    )
    outputs.write(workdir, memory.outputs)


def _as_it_stands(workdir: epath.Path, trainings: list[stages.Stage]) -> stages.Stage:
    """The last stage, ended at its newest checkpoint."""
    steps = checkpoint.steps(workdir / checkpoint.FOLDER)
    if not steps or not trainings:
        raise InputError(
            f"--cut_short needs a checkpoint of the last stage in {workdir}; got none: train "
            "up to one first"
        )
    stage = trainings[-1]
    training = stage.built.training
    training = training._replace(total_steps=max(steps))
    return stage._replace(built=stage.built._replace(training=training))


def _print_start(
    inputs: build.Inputs, trainings: list[stages.Stage], workdir: epath.Path | None
) -> None:
    config, dataset, _ = inputs
    noun = "rows" if dataset.shown is None else "images"
    work = f"embedded by {config.network.name}, which is not trained,"
    if trainings:
        lengths = " + ".join(f"{stage.built.training.total_steps:,}" for stage in trainings)
        work = f"{lengths} steps of {config.train.batch_size} {noun}"
    _print(
        f"{dataset.size:,} {noun} of {dataset.name}, {work} on {jax.device_count()} x "
        f"{jax.devices()[0].device_kind}" + ("" if workdir is None else f"\nworkdir {workdir}")
    )
    _print_skipped(len(dataset.skipped))
    if dataset.ignored:
        _print(f"ignored files: {folder.describe_ignored(dataset.ignored)}")


def _print_skipped(count: int) -> None:
    if count:
        _print(f"{count} file{'s' if count > 1 else ''} cannot be read; see the report")


class _Plan(NamedTuple):
    """The embeddings that a run has to make, and the network that it starts from.

    Attributes:
        images: see `workdir.describe_images`.
        fingerprint: of config and images, which the embeddings depend on.
        files: file of an embedding -> number of training steps of its network.
        missing: files of embeddings that do not exist yet.
        weights: the network with which the first stage starts, or None.
    """

    images: dict[str, Any]
    fingerprint: str
    files: dict[str, int]
    missing: list[str]
    weights: stages.Weights | None


def _plan(
    inputs: build.Inputs,
    trainings: list[stages.Stage],
    values: dict[str, Any],
    workdir: epath.Path,
) -> _Plan:
    """Runs the last checks before anything is written."""
    images = workdirs.describe_images(inputs.dataset)
    workdirs.check_images(workdir, images)
    steps = trainings[-1].built.training.total_steps if trainings else 0
    files = {workdirs.TRAIN_EMBEDDING: steps}
    if inputs.test is not None:
        files[workdirs.TEST_EMBEDDING] = steps
    if len(trainings) > 1 or inputs.config.init_from is not None:
        files[workdirs.INITIAL_EMBEDDING] = 0
    fingerprint = _fingerprint(values, images)
    missing = [
        name
        for name, step in files.items()
        if not workdirs.has_embedding(workdir / name, fingerprint, step)
    ]
    weights, described = None, workdir / workdirs.IMAGES
    # The network of new images is that of the embedding.
    if not trainings and not (
        described.exists() and workdirs.WEIGHTS in workdirs.read_values(described)
    ):
        missing = list(files)
    if trainings:
        weights = stages.initial_weights(trainings, again=workdirs.INITIAL_EMBEDDING in missing)
    return _Plan(images, fingerprint, files, missing, weights)


def _write_first_files(
    inputs: build.Inputs, plan: _Plan, values: dict[str, Any], workdir: epath.Path
) -> None:
    """Writes `config.json` and `images.json`."""
    if jax.process_index() != 0:
        return
    io.write_json(workdir / workdirs.CONFIG, values, checksum=True)
    file = workdir / workdirs.IMAGES
    earlier = workdirs.read_values(file) if file.exists() else {}
    described = {**earlier, **plan.images, **build.describe_images(inputs)}
    io.write_json(file, described, checksum=True)
    for name in plan.files.keys() - plan.missing:  # left by a kill after the last part
        parts.remove(parts.folder_of(workdir / name))


def _embed_frozen(
    inputs: build.Inputs, kept: Callable[[str], Parts | None]
) -> tuple[dict[str, np.ndarray], str]:
    """Embeds the images by the pretrained network, which nothing trains.

    Args:
        inputs: the images.
        kept: checksum of the weights -> where finished parts of the embedding are kept, or None.

    Returns:
        The embedding, and the checksum of the weights.
    """
    (config, dataset, _), mesh = inputs, states.make_mesh()
    network = pretrained_features.make(config, config.network, dataset.shape[2], mesh)
    embedded = embed(
        network.forward,
        dataset,
        batch_size=config.eval.batch_size,
        mesh=mesh,
        kept=kept(network.checksum),
    )
    rows = {name: values for name, values in embedded.items() if name != "features"}
    return {"backbone": embedded["features"][:, 0], **rows}, network.checksum


def _write_frozen(
    inputs: build.Inputs, plan: _Plan, guard: Callable[[], None], workdir: epath.Path
) -> None:
    """Writes the embedding of the images by the pretrained network."""
    file, images = workdir / workdirs.TRAIN_EMBEDDING, workdir / workdirs.IMAGES
    folder = parts.folder_of(file)
    embedding, checksum = _embed_frozen(
        inputs, lambda checksum: Parts(folder, f"{plan.fingerprint}:0:{checksum}", guard)
    )
    if jax.process_index() == 0:
        guard()
        described = {**workdirs.read_values(images), workdirs.WEIGHTS: checksum}
        io.write_json(images, described, checksum=True)
        workdirs.write_embedding(file, embedding, plan.fingerprint, 0)
        parts.remove(folder)


def _train_and_embed(
    trainings: list[stages.Stage], plan: _Plan, guard: Callable[[], None]
) -> build.Inputs:
    """Trains all stages and writes the missing embeddings.

    Returns:
        The inputs of the last stage: with the section `embedder`, features in place of images.
    """
    last, workdir = trainings[-1], trainings[-1].workdir
    if _agree(not plan.missing, workdir):
        _end_at_once()
        return embedder.embed_images(trainings, plan.fingerprint, guard)[-1].built.inputs
    trainings = embedder.embed_images(trainings, plan.fingerprint, guard)
    last = trainings[-1]
    run, test = last.built.training, last.built.test

    def write_embedding(name: str, dataset: Dataset, state: State) -> None:
        if name not in plan.missing:
            return
        step, network = plan.files[name], (state.params, state.model_state)
        made_from = f"{plan.fingerprint}:{step}:{checkpoint.checksum(network)}"
        kept = Parts(parts.folder_of(workdir / name), made_from, guard)
        features = stages.embed(last, dataset, state, kept)
        if jax.process_index() == 0:
            guard()
            workdirs.write_embedding(workdir / name, features, plan.fingerprint, step)
            parts.remove(kept.folder)

    def before_last(state: State) -> None:
        write_embedding(workdirs.INITIAL_EMBEDDING, run.dataset, state)

    needs_initial = workdirs.INITIAL_EMBEDDING in plan.missing
    state = stages.train(
        trainings, plan.weights, _print, before_last if needs_initial else None, guard
    )
    _end_at_once()
    if test is not None:
        write_embedding(workdirs.TEST_EMBEDDING, test, state)
    write_embedding(workdirs.TRAIN_EMBEDDING, run.dataset, state)
    return last.built.inputs


def _cluster_and_write(
    inputs: build.Inputs,
    plan: _Plan,
    values: dict[str, Any],
    name: str,
    workdir: epath.Path,
    started: float,
    cut_short: bool,
) -> dict[str, Any]:
    """Clusters the embedding in the workdir and writes clusters, tables, report and results."""
    _print("clustering")
    made = outputs.cluster(
        inputs,
        outputs.read_features(workdir),
        values,
        name=name,
        steps=plan.files[workdirs.TRAIN_EMBEDDING],
        records=log.read(workdir),
        started=started,
        cut_short=cut_short,
    )
    outputs.write(workdir, made)
    if not inputs.dataset.skipped:
        _print_skipped(len(made.report.skipped))
    _print(summary.run_table(made.results))
    _print(f"\nreport       {workdir / workdirs.REPORT}")
    _print(f"assignments  {workdir / workdirs.ASSIGNMENTS}")
    _print(f"metrics      {workdir / workdirs.RESULTS}")
    return made.results


def _end_at_once() -> None:
    """Lets SIGTERM end a process at once after training, when no step is left to save."""
    if jax.process_count() > 1:
        interrupt.terminate()


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
    """SHA-256 of config and images, which embeddings depend on beside the number of steps."""
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
