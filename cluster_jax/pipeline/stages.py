"""Trainings that follow each other: their configs, and what one takes from the one before."""

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from etils import epath

from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.data.datasets import Dataset
from cluster_jax.methods.base import with_network
from cluster_jax.pipeline import build
from cluster_jax.pipeline import embed as embedding
from cluster_jax.training import checkpoint, loop
from cluster_jax.training import state as states
from cluster_jax.training.state import State

# Sections that a stage may not change: the images are the same for all, and only the last is
# evaluated.
SHARED = ("seed", "note", "data", "novel", "eval", "stages", "init_from")


class Stage(NamedTuple):
    """One training of a run: its name, config and functions, and where its files lie."""

    name: str
    config: dict[str, Any]
    built: build.Run
    workdir: epath.Path


class Weights(NamedTuple):
    """The network of a training that is over.

    Attributes:
        name: of the training, for messages.
        params: its parameters.
        stats: its BatchNorm statistics.
    """

    name: str
    params: Any
    stats: Any


def configs(config: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Name and config of every training that comes before that of `config`, in order.

    A stage names the sections, and in them the keys, in which it differs; its `method` is
    its own altogether.

    Raises:
        InputError: a stage has a section that it cannot change, or no method.
    """
    found = []
    for name, changes in config["stages"].items():
        for section in changes:
            if section not in config or section in SHARED:
                raise InputError(
                    f"stages.{name}.{section} cannot be changed by a stage; take one of "
                    f"{', '.join(k for k in config if k not in SHARED)}"
                )
        if "method" not in changes:
            raise InputError(f"stages.{name} lacks its method; add stages.{name}.method")
        made = {**config, "stages": {}, "init_from": None, "method": dict(changes["method"])}
        for section, values in changes.items():
            if section != "method":
                made[section] = _merged(config[section], values)
        found.append((name, made))
    return found


def build_stages(
    config: Mapping[str, Any],
    workdir: epath.Path,
    name: str,
    dataset: Dataset | None,
) -> list[Stage]:
    """All trainings of a run in order, each checked and traced; the last is that of `config`.

    Raises:
        InputError: see `build.build_run` and `configs`.
    """
    before = configs(config)
    last = build.build_run(config, dataset)
    build.check_features(config, last)
    found = []
    for stage, changed in before:
        try:
            built = build.build_run(changed, last.dataset, last.test)
        except InputError as error:
            raise InputError(f"in stages.{stage}: {error}") from error
        found.append(Stage(stage, changed, built, workdir / "stages" / stage))
    found.append(Stage(name, dict(config), last, workdir))
    for one, next_one in itertools.pairwise(found):
        weights = Weights(one.name, abstract(one.built).params, None)
        _check_backbone(abstract(next_one.built).params, weights, next_one.name)
    return found


def source(stages: list[Stage]) -> Weights | None:
    """The network of `init_from`, None where there is none or a training has begun already.

    Raises:
        InputError: it cannot be read, or has another backbone than the first training.
    """
    given = stages[-1].config["init_from"]
    if given is None or any(checkpoint.exists(s.workdir / "checkpoints") for s in stages):
        return None
    found, first = read(given), stages[0]
    _check_backbone(abstract(first.built).params, found, first.name)
    return found


def train(
    stages: list[Stage], weights: Weights | None, say: Callable[[str], None], at_last: Callable
) -> State:
    """Makes all trainings, each from the network of the one before; goes on where it stopped.

    Args:
        stages: see `build`.
        weights: what the first starts from, see `source`.
        say: prints what each takes from the one before.
        at_last: called with the state from which the last training starts, once.

    Returns:
        The state at the end of the last.

    Raises:
        InputError: a stage is of another network than the one before.
        NotFinite, Preempted: see `training.loop.train`.
    """
    begun = [checkpoint.exists(stage.workdir / "checkpoints") for stage in stages]
    first = max((i for i, there in enumerate(begun) if there), default=0)
    for i, stage in enumerate(stages[first:], start=first):
        built, last = stage.built, i == len(stages) - 1
        state = build.initial_state(built, stage.config)
        if weights is not None:
            state, said = start(state, weights, stage.name)
            say(said)
        if last and not begun[i]:
            at_last(state)
        state = loop.train(
            built.method,
            built.optimizer,
            state,
            built.dataset,
            name=stage.config["method"]["name"],
            workdir=stage.workdir,
            mesh=built.mesh,
            batch_size=stage.config["train"]["batch_size"],
            labeled=stage.config["train"]["labeled_batch_size"],
            seed=stage.config["seed"],
            keep=stage.config["train"]["keep_checkpoints"],
            schedule=built.schedule,
            embedding=functools.partial(embed, stage, built.dataset),
            rate=built.rate,
        )
        weights = Weights(stage.name, state.params, state.model_state.batch_stats)
    return state


def embed(stage: Stage, dataset: Dataset, state: State) -> dict[str, Any]:
    """Features of every image of a set by the network of a state; see `embed.embed`."""
    return embedding.embed(
        stage.built.method,
        state.params,
        state.model_state,
        dataset,
        batch_size=stage.config["eval"]["batch_size"],
        mesh=stage.built.mesh,
    )


def start(state: State, source: Weights, to: str) -> tuple[State, str]:
    """A state with all that a network before has under the same names and of the same shapes.

    Backbone, projector, predictor and each classifier are taken whole or not at all, with their
    statistics.

    Args:
        state: at the first step.
        source: the network to start from.
        to: name of the training that starts.

    Returns:
        The state, and a sentence that says what was taken and what was not.

    Raises:
        InputError: the backbone is another one.
    """
    _check_backbone(state.params, source, to)
    taken, new = [], []
    params, stats = dict(state.params), dict(state.model_state.batch_stats)
    for part, held in state.params.items():
        if part == "heads":
            found = source.params.get(part, {})
            fit = {n for n, head in held.items() if _shapes(head) == _shapes(found.get(n))}
            params[part] = {n: found[n] if n in fit else head for n, head in held.items()}
            taken += [f"head {n}" for n in held if n in fit]
            new += [f"head {n}" for n in held if n not in fit]
        elif _shapes(held) == _shapes(source.params.get(part)):
            params[part], stats[part] = source.params[part], source.stats[part]
            taken.append(part)
        else:
            new.append(part)
    model_state = with_network(state.model_state, params, stats)
    # Copies: a step donates its state, and no buffer may be in it twice, or in the source.
    state = jax.tree.map(jax.numpy.copy, state._replace(params=params, model_state=model_state))
    rest = [p for p in source.params if p not in taken and p != "heads"]
    rest += [f"head {n}" for n in source.params.get("heads", {}) if f"head {n}" not in taken]
    said = f"{to} starts from {source.name}: took {', '.join(taken)}"
    said += f"; new: {', '.join(new)}" if new else ""
    return state, said + (f"; left: {', '.join(rest)}" if rest else "")


def read(workdir: epath.PathLike) -> Weights:
    """The network of a finished run.

    Raises:
        InputError: there is no finished run, or its checkpoint cannot be read.
    """
    workdir = epath.Path(workdir).expanduser()
    for name in ("config.json", "images.json"):
        if not (workdir / name).exists():
            raise InputError(
                f"init_from = {workdir} holds no run; give the --workdir of a finished one"
            )
    built = build.rebuild_run(
        io.read_json(workdir / "config.json"), io.read_json(workdir / "images.json")
    )
    state = checkpoint.read(workdir / "checkpoints", abstract(built), built.schedule.total)
    return Weights(str(workdir), state.params, state.model_state.batch_stats)


def abstract(built: build.Run) -> State:
    """Structure, shapes, dtypes and devices of a run's state."""
    whole = states.replicated(built.mesh)
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole),
        jax.eval_shape(
            lambda: states.initial(built.method, built.optimizer, seed=0, shape=built.shape)
        ),
    )


def _check_backbone(params: Any, source: Weights, to: str) -> None:
    if _shapes(params["backbone"]) != _shapes(source.params["backbone"]):
        raise InputError(
            f"{source.name} has another backbone than {to}; give both the same network section"
        )


def _merged(base: Any, changes: Any) -> Any:
    if not (isinstance(base, Mapping) and isinstance(changes, Mapping)):
        return changes
    merged = {k: _merged(base[k], changes[k]) if k in changes else base[k] for k in base}
    return {**{k: v for k, v in changes.items() if k not in base}, **merged}


def _shapes(tree: Any) -> Any:
    return None if tree is None else jax.tree.map(lambda x: x.shape, tree)
