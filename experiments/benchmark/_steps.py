"""Training steps to measure and to check: their configs, generated images, operations and bytes."""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh
from ml_collections import ConfigDict

from cluster_jax.core.config import load_config
from cluster_jax.data import batches
from cluster_jax.data.images import Dataset
from cluster_jax.nets.backbone import Layers
from cluster_jax.nets.norm import BatchNorm
from cluster_jax.pipeline import build
from cluster_jax.pipeline.config import parse_config
from cluster_jax.training import state as states
from cluster_jax.training.loop import TrainingRun
from cluster_jax.training.step import Step, make_step

# The config from which the section of a method is taken; all else is the same for all methods.
CONFIGS = {
    "byol": "nrcc_cifar10",
    "ncc": "ncc_cifar10",
    "simclr": "nrcc_digits",
    "moco": "moco_digits",
    "cueco": "cueco_cifar10",
    "kernel_infonce": "kernel_infonce_cifar10",
    "simsiam": "simsiam_digits",
    "barlow": "barlow_digits",
    "ncl": "ncl_cifar10",
}
PREDICTS = ("byol", "simsiam", "ncc", "cueco")
TARGET = ("byol", "moco", "ncc", "cueco")
RESIDENT = 50_000  # generated images of 32 pixels on the device, as many as CIFAR-10 has
LARGE_RESIDENT = 2_048  # of 224 pixels
CLASSES = 10
TINY_IMAGES, TINY_SIDE = 96, 16


class Item(NamedTuple):
    """A step.

    Attributes:
        method: a key of `CONFIGS`.
        network: name of the backbone.
        dtype: "bfloat16" or "float32".
        batch: images of a step.
        sampler: NRCC's; None: the method alone.
        side: pixels.
        views: "paper" or "flips", the augmentation.
    """

    method: str = "byol"
    network: str = "resnet18"
    dtype: str = "bfloat16"
    batch: int = 256
    sampler: str | None = None
    side: int = 32
    views: str = "paper"

    @property
    def name(self) -> str:
        """What differs from the other items, in words."""
        nrcc = f" + nrcc ({self.sampler})" if self.sampler else ""
        pixels = f" {self.side} px" if self.side != 32 else ""
        views = " flips alone" if self.views == "flips" else ""
        return f"{self.method}{nrcc} {self.network} {self.dtype} {self.batch}{pixels}{views}"


def config_of(item: Item, tiny: bool = False) -> ConfigDict:
    """The config of an item: the CIFAR-10 settings of the papers, or tiny ones for a CPU."""
    if item.method == "ncl":
        config = load_config("ncl_cifar10")
        config.stages = ConfigDict()
        config.train.labeled_batch_size = item.batch // 2
    else:
        own = CONFIGS[item.method]
        base = own if own.endswith("cifar10") else "nrcc_cifar10"
        config = load_config("nrcc_imagenet" if item.side > 32 else base)
        config.method = load_config(own).method
        if item.method not in PREDICTS:
            config.network.predictor = None
        config.nrcc.weight = 0.1 if item.sampler else 0.0
        config.nrcc.sampler = item.sampler or "sghmc"
    config.data.update(name="arrays", split=None, image_size=None)
    config.network.update(name=item.network, dtype=item.dtype)
    config.train.batch_size = item.batch
    if item.views == "flips":
        # Not the images as they are: of two equal views the compiler would pass one alone.
        config.augment.crop = config.augment.jitter = config.augment.blur = None
        config.augment.flip, config.augment.grayscale = 0.5, 0.0
    return tiny_config(config) if tiny else config


def tiny_config(config: ConfigDict) -> ConfigDict:
    """The config with sizes that a CPU core steps through in milliseconds."""
    config.network.update(name="small", stem=None, width=4, dtype="float32", weights=None)
    if config.network.frozen is not None:
        config.network.frozen = "conv3"
    shrink_heads(config, hidden=16, out=8, queue=32)
    config.augment.size = TINY_SIDE
    if config.augment.blur is not None:
        config.augment.blur.kernel = 3
    config.data.image_size = None
    config.train.update(batch_size=16, duration="24 epochs")
    if config.train.labeled_batch_size is not None:
        config.train.labeled_batch_size = 8
    config.optimizer.warmup = "2 epochs"
    if config.optimizer.lr_decay_every is not None:
        config.optimizer.lr_decay_every = "8 epochs"
    for key in {"warmup", "ramp"} & set(config.method):
        config.method[key] = "2 epochs"
    if "prototypes" in config.method:
        config.method.prototypes = (CLASSES, 2 * CLASSES)
    return config


def shrink_heads(config: ConfigDict, hidden: int, out: int, queue: int) -> None:
    """Sets the sizes of projector, predictor, queue, and of what NCL selects from the queue."""
    if config.network.projector is not None:
        config.network.projector.update(hidden=hidden, out=out)
    if config.network.predictor is not None:
        config.network.predictor.hidden = hidden
    if config.method.get("queue"):
        config.method.queue = queue
    if "neighbors" in config.method:
        config.method.neighbors, config.method.hng.count = 3, 4


@functools.lru_cache(maxsize=2)
def generated(count: int, side: int, labeled: bool, channels: int = 3) -> Dataset:
    """Random images uint8; if `labeled`, the labels of half the classes are known."""
    draw = np.random.default_rng(0)
    shape = (side, side, channels)
    images = draw.integers(0, 256, (count, *shape), dtype=np.uint8)
    labels = (np.arange(count) % CLASSES).astype(np.int32)
    dataset = Dataset("generated", count, shape, images, images.__getitem__, labels)
    known = np.where(labels < CLASSES // 2, labels, -1).astype(np.int32)
    return dataset._replace(known=known) if labeled else dataset


def build_run(item: Item, tiny: bool = False) -> TrainingRun:
    """The run of an item on generated images: no rate depends on their content."""
    count, side = (LARGE_RESIDENT, item.side) if item.side > 32 else (RESIDENT, 32)
    if tiny:
        count, side = TINY_IMAGES, TINY_SIDE
    dataset = generated(count, side, item.method == "ncl")
    return build.build_run(parse_config(config_of(item, tiny)), dataset).training


def prepare(run: TrainingRun) -> tuple[states.State, Step, Iterator[Any], jax.Array]:
    """State, step, endless batches of indices, and images, all on the device of the run."""
    resident = jax.device_put(run.dataset.images, states.replicated(run.mesh))
    step = make_step(run.method, run.optimizer, run.mesh)
    return build.initial_state(run), step, endless(run), resident


def advancing(run: TrainingRun) -> tuple[Callable[[], object], jax.stages.Compiled]:
    """A call that makes the next step of a run with one batch, made once, and the compiled step."""
    state, step, stream, resident = prepare(run)
    batch = next(stream)
    compiled = step.lower(state, batch, resident).compile()

    def advance() -> object:
        nonlocal state
        state, _ = compiled(state, batch, resident)
        return state

    jax.block_until_ready(advance())
    return advance, compiled


def mesh_of(device: jax.Device) -> Mesh:
    """The mesh of one device."""
    return jax.make_mesh((1,), (states.AXIS,), axis_types=(AxisType.Auto,), devices=[device])


def endless(run: TrainingRun) -> Iterator[Any]:
    """Batches of indices on the device, without end."""
    section, sharding = run.train, states.sharded(run.mesh)
    stream = batches.stream(
        run.dataset,
        seed=run.seed,
        batch_size=section.batch_size,
        labeled=section.labeled_batch_size,
        start=0,
        stop=2**31,
        process=0,
        processes=1,
        prefetch=section.prefetch,
    )
    return (jax.tree.map(lambda v: jax.device_put(v, sharding), batch) for batch in stream)


def operations(run: TrainingRun) -> float:
    """Operations of a step for one image, as traced.

    Before XLA, since the compiled step hides convolutions in calls of cuDNN that count as nothing;
    lowered for a CPU, since other backends do not count.
    """
    mesh = mesh_of(jax.devices("cpu")[0])
    state = build.abstract_state(run._replace(mesh=mesh))
    placed = next(endless(run))
    batch = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype), placed)
    resident = jax.ShapeDtypeStruct(run.dataset.images.shape, jnp.uint8)
    lowered = make_step(run.method, run.optimizer, mesh).lower(state, batch, resident)
    return lowered.cost_analysis()["flops"] / run.train.batch_size


def outputs_of_convolutions(item: Item) -> int:
    """Entries of all outputs of the backbone's convolutions for one image."""
    norm = functools.partial(BatchNorm, False, None, None, None)
    net = parse_config(config_of(item)).network.backbone().module(Layers(norm, norm, 0, None))

    def convolutions(layer: nn.Module, method: str) -> bool:
        return isinstance(layer, nn.Conv) and method == "__call__"

    def run(key: jax.Array) -> Any:
        images = jnp.zeros((1, item.side, item.side, 3))
        found = net.init_with_output(key, images, capture_intermediates=convolutions)
        return found[1]["intermediates"]

    leaves = jax.tree.leaves(jax.eval_shape(run, jax.random.key(0)))
    return sum(math.prod(leaf.shape) for leaf in leaves)
