"""Features of images by a frozen pretrained network, in parts that an interruption keeps."""

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray
from tqdm import tqdm

from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.data import batches
from cluster_jax.data import views as data_views
from cluster_jax.data.images import Dataset, select
from cluster_jax.data.views import AugmentConfig
from cluster_jax.methods.base import image_keys
from cluster_jax.nets import network
from cluster_jax.nets.config import NetworkConfig
from cluster_jax.nets.pretrained import weights

# Images in a part, all that an interruption can lose: 20 s on two CPU cores without views.
PART = 1024
ABOUT, PART_NAME = "about.json", "part_"

# uint8 [b, H, W, C], index int32 [b] -> float32 [b, 1 + views, d].
EmbedViews = Callable[[Array, Array], NDArray]


def make(
    config: NetworkConfig,
    augment: AugmentConfig,
    *,
    views: int,
    seed: int,
    channels: int,
    mesh: Mesh,
) -> EmbedViews:
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
        rows = [clean(backbone, images)]
        rows += [view(backbone, images, index, jnp.int32(number)) for number in range(views)]
        return np.stack(jax.device_get(rows), axis=1)

    return embed


def embed(
    dataset: Dataset, embed_views: EmbedViews, batch_size: int, mesh: Mesh, folder: epath.Path
) -> NDArray:
    """Features of all images, float32 `[n, 1 + views, d]`; each part is written when it is done.

    Args:
        dataset: the images.
        embed_views: see `make`.
        batch_size: images per forward pass, over all devices; rounded up to a multiple of their
            number.
        mesh: the devices.
        folder: of the parts; those that are there are read, see `claim`.
    """
    (axis,) = mesh.axis_names
    sharded = NamedSharding(mesh, PartitionSpec(axis))
    batch_size = -(-min(batch_size, dataset.size) // mesh.size) * mesh.size
    starts = range(0, dataset.size, PART)
    bar = tqdm(total=dataset.size, unit="image", desc="embedding", file=sys.stderr, delay=2.0)
    parts = []
    with bar:
        for start in starts:
            file = folder / f"{PART_NAME}{start:09d}.npz"
            members = np.arange(start, min(start + PART, dataset.size))
            if file.exists():
                parts.append(_read(file))
                bar.update(len(members))
                continue
            rows = []
            part = select(dataset, members)
            for images, index, count in batches.evaluation(
                part, batch_size=batch_size, process=0, processes=1
            ):
                # Keys of the views come from an image's place in the whole set.
                placed = jax.device_put((images, index + np.int32(start)), sharded)
                rows.append(embed_views(*placed)[:count])
                bar.update(count)
            parts.append(np.concatenate(rows))
            io.write_arrays(file, {"features": parts[-1]})
    return np.concatenate(parts)


def claim(folder: epath.Path, about: Mapping[str, Any]) -> None:
    """Creates the folder of parts, or checks that its parts are those of the same images.

    Raises:
        InputError: they are not, or the folder has other files.
    """
    file, about = folder / ABOUT, io.plain(about)
    if not file.exists():
        if folder.exists() and any(folder.iterdir()):
            raise InputError(
                f"{folder} must be a new folder for parts of the features; got one with other "
                "files: choose another --out"
            )
        folder.mkdir(parents=True, exist_ok=True)
        io.write_json(file, about, checksum=True)
        return
    try:
        stored = io.read_json(file)
    except ValueError:
        stored = None
    if stored != about:
        raise InputError(
            f"{folder} must have parts of the same images, network and views; got others: delete "
            "it, or choose another --out"
        )


def remove(folder: epath.Path) -> None:
    """Deletes the parts, once the features are written elsewhere."""
    for file in folder.glob(f"{PART_NAME}*"):
        file.unlink()
    (folder / ABOUT).unlink(missing_ok=True)
    folder.rmdir()


def _read(file: epath.Path) -> NDArray:
    try:
        return io.read_arrays(file)["features"]
    except Exception as error:  # zipfile and zlib have errors of their own
        raise InputError(
            f"{file} must be a part that this command has written; got a damaged file: delete it, "
            "and run the same command again"
        ) from error
