"""Full runs: train, embed, cluster and report, resuming where an earlier call stopped.

A run trains in one or several stages, each of which starts from the network of the previous one.
"""

import contextlib
import functools
import itertools
import shlex
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from etils import epath
from ml_collections import ConfigDict

from cluster_jax.core import buckets, checks, disk, interrupt, io
from cluster_jax.core.checks import InputError
from cluster_jax.core.devices import say
from cluster_jax.data import scan
from cluster_jax.data.datasets import DataConfig, Dataset
from cluster_jax.encoding.embed import Batch, Parts, embed, forward_of
from cluster_jax.methods import base as methods
from cluster_jax.nets.pretrained import weights as pretrained_weights
from cluster_jax.pipeline import build, corrections, inference, outputs
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.build import BuiltRun, Inputs
from cluster_jax.pipeline.config import (
    AnyConfig,
    PhotosConfig,
    RunConfig,
    parse_config,
    read_config,
)
from cluster_jax.pipeline.features import embed_images
from cluster_jax.report import decisions, summary
from cluster_jax.training import checkpoint, loop, watch
from cluster_jax.training import state as states
from cluster_jax.training.progress import read_log
from cluster_jax.training.state import State


def run_pipeline(
    config: ConfigDict | Mapping[str, Any],
    workdir: epath.PathLike | None = None,
    name: str = "run",
    dataset: Dataset | None = None,
    cut_short: bool = False,
    report: bool = True,
) -> dict[str, Any]:
    """Trains, embeds, clusters and reports; skips what an earlier call has done.

    Args:
        config: see `configs/base.py`.
        workdir: folder or bucket path of the run; None: `runs/NAME-HASH` of name and config.
        name: name of the config, for the folder and the title of the report.
        dataset: the images if they are loaded already; None: load `config.data`.
        cut_short: evaluates the newest checkpoint of an unfinished training as it stands; without
            it, a later call trains on.
        report: whether to write `report.html`; the command `report` writes it later.

    Returns:
        The content of `results.json`; for a new run only on the first process, elsewhere `{}`.

    Raises:
        InputError: the config, the data or the workdir is invalid; nothing was written.
        NotFinite, Preempted: see `training.loop.train`.
    """
    parsed, is_first = parse_config(config, name), jax.process_index() == 0
    checkpoint.wait_for_all("started")
    workdir = buckets.path(workdir or workdirs.default_workdir(parsed.values, name))
    parsed = parse_config(workdirs.with_stored_dir(parsed.values, workdir), name)
    required = (workdirs.CLUSTERS, *([workdirs.ENCODER] if isinstance(parsed, RunConfig) else []))
    previous = workdirs.claim(
        workdir, parsed.values, compared=workdirs.training_part, required=required
    )
    if is_first and isinstance(parsed, RunConfig):
        _warn_of_an_edit(parsed.method.name, workdir)
    if previous is not None and previous["provenance"].get("cut_short"):
        previous = None  # of a training that was evaluated as it stood
    if previous is not None and dataset is not None:
        workdirs.check_images(workdir, workdirs.describe_images(dataset))
    if workdirs.agree(previous is not None, workdir) and previous is not None:
        changes = "" if dataset is not None else _changes(parsed.data, workdir)
        say(f"{workdir} is finished{changes}\n")
        if is_first:
            say(summary.run_table(corrections.current_results(workdir) or previous))
        return previous
    started = time.perf_counter()
    disk.check(workdir)
    if is_first:
        workdirs.check_unused(workdir)
    run = _Run(parsed, workdir, dataset, cut_short)
    results = workdirs.finished_results(workdir)
    if results is not None and (differing := workdirs.difference(results["config"], parsed.values)):
        say(f"the results in {workdir} had {differing}: they are replaced")
    lock = workdirs.locked(workdir) if is_first else contextlib.nullcontext(lambda: None)
    with disk.explained(workdir), lock as guard:
        inputs = run.make_features(guard)
        if not is_first:
            return {}
        guard()
        return _cluster_and_write(run, inputs, started, cut_short, report)


def _warn_of_an_edit(method: str, workdir: epath.Path) -> None:
    """Warns if the file of a method outside of the package is another than when the run began."""
    digest, file = methods.digest(method), workdir / workdirs.IMAGES
    if digest is None or not file.exists():
        return
    if workdirs.read_values(file).get("method", digest) != digest:
        checks.warn(
            f"the file of method.name {method} has changed since the run in {workdir} began, and "
            "what is done stays as it was: to train with it as it is now, choose another --out"
        )


def _changes(data: DataConfig, workdir: epath.Path) -> str:
    """Says of a finished run's images how many files are new or gone since."""
    is_whole = data.name == "folder" and data.limit is None and data.classes is None
    stored = inference.read_clusters(workdir)
    if not is_whole or stored.sources is None or data.dir is None or "://" in data.dir:
        return ", and images were not read again: to cluster again, choose another --out"
    known = {*stored.sources.tolist(), *([] if stored.skipped is None else stored.skipped.tolist())}
    now = set()
    with contextlib.suppress(ValueError):  # No folder, or no image in it: all are gone.
        now = set(scan.find(data.dir, data.exclude, data.include_all).names)
    new, gone, shown = len(now - known), len(known - now), scan.shown(data.dir)
    if not new and not gone:
        return f" with the files of {shown}: to cluster them again, choose another --out"
    parts = [f"{n:,} {word}" for n, word in ((new, "new"), (gone, "gone")) if n]
    predict = f"--workdir={shlex.quote(str(workdir))} --images={shlex.quote(data.dir)}"
    place = f"`cluster-jax predict {predict}` places the new ones, " if new else ""
    return (
        f", but the files of {shown} have changed since, {' and '.join(parts)}: {place}another "
        "--out clusters them again"
    )


class _Run:
    """A run whose config, images and workdir are checked, before anything is written.

    Attributes:
        workdir: its folder.
        inputs: the images.
        trainings: its stages; empty if nothing is trained.
        steps: number of steps of the last stage.
        files: file of an embedding -> number of training steps of its network; of the encoder,
            also which features it computes, because they may change after the training.
    """

    def __init__(
        self,
        config: AnyConfig,
        workdir: epath.Path,
        dataset: Dataset | None,
        cut_short: bool,
    ) -> None:
        self.workdir, self.trainings = workdir, list[BuiltRun]()
        self.inputs: Inputs[AnyConfig]
        if isinstance(config, RunConfig):
            self.trainings = build_stages(config, workdir, dataset)
            self.inputs = self.trainings[-1].inputs
        else:
            self.inputs = build.load_photos(config, dataset)
        if cut_short:
            self._end_at_newest_checkpoint()
        outputs.print_start(self.inputs, self.trainings, workdir)
        self._images = workdirs.describe_images(self.inputs.dataset)
        if workdirs.forget_other_images(workdir, self._images):
            say(f"the images have changed since the run in {workdir.parent}: all are embedded")
        self._known = workdirs.check_images(workdir, self._images)
        self._made_from = workdirs.made_from(config.values, self._images)
        steps = self.steps = self.trainings[-1].training.total_steps if self.trainings else 0
        self.files: dict[str, int | str] = {workdirs.TRAIN_EMBEDDING: steps}
        if self.trainings:
            self.files[workdirs.ENCODER] = f"{steps}:{config.eval.features}"
        if self.inputs.test is not None:
            self.files[workdirs.TEST_EMBEDDING] = steps
        init_from = self.trainings and self.trainings[-1].config.init_from
        if len(self.trainings) > 1 or init_from is not None:
            self.files[workdirs.INITIAL_EMBEDDING] = 0
        self._missing = [
            name
            for name, step in self.files.items()
            if not workdirs.has_embedding(workdir / name, self._made_from, step)
        ]
        self._weights = None
        if self._missing == [workdirs.ENCODER] and not _started(self.trainings):
            raise InputError(
                f"{workdir} must have its checkpoints, of which {workdirs.ENCODER} is made; got "
                "none: restore them from a copy, or train in another folder"
            )
        if self.trainings:
            again = workdirs.INITIAL_EMBEDDING in self._missing
            self._weights = initial_weights(self.trainings, again=again)
        elif workdirs.WEIGHTS not in self._known:  # New images get the network of the embedding.
            self._missing = list(self.files)

    def make_features(self, guard: Callable[[], None]) -> Inputs[AnyConfig]:
        """Trains, or takes the pretrained network, and writes the embeddings that are missing.

        Args:
            guard: see `training.loop.train`.

        Returns:
            The inputs of the last stage: with the section `embedder`, features in place of images.
        """
        is_done = workdirs.agree(not self._missing, self.workdir)
        if not self.trainings and not is_done:
            self._embed_photos()
        elif jax.process_index() == 0:
            self._write_first_files({})
        if not self.trainings:
            return self.inputs
        if is_done:
            _end_at_once()
        trainings = embed_images(self.trainings, self._made_from)
        last = trainings[-1]
        if is_done:
            return last.inputs

        state = self._train(trainings, guard)
        _end_at_once()
        self._write_encoder(last, state)
        if last.test is not None:
            self._embed(workdirs.TEST_EMBEDDING, last, last.test, state)
        self._embed(workdirs.TRAIN_EMBEDDING, last, last.training.dataset, state)
        return last.inputs

    def _embed_photos(self) -> None:
        """Writes the features of images by a pretrained network."""
        config, ranges = self.inputs.config, self.inputs.dataset.ranges or {}
        assert isinstance(config, PhotosConfig)
        encoder = build.encoder_of(config, ranges=ranges)
        if jax.process_index() == 0:
            self._write_first_files(build.describe_encoder(encoder))
        make = functools.partial(outputs.embed_frozen, self.inputs, encoder)
        self._write_embedding(workdirs.TRAIN_EMBEDDING, encoder.checksum, make)

    def _train(self, trainings: list[BuiltRun], guard: Callable[[], None]) -> State:
        """Trains all stages, each from the network of the previous one; resumes interrupted ones.

        Returns:
            The final state of the last stage.
        """
        weights, first = self._weights, max(_started(trainings), default=0)
        if workdirs.INITIAL_EMBEDDING in self._missing and first:
            first = min(first, len(trainings) - 2)  # whose network the last stage starts from
        for stage in trainings[first:]:
            run = stage.training
            state = build.initial_state(run)
            if weights is not None:
                state, message = start_from(state, weights, stage.config.name)
                say(message)
            if stage is trainings[-1]:
                self._embed(workdirs.INITIAL_EMBEDDING, stage, run.dataset, state)
            clustered = stage
            if run.method.refresh is not None and run.method.refresh.kept is not None:
                method = run.method._replace(kept=run.method.refresh.kept)
                clustered = stage._replace(training=run.with_method(method))
            embed = functools.partial(embed_all, clustered, run.dataset)
            seen = watch.probe(run.dataset, stage.config.eval.batch_size)
            probe = functools.partial(embed_all, stage, seen)
            state = loop.train(
                run, state, workdir=stage.workdir, embed=embed, probe=probe, guard=guard
            )
            weights = Weights(stage.config.name, state.params, state.model_state.batch_stats)
        return state

    def _embed(self, name: str, stage: BuiltRun, dataset: Dataset, state: State) -> None:
        """Writes an embedding by the network of a state, if the embedding is missing."""
        if name in self._missing:
            checksum = states.checksum((state.params, state.model_state))
            make = functools.partial(embed_all, stage, dataset, state)
            self._write_embedding(name, checksum, make)

    def _write_encoder(self, stage: BuiltRun, state: State) -> None:
        """Writes the network of a state, if it is missing."""
        if workdirs.ENCODER not in self._missing or jax.process_index() != 0:
            return
        kept = stage.training.method.kept(state.params, state.model_state)
        made_from = f"{self._made_from}:{self.files[workdirs.ENCODER]}"
        build.trained(stage.inputs, *kept).save(self.workdir / workdirs.ENCODER, made_from)

    def _end_at_newest_checkpoint(self) -> None:
        steps = checkpoint.steps(self.workdir / checkpoint.FOLDER)
        if not steps or not self.trainings:
            raise InputError(
                f"--cut_short needs a checkpoint of the last stage in {self.workdir}; got none: "
                "train up to one first"
            )
        last = self.trainings[-1]
        training = last.training._replace(total_steps=max(steps))
        self.trainings[-1] = last._replace(training=training)

    def _write_first_files(self, encoder: Mapping[str, Any]) -> None:
        """Writes `config.json` and `images.json`."""
        values, file = self.inputs.config.values, self.workdir / workdirs.IMAGES
        io.write_json(self.workdir / workdirs.CONFIG, values, checksum=True)
        method = None
        if self.trainings:
            method = methods.digest(self.trainings[-1].config.method.name)
        code = {} if method is None else {"method": method}
        images = build.describe_images(self.inputs)
        described = {**code, **self._known, **self._images, **images, **encoder}
        io.write_json(file, described, checksum=True)
        for name in self.files.keys() - self._missing:  # left by a kill after the last part
            Parts(self.workdir / name, "").remove()

    def _write_embedding(self, name: str, checksum: str, make: Callable[[Parts], Batch]) -> None:
        """Writes an embedding by the network of a checksum; until it is complete, its parts."""
        made_from = f"{self._made_from}:{self.files[name]}"
        parts = Parts(self.workdir / name, f"{made_from}:{checksum}")
        parts.finish(make(parts), made_from)


def _cluster_and_write(
    run: _Run, inputs: Inputs[AnyConfig], started: float, cut_short: bool, report: bool
) -> dict[str, Any]:
    """Clusters the embedding in the workdir and writes clusters, tables, report and results."""
    say("clustering")
    seconds, workdir = time.perf_counter() - started, run.workdir
    made = outputs.describe(
        outputs.cluster(inputs, outputs.read_features(workdir)),
        steps=run.steps,
        records=read_log(workdir),
        seconds=seconds,
        cut_short=cut_short,
    )
    say("writing the report" if report else "writing the clusters")
    outputs.write(workdir, made, with_report=report)
    if decisions.DECISIONS in buckets.names(workdir):  # They are about the same clusters.
        corrections.correct(workdir, (), with_report=report)
    if not inputs.dataset.skipped:
        outputs.print_skipped(made.report.skipped)
    say(summary.run_table(corrections.current_results(workdir) or made.results))
    if report:
        say(f"\nreport       {workdir / workdirs.REPORT}")
    say(f"assignments  {workdir / workdirs.ASSIGNMENTS}")
    say(f"metrics      {workdir / workdirs.RESULTS}")
    return dict(made.results)


def _end_at_once() -> None:
    """Lets SIGTERM end a process at once after training, when no step is left to save."""
    if jax.process_count() > 1:
        interrupt.terminate()


class Weights(NamedTuple):
    """The network of a finished training.

    Attributes:
        name: name of that stage or workdir, for messages.
        params: its parameters.
        stats: its BatchNorm statistics.
    """

    name: str
    params: Any
    stats: Any


def build_stages(config: RunConfig, workdir: epath.Path, dataset: Dataset | None) -> list[BuiltRun]:
    """Builds all stages of a run, each checked and traced; the last is that of `config`.

    Raises:
        InputError: see `build.build_run`.
    """
    last = build.build_run(config, dataset)
    build.check_features(last.training, config.eval.features)
    stages = []
    for stage_name, stage_config in config.stages.items():
        try:
            built = build.build_run(stage_config, last.training.dataset, last.test)
        except InputError as error:
            raise InputError(f"in stages.{stage_name}: {error}") from error
        stages.append(built._replace(workdir=workdir / "stages" / stage_name))
    stages.append(last._replace(workdir=workdir))
    for stage, following in itertools.pairwise(stages):
        _check_backbone(following, Weights(stage.config.name, _abstract_params(stage), None))
    return stages


def _started(stages: list[BuiltRun]) -> list[int]:
    """Lists the indices of the stages that have a checkpoint."""
    folders = [stage.workdir / checkpoint.FOLDER for stage in stages]
    return [i for i, folder in enumerate(folders) if checkpoint.steps(folder)]


def initial_weights(stages: list[BuiltRun], again: bool) -> Weights | None:
    """Loads the network that the first stage starts from: of `init_from` or `network.weights`.

    None without them or, unless `again`, if a stage has started already.

    Raises:
        InputError: it cannot be read, or its backbone differs from that of the first stage.
    """
    init_from = stages[-1].config.init_from
    name = stages[0].config.network.weights
    if _started(stages) and not again:
        return None
    if init_from is not None:
        weights = read_weights(init_from)
    elif name is not None:
        first = build.abstract_state(stages[0].training)
        stats = first.model_state.batch_stats["backbone"]
        backbone_name = stages[0].config.network.name
        new = pretrained_weights.load(name, backbone_name, first.params["backbone"], stats)
        weights = Weights(name, {"backbone": new[0]}, {"backbone": new[1]})
    else:
        return None
    _check_backbone(stages[0], weights)
    return weights


def embed_all(
    stage: BuiltRun, dataset: Dataset, state: State, kept: Parts | None = None
) -> dict[str, Any]:
    """Embeds all images of a data set by the network of a state; see `embed.embed`."""
    run = stage.training
    return embed(
        forward_of(run, state.params, state.model_state, run.mesh),
        dataset,
        batch_size=stage.config.eval.batch_size,
        mesh=run.mesh,
        kept=kept,
    )


def start_from(state: State, source: Weights, name: str) -> tuple[State, str]:
    """Initializes a state from an earlier network, for parts of the same name and shapes.

    Backbone, projector, predictor and each classifier are copied as a whole, with their
    statistics, or not at all.

    Args:
        state: initial state of the stage.
        source: network to start from, with the same backbone.
        name: name of the stage.

    Returns:
        The state, and a message that lists the parts that were taken, are new, and were left.
    """
    own, earlier = _parts(state.params), _parts(source.params)
    taken = [part for part in own if _shapes(own[part]) == _shapes(earlier.get(part))]
    new, unused = ([p for p in parts if p not in taken] for parts in (own, earlier))
    params, stats = dict(state.params), dict(state.model_state.batch_stats)
    for part in taken:
        if part in params:
            params[part], stats[part] = source.params[part], source.stats[part]
        else:
            head = part.removeprefix("head ")
            params["heads"] = {**params["heads"], head: earlier[part]}
    model_state = methods.with_network(state.model_state, params, stats)
    # Copied, because a step donates its state: its buffers must not be shared with one another or
    # with the source.
    state = jax.tree.map(jax.numpy.copy, state._replace(params=params, model_state=model_state))
    message = f"{name} starts from {source.name}: took {', '.join(taken)}"
    message += f"; new: {', '.join(new)}" if new else ""
    return state, message + (f"; left: {', '.join(unused)}" if unused else "")


def _parts(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters of each part of a network by name; every classifier is a part."""
    heads = {f"head {name}": head for name, head in params.get("heads", {}).items()}
    return {**{name: part for name, part in params.items() if name != "heads"}, **heads}


def read_weights(workdir: epath.PathLike) -> Weights:
    """Reads the network of a finished run.

    Raises:
        InputError: the folder has no finished run, or the checkpoint cannot be read.
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


def _abstract_params(stage: BuiltRun) -> Any:
    return build.abstract_state(stage.training).params


def _check_backbone(stage: BuiltRun, source: Weights) -> None:
    if _shapes(_abstract_params(stage)["backbone"]) != _shapes(source.params["backbone"]):
        raise InputError(
            f"{source.name} uses a different backbone from {stage.config.name}; give both the same "
            "network section"
        )


def _shapes(tree: Any) -> Any:
    return None if tree is None else jax.tree.map(lambda x: x.shape, tree)
