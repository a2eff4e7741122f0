"""A run of photos: a pretrained network embeds them, and their features are clustered.

The command and the estimators make the same run, in a workdir or in memory. Nothing is trained.
"""

import dataclasses
import os
import time
from collections.abc import Callable

import jax
from etils import epath

from cluster_jax.clustering import custom
from cluster_jax.core import io
from cluster_jax.core.devices import say
from cluster_jax.core.names import counted
from cluster_jax.data.datasets import Dataset
from cluster_jax.encoding.embed import Batch, Parts
from cluster_jax.encoding.embed import embed as embed_batches
from cluster_jax.encoding.encoder import Encoder
from cluster_jax.evaluation.options import FINDERS
from cluster_jax.runs import build, finish, page
from cluster_jax.runs import store as stores
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.build import Inputs
from cluster_jax.runs.config import PhotosConfig
from cluster_jax.runs.finish import Found
from cluster_jax.runs.run import Run
from cluster_jax.runs.store import Store
from cluster_jax.training import state as states


@dataclasses.dataclass
class Photos:
    """A run in memory, whose scores and map are made when they are asked for.

    Attributes:
        inputs: the photos, unreadable files included.
        embedding: of these.
        found: the clusters of those that can be read.
        seconds: time that the embedding took.
        run: of these.
    """

    inputs: Inputs[PhotosConfig]
    embedding: Batch
    found: Found
    seconds: float
    run: Run

    def complete(self) -> Run:
        """Returns the run with scores and map."""
        if not self.run.results:
            self.run = finish.complete(self.found, self.run, seconds=self.seconds)
        return self.run


def prepare(
    config: PhotosConfig, workdir: epath.Path, dataset: Dataset | None
) -> tuple[Store, Callable[[Callable[[], None]], Inputs[PhotosConfig]]]:
    """Loads photos and checks them with their workdir.

    Args:
        config: see `configs/images.py`.
        workdir: folder of the run.
        dataset: the photos if they are loaded already.

    Returns:
        What the workdir has, and the function that writes the embedding into the locked workdir,
        which returns the photos.

    Raises:
        InputError: the config, the data or the workdir is invalid.
    """
    inputs = build.load_photos(config, dataset)
    finish.print_start(inputs, workdir=workdir)
    store = stores.find(workdir, inputs, {workdirs.TRAIN_EMBEDDING: 0})

    def make(_: Callable[[], None]) -> Inputs[PhotosConfig]:
        _embed_into(store, inputs)
        return inputs

    return store, make


def in_memory(config: PhotosConfig, dataset: Dataset) -> Photos:
    """Embeds and clusters photos without a workdir; `save` writes one.

    Args:
        config: see `configs/images.py`.
        dataset: the photos.

    Raises:
        InputError: the config or the data are invalid, or the weights cannot be read.
    """
    started = time.perf_counter()
    custom.check("eval.method", config.eval.method, FINDERS)
    inputs = build.load_photos(config, dataset)
    finish.print_start(inputs)
    encoder = build.encoder_of(inputs.config)
    embedding = embed(inputs, encoder)
    seconds = time.perf_counter() - started
    found = finish.cluster(inputs, {workdirs.TRAIN_EMBEDDING: embedding})
    say(f"found {counted(found.clustering.metrics['n_large'], 'cluster')}")
    images = {**build.describe_images(inputs), **build.describe_encoder(encoder)}
    return Photos(inputs, embedding, found, seconds, finish.as_run(found, None, images))


def _embed_into(store: Store, inputs: Inputs[PhotosConfig]) -> None:
    """Writes the embedding into the workdir, if it is missing."""
    if workdirs.WEIGHTS not in store.recorded:  # New images get the network of the embedding.
        store = store._replace(missing=tuple(store.files))
    if workdirs.agree(not store.missing, store.workdir):
        stores.begin(store, inputs, {})
        return
    encoder = build.encoder_of(inputs.config)
    stores.begin(store, inputs, build.describe_encoder(encoder))
    stores.write(
        store, workdirs.TRAIN_EMBEDDING, encoder.checksum, lambda kept: embed(inputs, encoder, kept)
    )


def embed(inputs: Inputs[PhotosConfig], encoder: Encoder, kept: Parts | None = None) -> Batch:
    """Embeds photos; `kept` is the place for parts of the embedding."""
    mesh = states.make_mesh()
    size = min(inputs.config.eval.batch_size, inputs.dataset.size)
    encode = encoder.on(mesh)

    def forward(images: jax.Array) -> dict[str, jax.Array]:
        return {"backbone": encode(images)}

    return embed_batches(forward, inputs.dataset, batch_size=size, mesh=mesh, kept=kept)


def save(workdir: epath.PathLike, photos: Photos) -> None:
    """Writes a run in memory into a new workdir, as the command would have left it.

    Args:
        workdir: the folder.
        photos: the run.
    """
    workdir, inputs = epath.Path(workdir), photos.inputs
    workdir.mkdir(parents=True, exist_ok=True)
    store = stores.find(workdir, inputs, {workdirs.TRAIN_EMBEDDING: 0})
    described = {**photos.run.images, "workdir": os.path.abspath(workdir)}
    stores.begin(store, inputs, described)
    name = workdirs.TRAIN_EMBEDDING
    io.write_arrays(workdir / name, photos.embedding, stores.origin(store, name))
    images = workdirs.read_values(workdir / workdirs.IMAGES)
    run = dataclasses.replace(photos.complete(), workdir=workdir, images=images, number=1)
    page.publish(run, with_report=True, dataset=photos.found.inputs.dataset)
