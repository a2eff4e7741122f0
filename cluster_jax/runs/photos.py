"""A run of photos: a pretrained network embeds them. Nothing is trained.

Each photo is read and decoded once: its features, its thumbnail and the facts about its file are
kept in the store of the run, from which all later commands take them.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.core import io
from cluster_jax.core import mesh as meshes
from cluster_jax.data import decode, images
from cluster_jax.data import folder as image_files
from cluster_jax.data.datasets import Dataset
from cluster_jax.data.decode import Item
from cluster_jax.encoding.embed import UNREADABLE, Batch, Parts, readable_images, readable_rows
from cluster_jax.encoding.embed import embed as embed_batches
from cluster_jax.encoding.encoder import Encoder
from cluster_jax.runs import claims, start
from cluster_jax.runs import store as stores
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.features import forward_of
from cluster_jax.runs.run import Run
from cluster_jax.runs.store import Pictures, Store
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
        What the workdir has, and a function that writes the embedding and the pictures into the
        locked workdir if they are missing, and returns the photos that can be read. The function
        ignores its argument, the guard of a training.

    Raises:
        InputError: the config, the data or the workdir is invalid.
    """
    # Each photo is decoded once, for all that is kept of it, and is not needed in memory.
    once = dataclasses.replace(config, data=dataclasses.replace(config.data, cache_mb=0.0))
    known = stores.read_pictures(workdir).facts
    inputs = build.load_photos(once, dataset, known)._replace(config=config)
    start.print_start(inputs, workdir)
    store = stores.find(workdir, inputs, {workdirs.TRAIN_EMBEDDING: 0})

    if workdirs.WEIGHTS not in store.recorded:  # New images get the network of the embedding.
        store = store._replace(missing=tuple(store.files))

    def make(_: Callable[[], None]) -> Inputs[PhotosConfig]:
        is_done = workdirs.agree(not store.missing, workdir)
        if is_done:
            stores.begin(store, inputs, {})
        else:
            _write(store, inputs)
        embedding = io.read_arrays(workdir / workdirs.TRAIN_EMBEDDING)
        readable = readable_images(inputs.dataset, embedding)
        stores.complete(workdir, readable)
        pictures = stores.read_pictures(workdir)
        if is_done and readable.facts is not None:
            now = readable.facts(np.arange(readable.size))
            if (now["digest"] != pictures.facts["digest"][: len(now)]).any():
                raise claims.changed(workdir)
        if readable.skipped != inputs.dataset.skipped:
            start.print_skipped(readable.skipped)
        return inputs._replace(dataset=_as_stored(readable, pictures))

    return store, make


def _describe(encoder: Encoder) -> dict[str, Any]:
    """Returns what `images.json` says of the encoder of photos, as JSON values.

    They are "preprocessing", and the checksum of the weights under the key `workdir.WEIGHTS`.
    """
    assert encoder.preprocessing is not None
    prepared = io.plain(dataclasses.asdict(encoder.preprocessing))
    return {"preprocessing": prepared, workdirs.WEIGHTS: encoder.checksum}


def _write(store: Store, inputs: Inputs[PhotosConfig]) -> None:
    """Embeds the photos, and writes their features and pictures."""
    encoder = build.encoder_of(inputs.config)
    stores.begin(store, inputs, _describe(encoder))

    def make(parts: Parts) -> Batch:
        made = embed(inputs, encoder, parts)
        pictures = pictures_of(made, 0)
        if pictures is not None:
            stores.write_pictures(store.workdir, 0, pictures)
        return {name: made[name] for name in ("backbone", UNREADABLE) if name in made}

    labels = inputs.dataset.labels
    stores.write(store, workdirs.TRAIN_EMBEDDING, encoder.checksum, make, labels)


def _as_stored(dataset: Dataset, pictures: Pictures) -> Dataset:
    """Returns photos whose pixels and facts are those in the store.

    Only `load` reads their files. Images in memory stay as they are.
    """
    if dataset.load is None:
        return dataset
    rows = np.arange(dataset.size)
    return dataset._replace(
        shape=pictures.fetch(rows[:1]).shape[1:],
        images=None,
        fetch=pictures.fetch,
        facts=pictures.facts[: dataset.size].__getitem__,
    )


def embed(inputs: Inputs[PhotosConfig], encoder: Encoder, kept: Parts | None = None) -> Batch:
    """Returns what a run keeps of photos.

    Args:
        inputs: the photos.
        encoder: the network.
        kept: where parts of the embedding are kept until it is done; None: in memory alone.

    Returns:
        "backbone", the features float32 `[n, d]`; "thumbnail", bytes `[n]`, see
        `thumbnails.encode`; of files "facts", `[n]` of `data.images.FACTS`; and perhaps
        "unreadable". In several processes the features alone.
    """
    dataset = inputs.dataset
    mesh = meshes.make()
    size = min(inputs.config.eval.batch_size, dataset.size)
    forward = forward_of(encoder, mesh, "backbone")

    def also(pixels: NDArray, indices: NDArray) -> Batch:
        # NumPy fills the shorter ones up with zeros; neither a JPEG nor a PNG ends with one.
        rows = {"thumbnail": np.array(stores.encoded(pixels))}
        return rows if dataset.facts is None else {**rows, "facts": dataset.facts(indices)}

    def is_valid(first: int, rows: Batch) -> bool:
        if dataset.facts is None:
            return True
        now = dataset.facts(np.arange(first, first + len(rows["facts"])))
        return bool((now["digest"] == rows["facts"]["digest"]).all())

    kept = kept and kept._replace(is_valid=is_valid)
    return embed_batches(forward, dataset, batch_size=size, mesh=mesh, kept=kept, also=also)


def pictures_of(made: Batch, first: int) -> Pictures | None:
    """Returns the pictures of photos that can be read; None if `embed` has made none.

    Args:
        made: what `embed` has returned.
        first: row of the store of the first of these photos.
    """
    rows = readable_rows(made)
    if "thumbnail" not in rows:
        return None
    files = rows["thumbnail"].tolist()
    facts = rows.get("facts", np.zeros(len(files), images.FACTS))
    return Pictures(first + np.arange(len(files)), files, facts)


def of_run(run: Run) -> Dataset:
    """Returns the photos of a run in its order, as the store has them: no file is read.

    Only `load` reads a file, and raises an `OSError` if it is away. There are no labels.
    """
    names = run.names
    place = str(run.config["data"]["dir"])
    pictures = stores.read_pictures(run.workdir)
    places = pictures.places(run.columns["row"])

    def load(i: int) -> Item:
        assert names is not None
        content = image_files.reader(place)(names[i])
        return decode.preview(content) if decode.is_raw(names[i]) else content

    return Dataset(
        name=run.config["data"]["name"],
        size=len(run.columns),
        shape=pictures.fetch(places[:1]).shape[1:],
        images=None,
        fetch=lambda indices: pictures.fetch(places[indices]),
        sources=names,
        load=None if names is None else load,
        facts=None if run.facts is None else run.facts.__getitem__,
        skipped=run.skipped,
    )
