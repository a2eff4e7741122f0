"""Features of images as a file or in shards, and those that a run trains on."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.sharding import Mesh

from cluster_jax.core import buckets, checks, hosts, io
from cluster_jax.core import mesh as meshes
from cluster_jax.core.checks import InputError
from cluster_jax.core.logs import logger
from cluster_jax.data import datasets, features
from cluster_jax.data.datasets import Dataset
from cluster_jax.data.images import select, with_channels
from cluster_jax.discovery import splits
from cluster_jax.discovery.splits import NovelConfig
from cluster_jax.encoding.embed import (
    Batch,
    Forward,
    Parts,
    embed,
    readable_images,
    readable_rows,
)
from cluster_jax.encoding.encoder import Encoder
from cluster_jax.runs import claims
from cluster_jax.runs import workdir as workdirs
from cluster_jax.training import build
from cluster_jax.training.build import BuiltRun
from cluster_jax.training.config import AnyConfig, RunConfig, parse_config

# Sections and keys of a config on which features depend.
_OF_FEATURES = ("data", "augment", "network", "encoder")


def share(count: int, step: int) -> range:
    """Returns the contiguous range of rows of this process, aligned to batches of `step` rows.

    If a process would have less than one batch, the range is aligned to smaller batches.

    Args:
        count: number of rows of all processes together.
        step: rows of a batch.

    Raises:
        InputError: there are fewer rows than processes.
    """
    process, processes = jax.process_index(), jax.process_count()
    if count < processes:
        raise InputError(
            f"images must be at least one for each of {processes} processes; got {count}"
        )
    step = min(step, count // processes)
    steps = -(-count // step)
    bounds = (min(count, steps * i // processes * step) for i in (process, process + 1))
    return range(*bounds)


def embed_images(stages: Sequence[BuiltRun], fingerprint: str) -> list[BuiltRun]:
    """Embeds the images of a run, and returns its stages with the features in their data sets.

    Features are written to the workdir, first in parts, so that an interrupted run embeds no image
    twice. A file of features that is there is taken as it is. If `config.encoder` is None, the
    stages are returned unchanged.

    Args:
        stages: all stages of the run; they have the same images, without unreadable ones.
        fingerprint: fingerprint of the run's config and images, by which parts are known again.

    Raises:
        InputError: there are several processes, the weights of the encoder cannot be read, there
            are too few images for `feature_views.neighbors`, a feature is not finite, or a file of
            features is damaged (`DamagedFile`).
    """
    last = stages[-1]
    config = last.config
    mesh = last.training.mesh
    if config.encoder is None:
        return list(stages)
    if jax.process_count() > 1:
        raise InputError(
            f"encoder must be None in more than one process; got {jax.process_count()} processes: "
            "write the features with `cluster-jax embed` in one, and train on the file"
        )

    def filled(pending: Dataset, name: str) -> Dataset:
        images = pending.features_of
        assert images is not None  # an encoder is set
        kept = Parts(last.workdir / name, fingerprint)
        if not kept.file.exists():
            encoder = build.pretrained(config, images.shape)
            size = min(config.eval.batch_size, images.size)
            forward = forward_of(encoder, mesh, "features")
            embeddings = embed(forward, images, batch_size=size, mesh=mesh, kept=kept)
            kept.finish({"features": embeddings["features"]}, "")
        kept.remove()
        values = io.read_arrays(kept.file)["features"]
        dataset = features.of_images(images, values, config.data.cache_mb)
        return features.with_neighbors(dataset, config.feature_views.neighbors)

    dataset = filled(last.training.dataset, workdirs.TRAIN_FEATURES)
    test = None if last.test is None else filled(last.test, workdirs.TEST_FEATURES)
    return [
        stage._replace(training=stage.training._replace(dataset=dataset), test=test)
        for stage in stages
    ]


def forward_of(encoder: Encoder, mesh: Mesh, name: str) -> Forward:
    """Returns a function of images to `{name: features}`, which are not scaled to length one.

    The features are those of `Encoder.on`: float32 `[b, d]` on every device of the mesh.
    """
    encode = encoder.on(mesh)
    return lambda images: {name: encode(images)}


def write_features(
    values: Mapping[str, Any],
    out: epath.PathLike,
    trained: Encoder | None = None,
    split: str = "train",
) -> tuple[tuple[int, ...], list[tuple[str, str]]]:
    """Writes the features of every image.

    A file has `features` float32 `[n, d]`, without rows for files that could not be read; `skipped`
    str `[s, 2]`, path and reason of each of these; and where the images have them `labels`,
    `label_names` and `files`. In a folder each process has a part of the images, in their order:
    its features in `features-PROCESS-of-PROCESSES.npy`, and all else in
    `rows-PROCESS-of-PROCESSES.npz`. The same call goes on where an earlier one was interrupted.

    Args:
        values: a config of photos, or one with `network.weights`, as JSON values.
        out: a file to write, if the path ends on `.npz`; else a folder. The folder above exists.
        trained: encoder of the finished training whose config is `values`; None: a pretrained one.
        split: with `trained`, which images: those of a split of a TFDS set; of others "train", the
            training images, or "test", those that are held out.

    Returns:
        Shape of the features that this process has written, and path and reason of each of its
        files that could not be read.

    Raises:
        InputError: the config is invalid or has no pretrained network, the images cannot be used,
            there are several processes and no folder, or what exists is of other images, of another
            network or of other processes.
    """
    out = epath.Path(checks.local(out)).expanduser()
    process, processes = jax.process_index(), jax.process_count()
    part = f"{process:05d}-of-{processes:05d}"
    in_parts = out.suffix != ".npz"
    if processes > 1 and not in_parts:
        raise InputError(f"--out must be a folder in {processes} processes; got {out}")
    file = out / f"rows-{part}.npz" if in_parts else out
    config, dataset, encoder = _encoded(parse_config(values), trained, split)
    for note in dataset.notes if process == 0 else ():
        logger.warning("%s", note)
    kept = {key: x for key, x in values.items() if key in _OF_FEATURES}
    about = {**kept, "images": claims.describe_images(dataset)}
    if trained is not None:
        about |= {"encoder": encoder.checksum, "split": split}
    made_from = workdirs.fingerprint(json.dumps(io.plain(about), sort_keys=True).encode())
    if not _is_made(file, out, made_from):
        mesh = meshes.make().local_mesh
        batch_size = max(1, min(config.eval.batch_size // processes, dataset.size))
        rows = np.array(share(dataset.size, batch_size))
        parts = Parts(file, made_from)
        mine = select(dataset._replace(images=None), rows)
        forward = forward_of(encoder, mesh, "features")
        embedded = embed(forward, mine, batch_size=batch_size, mesh=mesh, kept=parts)
        arrays = _arrays(embedded, mine)
        if in_parts:
            with io.replacing(out / f"features-{part}.npy") as content:
                np.save(content, arrays.pop("features"))
        io.write_arrays(file, arrays, made_from)
        parts.remove()
    hosts.wait_for_all("embedded")  # The first one, which ends all, stays until the last.
    stored = io.read_arrays(file)
    own = np.load(out / f"features-{part}.npy", mmap_mode="r") if in_parts else stored["features"]
    return own.shape, stored["skipped"].tolist()


def _is_made(file: epath.Path, out: epath.Path, made_from: str) -> bool:
    """Returns whether a file has the features of these images by this network.

    If it is a part in a folder and is not there, the folder is made.

    Args:
        file: the `.npz` file, or the part of this process in the folder `out`.
        out: what the user has asked for.
        made_from: fingerprint of images and network.

    Raises:
        InputError: the file has other features, or the folder has parts of another number of
            processes.
    """
    ending = file.name.partition("-of-")[2]
    names = {name for name in buckets.names(file.parent) if ending and name.startswith("rows-")}
    others = sorted(name for name in names if not name.endswith(f"-of-{ending}"))
    is_there = file.exists()
    if others or (is_there and io.read_fingerprint(file) != made_from):
        got = f"{out} with {others[0]}" if others else f"{out}, which has others"
        raise InputError(f"--out must be new, or have features of these images; got {got}")
    if not is_there and ending:
        out.mkdir(exist_ok=True)
    return is_there


def _arrays(embedded: Batch, dataset: Dataset) -> Batch:
    """Returns the arrays of a file, see `write_features`, by name.

    Args:
        embedded: "features" of the images, and which are unreadable.
        dataset: the images, also those that are unreadable.
    """
    features = readable_rows(embedded)["features"]
    readable = readable_images(dataset, embedded)
    skipped = np.array(readable.skipped, str).reshape(-1, 2)
    arrays = {"features": features, "skipped": skipped}
    if readable.labels is not None:
        arrays["labels"] = readable.labels
    if dataset.label_names is not None:
        arrays["label_names"] = np.array(dataset.label_names)
    if readable.sources is not None:
        arrays["files"] = np.array(readable.sources)
    return arrays


def _split(config: AnyConfig, split: str) -> Dataset:
    """Returns images of a run, see `write_features`; all their labels are there.

    Raises:
        InputError: there is no such split, or the images cannot be used.
    """
    data = config.data
    if data.name not in datasets.OWN_SOURCES:
        return datasets.load(dataclasses.replace(data, split=split))
    checks.one_of("--split", split, ("train", "test"))
    if not isinstance(config, RunConfig):
        return datasets.load(data)
    train, test = splits.load(data, dataclasses.replace(config.novel, classes=None))
    if split == "train":
        return train
    if test is None:
        must = "--split must be 'train' for a run that holds out no images (novel.holdout)"
        raise InputError(f"{must}; got {split!r}")
    return test


def _encoded(
    config: AnyConfig, trained: Encoder | None, split: str
) -> tuple[AnyConfig, Dataset, Encoder]:
    """Returns the config, the images that it embeds, and their encoder; see `write_features`.

    Without `trained`, images that a training would hold out for testing are among them.

    Raises:
        InputError: the config has no pretrained network, or the images or the weights cannot be
            used.
    """
    if trained is None and isinstance(config, RunConfig) and config.network.weights is None:
        raise InputError(
            "network.weights must be those of a pretrained network; got None: use the config "
            "'images', or set them"
        )
    if jax.process_count() > 1:  # Files are decoded by the process that embeds them.
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, cache_mb=0))
    if trained is not None:
        dataset = _split(config, split)
        if dataset.has_images:
            return config, with_channels(dataset, trained.shape[-1]), trained
        return config, features.with_neighbors(dataset, 0), trained
    if isinstance(config, RunConfig):
        # All images, whatever a training would hold out.
        config = dataclasses.replace(config, novel=NovelConfig(None, None, 0.0, 0))
        config, dataset, _ = build.load_inputs(config)
        return config, dataset, build.pretrained(config, dataset.shape)
    return config, build.load_photos(config).dataset, build.encoder_of(config)
