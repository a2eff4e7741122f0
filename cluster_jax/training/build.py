"""Builds a run from its config: data, method and optimizer, checked together."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax.sharding import Mesh

from cluster_jax.core import checks, io
from cluster_jax.core import mesh as meshes
from cluster_jax.core.checks import InputError
from cluster_jax.core.names import counted
from cluster_jax.data import batches, datasets, features, tfds, views
from cluster_jax.data.datasets import Dataset
from cluster_jax.data.images import readable, with_channels
from cluster_jax.data.views import AugmentConfig
from cluster_jax.discovery import splits
from cluster_jax.encoding.encoder import Encoder
from cluster_jax.evaluation import options
from cluster_jax.methods import base
from cluster_jax.methods.base import Method, MethodContext
from cluster_jax.methods.nrcc import with_nrcc
from cluster_jax.nets import network
from cluster_jax.nets import pretrained as pretrained_networks
from cluster_jax.nets.config import NetworkConfig
from cluster_jax.nets.pretrained import Preprocessing, preprocessing
from cluster_jax.training import optim
from cluster_jax.training import state as states
from cluster_jax.training.config import MADE_ALREADY, AnyConfig, PhotosConfig, RunConfig
from cluster_jax.training.state import State, TrainConfig, TrainingRun
from cluster_jax.training.step import make_step

Kind = TypeVar("Kind", bound=AnyConfig, covariant=True)


class Inputs(NamedTuple, Generic[Kind]):
    """The images of a run, ready for a network.

    Attributes:
        config: the config; that of a training on images has the mean and standard deviation by
            which they are standardized, also where the user's config leaves them None.
        dataset: the images, or features of images.
        test: held-out test images, for the linear probe or for novel class discovery; or None.
    """

    config: Kind
    dataset: Dataset
    test: Dataset | None


class BuiltRun(NamedTuple):
    """A training, ready to start: a run, or one stage of it.

    Attributes:
        config: see `Inputs`.
        training: everything that the training needs, except its state.
        test: see `Inputs`.
        workdir: folder of its checkpoints and logs, which `trainings.build_stages` sets.
    """

    config: RunConfig
    training: TrainingRun
    test: Dataset | None
    workdir: epath.Path = epath.Path()

    @property
    def inputs(self) -> Inputs[RunConfig]:
        """The images of the run."""
        return Inputs(self.config, self.training.dataset, self.test)


def load_inputs(
    config: RunConfig,
    dataset: Dataset | None = None,
    test: Dataset | None = None,
    labels: tfds.Labels | None = None,
) -> Inputs[RunConfig]:
    """Loads the images of a run and checks that its config suits them.

    Args:
        config: see `configs/base.py`.
        dataset: the images if they are loaded already; None: load `config.data` and
            `config.novel`.
        test: held-out test images, or None; ignored without `dataset`.
        labels: where labels of a streamed set are stored; None: nowhere.

    Raises:
        InputError: the config is inconsistent, or the data cannot be used.
    """
    if dataset is None:
        dataset, test = splits.load(config.data, config.novel, labels or tfds.Labels())
    partial_labels = dataset.partial_labels
    num_clustered = dataset.size if partial_labels is None else int((partial_labels < 0).sum())
    _check_k(config.eval, num_clustered)
    dataset = _channels(config, dataset)
    test = test and _channels(config, test)
    if not dataset.has_images:
        checks.none("network.weights", config.network.weights, MADE_ALREADY)
        dataset = features.with_neighbors(dataset, config.feature_views.neighbors)
    classes = config.method.novel_classes
    if classes is not None and 0 < num_clustered < classes:
        raise InputError(
            f"method.n_classes must be at most the {counted(num_clustered, 'unlabeled image')}; "
            f"got {classes}"
        )
    if dataset.has_images:
        augment = _with_statistics(config.augment, dataset)
        config = dataclasses.replace(config, augment=augment)
    return Inputs(config, dataset, test)


def load_photos(config: PhotosConfig, dataset: Dataset | None = None) -> Inputs[PhotosConfig]:
    """Loads images that a pretrained network is to embed, with three channels.

    Args:
        config: see `configs/images.py`.
        dataset: the images if they are loaded already; None: load `config.data`.

    Raises:
        InputError: the config is inconsistent, or the data cannot be used.
    """
    dataset = datasets.load(config.data) if dataset is None else dataset
    _check_k(config.eval, dataset.size)
    return Inputs(config, with_channels(dataset, 3), None)


def _check_k(section: options.EvalConfig, size: int) -> None:
    """Raises an `InputError` if a number of clusters is too large for `size` images."""
    what = "images to cluster"
    options.check_k("eval.n_clusters", section.n_clusters, size, what)
    options.check_k("eval.kmeans.n_clusters", section.kmeans.n_clusters, size, what)


def build_run(
    config: RunConfig,
    dataset: Dataset | None = None,
    test: Dataset | None = None,
    labels: tfds.Labels | None = None,
) -> BuiltRun:
    """Builds a run and traces a training step to check that its parts work together.

    Args:
        config: see `load_inputs`, also for the other arguments.
        dataset: the images, or None.
        test: held-out test images, or None.
        labels: where labels are stored, or None.

    Raises:
        InputError: the config is inconsistent, or the data cannot be used.
    """
    mesh = meshes.make()
    devices = "the number of devices"
    checks.multiple("train.batch_size", config.train.batch_size, mesh.size, devices)
    built = _join(load_inputs(config, dataset, test, labels), mesh)
    try_step(built.training)
    return built


def encoder_of(config: PhotosConfig, prepared: Preprocessing | None = None) -> Encoder:
    """Makes the encoder that a config names.

    Args:
        config: the config.
        prepared: the preprocessing, which also says how large images are; None: mean and standard
            deviation of the weights, `data.interpolation`, and `data.image_size` or, if that is
            None, the size of the weights.

    Raises:
        InputError: the weights cannot be read.
    """
    if prepared is None:
        prepared = preprocessing(str(config.network.weights))
        data = config.data
        side = data.image_size or prepared.size
        prepared = dataclasses.replace(prepared, size=side, interpolation=data.interpolation)
    return Encoder.of_weights(config.network, prepared)


def pretrained(config: RunConfig, shape: Sequence[int]) -> Encoder:
    """Makes the encoder on whose features a training runs; without one, that of `network.weights`.

    Args:
        config: config of the run, in which `encoder` or `network.weights` is set, and the section
            `augment` has mean and standard deviation.
        shape: `[H, W, C]` of the images.

    Raises:
        InputError: the weights cannot be read.
    """
    section = config.network if config.encoder is None else _of_encoder(config)
    return Encoder.of_weights(section, _preprocessing(config), shape)


def trained(inputs: Inputs[RunConfig], params: Any, stats: Any) -> Encoder:
    """Makes the encoder of a training, from images to the features that the run clusters.

    Args:
        inputs: its images, or their features.
        params: parameters of the network that its method keeps, a tree for each part by its name.
        stats: BatchNorm statistics of this network, as `params`.

    Raises:
        InputError: the weights of the frozen encoder, on whose features it trained, cannot be read.
    """
    config, dataset, _ = inputs
    shown = dataset.shown or dataset
    base = None if config.encoder is None else pretrained(config, shown.shape)
    parts = ("backbone",) if config.eval.features == "backbone" else ("backbone", "projector")
    projector = config.network.projector if "projector" in parts else None
    kept = [{part: tree[part] for part in parts if part in tree} for tree in (params, stats)]
    return Encoder(
        network=dataclasses.replace(config.network, projector=projector, predictor=None),
        params=kept[0],
        stats=kept[1],
        shape=shown.shape,
        preprocessing=_preprocessing(config) if dataset.has_images else None,
        is_trained=True,
        base=base,
    )


def _preprocessing(config: RunConfig) -> Preprocessing:
    """Returns the preprocessing of a config that has mean and standard deviation."""
    augment = config.augment  # Its mean and std are measured, or those of weights.
    values: Any = augment.mean, augment.std, augment.size, config.data.interpolation
    return Preprocessing(*values)


def _channels(config: RunConfig, images: Dataset) -> Dataset:
    """Returns images with three channels if their network is pretrained.

    If a frozen encoder is set, it returns a placeholder for the features of the images that can be
    read, see `_pending`.
    """
    if config.encoder is not None and images.features_of is None:
        # The features of all images are made first, of which the neighbors are searched.
        return _pending(config, with_channels(readable(images), 3))
    if config.network.weights is not None and images.has_images:
        return with_channels(images, 3)
    return images


def describe_images(inputs: Inputs[AnyConfig]) -> dict[str, Any]:
    """Returns what `rebuild_run` must know of the images, as JSON values.

    Returns:
        "size", the number of images; "shape" of an image, also where the run trains on its
        features; and "known": None without novel class discovery, else the number of labeled
        "images", the number of known "classes", and their "names". Of a training also "mean" and
        "std" of the channels, None if it takes features.
    """
    dataset = inputs.dataset
    known_classes = None
    if dataset.partial_labels is not None:
        names = splits.known_names(dataset)
        labeled = int((dataset.partial_labels >= 0).sum())
        known_classes = {"images": labeled, "classes": len(names), "names": list(names)}
    shown = dataset.shown or dataset
    images = {"size": dataset.size, "shape": list(shown.shape), "known": known_classes}
    if isinstance(inputs.config, RunConfig):
        augment = inputs.config.augment
        images |= io.plain({"mean": augment.mean, "std": augment.std})
    return images


def rebuild_run(config: RunConfig, images: Mapping[str, Any]) -> BuiltRun:
    """Builds a finished run again without its images: the data set has a size but no content.

    Args:
        config: config of the run.
        images: what `describe_images` has returned for its images, as in `images.json`.

    Raises:
        InputError: the config and the images are inconsistent.
    """
    shape = tuple(images["shape"])
    dataset = Dataset(
        config.data.name,
        images["size"],
        shape,
        images=None,
        fetch=_no_images,
        partial_labels=_placeholder_classes(images["size"], images.get("known")),
        neighbors=config.feature_views.neighbors if len(shape) == 2 else 0,
    )
    if config.encoder is not None:
        dataset = features.with_neighbors(_pending(config, dataset), config.feature_views.neighbors)
    if dataset.has_images:
        mean, std = (tuple(images[key]) for key in ("mean", "std"))
        augment = dataclasses.replace(config.augment, mean=mean, std=std)
        config = dataclasses.replace(config, augment=augment)
    return _join(Inputs(config, dataset, None), meshes.make())


def _placeholder_classes(size: int, classes_of_run: Mapping[str, Any] | None) -> np.ndarray | None:
    """Returns classes int32 `[size]` with the run's counts, which fix shapes and durations.

    Args:
        size: number of images.
        classes_of_run: the entry "known" of `describe_images`; None: the result is None.
    """
    if classes_of_run is None:
        return None
    labeled = classes_of_run["images"]
    classes = np.full(size, -1, np.int32)
    classes[:labeled] = np.arange(labeled) % classes_of_run["classes"]
    return classes


def _pending(config: RunConfig, images: Dataset) -> Dataset:
    """Returns a placeholder for the features that the encoder will compute from the images."""
    return features.pending(images, network.make(_of_encoder(config)).features)


def _of_encoder(config: RunConfig) -> NetworkConfig:
    """Returns the network of the encoder; norm, group and dtype are those of the training."""
    values = {**pretrained_networks.overrides(str(config.encoder)), "frozen": None}
    return dataclasses.replace(config.network, **values, projector=None, predictor=None)


def _no_images(indices: np.ndarray) -> np.ndarray:
    raise LookupError("a rebuilt run has no images; build it with build_run to read them")


def _join(inputs: Inputs[RunConfig], mesh: Mesh) -> BuiltRun:
    """Returns a training ready to start: the method, the optimizer and the views of its images.

    No step is run. `build_run` calls it with images, and `rebuild_run` with placeholders.

    Args:
        inputs: the config and the images; those with pixels need mean and standard deviation.
        mesh: the devices of the training.

    Raises:
        InputError: the config does not suit the images. For example, `train.duration` is less than
            one step, or a batch has more labeled images than there are.
    """
    config, dataset, test = inputs
    if dataset.has_images:
        augment = views.make(config.augment)
        shape: tuple[int, ...] = (config.augment.size, config.augment.size, dataset.shape[2])
    else:
        augment = features.make_views(config.feature_views)
        shape = dataset.shape[1:]
    train = config.train
    known_classes = 0
    unlabeled_rows = None
    if dataset.partial_labels is not None:
        known_classes = splits.check_known(dataset.partial_labels)
        unlabeled_rows = np.flatnonzero(dataset.partial_labels < 0)
    steps_per_epoch = _steps_per_epoch(train, dataset)
    total_steps = checks.steps("train.duration", train.duration, steps_per_epoch)
    checks.at_least("train.duration", total_steps, 1)
    net = network.make(config.network)
    net = network.rematerialized(net) if train.remat else net
    context = MethodContext(
        network=net,
        augment=augment,
        shuffle=config.network.norm == "shuffle",
        images=dataset.size,
        total_steps=total_steps,
        steps_per_epoch=steps_per_epoch,
        batch_size=train.batch_size,
        total_updates=total_steps // train.accumulate,
        labeled_batch_size=train.labeled_batch_size,
        known_classes=known_classes,
        unlabeled_rows=unlabeled_rows,
    )
    method = _method(config, context)
    optimizer, learning_rate = optim.make(
        config.optimizer,
        total_steps=total_steps,
        steps_per_epoch=steps_per_epoch,
        batch_size=train.batch_size,
        accumulate=train.accumulate,
        frozen=net.frozen,
    )
    training = TrainingRun(
        method=method,
        optimizer=optimizer,
        learning_rate=learning_rate,
        seed=config.seed,
        total_steps=total_steps,
        train=train,
        dataset=dataset,
        mesh=mesh,
        shape=shape,
        network=net,
        clean=augment.clean,
        embed=functools.partial(base.embed, method, net, augment.clean),
    )
    return BuiltRun(config, training, test)


def _with_statistics(section: AugmentConfig, dataset: Dataset) -> AugmentConfig:
    """Returns a section with mean and standard deviation; one that is None is measured."""
    if section.mean is not None and section.std is not None:
        return section
    mean, std = datasets.channel_statistics(dataset)
    return dataclasses.replace(section, mean=section.mean or mean, std=section.std or std)


def _steps_per_epoch(train: TrainConfig, dataset: Dataset) -> int:
    """Returns the number of steps in an epoch: the images of all parts over those of a batch.

    The quotient is rounded down. For the parts see `batches.parts`.

    Raises:
        InputError: the set, or its labeled or unlabeled images, are fewer than a batch has of
            them; or `train.labeled_batch_size` is set, but no class is known.
    """
    parts = batches.parts(dataset, train.batch_size, train.labeled_batch_size)
    for name, (members, count) in parts.items():
        if name != "all" and len(members) < count:
            raise InputError(
                f"the number of {name} images must be at least the {count} in a batch; got "
                f"{len(members)} (lower train.batch_size and train.labeled_batch_size)"
            )
    size = sum(len(members) for members, _ in parts.values())
    return batches.steps_per_epoch(size, train.batch_size)


def initial_state(run: TrainingRun) -> State:
    """Makes the state before the first step, on all devices."""
    return states.create(run.method, run.optimizer, seed=run.seed, shape=run.shape, mesh=run.mesh)


def abstract_state(run: TrainingRun) -> State:
    """Returns structure, shapes, dtypes and devices of a run's state, without computing it."""
    replicated = meshes.replicated(run.mesh)
    state = jax.eval_shape(
        lambda: states.initial(run.method, run.optimizer, seed=0, shape=run.shape)
    )
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated), state
    )


def _method(config: RunConfig, context: MethodContext) -> Method:
    """Builds the method of a config, with the term of another method and with NRCC if they are set.

    Raises:
        InputError: the method does not suit the network, the labels, the term or NRCC.
    """
    name = config.method.name
    net = config.network
    method = base.build(name, config.method.config, context)
    if isinstance(method, base.TwoView):
        labeled = context.labeled_batch_size
        checks.none("train.labeled_batch_size", labeled, f"{name}, which takes no labels")
        if config.term is not None:
            if method.refresh is not None or name == config.term.name:
                where = f"the method {name}, which has clusters of its own"
                checks.none("term", config.term.name, where)
            added = base.build_term(config.term.name, config.term.config, context)
            method = base.with_term(method, added)
        if config.nrcc is None or not config.nrcc.weight:
            return base.as_method(method)
        if not context.network.any_size:
            where = f"the network {net.name}, which does not average its last feature map"
            checks.none("nrcc.resolution", config.nrcc.resolution, where)
        return with_nrcc(method, config.nrcc)
    if net.norm == "local":
        raise InputError(
            f"network.norm must be 'sync' for the method {name}, whose forward pass joins several "
            "parts of a batch that groups would mix; got 'local'"
        )
    if config.term is not None:
        checks.none("term", config.term.name, f"{name}, which is not a two-view method")
    if config.nrcc is not None and config.nrcc.weight:
        raise InputError(
            f"nrcc.weight must be 0 for the method {name}, which is not a two-view method; "
            f"got {config.nrcc.weight}"
        )
    return method


def try_step(run: TrainingRun) -> None:
    """Traces a training step to check that its parts fit together; computes nothing.

    Raises:
        InputError: a batch cannot be divided among the devices. If parts do not fit, the error is
            that of the part, of any type.
    """
    batch: dict[str, Any] = {}
    parts = batches.parts(run.dataset, run.train.batch_size, run.train.labeled_batch_size)
    for name, (_, count) in parts.items():
        checks.multiple("train.batch_size", count, run.mesh.size, "the number of devices")
        batch[name] = {
            "index": jax.ShapeDtypeStruct((count,), jnp.int32),
            "image": jax.ShapeDtypeStruct((count, *run.dataset.shape), _dtype(run.dataset)),
        }
        if name == "labeled":
            batch[name]["label"] = jax.ShapeDtypeStruct((count,), jnp.int32)
    step = make_step(run.method, run.optimizer, run.mesh)
    jax.eval_shape(step, abstract_state(run), batch.get("all", batch), None)


def check_features(run: TrainingRun, features: str) -> None:
    """Raises an `InputError` unless the method embeds `features`, the config's `eval.features`."""
    images = jax.ShapeDtypeStruct((1, *run.dataset.shape), _dtype(run.dataset))
    state = abstract_state(run)
    embedded = jax.eval_shape(run.embed, state.params, state.model_state, images)
    choices = tuple(name for name in options.FEATURES if name in embedded)
    checks.one_of("eval.features", features, choices)


def _dtype(dataset: Dataset) -> Any:
    return jnp.uint8 if dataset.has_images else jnp.float32
