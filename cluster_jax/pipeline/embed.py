"""Embeds a data set by a network: a trained one (`forward_of`), or a frozen one (`pretrained`).

The section `embedder` of a config trains on features by a frozen network, also of random views.

A long embedding is kept in parts, from which an interrupted one resumes. A part is a file with the
rows of consecutive batches. It is written whenever `SECONDS` have passed since the last part, so
that a short embedding writes none, and on Ctrl-C and SIGTERM. The rows of a resumed embedding are
bit for bit those of one without an interruption.
"""

import contextlib
import dataclasses
import functools
import json
import re
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax import Array, lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from numpy.typing import NDArray

from cluster_jax.core import buckets, disk, interrupt, io, logs
from cluster_jax.core.checks import InputError
from cluster_jax.core.logs import logger
from cluster_jax.data import batches, features
from cluster_jax.data import views as data_views
from cluster_jax.data.datasets import Dataset
from cluster_jax.data.images import select, without
from cluster_jax.data.splits import NovelConfig
from cluster_jax.methods.base import Method, image_keys
from cluster_jax.nets import network
from cluster_jax.nets.pretrained import weights
from cluster_jax.pipeline import build
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.build import BuiltRun, Inputs
from cluster_jax.pipeline.config import RunConfig, parse_config
from cluster_jax.training import checkpoint
from cluster_jax.training import state as states

# Seconds of work that a kill can lose.
SECONDS = 20.0
CHUNK = 8  # of `in_chunks`, at most

# Name -> rows of one batch.
Batch = dict[str, np.ndarray]
# (images uint8 [b, H, W, C], their indices int32 [b]), both sharded over the mesh -> name -> rows
# [b, ...] on every device.
Forward = Callable[[Array, Array], Mapping[str, Any]]
# Entry of an embedding, bool [n]: rows of images that stand in for unreadable files.
UNREADABLE = "unreadable"


class Parts(NamedTuple):
    """Location and identity of the parts of an embedding.

    Attributes:
        file: the file or folder that is written once all parts are there.
        fingerprint: ASCII text that identifies network and images; parts with another fingerprint
            are made again.
    """

    file: epath.Path
    fingerprint: str

    @property
    def folder(self) -> epath.Path:
        """The folder of the parts, beside the file; need not exist."""
        return self.file.parent / f"{self.file.name}.parts"

    def finish(self, arrays: Mapping[str, np.ndarray], fingerprint: str) -> None:
        """Writes the file, which takes the place of its parts; the first process alone does."""
        if jax.process_index() == 0:
            io.write_arrays(self.file, arrays, fingerprint)
            self.remove()

    def remove(self) -> None:
        """Deletes the parts, and their folder if nothing else is in it."""
        # A kill may have left the temporary file of a part, which has a dot before its name.
        there = buckets.names(self.folder)
        own = {name for name in there if re.match(r"\.?part_|share_.*\.npz$", name)}
        if buckets.is_in_bucket(self.folder):
            buckets.remove(str(self.folder / name) for name in own)
            return
        for name in own:
            (self.folder / name).unlink()
        if there == own and self.folder.exists():
            self.folder.rmdir()


def collect(
    parts: Parts | None,
    embed_from: Callable[[int], Generator[Batch]],
    *,
    together: bool = True,
) -> Batch:
    """Collects the rows of an embedding: those of finished parts, then those of later batches.

    Args:
        parts: location of the parts; None: nothing is written.
        embed_from: yields the batches from a given row on, in order.
        together: whether all processes call this together and get the same rows: they start with
            the same row, and the first process alone writes. Otherwise each has rows of its own.

    Returns:
        Name -> rows.
    """
    batches = [] if parts is None else _read(parts, together)
    writes = parts is not None and (jax.process_index() == 0 or not together)
    start = _count(batches)
    written, since = len(batches), time.monotonic()  # how many are in files

    def write() -> None:
        nonlocal written, since
        if parts is not None and writes and written < len(batches):
            disk.make(parts.folder)
            file = _file(parts, _count(batches[:written]))
            # A fast device would wait for a compression.
            io.write_arrays(file, _joined(batches[written:]), parts.fingerprint, compressed=False)
        written, since = len(batches), time.monotonic()

    try:
        with contextlib.closing(embed_from(start)) as stream:
            for batch in stream:
                batches.append(batch)
                if time.monotonic() - since > SECONDS:
                    write()
    except (KeyboardInterrupt, interrupt.Terminated):
        write()
        raise
    return _joined(batches)


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
    own = files[jax.process_index()]
    if _read_file(parts, own) is None:
        disk.make(parts.folder)
        kept = parts._replace(file=own)
        io.write_arrays(own, make(kept), parts.fingerprint, compressed=False)
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
    return _joined([io.read_arrays(file) for file in files])


def _read(parts: Parts, together: bool) -> list[Batch]:
    """Reads the parts from the first row on, without a gap, as far as all processes can."""
    found: list[Batch] = []
    while (batch := _read_file(parts, _file(parts, _count(found)))) is not None:
        found.append(batch)
    if together and jax.process_count() > 1:
        found = found[: multihost_utils.process_allgather(np.int32(len(found))).min()]
    return found


def _read_file(parts: Parts, file: epath.Path) -> Batch | None:
    """Reads the rows in a file; None if there is none, or it was made from something else."""
    try:
        if io.read_fingerprint(file) == parts.fingerprint:
            return io.read_arrays(file)
    except FileNotFoundError:
        return None
    except io.DamagedFile as error:
        logger.warning("%s is damaged (%s); making it again", file, error.reason)
    return None


def _file(parts: Parts, first: int) -> epath.Path:
    return parts.folder / f"part_{first:012d}.npz"


def _count(batches: Sequence[Batch]) -> int:
    return sum(len(next(iter(batch.values()))) for batch in batches)


def _joined(batches: Sequence[Batch]) -> Batch:
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def forward_of(method: Method, params: Any, model_state: Any, mesh: Mesh) -> Forward:
    """Makes the forward pass of the network that a method keeps after training.

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
    """Embeds all images in the order of the data set.

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

    def embed_from(start: int) -> Generator[Batch]:
        stream = batches.evaluation(
            wanted,
            batch_size=batch_size,
            process=jax.process_index() if together else 0,
            processes=jax.process_count() if together else 1,
            start=rows.start + start,
        )
        bar = logs.progress_bar(
            total=len(rows), initial=start, unit="image", desc="embedding", mininterval=1.0,
            disable=jax.process_index() != 0, delay=2.0,
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

    embedded = collect(kept, embed_from, together=together)
    if UNREADABLE in embedded and not embedded[UNREADABLE].any():
        del embedded[UNREADABLE]
    return embedded


def _unreadable(dataset: Dataset, index: np.ndarray, together: bool) -> np.ndarray:
    """Returns which images of a batch, over all processes, replace unreadable files, bool `[b]`."""
    assert dataset.unreadable is not None
    mask = np.array([reason is not None for reason in dataset.unreadable(index)])
    if together:
        mask = multihost_utils.process_allgather(mask, tiled=True)
    return mask


def readable_rows(embedding: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Removes the rows of unreadable files from an embedding."""
    rows = {name: values for name, values in embedding.items() if name != UNREADABLE}
    mask = embedding.get(UNREADABLE)
    return rows if mask is None else {name: values[~mask] for name, values in rows.items()}


def readable_images(dataset: Dataset, embedding: Mapping[str, np.ndarray]) -> Dataset:
    """Returns the images of `readable_rows`, with the unreadable files as skipped."""
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
    params, stats = jax.eval_shape(lambda x: net.init(jax.random.key(0), x), image)
    loaded = weights.load(str(section.weights), section.name, params["backbone"], stats["backbone"])
    replicated = states.replicated(mesh)
    backbone = jax.device_put([{"backbone": tree} for tree in loaded], replicated)

    def represent(backbone: Any, x: Array) -> Array:
        return in_chunks(
            lambda part: (
                net.forward(backbone[0], backbone[1], part, train=False, axis=None).representation
            ),
            x,
            mesh,
        )

    # The weights are arguments: as constants they would be compiled into the program.
    @functools.partial(jax.jit, out_shardings=replicated)
    def clean(backbone: Any, images: Array) -> Array:
        return represent(backbone, jax.vmap(changes.clean)(images))

    @functools.partial(jax.jit, out_shardings=replicated)
    def view(backbone: Any, images: Array, index: Array, number: Array) -> Array:
        # The key is made here, because a service, which has no views, does not compile it.
        keys = image_keys(jax.random.fold_in(jax.random.key(config.seed), number), index)
        return represent(backbone, jax.vmap(changes.view)(keys, images))

    def forward(images: Array, index: Array) -> dict[str, NDArray]:
        # One by one: dozens of programs in flight can deadlock (see training/progress.py).
        rows = [np.asarray(clean(backbone, images))]
        for number in range(views):
            rows.append(np.asarray(view(backbone, images, index, jnp.int32(number))))
        return {"features": np.stack(rows, axis=1)}

    return FrozenNetwork(forward, functools.partial(clean, backbone), states.checksum(loaded))


def in_chunks(function: Callable[[Array], Array], x: Array, mesh: Mesh) -> Array:
    """Computes rows `[b, d]` of `x`, on a CPU a few at a time, which its caches then hold.

    Args:
        function: rows of images, each of which depends on its image alone.
        x: `[b, ...]`.
        mesh: the devices that hold `x`; of several each has a part of it, which is not divided.
    """
    # An exported program has batches of any size.
    if jax.default_backend() != "cpu" or mesh.size > 1 or not isinstance(x.shape[0], int):
        return function(x)
    size = max(n for n in range(1, CHUNK + 1) if len(x) % n == 0)
    return lax.map(function, x.reshape(-1, size, *x.shape[1:])).reshape(len(x), -1)


def embed_frozen(inputs: Inputs, frozen: FrozenNetwork, kept: Parts | None = None) -> Batch:
    """Embeds the images of a run by a pretrained network that nothing trains."""
    size, mesh = inputs.config.eval.batch_size, states.make_mesh()
    rows = embed(frozen.forward, inputs.dataset, batch_size=size, mesh=mesh, kept=kept)
    return {"backbone": rows.pop("features")[:, 0], **rows}


def embed_images(stages: Sequence[BuiltRun], fingerprint: str) -> list[BuiltRun]:
    """Embeds the images of a run and puts their features in place of the pending ones.

    Features are written to the workdir, and while they are made in parts, so that an interrupted
    run embeds no image twice. Without the config's section `embedder` nothing changes.

    Args:
        stages: all stages of the run; they have the same images.
        fingerprint: of the run's config and images.

    Raises:
        InputError: there is more than one process.
    """
    last = stages[-1]
    config, mesh, embedder = last.config, last.training.mesh, last.config.embedder
    if embedder is None:
        return list(stages)
    if jax.process_count() > 1:
        raise InputError(
            f"embedder must be None in more than one process; got {jax.process_count()} processes: "
            "write the features with `cluster-jax embed` in one, and train on the file"
        )

    def filled(pending: Dataset, name: str) -> Dataset:
        images = pending.features_of
        assert images is not None  # the section embedder is set
        kept = Parts(last.workdir / name, fingerprint)
        if not kept.file.exists():
            frozen = pretrained(config, images.shape[2], mesh, embedder.views)
            size = config.eval.batch_size
            made = embed(frozen.forward, images, batch_size=size, mesh=mesh, kept=kept)
            kept.finish({"features": made["features"]}, "")
        kept.remove()
        values = io.read_arrays(kept.file)["features"]
        dataset = features.of_images(images, values, config.data.cache_mb)
        return features.with_neighbors(dataset, config.feature_views.searched)

    dataset = filled(last.training.dataset, workdirs.TRAIN_FEATURES)
    test = None if last.test is None else filled(last.test, workdirs.TEST_FEATURES)
    return [
        stage._replace(training=stage.training._replace(dataset=dataset), test=test)
        for stage in stages
    ]


# Labels and names of the rows of all shards, in their folder.
ROWS = "rows.npz"


def write_features(
    values: Mapping[str, Any], out: epath.PathLike, views: int
) -> tuple[tuple[int, ...], list[tuple[str, str]]] | None:
    """Writes the features of every image and of augmented views of it.

    Of several processes each embeds a share of the images, of which files are decoded.

    The file has `features` float32 `[n, d]`, or `[n, 1 + views, d]` with views, and where the
    images have them `labels`, `label_names` and `files`. A folder has a `.npy` shard of features
    from each process, and `rows.npz` with the others. Until all is complete, finished parts are in
    the folder `OUT.parts`, from which the same call resumes.

    Args:
        values: a config with `network.weights`, as JSON values.
        out: the `.npz` file or the folder to write.
        views: number of views of each image, augmented by the config's section `augment`.

    Returns:
        Shape of the features, and path and reason of each file that could not be read; None if
        another process has written them.

    Raises:
        InputError: the config has no pretrained network, the file exists, or the folder has shards
            of another number of processes.
    """
    out, process, processes = buckets.path(out), jax.process_index(), jax.process_count()
    in_shards = out.suffix != ".npz"
    file = out / ROWS if in_shards else out
    if file.exists():
        raise InputError(f"--out must be new; got {out}, which exists")
    shard = f"features-{process:05d}-of-{processes:05d}.npy"
    if in_shards:
        if views:
            raise InputError(f"--views must be 0 for shards; got {views}: name an .npz file")
        shards = {name for name in buckets.names(out) if name.endswith(".npy")}
        others = {name for name in shards if not name.endswith(shard[-13:])}
        if others:
            raise InputError(
                f"--out must be new, or have shards of as many processes, {processes}; got {out} "
                f"with {min(others)}"
            )
    config = parse_config(values)
    # All images, whatever a training would hold out.
    config = dataclasses.replace(config, novel=NovelConfig(None, None, 0.0, 0))
    if config.network.weights is None:
        raise InputError(
            "network.weights must be those of a pretrained network; got None: use the config "
            "'images', or set them"
        )
    if processes > 1:  # Files are decoded by the process that embeds them.
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, cache_mb=0))
    (config, dataset, _), mesh = build.load_inputs(config), states.make_mesh().local_mesh
    for note in dataset.notes if process == 0 else ():
        logger.warning("%s", note)
    kept = {key: values[key] for key in ("seed", "data", "augment", "network")}
    images = workdirs.describe_images(dataset)
    about = {**kept, "views": views, "images": images}
    made_from = workdirs.fingerprint(json.dumps(io.plain(about), sort_keys=True).encode())
    frozen = pretrained(config, dataset.shape[2], mesh, views)
    batch_size = max(1, config.eval.batch_size // processes)
    rows = share(dataset.size, batch_size)

    def make(kept: Parts) -> Batch:
        embedded = embed(
            frozen.forward, dataset, batch_size=batch_size, mesh=mesh, rows=rows, kept=kept
        )
        features = readable_rows(embedded)["features"]
        features = features if views else features[:, 0]
        own = select(dataset._replace(images=None), np.array(rows))
        own = readable_images(own, embedded)
        skipped = np.array(own.skipped, str).reshape(-1, 2)
        arrays = {"shape": np.array([features.shape]), "skipped": skipped}
        if in_shards:
            disk.make(out)
            partial = out / (shard if buckets.is_in_bucket(out) else f".{shard}.partial")
            with partial.open("wb") as content:
                np.save(content, features)
            if not buckets.is_in_bucket(out):
                partial.replace(out / shard)
        else:
            arrays["features"] = features
        if own.labels is not None:
            arrays["labels"] = own.labels
        return arrays if own.sources is None else {**arrays, "files": np.array(own.sources)}

    parts = Parts(out, made_from)
    arrays = shared(parts, make)
    if arrays is None:
        return None
    shapes, skipped = arrays.pop("shape"), arrays.pop("skipped").tolist()
    if dataset.label_names is not None:
        arrays["label_names"] = np.array(dataset.label_names)
    io.write_arrays(file, arrays)
    parts.remove()
    return (int(shapes[:, 0].sum()), *shapes[0, 1:].tolist()), skipped
