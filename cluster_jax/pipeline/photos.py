"""A run of photos: a pretrained network embeds them, and their features are clustered.

The command and the estimators make the same run, in a workdir or in memory. Nothing is trained.
"""

import dataclasses
import functools
import os
import time
from collections.abc import Callable

import jax
import numpy as np
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
from cluster_jax.pipeline import build, inference, outputs, stores
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.build import Inputs
from cluster_jax.pipeline.config import PhotosConfig
from cluster_jax.pipeline.inference import TrainedRun
from cluster_jax.pipeline.stores import Store
from cluster_jax.report.report_data import Changes
from cluster_jax.training import state as states


@dataclasses.dataclass
class Photos:
    """Photos whose clusters are found.

    Attributes:
        inputs: the photos.
        embedding: of all of them.
        clustered_run: their clusters.
        seconds: time that the embedding took.
        run: for new photos.
    """

    inputs: Inputs[PhotosConfig]
    embedding: Batch
    clustered_run: outputs.ClusteredRun
    seconds: float
    run: TrainedRun

    @functools.cached_property
    def outputs(self) -> outputs.Outputs:
        """Scores, map, tables and report, which are made when they are asked for."""
        return outputs.describe(self.clustered_run, seconds=self.seconds)

    @property
    def complete(self) -> TrainedRun:
        """The run with its results."""
        described = self.outputs
        return self.run._replace(results=described.results, clusters=described.clusters)


def prepare(
    config: PhotosConfig, workdir: epath.Path, dataset: Dataset | None
) -> tuple[Store, Callable[[Callable[[], None]], Inputs[PhotosConfig]]]:
    """Loads photos and checks them with their workdir; writes nothing.

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
    outputs.print_start(inputs, workdir=workdir)
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
    outputs.print_start(inputs)
    encoder = _encoder(inputs)
    embedding = embed(inputs, encoder)
    seconds = time.perf_counter() - started
    clustered_run = outputs.cluster(inputs, {workdirs.TRAIN_EMBEDDING: embedding})
    say(f"found {counted(clustered_run.clustering.metrics['n_large'], 'cluster')}")
    return collect(inputs, embedding, clustered_run, encoder, seconds)


def collect(
    inputs: Inputs[PhotosConfig],
    embedding: Batch,
    clustered_run: outputs.ClusteredRun,
    encoder: Encoder,
    seconds: float,
) -> Photos:
    """Builds the run of photos whose clusters are found, see `Photos`."""
    images = {**build.describe_images(inputs), **build.describe_encoder(encoder)}
    parts = images, embedding, clustered_run.stored, clustered_run.clusterer
    run = inference.join(None, inputs.config, {}, *parts)
    return Photos(inputs, embedding, clustered_run, seconds, run)


def _embed_into(store: Store, inputs: Inputs[PhotosConfig]) -> None:
    """Writes the embedding into the workdir, if it is missing."""
    if workdirs.WEIGHTS not in store.recorded:  # New images get the network of the embedding.
        store = store._replace(missing=tuple(store.files))
    if workdirs.agree(not store.missing, store.workdir):
        stores.begin(store, inputs, {})
        return
    encoder = _encoder(inputs)
    stores.begin(store, inputs, build.describe_encoder(encoder))
    make = functools.partial(embed, inputs, encoder)
    stores.write(store, workdirs.TRAIN_EMBEDDING, encoder.checksum, make)


def _encoder(inputs: Inputs[PhotosConfig]) -> Encoder:
    return build.encoder_of(inputs.config)


def embed(inputs: Inputs[PhotosConfig], encoder: Encoder, kept: Parts | None = None) -> Batch:
    """Embeds photos; `kept` is the place for parts of the embedding."""
    mesh, size = states.make_mesh(), inputs.config.eval.batch_size
    encode = encoder.on(mesh)

    def forward(images: jax.Array, _: jax.Array) -> Batch:
        return {"backbone": np.asarray(encode(images))}

    return embed_batches(forward, inputs.dataset, batch_size=size, mesh=mesh, kept=kept)


def save(
    workdir: epath.PathLike,
    photos: Photos,
    shown: epath.PathLike | None = None,
    changes: Changes | None = None,
    *,
    with_report: bool = True,
) -> None:
    """Writes a run in memory into a new workdir, as the command would have left it.

    Args:
        workdir: the folder.
        photos: the run.
        shown: what the page calls the workdir, see `outputs.write`.
        changes: what an update has done.
        with_report: whether to write the page.
    """
    workdir = epath.Path(workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    store = stores.find(workdir, photos.inputs, {workdirs.TRAIN_EMBEDDING: 0})
    described = {**photos.run.images, "workdir": os.path.abspath(shown or workdir)}
    stores.begin(store, photos.inputs, described)
    name = workdirs.TRAIN_EMBEDDING
    io.write_arrays(workdir / name, photos.embedding, stores.origin(store, name))
    made = photos.outputs
    made = made._replace(report=made.report._replace(changes=changes))
    outputs.write(workdir, made, shown=shown, with_report=with_report)
