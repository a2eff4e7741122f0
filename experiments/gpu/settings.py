"""The configs of the items: the CIFAR-10 settings of the papers, and tiny ones for the dry run."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from cluster_jax.core.config import load_config
from cluster_jax.data.images import Dataset, in_memory
from cluster_jax.pipeline import build
from cluster_jax.pipeline.build import BuiltRun
from cluster_jax.pipeline.config import parse_config
from experiments.benchmark.steps import CONFIGS, PREDICTS

RESIDENT = 50_000  # generated images of 32 pixels on the device, as many as CIFAR-10 has
LARGE_RESIDENT = 2_048  # of 224 pixels
CLASSES = 10
TINY_IMAGES, TINY_SIDE = 96, 16


def config_of(item: Mapping[str, Any], tiny: bool) -> ConfigDict:
    """The config of an item.

    Args:
        item: "method", "network", "dtype", "batch"; optional "side" (32), "sampler" (NRCC's; None
            for no NRCC) and "views" ("paper", or "flips" alone).
        tiny: sizes of the dry run.
    """
    method, side = item["method"], item.get("side", 32)
    if method == "ncl":
        config = load_config("ncl_cifar10")
        config.stages = ConfigDict()
    else:
        config = load_config("nrcc_imagenet" if side > 32 else _base(method))
        config.method = load_config(CONFIGS[method]).method
        if method not in PREDICTS:
            config.network.predictor = None
        config.nrcc.weight = 0.1 if item.get("sampler") else 0.0
        config.nrcc.sampler = item.get("sampler") or "sghmc"
    config.data.name, config.data.split, config.data.image_size = "arrays", None, None
    config.network.update(name=item["network"], dtype=item["dtype"])
    if method == "ncl":
        config.train.labeled_batch_size = item["batch"] // 2
    config.train.batch_size = item["batch"]
    if item.get("views") == "flips":
        # Not the images as they are: of two equal views the compiler would pass one alone.
        config.augment.crop = config.augment.jitter = config.augment.blur = None
        config.augment.flip, config.augment.grayscale = 0.5, 0.0
    return tiny_config(config) if tiny else config


def tiny_config(config: ConfigDict) -> ConfigDict:
    """The config with sizes that a CPU core steps through in milliseconds."""
    config.network.update(name="small", stem=None, width=4, dtype="float32", weights=None)
    if config.network.frozen is not None:
        config.network.frozen = "conv3"
    if config.network.projector is not None:
        config.network.projector.update(hidden=16, out=8)
    if config.network.predictor is not None:
        config.network.predictor.hidden = 16
    config.augment.size = TINY_SIDE
    if config.augment.blur is not None:
        config.augment.blur.kernel = 3
    config.data.image_size = None
    config.train.update(batch_size=16, duration="24 epochs", log_every=4, checkpoint_every=10)
    if config.train.labeled_batch_size is not None:
        config.train.labeled_batch_size = 8
    config.optimizer.warmup = "2 epochs"
    if config.optimizer.lr_decay_every is not None:
        config.optimizer.lr_decay_every = "8 epochs"
    method = config.method
    for key in ("warmup", "ramp"):
        if key in method:
            method[key] = "2 epochs"
    if method.get("queue"):
        method.queue = 32
    if "neighbors" in method:
        method.neighbors = 3
        method.hng.count = 4
    config.eval.batch_size = 32
    return config


def build_run(config: ConfigDict, dataset: Dataset) -> BuiltRun:
    """The run of a config on a data set, traced once; the set has labels for NCL's classes."""
    return build.build_run(parse_config(config), dataset)


@functools.lru_cache(maxsize=2)
def generated(count: int, side: int, labeled: bool) -> Dataset:
    """Random images uint8 `[count, side, side, 3]`; no figure of a rate depends on the content."""
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    labels = (np.arange(count) % CLASSES).astype(np.int32)
    dataset = in_memory("generated", images, labels, None, cache_mb=np.inf)
    if labeled:
        known = np.where(labels < CLASSES // 2, labels, -1).astype(np.int32)
        dataset = dataset._replace(known=known)
    return dataset


def images_for(item: Mapping[str, Any], tiny: bool) -> Dataset:
    """Generated images of an item's size."""
    labeled = item["method"] == "ncl"
    if tiny:
        return generated(TINY_IMAGES, TINY_SIDE, labeled)
    side = item.get("side", 32)
    return generated(RESIDENT if side == 32 else LARGE_RESIDENT, side, labeled)


def _base(method: str) -> str:
    return CONFIGS[method] if CONFIGS[method].endswith("cifar10") else "nrcc_cifar10"
