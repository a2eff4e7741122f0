"""A run of photos: a pretrained network embeds them. Nothing is trained."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from etils import epath

from cluster_jax.core import io
from cluster_jax.core import mesh as meshes
from cluster_jax.data.datasets import Dataset
from cluster_jax.encoding.embed import Batch, Parts
from cluster_jax.encoding.embed import embed as embed_batches
from cluster_jax.encoding.encoder import Encoder
from cluster_jax.runs import start
from cluster_jax.runs import store as stores
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.features import forward_of
from cluster_jax.runs.store import Store
from cluster_jax.training import build
from cluster_jax.training.build import Inputs
from cluster_jax.training.config import PhotosConfig


def prepare(
    config: PhotosConfig, workdir: epath.Path, dataset: Dataset | None
) -> tuple[Store, Callable[[Callable[[], None]], Inputs[PhotosConfig]]]:
    """Loads photos, checks them with their workdir, and tells of them; writes nothing.

    Args:
        config: see `configs/images.py`.
        workdir: folder of the run.
        dataset: the photos if they are loaded already; None: load `config.data`.

    Returns:
        What the workdir has, and a function that writes the embedding into the locked workdir if it
        is missing, and returns the photos. The function ignores its argument, the guard of a
        training.

    Raises:
        InputError: the config, the data or the workdir is invalid.
    """
    inputs = build.load_photos(config, dataset)
    start.print_start(inputs, workdir)
    store = stores.find(workdir, inputs, {workdirs.TRAIN_EMBEDDING: 0})

    if workdirs.WEIGHTS not in store.recorded:  # New images get the network of the embedding.
        store = store._replace(missing=tuple(store.files))

    def make(_: Callable[[], None]) -> Inputs[PhotosConfig]:
        if workdirs.agree(not store.missing, workdir):
            stores.begin(store, inputs, {})
            return inputs
        encoder = build.encoder_of(config)
        stores.begin(store, inputs, _describe(encoder))
        embed_all = functools.partial(embed, inputs, encoder)
        stores.write(store, workdirs.TRAIN_EMBEDDING, encoder.checksum, embed_all)
        return inputs

    return store, make


def _describe(encoder: Encoder) -> dict[str, Any]:
    """Returns what `images.json` says of the encoder of photos, as JSON values.

    They are "preprocessing", and the checksum of the weights under the key `workdir.WEIGHTS`.
    """
    assert encoder.preprocessing is not None
    prepared = io.plain(dataclasses.asdict(encoder.preprocessing))
    return {"preprocessing": prepared, workdirs.WEIGHTS: encoder.checksum}


def embed(inputs: Inputs[PhotosConfig], encoder: Encoder, kept: Parts | None = None) -> Batch:
    """Returns the embedding of photos, "backbone" float32 `[n, d]` and perhaps "unreadable".

    Args:
        inputs: the photos.
        encoder: the network.
        kept: where parts of the embedding are kept until it is done; None: in memory alone.
    """
    mesh = meshes.make()
    size = min(inputs.config.eval.batch_size, inputs.dataset.size)
    forward = forward_of(encoder, mesh, "backbone")
    return embed_batches(forward, inputs.dataset, batch_size=size, mesh=mesh, kept=kept)
