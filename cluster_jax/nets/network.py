"""A backbone with projector and predictor, and linear classifiers, as functions of pytrees."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.core import checks, collectives
from cluster_jax.core.collectives import Axis
from cluster_jax.core.ops import upcast
from cluster_jax.nets.backbone import ENTERED, Layers
from cluster_jax.nets.config import NetworkConfig
from cluster_jax.nets.norm import BatchNorm

PyTree = Any


class Outputs(NamedTuple):
    """Result of a forward pass.

    Attributes:
        representation: backbone features `[b, f]`, at least float32.
        projection: projector outputs `[b, e]`, at least float32, not normalized; the
            representation itself for a network without projector.
        stats: the new BatchNorm statistics; where `train` is False, the given ones.
    """

    representation: Array
    projection: Array
    stats: PyTree


class Network(NamedTuple):
    """A network made of pure functions.

    `params` and `stats` are dictionaries with the key "backbone" and, if the network has them,
    "projector" and "predictor". A target network may omit the predictor from both. `train` is a
    Python bool, `axis` the name of the mesh axis that holds the batch (None on one device).

    Attributes:
        init: `(key, images) -> (params, stats)`, float32; of `images`, floats `[1, H, W, C]`, only
            the shape matters.
        forward: `(params, stats, images, *, train, axis) -> Outputs` of floats `[b, H, W, C]`.
        predict: `(params, stats, z, *, train, axis) -> (predictions, stats)`, of projections
            `[b, e]` to `[b, e]`, at least float32; None for a network without predictor.
        features: size `f` of the representation.
        projections: size `e` of the projection.
        frozen: `(params) -> mask`, a pytree of bools, True for a frozen parameter; None if all
            parameters train. Frozen blocks keep their BatchNorm statistics too.
        any_size: whether it accepts images of another size than `init` was called with.
    """

    init: Callable[[Array, Array], tuple[PyTree, PyTree]]
    forward: Callable[..., Outputs]
    predict: Callable[..., tuple[Array, PyTree]] | None
    features: int
    projections: int
    frozen: Callable[[PyTree], PyTree] | None
    any_size: bool


def make(config: NetworkConfig) -> Network:
    """Makes the network of a config section."""
    backbone = config.backbone()
    return Network(
        init=functools.partial(_init, config),
        forward=functools.partial(_forward, config),
        predict=None if config.predictor is None else functools.partial(_predict, config),
        features=backbone.features,
        projections=_projection_size(config),
        frozen=functools.partial(_frozen_mask, config) if _frozen_count(config) else None,
        any_size=backbone.any_size,
    )


def rematerialized(network: Network) -> Network:
    """Returns the network of which only the inputs of blocks are kept for the gradient.

    The gradient computes the blocks again, for less memory and up to a third more operations.
    """
    predict = network.predict and _rematerialized(network.predict)
    return network._replace(forward=_rematerialized(network.forward), predict=predict)


def _rematerialized(function: Any) -> Any:
    kept = jax.checkpoint_policies.save_only_these_names(ENTERED)

    def repeated(*arguments: Any, train: bool, axis: Axis) -> Any:
        passed = functools.partial(function, train=train, axis=axis)
        return jax.checkpoint(passed, policy=kept)(*arguments)

    return repeated


def _projection_size(config: NetworkConfig) -> int:
    if config.projector is None:
        return config.backbone().features
    return config.projector.out


def _frozen_count(config: NetworkConfig) -> int:
    """Counts the leading blocks that do not train."""
    blocks = config.backbone().blocks
    if config.frozen is None:
        return 0
    return blocks.index(config.frozen) + 1


def _modules(config: NetworkConfig, train: bool, axis: Axis) -> dict[str, nn.Module]:
    """Makes the Flax modules, by the keys of `params`."""
    # With None, Flax computes in the widest dtype of inputs and parameters: float32, or float64 in
    # tests that pass float64.
    accelerated = jax.default_backend() in ("gpu", "tpu")
    bfloat16 = config.dtype == "bfloat16" or (config.dtype == "auto" and accelerated)
    dtype = jnp.dtype(jnp.bfloat16) if bfloat16 else None
    norm = functools.partial(BatchNorm, train, axis, config.group, dtype)
    frozen_norm = functools.partial(BatchNorm, False, axis, config.group, dtype)
    layers = Layers(norm, frozen_norm, _frozen_count(config), dtype)
    modules = {"backbone": config.backbone().module(layers)}
    size = _projection_size(config)
    if (projector := config.projector) is not None:
        modules["projector"] = Head(projector.hidden, size, norm, dtype)
    if (predictor := config.predictor) is not None:
        modules["predictor"] = Head(predictor.hidden, size, norm, dtype, predictor.init_std)
    return modules


def _init(config: NetworkConfig, key: Array, images: Array) -> tuple[PyTree, PyTree]:
    """Initializes parameters and statistics."""
    inputs = {
        "backbone": images,
        "projector": jnp.zeros((1, config.backbone().features), images.dtype),
        "predictor": jnp.zeros((1, _projection_size(config)), images.dtype),
    }
    keys = dict(zip(inputs, jax.random.split(key, len(inputs)), strict=True))
    # Evaluation mode, because batch statistics of one image are meaningless.
    modules = _modules(config, train=False, axis=None)
    variables = {part: m.init(keys[part], inputs[part]) for part, m in modules.items()}
    params = {part: collections["params"] for part, collections in variables.items()}
    # A part without BatchNorm has no statistics.
    stats = {part: collections.get("batch_stats", {}) for part, collections in variables.items()}
    return params, stats


# Jitted inside the jitted step, so that equal forward passes of a step are traced once.
@functools.partial(jax.jit, static_argnames=("config", "train", "axis"))
def _forward(
    config: NetworkConfig, params: PyTree, stats: PyTree, images: Array, *, train: bool, axis: Axis
) -> Outputs:
    if train and config.norm == "shuffle" and config.group is not None:
        most = images.shape[0] * collectives.size(axis) - 1
        # In a group as large as the batch, shuffling would change nothing.
        checks.at_most("network.group", config.group, most, "with network.norm 'shuffle'")
    modules = _modules(config, train, axis)
    representation, stats = _apply(modules, "backbone", params, stats, images)
    projection = representation
    if config.projector is not None:
        projection, stats = _apply(modules, "projector", params, stats, representation)
    return Outputs(upcast(representation), upcast(projection), stats)


@functools.partial(jax.jit, static_argnames=("config", "train", "axis"))
def _predict(
    config: NetworkConfig, params: PyTree, stats: PyTree, z: Array, *, train: bool, axis: Axis
) -> tuple[Array, PyTree]:
    modules = _modules(config, train, axis)
    prediction, stats = _apply(modules, "predictor", params, stats, z)
    return upcast(prediction), stats


def _apply(
    modules: dict[str, nn.Module], part: str, params: PyTree, stats: PyTree, x: Array
) -> tuple[Array, PyTree]:
    """Applies one part; returns its output, and all statistics with the part's updated."""
    variables = {"params": params[part], "batch_stats": stats[part]}
    # In evaluation mode `updated` holds the unchanged statistics.
    y, updated = modules[part].apply(variables, x, mutable=["batch_stats"])
    return y, {**stats, part: updated.get("batch_stats", {})}


def _frozen_mask(config: NetworkConfig, params: PyTree) -> PyTree:
    block_of = config.backbone().block_of
    count = _frozen_count(config)

    def is_frozen(path: tuple[jax.tree_util.DictKey, ...], _: Array) -> bool:
        return path[0].key == "backbone" and block_of(path[1].key) < count

    return jax.tree_util.tree_map_with_path(is_frozen, params)


class Head(nn.Module):
    """Fully connected, BatchNorm, ReLU, fully connected, as in BYOL (Grill et al. 2020).

    The first layer has no bias: BatchNorm would subtract it.

    Attributes:
        hidden: size of the hidden layer.
        out: size of the output.
        norm: makes a normalization layer.
        dtype: compute dtype; None for the widest of inputs and parameters.
        init_std: standard deviation of the initial normal weights; None for LeCun's, which
            is 1 / sqrt(inputs of the layer). Biases start at zero.
    """

    hidden: int
    out: int
    norm: Callable[[], nn.Module]
    dtype: jnp.dtype | None
    init_std: float | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps `[b, f] -> [b, out]`."""
        std = self.init_std
        initializers = nn.initializers
        init = initializers.lecun_normal() if std is None else initializers.normal(std)
        x = nn.Dense(self.hidden, use_bias=False, kernel_init=init, dtype=self.dtype)(x)
        x = nn.relu(self.norm()(x))
        return nn.Dense(self.out, kernel_init=init, dtype=self.dtype)(x)


def classifier(key: Array, features: int, classes: int) -> dict[str, Array]:
    """Draws a linear classifier's parameters uniformly from +-1 / sqrt(features), as torch does."""
    bound = features**-0.5
    kernel = jax.random.uniform(key, (features, classes), minval=-bound, maxval=bound)
    return {"kernel": kernel, "bias": jnp.zeros(classes)}


def classify(params: dict[str, Array], x: Array) -> Array:
    """Computes logits `[b, classes]`, at least float32, of rows `[b, features]`."""
    return upcast(x) @ params["kernel"] + params["bias"][None, :]
