"""A config turned into functions: data, method, optimizer, checked and fitted together."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from cluster_jax.core import checks, io, schedules
from cluster_jax.core.checks import InputError
from cluster_jax.data import batches, datasets, splits, views
from cluster_jax.data.datasets import Dataset
from cluster_jax.data.views import AugmentConfig
from cluster_jax.evaluation import evaluate
from cluster_jax.methods import base
from cluster_jax.methods.base import Method, MethodContext
from cluster_jax.methods.nrcc import with_nrcc
from cluster_jax.nets import network
from cluster_jax.pipeline.config import RunConfig
from cluster_jax.training import optim
from cluster_jax.training import state as states
from cluster_jax.training.config import TrainConfig
from cluster_jax.training.loop import TrainingRun, TrainSchedule
from cluster_jax.training.state import State
from cluster_jax.training.step import make_step


class BuiltRun(NamedTuple):
    """A config turned into functions.

    Attributes:
        config: with the mean and standard deviation by which the images are standardized.
        training: everything that the training needs, except its state.
        test: images kept for a test of novel class discovery, or None.
    """

    config: RunConfig
    training: TrainingRun
    test: Dataset | None


def build_run(
    config: RunConfig, dataset: Dataset | None = None, test: Dataset | None = None
) -> BuiltRun:
    """Turns a config into functions, and traces a step to see that they fit together.

    Args:
        config: see `configs/base.py`.
        dataset: the images, where they are in memory already; None: what `config.data` and
            `config.novel` name.
        test: with `dataset`: images kept for a test.

    Raises:
        InputError: values of the config do not fit together, or the data cannot be used.
    """
    try:
        mesh = states.make_mesh()
        states.check_batch(config.train.batch_size, mesh)
        if dataset is None:
            dataset, test = splits.load(config.data, config.novel)
        known = dataset.known
        clustered = dataset.size if known is None else int((known < 0).sum())
        evaluate.check_k(config.eval, clustered)
        built = _join(config, dataset, test, mesh)
        classes = config.method.settings.get("classes")
        if classes is not None and classes > clustered:
            raise InputError(
                f"method.classes must be at most the {clustered} unlabeled images; got {classes}"
            )
        _try_step(built.training)
    except InputError:
        raise
    except (ValueError, TypeError, OSError) as error:
        raise InputError(str(error)) from error
    return built


def describe_images(built: BuiltRun) -> dict[str, Any]:
    """What `rebuild_run` must know of the images, as JSON values."""
    dataset, augment = built.training.dataset, built.config.augment
    known = None
    if dataset.known is not None:
        names = splits.known_names(dataset)
        labeled = int((dataset.known >= 0).sum())
        known = {"images": labeled, "classes": len(names), "names": list(names)}
    images = {"size": dataset.size, "shape": list(dataset.shape), "known": known}
    return {**images, **io.plain({"mean": augment.mean, "std": augment.std})}


def rebuild_run(config: RunConfig, images: Mapping[str, Any]) -> BuiltRun:
    """The same functions again without the images; the data set has a size but no content.

    Args:
        config: of the run.
        images: what `describe_images` returned for its images.

    Raises:
        InputError: the config does not fit the images.
    """
    known = _stand_in(images["size"], images.get("known"))
    dataset = Dataset(
        config.data.name, images["size"], tuple(images["shape"]), None, _absent,
        None, None, None, (), known,
    )  # fmt: skip
    mean, std = tuple(images["mean"]), tuple(images["std"])
    augment = dataclasses.replace(config.augment, mean=mean, std=std)
    config = dataclasses.replace(config, augment=augment)
    return _join(config, dataset, None, states.make_mesh())


def _stand_in(size: int, known: Mapping[str, Any] | None) -> np.ndarray | None:
    """As many known classes as a run had, of images not at hand: lengths follow from them."""
    if known is None:
        return None
    found = np.full(size, -1, np.int32)
    found[: known["images"]] = np.arange(known["images"]) % known["classes"]
    return found


def _absent(indices: np.ndarray) -> np.ndarray:
    raise LookupError("the images of a rebuilt run are not at hand")


def _join(config: RunConfig, dataset: Dataset, test: Dataset | None, mesh: Mesh) -> BuiltRun:
    config = dataclasses.replace(config, augment=_measured(config.augment, dataset))
    train = config.train
    known_classes = 0 if dataset.known is None else splits.check_known(dataset.known)
    steps_per_epoch = _steps_per_epoch(train, dataset)
    schedule = _schedule(config, steps_per_epoch)
    net = network.make(config.network)
    context = MethodContext(
        net,
        views.make(config.augment),
        config.network.norm == "shuffle",
        dataset.size,
        schedule.total,
        steps_per_epoch,
        train.batch_size,
        train.labeled_batch_size,
        known_classes,
    )
    method = _method(config, context)
    optimizer, learning_rate = optim.make(
        config.optimizer,
        total_steps=schedule.total,
        steps_per_epoch=steps_per_epoch,
        batch_size=train.batch_size,
        frozen=net.frozen,
    )
    training = TrainingRun(
        name=config.method.name,
        method=method,
        optimizer=optimizer,
        learning_rate=learning_rate,
        schedule=schedule,
        dataset=dataset,
        mesh=mesh,
        shape=(config.augment.size, config.augment.size, dataset.shape[2]),
    )
    return BuiltRun(config, training, test)


def _measured(config: AugmentConfig, dataset: Dataset) -> AugmentConfig:
    """The section with mean and standard deviation measured where they are None."""
    if config.mean is not None and config.std is not None:
        return config
    mean, std = datasets.channel_statistics(dataset)
    return dataclasses.replace(config, mean=config.mean or mean, std=config.std or std)


def _steps_per_epoch(train: TrainConfig, dataset: Dataset) -> int:
    drawn_from = batches.parts(dataset, train.batch_size, train.labeled_batch_size)
    for name, (members, count) in drawn_from.items():
        if name != "all" and len(members) < count:
            raise InputError(
                f"{len(members)} images are {name}, fewer than the {count} {name} rows of a batch; "
                "lower train.batch_size and train.labeled_batch_size"
            )
    size = sum(len(members) for members, _ in drawn_from.values())
    return batches.steps_per_epoch(size, train.batch_size)


def _schedule(config: RunConfig, steps_per_epoch: int) -> TrainSchedule:
    train = config.train
    total = schedules.steps("train.duration", train.duration, steps_per_epoch)
    checks.at_least("train.duration", total, 1)
    return TrainSchedule(
        seed=config.seed,
        total=total,
        batch_size=train.batch_size,
        labeled_batch_size=train.labeled_batch_size,
        log_every=train.log_every,
        checkpoint_every=train.checkpoint_every,
        keep_checkpoints=train.keep_checkpoints,
        prefetch=train.prefetch,
    )


def initial_state(run: TrainingRun) -> State:
    """The state before the first step, on all devices."""
    return states.create(
        run.method, run.optimizer, seed=run.schedule.seed, shape=run.shape, mesh=run.mesh
    )


def abstract_state(run: TrainingRun) -> State:
    """Structure, shapes, dtypes and devices of a run's state; computes nothing."""
    replicated = states.replicated(run.mesh)
    state = jax.eval_shape(
        lambda: states.initial(run.method, run.optimizer, seed=0, shape=run.shape)
    )
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated), state
    )


def _try_step(run: TrainingRun) -> None:
    """Traces a step without computing anything: shows whether all parts fit together."""
    schedule = run.schedule
    batch: dict[str, Any] = {}
    drawn_from = batches.parts(run.dataset, schedule.batch_size, schedule.labeled_batch_size)
    for name, (_, count) in drawn_from.items():
        states.check_batch(count, run.mesh)
        batch[name] = {
            "index": jax.ShapeDtypeStruct((count,), jnp.int32),
            "image": jax.ShapeDtypeStruct((count, *run.dataset.shape), jnp.uint8),
        }
        if name == "labeled":
            batch[name]["label"] = jax.ShapeDtypeStruct((count,), jnp.int32)
    batch = batch.get("all", batch)
    state = jax.eval_shape(
        lambda: states.initial(run.method, run.optimizer, seed=0, shape=run.shape)
    )
    jax.eval_shape(make_step(run.method, run.optimizer, run.mesh), state, batch, None)


def check_features(built: BuiltRun) -> None:
    """Raises an `InputError` for `eval.features` that the method does not embed."""
    run = built.training
    images = jax.ShapeDtypeStruct((1, *run.dataset.shape), jnp.uint8)

    def embed(images: jax.Array) -> dict[str, jax.Array]:
        state = states.initial(run.method, run.optimizer, seed=0, shape=run.shape)
        return run.method.embed(state.params, state.model_state, images)

    embedded = jax.eval_shape(embed, images)
    choices = tuple(name for name in evaluate.FEATURES if name in embedded)
    checks.one_of("eval.features", built.config.eval.features, choices)


def _method(config: RunConfig, context: MethodContext) -> Method:
    name = config.method.name
    method = base.build(name, config.method.settings, context)
    two_view = isinstance(method, base.TwoView)
    if two_view and context.labeled_batch_size is not None:
        raise InputError(
            f"train.labeled_batch_size must be None for {name}, which takes no labels; got "
            f"{context.labeled_batch_size}"
        )
    if not two_view and config.network.norm == "local":
        raise InputError(
            f"network.norm 'local' needs a method of two views; {name} passes several parts of a "
            "batch at once, which groups would mix: use 'sync'"
        )
    if not config.nrcc.weight:
        return base.as_method(method) if isinstance(method, base.TwoView) else method
    if not isinstance(method, base.TwoView):
        raise InputError(f"nrcc needs a method of two views; {name} is none, set nrcc.weight to 0")
    if config.nrcc.resolution is not None and not context.network.any_size:
        raise InputError(
            f"nrcc.resolution needs a network that averages its last map; "
            f"{config.network.name} does not, leave it None"
        )
    return with_nrcc(method, config.nrcc)
