"""Features of images as a file or in shards, and those that a run trains on."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.sharding import Mesh

from cluster_jax.core import buckets, checks, io
from cluster_jax.core.checks import InputError
from cluster_jax.core.logs import logger
from cluster_jax.data import features
from cluster_jax.data.datasets import Dataset
from cluster_jax.data.images import select
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
from cluster_jax.runs import build
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.build import BuiltRun
from cluster_jax.runs.config import AnyConfig, RunConfig, parse_config
from cluster_jax.training import checkpoint
from cluster_jax.training import state as states

# Labels and names of the rows of all shards, in their folder.
ROWS = "rows.npz"
# What features depend on, of a config.
_OF_FEATURES = ("seed", "data", "augment", "network", "encoder")


def share(count: int, step: int) -> range:
    """Returns which of `count` rows this process makes: in sequence, whole steps if there are many.

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


def shared(parts: Parts, make: Callable[[Parts], Batch]) -> Batch | None:
    """Makes each process's share of the rows, joined in the first process; None in the others.

    A share that is done stays beside the parts of the others until the caller removes them, so that
    the same command makes only what a process that died has left.

    Args:
        parts: location of shares and parts; all processes must see the same folder. The fingerprint
            may be one of the share.
        make: makes the share of this process; its argument is the place for parts of it.

    Raises:
        InputError: the processes see different folders.
    """
    processes = jax.process_count()
    if processes == 1:
        return make(parts)
    files = [parts.folder / f"share_{i:05d}-of-{processes:05d}.npz" for i in range(processes)]
    file_of_process = files[jax.process_index()]
    if not _is_made(parts, file_of_process):
        parts.folder.mkdir(exist_ok=True)
        kept = parts._replace(file=file_of_process)
        io.write_arrays(file_of_process, make(kept), parts.fingerprint, compressed=False)
        kept.remove()
    checkpoint.wait_for_all("shared")
    if jax.process_index() != 0:
        return None
    there = buckets.names(parts.folder)
    missing = [file.name for file in files if file.name not in there]
    if missing:
        raise InputError(
            f"{parts.folder} must be the same folder for all processes; got none of {missing[0]} "
            "in it: choose an --out that all of them share"
        )
    shares = [io.read_arrays(file) for file in files]
    return {name: np.concatenate([share[name] for share in shares]) for name in shares[0]}


def _is_made(parts: Parts, file: epath.Path) -> bool:
    """Returns whether a file has a share that was made from the same network and images."""
    try:
        return file.exists() and io.read_fingerprint(file) == parts.fingerprint
    except io.DamagedFile as error:
        logger.warning("%s is damaged (%s); making it again", file, error.reason)
        return False


def embed_images(stages: Sequence[BuiltRun], fingerprint: str) -> list[BuiltRun]:
    """Embeds the images of a run and puts their features in place of the pending ones.

    Features are written to the workdir, and while they are made in parts, so that an interrupted
    run embeds no image twice. Without an encoder nothing changes.

    Args:
        stages: all stages of the run; they have the same images.
        fingerprint: of the run's config and images.

    Raises:
        InputError: there is more than one process.
    """
    last = stages[-1]
    config, mesh = last.config, last.training.mesh
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
            forward = _forward(encoder, mesh)
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


def _forward(encoder: Encoder, mesh: Mesh) -> Forward:
    """Returns the encoder as a function of images to an embedding with the entry `features`."""
    encode = encoder.on(mesh)
    return lambda images: {"features": encode(images)}


def write_features(
    values: Mapping[str, Any], out: epath.PathLike
) -> tuple[tuple[int, ...], list[tuple[str, str]]] | None:
    """Writes the features of every image.

    Of several processes each embeds a share of the images, of which files are decoded.

    The file has `features` float32 `[n, d]`, and where the images have them `labels`, `label_names`
    and `files`. A folder has a `.npy` shard of features from each process, and `rows.npz` with the
    others. Until all is complete, finished parts are in the folder `OUT.parts`, from which the same
    call resumes.

    Args:
        values: a config of photos, or one with `network.weights`, as JSON values.
        out: the `.npz` file or the folder to write.

    Returns:
        Shape of the features, and path and reason of each file that could not be read; None if
        another process has written them.

    Raises:
        InputError: the config has no pretrained network, the file exists, or the folder has shards
            of another number of processes.
    """
    out = epath.Path(checks.local(out)).expanduser()
    process, processes = jax.process_index(), jax.process_count()
    in_shards = out.suffix != ".npz"
    shard = f"features-{process:05d}-of-{processes:05d}.npy"
    _check_new(out, shard)
    config, dataset, encoder = _encoded(parse_config(values))
    mesh = states.make_mesh().local_mesh
    for note in dataset.notes if process == 0 else ():
        logger.warning("%s", note)
    kept = {key: x for key, x in values.items() if key in _OF_FEATURES}
    images = workdirs.describe_images(dataset)
    about = {**kept, "images": images}
    made_from = workdirs.fingerprint(json.dumps(io.plain(about), sort_keys=True).encode())
    forward = _forward(encoder, mesh)
    batch_size = max(1, min(config.eval.batch_size // processes, dataset.size))
    rows = share(dataset.size, batch_size)

    def make(kept: Parts) -> Batch:
        own = select(dataset._replace(images=None), np.array(rows))
        embedded = embed(forward, own, batch_size=batch_size, mesh=mesh, kept=kept)
        features = readable_rows(embedded)["features"]
        readable = readable_images(own, embedded)
        skipped = np.array(readable.skipped, str).reshape(-1, 2)
        arrays = {"shape": np.array([features.shape]), "skipped": skipped}
        if in_shards:
            out.mkdir(exist_ok=True)
            partial = out / f".{shard}.partial"
            with partial.open("wb") as content:
                np.save(content, features)
            partial.replace(out / shard)
        else:
            arrays["features"] = features
        if readable.labels is not None:
            arrays["labels"] = readable.labels
        if readable.sources is not None:
            arrays["files"] = np.array(readable.sources)
        return arrays

    parts = Parts(out, made_from)
    arrays = shared(parts, make)
    if arrays is None:
        return None
    shapes, skipped = arrays.pop("shape"), arrays.pop("skipped").tolist()
    if dataset.label_names is not None:
        arrays["label_names"] = np.array(dataset.label_names)
    io.write_arrays(out / ROWS if in_shards else out, arrays)
    parts.remove()
    return (int(shapes[:, 0].sum()), *shapes[0, 1:].tolist()), skipped


def _check_new(out: epath.Path, shard: str) -> None:
    """Raises an `InputError` for a file that exists, or a folder of another number of shards."""
    in_shards = out.suffix != ".npz"
    if (out / ROWS if in_shards else out).exists():
        raise InputError(f"--out must be new; got {out}, which exists")
    if not in_shards:
        return
    ending = shard.partition("-of-")[2]
    shards = {name for name in buckets.names(out) if name.endswith(".npy")}
    if others := {name for name in shards if not name.endswith(f"-of-{ending}")}:
        raise InputError(
            f"--out must be new, or have shards of as many processes, {jax.process_count()}; got "
            f"{out} with {min(others)}"
        )


def _encoded(config: AnyConfig) -> tuple[AnyConfig, Dataset, Encoder]:
    """Returns the config of what is embedded, its images, and their encoder.

    Raises:
        InputError: the config has no pretrained network.
    """
    if isinstance(config, RunConfig) and config.network.weights is None:
        raise InputError(
            "network.weights must be those of a pretrained network; got None: use the config "
            "'images', or set them"
        )
    if jax.process_count() > 1:  # Files are decoded by the process that embeds them.
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, cache_mb=0))
    if isinstance(config, RunConfig):
        # All images, whatever a training would hold out.
        config = dataclasses.replace(config, novel=NovelConfig(None, None, 0.0, 0))
        config, dataset, _ = build.load_inputs(config)
        return config, dataset, build.pretrained(config, dataset.shape)
    return config, build.load_photos(config).dataset, build.encoder_of(config)
