"""Embeds a data set by a network: a trained one (`forward_of`), or a frozen one (`pretrained`).

The section `embedder` of a config trains on features by a frozen network, also of random views.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from numpy.typing import NDArray
from tqdm import tqdm

from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.data import batches, features
from cluster_jax.data import views as data_views
from cluster_jax.data.datasets import Dataset
from cluster_jax.data.images import without
from cluster_jax.methods.base import Method, image_keys
from cluster_jax.nets import network
from cluster_jax.nets.pretrained import weights
from cluster_jax.pipeline import parts
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.build import BuiltRun
from cluster_jax.pipeline.config import RunConfig
from cluster_jax.pipeline.parts import Parts
from cluster_jax.training import state as states

# (images uint8 [b, H, W, C], their indices int32 [b]), both sharded over the mesh -> name -> rows
# [b, ...] on every device.
Forward = Callable[[Array, Array], Mapping[str, Any]]
# Entry of an embedding, bool [n]: rows of images that stand in for unreadable files.
UNREADABLE = "unreadable"


def forward_of(method: Method, params: Any, model_state: Any, mesh: Mesh) -> Forward:
    """The forward pass of the network that a method keeps after training.

    Args:
        method: method whose `embed` is used.
        params: parameters, on all devices of the mesh.
        model_state: the method's other state, on all devices of the mesh.
        mesh: the devices.

    Returns:
        A function to `{"backbone": float32 [b, d], "projection": float32 [b, e]}`, not normalized;
        novel class discovery adds the logits of its heads.
    """
    forward = jax.jit(method.embed, out_shardings=states.replicated(mesh))
    return lambda images, _: forward(params, model_state, images)


def embed(
    forward: Forward,
    dataset: Dataset,
    *,
    batch_size: int,
    mesh: Mesh,
    rows: range | None = None,
    kept: Parts | None = None,
) -> dict[str, np.ndarray]:
    """Embeddings of all images in the order of the data set.

    The last batch is padded with copies of its last image, whose rows are discarded.

    Args:
        forward: the forward pass of the network, see `Forward`.
        dataset: the images.
        batch_size: images per forward pass, over all devices; rounded up to a multiple of their
            number.
        mesh: the devices. If they are of several processes, all of these call this together, and
            each gets the whole result.
        rows: consecutive images whose rows are wanted; None: all.
        kept: where parts are kept until all is done, for the caller to remove; None: nowhere.

    Returns:
        Name -> rows `[n, ...]`; `UNREADABLE` too if a file could not be read.
    """
    sharded = states.sharded(mesh)
    batch_size = -(-min(batch_size, dataset.size) // mesh.size) * mesh.size
    rows = range(dataset.size) if rows is None else rows
    wanted, together = dataset._replace(size=rows.stop), mesh.is_multi_process
    if kept is not None:  # Rounding depends on which images are computed together.
        kept = kept._replace(fingerprint=f"{kept.fingerprint}:{batch_size}x{mesh.size}")

    def embed_from(start: int) -> Generator[parts.Batch]:
        stream = batches.evaluation(
            wanted,
            batch_size=batch_size,
            process=jax.process_index() if together else 0,
            processes=jax.process_count() if together else 1,
            start=rows.start + start,
        )
        bar = tqdm(
            total=len(rows), initial=start, unit="image", desc="embedding", mininterval=1.0,
            file=sys.stderr, disable=jax.process_index() != 0, delay=2.0,
        )  # fmt: skip
        with bar:
            for images, index, count in stream:
                placed = (
                    jax.make_array_from_process_local_data(sharded, x) for x in (images, index)
                )
                computed = jax.device_get(forward(*placed))
                bar.update(count)
                if dataset.unreadable is not None:
                    computed = {**computed, UNREADABLE: _unreadable(dataset, index, together)}
                yield {name: values[:count] for name, values in computed.items()}

    embedded = parts.collect(kept, embed_from, together=together)
    if UNREADABLE in embedded and not embedded[UNREADABLE].any():
        del embedded[UNREADABLE]
    return embedded


def _unreadable(dataset: Dataset, index: np.ndarray, together: bool) -> np.ndarray:
    """Which images of a batch, of all its processes, stand in for unreadable files, bool `[b]`."""
    assert dataset.unreadable is not None
    mask = np.array([reason is not None for reason in dataset.unreadable(index)])
    if together:
        mask = multihost_utils.process_allgather(mask, tiled=True)
    return mask


def readable_rows(embedding: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The rows of an embedding without those of unreadable files."""
    rows = {name: values for name, values in embedding.items() if name != UNREADABLE}
    mask = embedding.get(UNREADABLE)
    return rows if mask is None else {name: values[~mask] for name, values in rows.items()}


def readable_images(dataset: Dataset, embedding: Mapping[str, np.ndarray]) -> Dataset:
    """The images of `readable_rows`, with the unreadable files as skipped."""
    return without(dataset, embedding.get(UNREADABLE, np.zeros(dataset.size, bool)))


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


def pretrained(config: RunConfig, channels: int, mesh: Mesh, views: int = 0) -> FrozenNetwork:
    """Builds the frozen network of a run, that of the section `embedder` if there is one.

    Args:
        config: config of the run: its section `augment`, with mean and standard deviation, makes
            images ready and views of them; its `seed` is that of the views.
        channels: number of channels of the images.
        mesh: the devices, over which a batch is split.
        views: number of augmented views of each image beside the image itself.

    Raises:
        InputError: the weights cannot be read.
    """
    embedder = config.embedder
    section = config.network if embedder is None else embedder.network(config.network)
    section = dataclasses.replace(section, projector=None, predictor=None)  # Without heads.
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
    assert config.embedder is not None
    if file.exists():
        values = io.read_arrays(file)["features"]
    else:
        mesh = last.training.mesh
        network = pretrained(config, images.shape[2], mesh, config.embedder.views)
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
    network = pretrained(config, channels, mesh)

    def as_features(images: Dataset) -> Dataset:
        def fetch(indices: NDArray) -> NDArray:
            rows = network.forward(
                jnp.asarray(images.fetch(indices)), jnp.asarray(indices, jnp.int32)
            )
            return features.of_images(images, rows["features"], 0).fetch(np.arange(len(indices)))

        return features.pending(images, 0, 1)._replace(fetch=fetch)

    return as_features
