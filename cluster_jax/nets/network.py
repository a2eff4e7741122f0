"""A backbone with projector and predictor as pure functions of pytrees."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.core import collectives
from cluster_jax.core.collectives import Axis
from cluster_jax.core.ops import upcast
from cluster_jax.nets import resnet, small
from cluster_jax.nets.heads import Head
from cluster_jax.nets.norm import BatchNorm

Tree = Any

NAMES = (*resnet.DEPTHS, "small")
NORMS = ("sync", "local", "shuffle")
# None lets flax compute in the widest dtype of inputs and parameters: float32, and float64 where
# a test gives float64.
DTYPES = {"float32": None, "bfloat16": jnp.bfloat16}


class Outputs(NamedTuple):
    """What a forward pass gives.

    Attributes:
        representation: backbone features `[b, f]`, at least float32.
        projection: projector outputs `[b, e]`, at least float32, not normalized; the
            representation itself where there is no projector.
        stats: the new BatchNorm statistics; those given where `train` is False.
    """

    representation: Array
    projection: Array
    stats: Tree


class Network(NamedTuple):
    """A network made of pure functions.

    `params` and `stats` are dictionaries with the keys "backbone" and, where there is one,
    "projector" and "predictor". A target network may leave the predictor out of both. `train` is a
    Python bool, `axis` the name of the mesh axis that holds the batch (None on one device).

    Attributes:
        init: `(key, images) -> params, stats`, float32; of `images`, floats `[1, H, W, C]`, only
            the shape matters.
        forward: `(params, stats, images, *, train, axis) -> Outputs` of images `[b, H, W, C]`.
        predict: `(params, stats, projection, *, train, axis) -> prediction, stats`; `[b, e]` in
            and out, at least float32; only the predictor's part of `stats` changes. None for a
            network without predictor.
        features: size `f` of the representation.
        projections: size `e` of the projection.
        frozen: `(params) -> bools` in the same structure, True for what does not train; None
            where everything trains. Frozen blocks keep their statistics too.
        any_size: whether it takes images of another size than `init` saw (it averages its last
            map; "small" flattens it).
    """

    init: Callable[[Array, Array], tuple[Tree, Tree]]
    forward: Callable[..., Outputs]
    predict: Callable[..., tuple[Array, Tree]] | None
    features: int
    projections: int
    frozen: Callable[[Tree], Tree] | None
    any_size: bool


def make(
    *,
    name: str,
    width: int,
    stem: str | None,
    projector: Mapping[str, int] | None,
    predictor: Mapping[str, int] | None,
    frozen: str | None,
    norm: str,
    group: int | None,
    dtype: str,
) -> Network:
    """The network of a configuration.

    Args:
        name: "resnet18", "resnet34", "resnet50" or "small".
        width: channels of the first layer; 64 gives the published ResNets.
        stem: "cifar" or "imagenet" for a ResNet, None for "small".
        projector: `{"hidden": size, "out": size}`, or None for a method without projector.
        predictor: `{"hidden": size}`, or None for a method without predictor.
        frozen: name of the last block of the backbone, from the input on, that does not train:
            "stem", "stage1" to "stage4" of a ResNet, "conv1" to "conv4" or "dense" of "small".
            None: all train.
        norm: BatchNorm statistics of the global batch ("sync") or of groups of images ("local").
            "shuffle" is "local" here; a method shuffles the images before its target network sees
            them.
        group: images per group for "local" and "shuffle", at least 2, for "shuffle" fewer than the
            global batch; None for "sync".
        dtype: compute dtype, "float32" or "bfloat16". Parameters, statistics and outputs are in
            float32 either way; float64 parameters or images stay float64 under "float32".

    Raises:
        ValueError: a value is not one of these.
    """
    _check(name, width, stem, norm, group, dtype)
    if projector is not None:
        _check_sizes("projector", projector, {"hidden", "out"})
    elif predictor is not None:
        raise ValueError("a predictor needs a projector; give network.projector, or neither")
    blocks = small.BLOCKS if name == "small" else resnet.BLOCKS
    if frozen is not None and frozen not in blocks:
        raise ValueError(
            f"unknown block {frozen!r} of {name} to freeze; there are {', '.join(blocks)}"
        )
    count = 0 if frozen is None else blocks.index(frozen) + 1
    if predictor is not None:
        _check_sizes("predictor", predictor, {"hidden"})
    compute = DTYPES[dtype]

    def parts(train: bool, axis: Axis) -> dict[str, nn.Module]:
        common = {"norm": partial(BatchNorm, train, axis, group, compute), "dtype": compute}
        still = {"frozen": count, "frozen_norm": partial(BatchNorm, False, axis, group, compute)}
        if name == "small":
            modules = {"backbone": small.Small(width, **common, **still)}
        else:
            modules = {"backbone": resnet.ResNet(name, width, stem, **common, **still)}
        if projector is not None:
            modules["projector"] = Head(projector["hidden"], projector["out"], **common)
        if predictor is not None:
            modules["predictor"] = Head(predictor["hidden"], projector["out"], **common)
        return modules

    features = small.features(width) if name == "small" else resnet.features(name, width)
    projections = features if projector is None else projector["out"]

    def init(key: Array, images: Array) -> tuple[Tree, Tree]:
        # In evaluation mode: one image is no batch to take statistics of.
        modules = parts(train=False, axis=None)

        def initial(key: Array, images: Array) -> tuple[Tree, Tree]:
            inputs = {
                "backbone": images,
                "projector": jnp.zeros((1, features), images.dtype),
                "predictor": jnp.zeros((1, projections), images.dtype),
            }
            keys = dict(zip(inputs, jax.random.split(key, len(inputs)), strict=True))
            made = {part: m.init(keys[part], inputs[part]) for part, m in modules.items()}
            params = {part: variables["params"] for part, variables in made.items()}
            return params, {part: variables["batch_stats"] for part, variables in made.items()}

        # XLA spends a second per shape on the code of a random generator that runs once; without
        # optimization it is quick. Only a compilation of its own can have this option.
        if isinstance(jnp.add(0, 0), jax.core.Tracer):
            return initial(key, images)
        options = {"xla_backend_optimization_level": 0}
        return jax.jit(initial, compiler_options=options)(key, images)

    def run(
        part: str, params: Tree, stats: Tree, x: Array, train: bool, axis: Axis
    ) -> tuple[Array, Tree]:
        variables = {"params": params[part], "batch_stats": stats[part]}
        # In evaluation mode this gives back the statistics that went in.
        y, new = parts(train, axis)[part].apply(variables, x, mutable=["batch_stats"])
        return y, {**stats, part: new["batch_stats"]}

    def forward(params: Tree, stats: Tree, images: Array, *, train: bool, axis: Axis) -> Outputs:
        batch = images.shape[0] * collectives.size(axis)
        if train and norm == "shuffle" and group >= batch:
            raise ValueError(
                "network.norm 'shuffle' needs a network.group smaller than the batch, or it "
                f"changes nothing; got network.group {group} for train.batch_size {batch}"
            )
        representation, stats = run("backbone", params, stats, images, train, axis)
        projection = representation
        if projector is not None:
            projection, stats = run("projector", params, stats, representation, train, axis)
        return Outputs(upcast(representation), upcast(projection), stats)

    def predict(
        params: Tree, stats: Tree, projection: Array, *, train: bool, axis: Axis
    ) -> tuple[Array, Tree]:
        prediction, stats = run("predictor", params, stats, projection, train, axis)
        return upcast(prediction), stats

    def still(params: Tree) -> Tree:
        def block_of(module: str) -> int:
            return small.block_of(module) if name == "small" else resnet.block_of(name, module)

        def mask(part: str, module: str, leaves: Tree) -> Tree:
            fixed = part == "backbone" and block_of(module) < count
            return jax.tree.map(lambda _: fixed, leaves)

        return {
            part: {module: mask(part, module, leaves) for module, leaves in modules.items()}
            for part, modules in params.items()
        }

    return Network(
        init,
        forward,
        None if predictor is None else predict,
        features,
        projections,
        still if count else None,
        name != "small",
    )


def _check(
    name: str, width: int, stem: str | None, norm: str, group: int | None, dtype: str
) -> None:
    if name not in NAMES:
        raise ValueError(f"unknown network {name!r}; there are {', '.join(NAMES)}")
    if width < 1:
        raise ValueError(f"the width of a network is at least 1; got {width}")
    if name == "small" and stem is not None:
        raise ValueError(f"the network 'small' has no choice of stem; set it to None, not {stem!r}")
    if name != "small" and stem not in resnet.STEMS:
        raise ValueError(f"unknown stem {stem!r} of {name}; there are {', '.join(resnet.STEMS)}")
    if norm not in NORMS:
        raise ValueError(f"unknown norm {norm!r}; there are {', '.join(NORMS)}")
    if norm == "sync" and group is not None:
        raise ValueError(
            f"network.norm 'sync' takes no network.group; set that to None, not {group}"
        )
    if norm != "sync" and (group is None or group < 2):
        raise ValueError(f"network.norm {norm!r} needs a network.group of at least 2; got {group}")
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}; there are {', '.join(DTYPES)}")


def _check_sizes(part: str, sizes: Mapping[str, int], keys: set[str]) -> None:
    wanted = " and ".join(sorted(keys))
    if set(sizes) != keys:
        raise ValueError(
            f"the {part} is given by {wanted}; got {', '.join(sorted(sizes)) or 'nothing'}"
        )
    if min(sizes.values()) < 1:
        raise ValueError(f"the {part}'s {wanted} must be at least 1; got {dict(sizes)}")
