"""Embeddings of a run that are kept in its workdir, so that no later call makes them again."""

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from etils import epath

from cluster_jax.core import io
from cluster_jax.core.devices import say
from cluster_jax.encoding.embed import Batch, Parts
from cluster_jax.methods import base as methods
from cluster_jax.pipeline import build
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.build import Inputs
from cluster_jax.pipeline.config import AnyConfig, RunConfig


class Store(NamedTuple):
    """What a workdir has of a run before its clusters.

    Attributes:
        workdir: the folder.
        images: description of the images, see `workdir.describe_images`.
        recorded: content of `images.json`, if an earlier call has written it.
        made_from: fingerprint of config and images.
        files: file of an embedding -> number of training steps of its network; of the encoder,
            also which features it computes, because they may change after the training.
        missing: those of the files that are not there.
    """

    workdir: epath.Path
    images: Mapping[str, Any]
    recorded: Mapping[str, Any]
    made_from: str
    files: Mapping[str, int | str]
    missing: tuple[str, ...]


def find(workdir: epath.Path, inputs: Inputs[AnyConfig], files: Mapping[str, int | str]) -> Store:
    """Looks what a workdir has of a run; writes nothing.

    Raises:
        InputError: it has embeddings of other images or of another config.
    """
    images = workdirs.describe_images(inputs.dataset)
    if workdirs.forget_other_images(workdir, images):
        say(f"the images have changed since the run in {workdir.parent}: all are embedded")
    recorded = workdirs.check_images(workdir, images)
    made_from = workdirs.made_from(inputs.config.values, images)
    there = (workdirs.has_embedding(workdir / name, made_from, by) for name, by in files.items())
    missing = tuple(name for name, is_there in zip(files, there, strict=True) if not is_there)
    return Store(workdir, images, recorded, made_from, files, missing)


def begin(store: Store, inputs: Inputs[AnyConfig], encoder: Mapping[str, Any]) -> None:
    """Writes `config.json` and `images.json`; the first process alone does."""
    if jax.process_index() != 0:
        return
    config, workdir = inputs.config, store.workdir
    io.write_json(workdir / workdirs.CONFIG, config.values, checksum=True)
    digest = methods.digest(config.method.name) if isinstance(config, RunConfig) else None
    code = {} if digest is None else {"method": digest}
    described = {
        "config": config.name,
        **code,
        **store.recorded,
        **store.images,
        **build.describe_images(inputs),
        "workdir": os.path.abspath(workdir),
        **encoder,
    }
    io.write_json(workdir / workdirs.IMAGES, described, checksum=True)
    for name in store.files.keys() - set(store.missing):  # left by a kill after the last part
        Parts(workdir / name, "").remove()


def write(store: Store, name: str, checksum: str, make: Callable[[Parts], Batch]) -> None:
    """Writes an embedding, if it is missing; until it is complete, its parts.

    Args:
        store: of the run.
        name: of the file.
        checksum: of the network.
        make: embeds the images; its argument is the place for parts of the embedding.
    """
    if name in store.missing:
        parts = Parts(store.workdir / name, f"{origin(store, name)}:{checksum}")
        parts.finish(make(parts), origin(store, name))


def origin(store: Store, name: str) -> str:
    """Returns the fingerprint of an embedding or of the encoder."""
    return f"{store.made_from}:{store.files[name]}"
