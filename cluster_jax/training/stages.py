"""Stages of a training: each is built, checked, and starts from the network of the previous one."""

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from etils import epath

from cluster_jax.core.checks import InputError
from cluster_jax.data import tfds
from cluster_jax.data.datasets import Dataset
from cluster_jax.encoding.embed import Parts, embed, forward_of
from cluster_jax.methods import base as methods
from cluster_jax.training import build, checkpoint
from cluster_jax.training.build import BuiltRun
from cluster_jax.training.config import RunConfig
from cluster_jax.training.state import State


class Weights(NamedTuple):
    """A network that a training starts from.

    Attributes:
        name: the stage, the workdir or the pretrained weights that it is from, for messages.
        params: its parameters, a tree for each part by its name; `{"backbone": ...}` alone if it is
            pretrained. Where only shapes are compared, shapes in place of numbers.
        stats: its BatchNorm statistics, as `params`; None where only shapes are compared.
    """

    name: str
    params: Any
    stats: Any


def build_stages(
    config: RunConfig,
    workdir: epath.Path,
    dataset: Dataset | None,
    labels: tfds.Labels | None = None,
) -> list[BuiltRun]:
    """Builds all stages of a run, each checked and traced; the last is that of `config`.

    Args:
        config: the config of the run, with those of the earlier stages.
        workdir: folder of the run; that of an earlier stage is `workdir/stages/NAME`.
        dataset: see `build.load_inputs`, like `labels`.
        labels: where labels are stored, or None.

    Raises:
        InputError: see `build.build_run`; or two stages in a row have different backbones, or the
            method does not compute `eval.features`.
    """
    last = build.build_run(config, dataset, labels=labels)
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
        params = build.abstract_state(stage.training).params
        check_backbone(following, Weights(stage.config.name, params, None))
    return stages


def started(stages: list[BuiltRun]) -> list[int]:
    """Returns the indices, ascending, of the stages that have a checkpoint."""
    folders = [stage.workdir / checkpoint.FOLDER for stage in stages]
    return [i for i, folder in enumerate(folders) if checkpoint.steps(folder)]


def embed_all(
    stage: BuiltRun,
    dataset: Dataset,
    state: State,
    kept: Parts | None = None,
    *,
    needs: tuple[str, ...] | None = None,
    in_all: bool = True,
) -> dict[str, Any]:
    """Returns embeddings of all images of a data set by a state's network, see `embed.embed`.

    Args:
        stage: the stage whose method embeds the images.
        dataset: the images.
        state: a state of that stage.
        kept: where parts of the embedding are kept until it is done; None: in memory alone.
        needs: names of the features that are computed; None: all.
        in_all: whether all processes get the rows, or the first one alone.
    """
    run = stage.training
    return embed(
        forward_of(run.embed, state.params, state.model_state, run.mesh, needs),
        dataset,
        batch_size=min(stage.config.eval.batch_size, dataset.size),
        mesh=run.mesh,
        kept=kept,
        in_all=in_all,
    )


def start_from(state: State, source: Weights, name: str) -> tuple[State, str]:
    """Returns a state with the parts of an earlier network that have the same name and shapes.

    Backbone, projector, predictor and each classifier are copied as a whole, with their
    statistics, or not at all.

    Args:
        state: initial state of the stage.
        source: network to start from, with the same backbone.
        name: name of the stage.

    Returns:
        The state, and a message that lists copied parts, new parts, and unused parts.
    """
    parts_of_run = _parts(state.params)
    earlier = _parts(source.params)
    taken = [
        part for part in parts_of_run if _shapes(parts_of_run[part]) == _shapes(earlier.get(part))
    ]
    new, unused = ([p for p in parts if p not in taken] for parts in (parts_of_run, earlier))
    params = dict(state.params)
    stats = dict(state.model_state.batch_stats)
    for part in taken:
        if part in params:
            params[part] = source.params[part]
            stats[part] = source.stats[part]
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
    """Returns the parameters of each part of a network by name; a classifier is "head NAME"."""
    heads = {f"head {name}": head for name, head in params.get("heads", {}).items()}
    return {**{name: part for name, part in params.items() if name != "heads"}, **heads}


def check_backbone(stage: BuiltRun, source: Weights) -> None:
    """Raises an `InputError` unless the backbones of a stage and its source have equal shapes."""
    own = build.abstract_state(stage.training).params
    if _shapes(own["backbone"]) != _shapes(source.params["backbone"]):
        raise InputError(
            f"{source.name} uses a different backbone from {stage.config.name}; give both the same "
            "network section"
        )


def _shapes(tree: Any) -> Any:
    if tree is None:
        return None
    return jax.tree.map(lambda x: x.shape, tree)
