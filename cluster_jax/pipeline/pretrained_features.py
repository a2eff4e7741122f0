"""Features of images, and of random views of them, by a frozen pretrained network.

The section `embedder` of a config trains on them.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax import Array
from jax.sharding import Mesh
from numpy.typing import NDArray

from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.data import features
from cluster_jax.data import views as data_views
from cluster_jax.data.datasets import Dataset
from cluster_jax.methods.base import image_keys
from cluster_jax.nets import network
from cluster_jax.nets.config import NetworkConfig
from cluster_jax.nets.pretrained import weights
from cluster_jax.pipeline import parts
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.build import BuiltRun
from cluster_jax.pipeline.config import RunConfig
from cluster_jax.pipeline.embed import Forward, embed
from cluster_jax.pipeline.parts import Parts
from cluster_jax.training import state as states


class FrozenNetwork(NamedTuple):
    """A pretrained network on the devices.

    Attributes:
        forward: the forward pass; its `features`, float32 `[b, 1 + views, d]`, are of each image
            and of augmented views of it, whose random keys follow from the index of the image.
        represent: images uint8 `[b, H, W, C]` -> float32 `[b, d]`, a pure function.
        checksum: SHA-256 of its weights.
    """

    forward: Forward
    represent: Callable[[Array], Array]
    checksum: str


def make(
    config: RunConfig, network_config: NetworkConfig, channels: int, mesh: Mesh, views: int = 0
) -> FrozenNetwork:
    """Builds a frozen network and loads its weights.

    Args:
        config: config of the run: its section `augment`, with mean and standard deviation, makes
            images ready and views of them; its `seed` is that of the views.
        network_config: a network with `weights`; its heads are left out.
        channels: number of channels of the images.
        mesh: the devices, over which a batch is split.
        views: number of augmented views of each image beside the image itself.

    Raises:
        InputError: the weights cannot be read.
    """
    section = dataclasses.replace(network_config, projector=None, predictor=None)
    augment = config.augment
    net, changes = network.make(section), data_views.make(augment)
    image = jax.ShapeDtypeStruct((1, augment.size, augment.size, channels), float)
    params, stats = jax.eval_shape(net.init, jax.random.key(0), image)
    loaded = weights.load(str(section.weights), section.name, params["backbone"], stats["backbone"])
    replicated = states.replicated(mesh)
    backbone = jax.device_put([{"backbone": tree} for tree in loaded], replicated)
    root = jax.random.key(config.seed)

    # The weights are arguments: as constants they would be compiled into the program.
    @functools.partial(jax.jit, out_shardings=replicated)
    def clean(backbone: Any, images: Array) -> Array:
        x = jax.vmap(changes.clean)(images)
        return net.forward(backbone[0], backbone[1], x, train=False, axis=None).representation

    @functools.partial(jax.jit, out_shardings=replicated)
    def view(backbone: Any, images: Array, index: Array, number: Array) -> Array:
        keys = image_keys(jax.random.fold_in(root, number), index)
        x = jax.vmap(changes.view)(keys, images)
        return net.forward(backbone[0], backbone[1], x, train=False, axis=None).representation

    def forward(images: Array, index: Array) -> dict[str, NDArray]:
        # One by one: dozens of programs in flight can deadlock (see training/progress.py).
        rows = [np.asarray(clean(backbone, images))]
        for number in range(views):
            rows.append(np.asarray(view(backbone, images, index, jnp.int32(number))))
        return {"features": np.stack(rows, axis=1)}

    return FrozenNetwork(forward, functools.partial(clean, backbone), states.checksum(loaded))


def embed_images(
    stages: Sequence[BuiltRun], fingerprint: str, guard: Callable[[], None]
) -> list[BuiltRun]:
    """Embeds the images of a run and puts their features in place of the pending ones.

    Features are written to the workdir, and while they are made in parts, so that an interrupted
    run embeds no image twice. Without the config's section `embedder` nothing changes.

    Args:
        stages: all stages of the run; they have the same images.
        fingerprint: of the run's config and images.
        guard: raises if the workdir may not be written any longer.

    Raises:
        InputError: there is more than one process.
    """
    last = stages[-1]
    if last.config.embedder is None:
        return list(stages)
    if jax.process_count() > 1:
        raise InputError(
            f"embedder must be None in more than one process; got {jax.process_count()} processes: "
            "write the features with `cluster-jax embed` in one, and train on the file"
        )

    def filled(pending: Dataset, name: str) -> Dataset:
        file = last.workdir / name
        return _filled(last, pending, file, Parts(parts.folder_of(file), fingerprint, guard))

    dataset = filled(last.training.dataset, workdirs.TRAIN_FEATURES)
    test = None if last.test is None else filled(last.test, workdirs.TEST_FEATURES)

    return [
        stage._replace(training=stage.training._replace(dataset=dataset), test=test)
        for stage in stages
    ]


def _filled(last: BuiltRun, pending: Dataset, file: epath.Path, kept: Parts) -> Dataset:
    config, images = last.config, pending.features_of
    assert images is not None  # the section embedder is set
    if file.exists():
        values = io.read_arrays(file)["features"]
    else:
        mesh = last.training.mesh
        network = make_embedder(config, images.shape[2], mesh, views=True)
        size = config.eval.batch_size
        values = embed(network.forward, images, batch_size=size, mesh=mesh, kept=kept)["features"]
        kept.guard()
        io.write_arrays(file, {"features": values})
    parts.remove(kept.folder)
    dataset = features.of_images(images, values, config.data.cache_mb)
    return features.with_neighbors(dataset, config.feature_views.searched)


def for_new_images(config: RunConfig, channels: int, mesh: Mesh) -> Callable[[Dataset], Dataset]:
    """A function from images to their features; the identity without a section `embedder`.

    The features of an image do not depend on the others if all calls of `fetch` ask for as many.

    Args:
        config: config of the run.
        channels: of the images.
        mesh: the devices; `fetch` of the features takes multiples of their number.
    """
    if config.embedder is None:
        return lambda dataset: dataset
    network = make_embedder(config, channels, mesh, views=False)

    def as_features(images: Dataset) -> Dataset:
        def fetch(indices: NDArray) -> NDArray:
            rows = network.forward(
                jnp.asarray(images.fetch(indices)), jnp.asarray(indices, jnp.int32)
            )
            return features.of_images(images, rows["features"], 0).fetch(np.arange(len(indices)))

        return features.pending(images, 0, 1)._replace(fetch=fetch)

    return as_features


def make_embedder(config: RunConfig, channels: int, mesh: Mesh, *, views: bool) -> FrozenNetwork:
    """The network of the config's section `embedder`; see `make`."""
    assert config.embedder is not None
    section = config.embedder.network(config.network)
    n_views = config.embedder.views if views else 0
    return make(config, section, channels, mesh, n_views)
