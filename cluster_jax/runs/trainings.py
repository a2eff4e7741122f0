"""A run of a training: its network embeds the images, and their features are clustered.

A run trains in one or several stages, each of which starts from the network of the previous one.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import numpy as np
from etils import epath

from cluster_jax.core import buckets, devices, hosts
from cluster_jax.core.checks import InputError
from cluster_jax.core.devices import say
from cluster_jax.core.outside import MissingModule
from cluster_jax.data import tfds
from cluster_jax.data.datasets import Dataset
from cluster_jax.nets import pretrained
from cluster_jax.runs import claims, embedding_files, finish, novel, start
from cluster_jax.runs import run as records
from cluster_jax.runs import store as stores
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.embedding_files import Embeddings, Files
from cluster_jax.runs.features import embed_images
from cluster_jax.runs.next_state import Now, Numbers
from cluster_jax.runs.run import Run
from cluster_jax.training import build, checkpoint, loop, watch
from cluster_jax.training import state as states
from cluster_jax.training.build import BuiltRun, Inputs
from cluster_jax.training.config import AnyConfig, RunConfig, parse_config
from cluster_jax.training.progress import read_log
from cluster_jax.training.stages import (
    Weights,
    build_stages,
    check_backbone,
    embed_all,
    start_from,
    started,
)
from cluster_jax.training.state import State

# Images of which several hosts make pictures for the page, while all but one wait.
_PICTURES = 5_000


def prepare(
    config: RunConfig, workdir: epath.Path, dataset: Dataset | None
) -> tuple[Files, Callable[[], Inputs[RunConfig]]]:
    """Builds a training and checks it with its images and its workdir; writes nothing.

    Args:
        config: see `configs/base.py`.
        workdir: folder of the run.
        dataset: the images if they are loaded already; None: load `config.data`.

    Returns:
        The embeddings in the workdir, and a function that trains, and writes the missing ones into
        the locked workdir; it returns the inputs of the last stage, as `_make_features`.

    Raises:
        InputError: the config, the data or the workdir is invalid.
        OSError: the checkpoint of `init_from` cannot be read.
    """
    labels = tfds.Labels(workdir / workdirs.LABELS)
    stages = build_stages(config, workdir, dataset, labels)
    hosts.wait_for_all("loaded")  # One may have read labels for minutes that another has.
    last = stages[-1]
    inputs = last.inputs
    novel.check_names(inputs.dataset)
    start.print_start(inputs, workdir, stages)
    steps = last.training.total_steps
    needed: dict[str, int | str] = {
        workdirs.TRAIN_EMBEDDING: steps,
        workdirs.ENCODER: f"{steps}:{config.eval.features}",
    }
    if last.test is not None:
        needed[workdirs.TEST_EMBEDDING] = steps
    if len(stages) > 1 or last.config.init_from is not None:
        needed[workdirs.INITIAL_EMBEDDING] = 0
    files = embedding_files.find(workdir, inputs, needed)
    if files.missing == (workdirs.ENCODER,) and not started(stages):
        raise InputError(
            f"{workdir} must have its checkpoints, of which {workdirs.ENCODER} is made; got none: "
            "restore them from a copy, or train in another folder"
        )
    weights = initial_weights(stages, again=workdirs.INITIAL_EMBEDDING in files.missing)
    return files, functools.partial(_make_features, stages, files, weights, labels)


def _make_features(
    stages: list[BuiltRun],
    files: Files,
    weights: Weights | None,
    labels: tfds.Labels,
) -> Inputs[RunConfig]:
    """Trains, and writes the missing embeddings and the missing encoder into the locked workdir.

    Args:
        stages: all stages of the run.
        files: its embeddings; if none is missing, nothing is trained.
        weights: the network from which the first stage starts, or None.
        labels: labels of a streamed set, which are stored for the next call.

    Returns:
        The inputs of the last stage. If `config.encoder` is set, the data set has features, which
        are made here.

    Raises:
        InputError, NotFinite, Collapsed, Preempted, OSError: see `embed_images` and
            `training.loop.train`.
    """
    is_done = workdirs.agree(not files.missing, files.workdir)
    embedding_files.begin(files, stages[-1].inputs)
    labels.write()
    if is_done:
        _end_at_once()
    stages = embed_images(stages, files.made_from)
    last = stages[-1]
    if is_done:
        return last.inputs
    state = _train(stages, files, weights)
    _end_at_once()
    if workdirs.ENCODER in files.missing and jax.process_index() == 0:
        kept = last.training.method.kept(state.params, state.model_state)
        origin = embedding_files.origin(files, workdirs.ENCODER)
        build.trained(last.inputs, *kept).save(files.workdir / workdirs.ENCODER, origin)
    if last.test is not None:
        _embed(files, workdirs.TEST_EMBEDDING, last, last.test, state)
    _embed(files, workdirs.TRAIN_EMBEDDING, last, last.training.dataset, state)
    return last.inputs


def _train(stages: list[BuiltRun], files: Files, weights: Weights | None) -> State:
    """Trains all stages, each from the network of the previous one; resumes interrupted ones.

    If `INITIAL_EMBEDDING` is missing, it is written before the last stage. For the arguments and
    errors see `_make_features`.

    Returns:
        The final state of the last stage.
    """
    first = max(started(stages), default=0)
    if workdirs.INITIAL_EMBEDDING in files.missing and first:
        first = min(first, len(stages) - 2)  # whose network the last stage starts from
    for stage in stages[first:]:
        run = stage.training
        state = build.initial_state(run)
        if weights is not None:
            state, message = start_from(state, weights, stage.config.name)
            say(message)
        if stage is stages[-1]:
            _embed(files, workdirs.INITIAL_EMBEDDING, stage, run.dataset, state)
        clustered = stage
        if run.method.refresh is not None and run.method.refresh.kept is not None:
            method = run.method._replace(kept=run.method.refresh.kept)
            clustered = stage._replace(training=run.with_method(method))
        needs = None if run.method.refresh is None else run.method.refresh.needs
        embed = functools.partial(embed_all, clustered, run.dataset, needs=needs)
        seen = watch.probe(run.dataset, stage.config.eval.batch_size)
        probe = functools.partial(embed_all, stage, seen)
        state = loop.train(run, state, workdir=stage.workdir, embed=embed, probe=probe)
        weights = Weights(stage.config.name, state.params, state.model_state.batch_stats)
    return state


def _embed(files: Files, name: str, stage: BuiltRun, dataset: Dataset, state: State) -> None:
    """Writes an embedding by the network of a state, if it is missing."""
    if name in files.missing:
        checksum = states.checksum((state.params, state.model_state))
        of_state = functools.partial(embed_all, stage, dataset, state, in_all=False)
        embedding_files.write(files, name, checksum, of_state, dataset.labels)


def _end_at_once() -> None:
    """Lets SIGTERM end a process at once after training, when no step is left to save."""
    if jax.process_count() > 1:
        devices.take_back_sigterm()


def next_state(
    files: Files, inputs: Inputs[RunConfig], features: Embeddings, started: float
) -> tuple[Run, Run]:
    """Clusters the embedding in a workdir; returns the state before and the next one.

    The state before is an empty run in a first run. The images are the same in all states.

    Args:
        files: the embeddings in the workdir, none of which is missing.
        inputs: the images that can be read, see `finish.readable`.
        features: their embeddings.
        started: what `time.perf_counter` returned before the training or the embedding.
    """
    config, dataset, _ = inputs
    say("clustering" + _waiting(config))
    embedding = features[workdirs.TRAIN_EMBEDDING]
    images = workdirs.read_values(files.workdir / workdirs.IMAGES)
    before, after = finish.first(inputs, embedding[config.eval.features], files.workdir, images)
    if workdirs.states(files.workdir):
        before, first = records.read(files.workdir), after
        values = claims.asked_again(before.config, config.values)
        after = dataclasses.replace(before, config=values, store=first.store)
        if config.data.labels is not None:
            after = dataclasses.replace(after, truth=first.truth, label_names=first.label_names)
    now = Now(after, np.arange(len(before.columns)), pictures=dataset.shown)
    made = finish.Made(
        embedding,
        test=finish.probe_test(inputs, features),
        steps=int(files.steps[workdirs.TRAIN_EMBEDDING]),
        log=read_log(files.workdir),
    )
    if (found := novel.discover(inputs, features)) is not None:
        return before, novel.next_of_images(before, now, dataset, made, found, started)
    numbers: Numbers = "other" if before.number else "refit"
    return before, finish.next_of_images(before, now, numbers, made, started)


def _waiting(config: RunConfig) -> str:
    """Returns how long other hosts wait while one clusters, for the end of a line; "" for none."""
    processes = jax.process_count()
    if processes == 1:
        return ""
    longest = f"at most {hosts.LONGEST_WAIT / 60:g} minutes"
    until = longest if config.eval.sample is None else "until it is done"
    return f"; {processes - 1} of {processes} hosts wait, {until}"


def write_pictures(workdir: epath.Path, dataset: Dataset) -> None:
    """Writes the pictures of a training, if the workdir does not have them.

    Args:
        workdir: folder of the run.
        dataset: the images that can be read.
    """
    most = stores.MOST_PICTURES if jax.process_count() == 1 else _PICTURES
    stores.complete(workdir, dataset, most)


def initial_weights(stages: list[BuiltRun], again: bool) -> Weights | None:
    """Returns the weights from which the first stage starts: `init_from`, else `network.weights`.

    Args:
        stages: all stages of the run.
        again: whether the weights are needed although a stage has a checkpoint; if not, the result
            is None for such a run. It is None, too, if neither `init_from` nor `network.weights` is
            set.

    Raises:
        InputError: the network cannot be read, or its backbone differs from the first stage's.
        OSError: the checkpoint of `init_from` cannot be read.
    """
    init_from = stages[-1].config.init_from
    name = stages[0].config.network.weights
    if started(stages) and not again:
        return None
    if init_from is not None:
        weights = read_weights(init_from)
    elif name is not None:
        first = build.abstract_state(stages[0].training)
        stats = first.model_state.batch_stats["backbone"]
        network = stages[0].config.network.name
        new = pretrained.load(name, network, first.params["backbone"], stats)
        weights = Weights(name, {"backbone": new[0]}, {"backbone": new[1]})
    else:
        return None
    check_backbone(stages[0], weights)
    return weights


def read_config(workdir: epath.Path) -> AnyConfig:
    """Returns the config of the run in a workdir.

    Raises:
        InputError: the file is damaged (`DamagedFile`), an older version of the package wrote it,
            or its method is a module that cannot be imported here.
        FileNotFoundError: there is no `config.json`.
    """
    values = workdirs.read_values(workdir / workdirs.CONFIG)
    try:
        return parse_config(values)
    except MissingModule:
        raise
    except InputError as error:
        raise workdirs.older_version(workdir, error) from error


def read_weights(workdir: epath.PathLike) -> Weights:
    """Returns the network of a finished training after its last step.

    Raises:
        InputError: the folder has no run, one of photos, which trains nothing, or one of which the
            last checkpoint is missing or damaged.
        OSError: the checkpoint cannot be read.
    """
    workdir = buckets.path(workdir)
    for name in (workdirs.CONFIG, workdirs.IMAGES):
        if not (workdir / name).exists():
            raise InputError(f"init_from must be the workdir of a finished run; got {workdir}")
    config = read_config(workdir)
    if not isinstance(config, RunConfig):
        raise InputError(f"init_from must be the workdir of a finished training; got {workdir}")
    run = build.rebuild_run(config, workdirs.read_values(workdir / workdirs.IMAGES)).training
    state = checkpoint.read(workdir / checkpoint.FOLDER, build.abstract_state(run), run.total_steps)
    return Weights(str(workdir), state.params, state.model_state.batch_stats)
