"""A config turned into functions: data, method, optimizer, checked and fitted together."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from cluster_jax.core import checks, io, schedules
from cluster_jax.core.checks import InputError
from cluster_jax.core.config import bind_section, load_config, parse_section
from cluster_jax.data import batches, datasets, splits, views
from cluster_jax.data.datasets import Dataset
from cluster_jax.evaluation import evaluate
from cluster_jax.evaluation.evaluate import EvalConfig
from cluster_jax.methods import base
from cluster_jax.methods.base import Method, MethodContext
from cluster_jax.methods.nrcc import with_nrcc
from cluster_jax.methods.nrcc_config import NRCCConfig
from cluster_jax.nets import network
from cluster_jax.training import loop, optim
from cluster_jax.training import state as states
from cluster_jax.training.step import make_step


class Run(NamedTuple):
    """A config turned into functions: everything that a training needs, and no state.

    Attributes:
        dataset: the images.
        test: images kept for a test of novel class discovery, or None.
        method: what is trained.
        optimizer: moves its parameters.
        rate: learning rate as a function of the step.
        schedule: lengths in steps.
        mesh: all devices of all processes.
        shape: `[H, W, C]` of a network input.
        statistics: `{"mean", "std"}` of each channel, by which the images are standardized.
    """

    dataset: Dataset
    test: Dataset | None
    method: Method
    optimizer: optax.GradientTransformation
    rate: schedules.Schedule
    schedule: loop.TrainSchedule
    mesh: Mesh
    shape: tuple[int, int, int]
    statistics: dict[str, list[float]]


def plain(config: ConfigDict | Mapping[str, Any]) -> dict[str, Any]:
    """The config as nested dicts of what JSON can hold (tuples become lists).

    Raises:
        InputError: NaN or infinity, which JSON cannot hold.
    """
    values = config.to_dict() if isinstance(config, ConfigDict) else dict(config)
    checks.finite("config", values)
    return io.plain(values)


def build_run(
    config: Mapping[str, Any], dataset: Dataset | None = None, test: Dataset | None = None
) -> Run:
    """Turns a config into functions.

    Args:
        config: as nested dicts.
        dataset: the images, where they are in hand already; None: what `config["data"]` and
            `config["novel"]` say.
        test: with `dataset`: images kept for a test.

    Raises:
        InputError: a key is missing, spare or out of range, or the data cannot be used.
    """
    _check_keys(config)
    try:
        checks.at_least("seed", config["seed"], 0)
        mesh = states.make_mesh()
        train = config["train"]
        checks.at_least("train.batch_size", train["batch_size"], 2)
        states.check_batch(train["batch_size"], mesh)
        if dataset is None:
            dataset, test = bind_section(splits.load, "novel", config["novel"], config["data"])
        known = dataset.known
        clustered = dataset.size if known is None else int((known < 0).sum())
        evaluate.check_k(parse_section(EvalConfig, "eval", config["eval"]), clustered)
        built = _join(config, dataset, test, mesh)
        classes = config["method"].get("classes")
        if classes is not None and classes > clustered:
            raise InputError(
                f"method.classes must be at most the {clustered} unlabeled images; got {classes}"
            )
        _try_step(built, train["batch_size"], train["labeled_batch_size"])
    except InputError:
        raise
    except (ValueError, TypeError, OSError) as error:
        raise InputError(str(error)) from error
    return built


def describe_images(built: Run) -> dict[str, Any]:
    """What `rebuild_run` must know of the images."""
    dataset = built.dataset
    known = None
    if dataset.known is not None:
        names = splits.known_names(dataset)
        labeled = int((dataset.known >= 0).sum())
        known = {"images": labeled, "classes": len(names), "names": list(names)}
    images = {"size": dataset.size, "shape": list(dataset.shape), "known": known}
    return {**images, **built.statistics}


def rebuild_run(config: Mapping[str, Any], images: Mapping[str, Any]) -> Run:
    """The same functions again without the images; its `dataset` has a size but no content.

    Args:
        config: of the run.
        images: what `describe_images` said of its images.

    Raises:
        InputError: the config does not fit this version of the package.
    """
    try:
        _check_keys(config)
    except InputError as error:
        raise InputError(
            f"the run is of another version of cluster_jax ({error}); take that version, which "
            "its results.json names, or run it anew"
        ) from error
    dataset = Dataset(
        config["data"]["name"], images["size"], tuple(images["shape"]), None, _absent,
        None, None, None, (), _stand_in(images["size"], images.get("known")),
    )  # fmt: skip
    statistics = {key: images[key] for key in ("mean", "std")}
    config = {**config, "augment": {**config["augment"], **statistics}}
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


def _join(config: Mapping[str, Any], dataset: Dataset, test: Dataset | None, mesh: Mesh) -> Run:
    train = config["train"]
    known_classes = 0 if dataset.known is None else splits.check_known(dataset.known)
    drawn_from = batches.parts(dataset, train["batch_size"], train["labeled_batch_size"])
    for name, (members, count) in drawn_from.items():
        if name != "all" and len(members) < count:
            raise InputError(
                f"{len(members)} images are {name}, fewer than the {count} {name} rows of a batch; "
                "lower train.batch_size and train.labeled_batch_size"
            )
    size = sum(len(members) for members, _ in drawn_from.values())
    per_epoch = batches.steps_per_epoch(size, train["batch_size"])
    schedule = loop.TrainSchedule(
        schedules.steps("train.duration", train["duration"], per_epoch),
        train["log_every"],
        train["checkpoint_every"],
        train["prefetch"],
    )
    loop.check(schedule, train["keep_checkpoints"])
    views_section = _statistics(config["augment"], dataset)
    augmentation = bind_section(views.make, "augment", views_section)
    shuffle = config["network"]["norm"] == "shuffle"
    network_config = parse_section(network.NetworkConfig, "network", config["network"])
    net = network.make(network_config)
    context = MethodContext(
        net,
        augmentation,
        shuffle,
        dataset.size,
        schedule.total,
        per_epoch,
        train["batch_size"],
        train["labeled_batch_size"],
        known_classes,
    )
    method = _method(config, context)
    warmup = schedules.steps("optimizer.warmup", config["optimizer"]["warmup"], per_epoch)
    if warmup > schedule.total:
        raise InputError(
            f"optimizer.warmup is {warmup} steps, longer than train.duration, {schedule.total}"
        )
    drop = config["optimizer"]["lr_decay_every"]
    if drop is not None:
        drop = schedules.steps("optimizer.lr_decay_every", drop, per_epoch)
    values = {k: v for k, v in config["optimizer"].items() if k not in ("warmup", "lr_decay_every")}
    optimizer, rate = bind_section(
        optim.make,
        "optimizer",
        values,
        schedule.total,
        warmup,
        drop,
        train["batch_size"],
        net.frozen,
    )
    size = config["augment"]["size"]
    shape = (size, size, dataset.shape[2])
    statistics = {key: list(views_section[key]) for key in ("mean", "std")}
    return Run(dataset, test, method, optimizer, rate, schedule, mesh, shape, statistics)


def initial_state(built: Run, config: Mapping[str, Any]) -> states.State:
    """The state before the first step, on all devices."""
    return states.create(
        built.method, built.optimizer, seed=config["seed"], shape=built.shape, mesh=built.mesh
    )


def _try_step(built: Run, batch_size: int, labeled: int | None) -> None:
    """Traces a step without computing anything: shows whether all parts fit together."""
    method, optimizer = built.method, built.optimizer
    state = jax.eval_shape(lambda: states.initial(method, optimizer, seed=0, shape=built.shape))
    batch = {}
    for name, (_, count) in batches.parts(built.dataset, batch_size, labeled).items():
        states.check_batch(count, built.mesh)
        batch[name] = {
            "index": jax.ShapeDtypeStruct((count,), jnp.int32),
            "image": jax.ShapeDtypeStruct((count, *built.dataset.shape), jnp.uint8),
        }
        if name == "labeled":
            batch[name]["label"] = jax.ShapeDtypeStruct((count,), jnp.int32)
    batch = batch.get("all", batch)
    jax.eval_shape(make_step(method, optimizer, built.mesh), state, batch, None)


def check_features(config: Mapping[str, Any], built: Run) -> None:
    """Raises an `InputError` for `eval.features` that the method does not embed."""
    images = jax.ShapeDtypeStruct((1, *built.dataset.shape), jnp.uint8)

    def embedded(images: jax.Array) -> dict[str, jax.Array]:
        state = states.initial(built.method, built.optimizer, seed=0, shape=built.shape)
        return built.method.embed(state.params, state.model_state, images)

    found = jax.eval_shape(embedded, images)
    choices = tuple(name for name in ("backbone", "projection") if name in found)
    checks.one_of("eval.features", config["eval"]["features"], choices)


def _method(config: Mapping[str, Any], context: MethodContext) -> Method:
    name = config["method"]["name"]
    values = {k: v for k, v in config["method"].items() if k != "name"}
    method = base.build(name, values, context)
    two_view = isinstance(method, base.TwoView)
    if two_view and context.labeled_batch_size is not None:
        raise InputError(
            f"the method {name} takes no labels: leave out train.labeled_batch_size = "
            f"{context.labeled_batch_size}"
        )
    if not two_view and config["network"]["norm"] == "local":
        raise InputError(
            f"network.norm 'local' needs a method of two views; {name} passes several parts of a "
            "batch at once, which groups would mix: use 'sync'"
        )
    if not config["nrcc"]["weight"]:
        return base.as_method(method) if isinstance(method, base.TwoView) else method
    if not isinstance(method, base.TwoView):
        raise InputError(f"nrcc needs a method of two views; {name} is none, set nrcc.weight to 0")
    if config["nrcc"]["resolution"] is not None and not context.network.any_size:
        raise InputError(
            f"nrcc.resolution needs a network that averages its last map; "
            f"{config['network']['name']} does not, leave it None"
        )
    return with_nrcc(method, parse_section(NRCCConfig, "nrcc", config["nrcc"]))


def _statistics(section: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """The section with mean and standard deviation measured where they are not given."""
    values = dict(section)
    unknown = [key for key in ("mean", "std") if key in values and values[key] is None]
    if unknown:
        measured = dict(zip(("mean", "std"), datasets.channel_statistics(dataset), strict=True))
        values |= {key: measured[key] for key in unknown}
    return values


def _check_keys(config: Mapping[str, Any]) -> None:
    """Sections, and their keys where these are the same for every config."""
    reference = plain(load_config("base"))
    _compare("", reference, config)
    for section, value in reference.items():
        if isinstance(value, Mapping) and not isinstance(config[section], Mapping):
            raise InputError(f"{section} is a section of the config; got {config[section]!r}")
    for section in set(reference) - {"method", "stages"}:
        if isinstance(reference[section], Mapping):
            _compare(f"{section}.", reference[section], config[section])
    if "name" not in config["method"]:
        raise InputError("the config lacks method.name; add it")


def _compare(prefix: str, wanted: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raises an `InputError` unless both have the same keys, as deep as both are sections."""
    for key in wanted:
        if key not in given:
            raise InputError(f"the config lacks {prefix}{key}; add it")
    for key in given:
        if key not in wanted:
            raise InputError(
                f"the config has {prefix}{key}, which nothing reads; take one of "
                f"{', '.join(wanted)}"
            )
    if prefix:
        for key, value in wanted.items():
            if isinstance(value, Mapping) and isinstance(given[key], Mapping):
                _compare(f"{prefix}{key}.", value, given[key])
