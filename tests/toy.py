"""A tiny problem for whole steps and runs: made images, a narrow network, every method."""

import csv
import pathlib

import jax
import numpy as np
from ml_collections import ConfigDict
from PIL import Image

from cluster_jax.core.config import load_config
from cluster_jax.data.datasets import DataConfig
from cluster_jax.training import build
from cluster_jax.training.config import parse_config
from cluster_jax.training.loop import TrainingRun

SIDE = 8
# A perceptron compiles in a third of the time of a network with convolutions and BatchNorm.
PERCEPTRON, CONVOLUTIONS = {"name": "mlp", "width": 16}, {"name": "small", "width": 4}
FEW = 5  # clusters, so that a batch holds members of most
# The section `data` of a run whose new images these are.
DATA = DataConfig(
    "arrays", None, None, "label", image_size=None, interpolation="bicubic", limit=None,
    cache_mb=1.0, max_corrupt_fraction=0.0,
)  # fmt: skip


def images(count: int = 64, seed: int = 0, channels: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Separable images uint8 `[n, 8, 8, c]`: a bright bar in one of four places, and its place."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, count).astype(np.int32)
    found = rng.integers(0, 60, (count, SIDE, SIDE, channels))
    for image, label in zip(found, labels, strict=True):
        image[2 * label : 2 * label + 2] += 180
    return found.astype(np.uint8), labels


def photos(count: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Photos uint8 `[n, 8, 8, 3]` of two kinds, and their kinds: red ones, or striped in blue.

    To the pretrained network the kinds differ far more than their photos, also with a few of its
    blocks, so that these are two groups whatever a processor rounds; those of `images` are one or
    two. Patches of their own make no photo a copy of another one.
    """
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 2, count)
    found = rng.integers(0, 60, (count, SIDE, SIDE, 3))
    found += rng.integers(0, 60, (count, 4, 4, 1)).repeat(2, axis=1).repeat(2, axis=2)
    for photo, kind in zip(found, kinds, strict=True):
        photo[(slice(None), slice(None, None, 2))[kind], :, (0, 2)[kind]] += 135
    return found.astype(np.uint8), kinds


def image_keys(key, n: int) -> jax.Array:
    """A key of each image."""
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(jax.numpy.arange(n))


def save(folder, pictures, start: int = 0, prefix: str = "") -> None:
    """Writes pictures as files `00.png`, `01.png`, ... of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, pixels in enumerate(pictures, start):
        Image.fromarray(pixels.squeeze()).save(folder / f"{prefix}{i:02}.png")


def save_by_label(folder, pictures, labels) -> None:
    """The same, each in the folder of its label."""
    for i, (pixels, label) in enumerate(zip(pictures, labels.tolist(), strict=True)):
        save(folder / str(label), [pixels], i)


def table(folder, name: str = "assignments.csv") -> list[dict[str, str]]:
    """The rows of a table of a run."""
    with pathlib.Path(folder, name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def config(path, **sections) -> ConfigDict:
    """A run of a few steps on an array file, with overrides like `train={"batch_size": 8}`.

    Of a perceptron and without NRCC: a convolution, or a sampler, takes longer to compile than the
    rest of a step.
    """
    made = load_config("nrcc_digits")
    made.nrcc.weight = 0.0
    made.data.name, made.data.dir = "arrays", str(path)
    made.network.update(PERCEPTRON)
    made.network.projector.hidden, made.network.projector.out = 16, 8
    made.train.batch_size = 16
    made.train.duration = "4 steps"
    made.train.log_every = 2
    made.train.checkpoint_every = 2
    made.optimizer.warmup = "1 step"
    made.eval.reduce = "pca"
    made.eval.knn = (5,)
    made.eval.linear_probe.epochs = 2
    for section, values in sections.items():
        if isinstance(values, dict):
            with made[section].unlocked():
                made[section].update(values)
        else:
            made[section] = values
    return made


def byol(made: ConfigDict) -> ConfigDict:
    """The same with BYOL in place of InfoNCE."""
    made.network.predictor = ConfigDict({"hidden": 16, "init_std": None})
    made.method = ConfigDict({"name": "byol", "decay": 0.9, "final_decay": 1.0})
    made.nrcc.branch = "target"
    return made


def discovery(made: ConfigDict, batch: int, **train) -> ConfigDict:
    """A config of novel class discovery on two of the four groups, of small sizes."""
    made.novel.classes = 2
    made.train.update(batch_size=batch, labeled_batch_size=batch // 2, **train)
    with made.stages.unlocked():
        made.stages.supervised.train.update(batch_size=batch, labeled_batch_size=batch)
    for stage in made.stages.values():
        stage.train.update(train)
    made.method.update(n_classes=2, queue=batch, neighbors=3)
    made.method.hng.count = 4
    made.eval.kmeans.n_clusters = 2
    return made


def shrunken(name, folder, network="small", write=True):
    """The config with generated images, written to the folder, and small sizes."""
    config = load_config(name)
    channels = 1 if name.endswith("digits") else 3
    if name.endswith("features"):
        network, channels = "mlp", None
        path = features_file(folder) if write else folder / "toy.npz"
        config.data.dir = str(path)
    else:
        path = file(folder, channels=channels) if write else folder / "toy.npz"
        config.data.name, config.data.dir = "arrays", str(path)
    config.data.split = config.data.classes = config.novel.test_split = None
    if config.encoder is not None:
        network = "mlp"
    if channels == 3:
        config.data.update(image_size=16, interpolation="bicubic")
        config.augment.size = 16
        config.augment.blur.kernel = 3
    config.network.name = network
    config.network.weights = None
    if network in ("small", "mlp"):
        config.network.stem = None
    if config.network.frozen is not None and network == "small":
        config.network.frozen = "conv3"
    config.network.width = 4
    if config.network.projector is not None:
        config.network.projector.update(hidden=16, out=8)
    if config.network.predictor is not None:
        config.network.predictor.hidden = 16
    method = config.method
    if "n_clusters" in method:
        method.n_clusters = FEW
    if "n_prototypes" in method:
        method.n_prototypes = (FEW, 2 * FEW) if method.name == "pcl" else FEW
    if method.get("queue"):
        method.queue = 32
    for duration in ("warmup", "update_every"):
        if duration in method:
            setattr(method, duration, "1 step")
    config.optimizer.warmup = "1 step"
    config.train.batch_size = 16
    config.train.duration = "2 steps"
    config.train.log_every = 1
    if config.stages:
        config = discovery(config, 16, duration="2 steps")
    config.eval.batch_size = 64
    config.eval.linear_probe.epochs = 1
    return config


def features_file(folder, count: int = 80):
    """An `.npz` file of features `[n, 12]` in four overlapping groups, labels and file names."""
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 4
    rows = 2 * np.eye(4, 12)[labels] + rng.normal(size=(count, 12)) / 3
    path = folder / "toy.npz"
    np.savez(path, features=rows, labels=labels, files=[f"{i}.jpg" for i in range(count)])
    return path


def file(folder, count: int = 64, seed: int = 0, channels: int = 1):
    """An `.npz` file of the images and labels."""
    path = folder / "toy.npz"
    pixels, labels = images(count, seed, channels)
    np.savez(path, images=pixels, labels=labels)
    return path


def assert_same(a, b) -> None:
    """Two pytrees are the same bit for bit."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


def built(made: ConfigDict) -> TrainingRun:
    """The config turned into functions."""
    return build.build_run(parse_config(made)).training


def wide(tree):
    """Floats of a pytree in float64; keys and integers as they are."""
    return jax.tree.map(
        lambda x: x.astype(np.float64) if jax.numpy.issubdtype(x.dtype, np.floating) else x, tree
    )
