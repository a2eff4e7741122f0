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
from cluster_jax.methods.base import image_keys
from cluster_jax.nets import network
from cluster_jax.nets.config import NetworkConfig
from cluster_jax.nets.pretrained import weights
from cluster_jax.pipeline.config import RunConfig
from cluster_jax.pipeline.embed import Forward
from cluster_jax.training import checkpoint


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
    replicated = NamedSharding(mesh, PartitionSpec())
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

    return FrozenNetwork(forward, functools.partial(clean, backbone), checkpoint.checksum(loaded))
