"""Multi-stage training: each stage starts from the network of the previous one."""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from etils import epath

from cluster_jax.core.checks import InputError
from cluster_jax.data.datasets import Dataset
from cluster_jax.methods.base import with_network
from cluster_jax.nets.pretrained import weights as pretrained
from cluster_jax.pipeline import build
from cluster_jax.pipeline import embed as embedding
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.build import BuiltRun
from cluster_jax.pipeline.config import RunConfig, read_config
from cluster_jax.pipeline.parts import Parts
from cluster_jax.training import checkpoint, loop, watch
from cluster_jax.training.state import State


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


def build_stages(
    config: RunConfig, workdir: epath.Path, name: str, dataset: Dataset | None
) -> list[BuiltRun]:
    """All stages of a run in order, each checked and traced; the last is that of `config`.

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
        stages.append(built._replace(name=stage_name, workdir=workdir / "stages" / stage_name))
    stages.append(last._replace(name=name, workdir=workdir))
    for stage, following in itertools.pairwise(stages):
        weights = Weights(stage.name, _abstract_params(stage), None)
        _check_backbone(_abstract_params(following), weights, following.name)
    return stages


def initial_weights(stages: list[BuiltRun], again: bool) -> Weights | None:
    """The network that the first stage starts from: of `init_from` or `network.weights`.

    None without them or, unless `again`, if a stage has started already.

    Raises:
        InputError: it cannot be read, or its backbone differs from that of the first stage.
    """
    init_from = stages[-1].config.init_from
    name = stages[0].config.network.weights
    if any(checkpoint.steps(stage.checkpoints) for stage in stages) and not again:
        return None
    if init_from is not None:
        weights = read(init_from)
    elif name is not None:
        first = build.abstract_state(stages[0].training)
        stats = first.model_state.batch_stats["backbone"]
        backbone_name = stages[0].config.network.name
        new = pretrained.load(name, backbone_name, first.params["backbone"], stats)
        weights = Weights(name, {"backbone": new[0]}, {"backbone": new[1]})
    else:
        return None
    _check_backbone(_abstract_params(stages[0]), weights, stages[0].name)
    return weights


def train(
    stages: list[BuiltRun],
    weights: Weights | None,
    progress: Callable[[str], None],
    before_last: Callable[[State], None] | None,
    guard: Callable[[], None],
) -> State:
    """Trains all stages, each from the network of the previous one; resumes interrupted ones.

    Args:
        stages: see `build_stages`.
        weights: network with which the first stage starts, see `initial_weights`.
        progress: prints a message.
        before_last: called with the initial state of the last stage, also if that has started;
            None: not needed.
        guard: see `training.loop.train`.

    Returns:
        The final state of the last stage.

    Raises:
        InputError: the backbones of two stages differ.
        NotFinite, Preempted: see `training.loop.train`.
    """
    started = [i for i, stage in enumerate(stages) if checkpoint.steps(stage.checkpoints)]
    first = max(started, default=0)
    if before_last is not None and first:
        first = min(first, len(stages) - 2)  # whose network the last stage starts from
    for i, stage in enumerate(stages[first:], start=first):
        run = stage.training
        state = build.initial_state(run)
        if weights is not None:
            state, message = start(state, weights, stage.name)
            progress(message)
        if i == len(stages) - 1 and before_last is not None:
            before_last(state)
        clustered = stage
        if run.method.refresh is not None and run.method.refresh.embed is not None:
            method = run.method._replace(embed=run.method.refresh.embed)
            clustered = stage._replace(training=run._replace(method=method))
        embed_all = functools.partial(embed, clustered, run.dataset)
        seen = watch.probe(run.dataset, stage.config.eval.batch_size)
        probe = functools.partial(embed, stage, seen)
        state = loop.train(
            run, state, workdir=stage.workdir, embed=embed_all, probe=probe, guard=guard
        )
        weights = Weights(stage.name, state.params, state.model_state.batch_stats)
    return state


def embed(
    stage: BuiltRun, dataset: Dataset, state: State, kept: Parts | None = None
) -> dict[str, Any]:
    """Embeddings of all images of a data set by the network of a state; see `embed.embed`."""
    run = stage.training
    return embedding.embed(
        embedding.forward_of(run.method, state.params, state.model_state, run.mesh),
        dataset,
        batch_size=stage.config.eval.batch_size,
        mesh=run.mesh,
        kept=kept,
    )


def start(state: State, source: Weights, name: str) -> tuple[State, str]:
    """Initializes a state from an earlier network, for parts of the same name and shapes.

    Backbone, projector, predictor and each classifier are copied as a whole, with their
    statistics, or not at all.

    Args:
        state: initial state of the stage.
        source: network to start from.
        name: name of the stage.

    Returns:
        The state, and a message that lists the parts that were taken, are new, and were left.

    Raises:
        InputError: the backbones differ.
    """
    _check_backbone(state.params, source, name)
    taken, new = [], []
    params, stats = dict(state.params), dict(state.model_state.batch_stats)
    for part, initial in state.params.items():
        if part == "heads":
            heads = source.params.get(part, {})
            same = {n for n, head in initial.items() if _shapes(head) == _shapes(heads.get(n))}
            params[part] = {n: heads[n] if n in same else head for n, head in initial.items()}
            taken += [f"head {n}" for n in initial if n in same]
            new += [f"head {n}" for n in initial if n not in same]
        elif _shapes(initial) == _shapes(source.params.get(part)):
            params[part], stats[part] = source.params[part], source.stats[part]
            taken.append(part)
        else:
            new.append(part)
    model_state = with_network(state.model_state, params, stats)
    # Copied, because a step donates its state: its buffers must not be shared with one another or
    # with the source.
    state = jax.tree.map(jax.numpy.copy, state._replace(params=params, model_state=model_state))
    parts = [part for part in source.params if part != "heads"]
    parts += [f"head {n}" for n in source.params.get("heads", {})]
    unused = [part for part in parts if part not in taken]
    message = f"{name} starts from {source.name}: took {', '.join(taken)}"
    message += f"; new: {', '.join(new)}" if new else ""
    return state, message + (f"; left: {', '.join(unused)}" if unused else "")


def read(workdir: epath.PathLike) -> Weights:
    """Reads the network of a finished run.

    Raises:
        InputError: the folder has no finished run, or the checkpoint cannot be read.
    """
    workdir = epath.Path(workdir).expanduser()
    for name in (workdirs.CONFIG, workdirs.IMAGES):
        if not (workdir / name).exists():
            raise InputError(f"init_from must be the workdir of a finished run; got {workdir}")
    config = read_config(workdir)
    run = build.rebuild_run(config, workdirs.read_values(workdir / workdirs.IMAGES)).training
    state = checkpoint.read(workdir / checkpoint.FOLDER, build.abstract_state(run), run.total_steps)
    return Weights(str(workdir), state.params, state.model_state.batch_stats)


def _abstract_params(stage: BuiltRun) -> Any:
    return build.abstract_state(stage.training).params


def _check_backbone(params: Any, source: Weights, name: str) -> None:
    if _shapes(params["backbone"]) != _shapes(source.params["backbone"]):
        raise InputError(
            f"{source.name} uses a different backbone from {name}; give both the same network "
            "section"
        )


def _shapes(tree: Any) -> Any:
    return None if tree is None else jax.tree.map(lambda x: x.shape, tree)
