"""Features of images by a frozen pretrained network, and of random views of them."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from cluster_jax.data import views as data_views
from cluster_jax.data.images import Dataset
from cluster_jax.data.views import AugmentConfig
from cluster_jax.methods.base import image_keys
from cluster_jax.nets import network
from cluster_jax.nets.config import NetworkConfig
from cluster_jax.nets.pretrained import weights
from cluster_jax.pipeline.config import RunConfig
from cluster_jax.pipeline.embed import rows
from cluster_jax.pipeline.parts import Parts
from cluster_jax.training import checkpoint

# uint8 [b, H, W, C], index int32 [b] -> float32 [b, 1 + views, d].
EmbedViews = Callable[[Array, Array], NDArray]


class FrozenNetwork(NamedTuple):
    """A pretrained network on the devices.

    Attributes:
        embed: images and their indices -> features of the images and of views of them.
        checksum: SHA-256 of its weights.
    """

    embed: EmbedViews
    checksum: str


def make(
    config: NetworkConfig,
    augment: AugmentConfig,
    *,
    views: int,
    seed: int,
    channels: int,
    mesh: Mesh,
) -> FrozenNetwork:
    """The network with its weights, for images and for random views of them.

    Args:
        config: a network with `weights`; its heads are left out.
        augment: how images are made ready, with mean and standard deviation, and how views are.
        views: number of views of each image beside the image itself.
        seed: of the views.
        channels: of the images.
        mesh: the devices, over which a batch is split.

    Raises:
        InputError: the weights cannot be read.
    """
    config = dataclasses.replace(config, projector=None, predictor=None)
    net, changes = network.make(config), data_views.make(augment)
    image = jax.ShapeDtypeStruct((1, augment.size, augment.size, channels), float)
    params, stats = jax.eval_shape(net.init, jax.random.key(0), image)
    loaded = weights.load(str(config.weights), config.name, params["backbone"], stats["backbone"])
    replicated = NamedSharding(mesh, PartitionSpec())
    backbone = jax.device_put([{"backbone": tree} for tree in loaded], replicated)
    root = jax.random.key(seed)

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

    def embed(images: Array, index: Array) -> NDArray:
        # One by one: dozens of programs in flight can deadlock (see training/progress.py).
        rows = [np.asarray(clean(backbone, images))]
        for number in range(views):
            rows.append(np.asarray(view(backbone, images, index, jnp.int32(number))))
        return np.stack(rows, axis=1)

    return FrozenNetwork(embed, checkpoint.checksum(loaded))


def of_run(config: RunConfig, channels: int, mesh: Mesh) -> FrozenNetwork:
    """The network of a run that trains nothing, for images alone.

    Args:
        config: of the run, with mean and standard deviation of the images.
        channels: of the images.
        mesh: the devices, over which a batch is split.

    Raises:
        InputError: the weights cannot be read.
    """
    return make(
        config.network, config.augment, views=0, seed=config.seed, channels=channels, mesh=mesh
    )


def embed(
    dataset: Dataset,
    embed_views: EmbedViews,
    batch_size: int,
    mesh: Mesh,
    kept: Parts | None = None,
    n_images: int | None = None,
) -> NDArray:
    """Features of all images, float32 `[n, 1 + views, d]`.

    Args:
        dataset: the images.
        embed_views: see `make`.
        batch_size: see `embed.rows`.
        mesh: the devices.
        kept: see `embed.rows`.
        n_images: see `embed.rows`.
    """
    # Keys of the views come from an image's place in the whole set.
    return rows(
        lambda images, index: {"features": embed_views(images, index)},
        dataset,
        batch_size=batch_size,
        mesh=mesh,
        n_images=n_images,
        kept=kept,
    )["features"]
