"""Full runs: train, embed, cluster and report, resuming where an earlier call stopped."""

import contextlib
import dataclasses
import functools
import json
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath
from ml_collections import ConfigDict

from cluster_jax.core import disk, interrupt, io
from cluster_jax.core.checks import InputError
from cluster_jax.data import folder
from cluster_jax.data.datasets import Dataset
from cluster_jax.evaluation import summary
from cluster_jax.pipeline import (
    build,
    inference,
    outputs,
    parts,
    stages,
)
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.config import config_json, parse_config
from cluster_jax.pipeline.embed import FrozenNetwork, embed, embed_images, pretrained
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
    required = (workdirs.CLUSTERS,)
    previous = workdirs.claim(workdir, values, compared=training_part, required=required)
    if previous is not None and previous["provenance"].get("cut_short"):
        previous = None  # of a training that was evaluated as it stood
    if previous is not None and dataset is not None:
        workdirs.check_images(workdir, workdirs.describe_images(dataset))
    if workdirs.agree(previous is not None, workdir) and previous is not None:
        _print(f"{workdir} is finished; to run again, choose another folder\n")
        _print(summary.run_table(previous))
        return previous
    started, is_first = time.perf_counter(), jax.process_index() == 0
    disk.check(workdir)
    if is_first:
        workdirs.check_unused(workdir)
    parsed = parse_config(values)
    trainings: list[build.BuiltRun] = []
    if build.trains(parsed):
        trainings = stages.build_stages(parsed, workdir, name, dataset)
        inputs = trainings[-1].inputs
    else:
        inputs = build.load_inputs(parsed, dataset)
    if cut_short:
        trainings = [*trainings[:-1], _as_it_stands(workdir, trainings)]
    _print_start(inputs, trainings, workdir)
    plan = _plan(inputs, trainings, values, workdir)
    results = workdirs.finished_results(workdir)
    if results is not None and (differing := workdirs.difference(results["config"], values)):
        _print(f"the results in {workdir} had {differing}: they are replaced")
    lock = workdirs.locked(workdir) if is_first else contextlib.nullcontext(lambda: None)
    with disk.explained(workdir), lock as guard:
        inputs = _make_features(inputs, trainings, plan, guard)
        if not is_first:
            return {}
        guard()
        return _cluster_and_write(inputs, plan, name, started, cut_short)


@dataclasses.dataclass
class InMemory:
    """A run of a pretrained network that is not trained, in memory.

    Attributes:
        values: the config as JSON values.
        name: title of the report.
        inputs: the images.
        embedding: of all of them.
        found: their clusters.
        seconds: time that the embedding took.
        run: for new images.
    """

    values: dict[str, Any]
    name: str
    inputs: build.Inputs
    embedding: dict[str, np.ndarray]
    found: outputs.Found
    seconds: float
    run: inference.TrainedRun

    @functools.cached_property
    def outputs(self) -> outputs.Outputs:
        """Scores, map, tables and report, which are made when they are asked for."""
        return outputs.describe(self.found, self.values, name=self.name, seconds=self.seconds)

    @property
    def complete(self) -> inference.TrainedRun:
        """The run with its results."""
        made = self.outputs
        return self.run._replace(results=made.results, clusters=made.clusters)


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
    started, values = time.perf_counter(), config_json(config)
    parsed = parse_config(values)
    if build.trains(parsed):
        return None
    inputs = build.load_inputs(parsed, dataset)
    _print_start(inputs, [], None)
    network = pretrained(inputs.config, inputs.dataset.shape[2], states.make_mesh())
    embedding = _embed_frozen(inputs, network, None)
    seconds = time.perf_counter() - started
    found = outputs.cluster(inputs, outputs.Features(embedding))
    _print(f"found {found.clustering.metrics['n_large']:,} clusters")
    images = {**build.describe_images(inputs), workdirs.WEIGHTS: network.checksum}
    sources = found.inputs.dataset.sources
    run = inference.join(None, inputs.config, {}, images, embedding, found.stored, sources)
    return InMemory(values, name, inputs, embedding, found, seconds, run)


def write_run(workdir: epath.PathLike, memory: InMemory) -> None:
    """Writes a run in memory into a workdir, as `run_pipeline` would have left it."""
    workdir = epath.Path(workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    images = workdirs.describe_images(memory.inputs.dataset)
    io.write_json(workdir / workdirs.CONFIG, memory.values, checksum=True)
    io.write_json(workdir / workdirs.IMAGES, {**images, **memory.run.images}, checksum=True)
    fingerprint = _fingerprint(memory.values, images)
    workdirs.write_embedding(workdir / workdirs.TRAIN_EMBEDDING, memory.embedding, fingerprint, 0)
    outputs.write(workdir, memory.outputs)


def _as_it_stands(workdir: epath.Path, trainings: list[build.BuiltRun]) -> build.BuiltRun:
    """The last stage, ended at its newest checkpoint."""
    steps = checkpoint.steps(workdir / checkpoint.FOLDER)
    if not steps or not trainings:
        raise InputError(
            f"--cut_short needs a checkpoint of the last stage in {workdir}; got none: train "
            "up to one first"
        )
    training = trainings[-1].training._replace(total_steps=max(steps))
    return trainings[-1]._replace(training=training)


def _print_start(
    inputs: build.Inputs, trainings: list[build.BuiltRun], workdir: epath.Path | None
) -> None:
    config, dataset, _ = inputs
    noun = "rows" if dataset.shown is None else "images"
    work = f"embedded by {config.network.name}, which is not trained,"
    if trainings:
        lengths = " + ".join(f"{stage.training.total_steps:,}" for stage in trainings)
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
        workdir: of the run.
        values: the config as JSON values.
        images: see `workdir.describe_images`.
        fingerprint: of config and images, which the embeddings depend on.
        files: file of an embedding -> number of training steps of its network.
        missing: files of embeddings that do not exist yet.
        weights: the network with which the first stage starts, or None.
    """

    workdir: epath.Path
    values: dict[str, Any]
    images: dict[str, Any]
    fingerprint: str
    files: dict[str, int]
    missing: list[str]
    weights: stages.Weights | None


def _plan(
    inputs: build.Inputs,
    trainings: list[build.BuiltRun],
    values: dict[str, Any],
    workdir: epath.Path,
) -> _Plan:
    """Runs the last checks before anything is written."""
    images = workdirs.describe_images(inputs.dataset)
    known = workdirs.check_images(workdir, images)
    steps = trainings[-1].training.total_steps if trainings else 0
    files = {workdirs.TRAIN_EMBEDDING: steps}
    if inputs.test is not None:
        files[workdirs.TEST_EMBEDDING] = steps
    if len(trainings) > 1 or inputs.config.init_from is not None:
        files[workdirs.INITIAL_EMBEDDING] = 0
    made_from = _fingerprint(values, images)
    missing = [
        name
        for name, step in files.items()
        if not workdirs.has_embedding(workdir / name, made_from, step)
    ]
    if trainings:
        weights = stages.initial_weights(trainings, again=workdirs.INITIAL_EMBEDDING in missing)
        return _Plan(workdir, values, images, made_from, files, missing, weights)
    # The network of new images is that of the embedding.
    missing = missing if workdirs.WEIGHTS in known else list(files)
    return _Plan(workdir, values, images, made_from, files, missing, None)


def _make_features(
    inputs: build.Inputs,
    trainings: list[build.BuiltRun],
    plan: _Plan,
    guard: Callable[[], None],
) -> build.Inputs:
    """Trains all stages, or takes the pretrained network, and writes the missing embeddings.

    Returns:
        The inputs of the last stage: with the section `embedder`, features in place of images.
    """
    is_done, network = workdirs.agree(not plan.missing, plan.workdir), None
    if not trainings and not is_done:
        network = pretrained(inputs.config, inputs.dataset.shape[2], states.make_mesh())
    if jax.process_index() == 0:
        _write_first_files(inputs, plan, network)
    if network is not None:
        rows = functools.partial(_embed_frozen, inputs, network)
        _write_embedding(workdirs.TRAIN_EMBEDDING, plan, network.checksum, rows, guard)
    if not trainings:
        return inputs
    if is_done:
        _end_at_once()
    trainings = embed_images(trainings, plan.fingerprint, guard)
    last = trainings[-1]
    if is_done:
        return last.inputs

    def write_embedding(name: str, dataset: Dataset, state: State) -> None:
        if name in plan.missing:
            checksum = states.checksum((state.params, state.model_state))
            rows = functools.partial(stages.embed, last, dataset, state)
            _write_embedding(name, plan, checksum, rows, guard)

    images, before_last = last.training.dataset, None
    if workdirs.INITIAL_EMBEDDING in plan.missing:
        before_last = functools.partial(write_embedding, workdirs.INITIAL_EMBEDDING, images)
    state = stages.train(trainings, plan.weights, _print, before_last, guard)
    _end_at_once()
    if last.test is not None:
        write_embedding(workdirs.TEST_EMBEDDING, last.test, state)
    write_embedding(workdirs.TRAIN_EMBEDDING, images, state)
    return last.inputs


def _write_first_files(inputs: build.Inputs, plan: _Plan, network: FrozenNetwork | None) -> None:
    """Writes `config.json` and `images.json`."""
    io.write_json(plan.workdir / workdirs.CONFIG, plan.values, checksum=True)
    file = plan.workdir / workdirs.IMAGES
    earlier = workdirs.read_values(file) if file.exists() else {}
    described = {**earlier, **plan.images, **build.describe_images(inputs)}
    if network is not None:
        described[workdirs.WEIGHTS] = network.checksum
    io.write_json(file, described, checksum=True)
    for name in plan.files.keys() - plan.missing:  # left by a kill after the last part
        parts.remove(parts.folder_of(plan.workdir / name))


def _write_embedding(
    name: str,
    plan: _Plan,
    checksum: str,
    embed: Callable[[Parts], dict[str, np.ndarray]],
    guard: Callable[[], None],
) -> None:
    """Writes an embedding by the network of a checksum; until it is complete, parts are kept."""
    step, file = plan.files[name], plan.workdir / name
    kept = Parts(parts.folder_of(file), f"{plan.fingerprint}:{step}:{checksum}", guard)
    embedding = embed(kept)
    if jax.process_index() == 0:
        guard()
        workdirs.write_embedding(file, embedding, plan.fingerprint, step)
        parts.remove(kept.folder)


def _embed_frozen(
    inputs: build.Inputs, network: FrozenNetwork, kept: Parts | None
) -> dict[str, np.ndarray]:
    """Embeds the images by the pretrained network, which nothing trains."""
    batch_size, mesh = inputs.config.eval.batch_size, states.make_mesh()
    rows = embed(network.forward, inputs.dataset, batch_size=batch_size, mesh=mesh, kept=kept)
    return {"backbone": rows.pop("features")[:, 0], **rows}


def _cluster_and_write(
    inputs: build.Inputs, plan: _Plan, name: str, started: float, cut_short: bool
) -> dict[str, Any]:
    """Clusters the embedding in the workdir and writes clusters, tables, report and results."""
    _print("clustering")
    seconds, workdir = time.perf_counter() - started, plan.workdir
    made = outputs.describe(
        outputs.cluster(inputs, outputs.read_features(workdir)),
        plan.values,
        name=name,
        steps=plan.files[workdirs.TRAIN_EMBEDDING],
        records=log.read(workdir),
        seconds=seconds,
        cut_short=cut_short,
    )
    outputs.write(workdir, made)
    if not inputs.dataset.skipped:
        _print_skipped(len(made.report.skipped))
    _print(summary.run_table(made.results))
    _print(f"\nreport       {workdir / workdirs.REPORT}")
    _print(f"assignments  {workdir / workdirs.ASSIGNMENTS}")
    _print(f"metrics      {workdir / workdirs.RESULTS}")
    return dict(made.results)


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


def _print(text: str) -> None:
    if jax.process_index() == 0:
        print(text, flush=True)
