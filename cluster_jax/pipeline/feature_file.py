"""Writes the features of images by a pretrained network into one file, as data for training."""

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec
from numpy.typing import NDArray
from tqdm import tqdm

from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.data import batches
from cluster_jax.data import views as data_views
from cluster_jax.data.images import select
from cluster_jax.data.splits import NovelConfig
from cluster_jax.methods.base import image_keys
from cluster_jax.nets import network
from cluster_jax.nets.pretrained import weights
from cluster_jax.pipeline import build
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.config import parse_config
from cluster_jax.training.loop import TrainingRun

# Images in a part, all that an interruption can lose: 20 s on two CPU cores without views.
PART = 1024
ABOUT, PART_NAME = "about.json", "part_"

# uint8 [b, H, W, C], index int32 [b] -> float32 [b, 1 + views, d].
EmbedViews = Callable[[Array, Array], NDArray]


class Written(NamedTuple):
    """Shape of the features, and path and reason of each file that could not be read."""

    shape: tuple[int, ...]
    skipped: tuple[tuple[str, str], ...]


def write(values: Mapping[str, Any], out: epath.PathLike, views: int) -> Written:
    """Writes the features of every image and of augmented views of it.

    The file has `features` float32 `[n, d]`, or `[n, 1 + views, d]` with views, and where the
    images have them `labels`, `label_names` and `files`. Until it is complete, finished parts are
    in the folder `OUT.parts`, from which the same call resumes.

    Args:
        values: a config with `network.weights`, as JSON values.
        out: the `.npz` file to write.
        views: number of views of each image, augmented by the config's section `augment`.

    Raises:
        InputError: the config has no pretrained network, the file exists, or the parts are those of
            another call.
    """
    out = epath.Path(out).expanduser()
    if out.exists():
        raise InputError(f"--out must be a new file; got {out}, which exists")
    config = parse_config(values)
    # All images, whatever a training would hold out.
    config = dataclasses.replace(config, novel=NovelConfig(None, None, 0.0, 0))
    if config.network.weights is None:
        raise InputError(
            "network.weights must be those of a pretrained network; got None: use the config "
            "'images', or set them"
        )
    if jax.process_count() > 1:
        raise InputError(f"embed must run in one process; got {jax.process_count()}")
    built = build.build_run(config)
    run, folder = built.training, out.parent / f"{out.name}.parts"
    kept = {key: values[key] for key in ("seed", "data", "augment", "network")}
    _claim(folder, {**kept, "views": views, "images": workdirs.describe_images(run.dataset)})
    features = _embed_parts(run, _embedder(built, views), config.eval.batch_size, folder)
    arrays = {"features": features if views else features[:, 0]}
    if run.dataset.labels is not None:
        arrays["labels"] = run.dataset.labels
    for name, texts in (("label_names", run.dataset.label_names), ("files", run.dataset.sources)):
        if texts is not None:
            arrays[name] = np.array(texts)
    io.write_arrays(out, arrays)
    for file in folder.glob(f"{PART_NAME}*"):
        file.unlink()
    (folder / ABOUT).unlink()
    folder.rmdir()
    return Written(arrays["features"].shape, run.dataset.skipped)


def _claim(folder: epath.Path, about: dict[str, Any]) -> None:
    """Creates the folder of parts, or checks that its parts are those of the same call."""
    file, about = folder / ABOUT, io.plain(about)
    if not file.exists():
        if folder.exists() and any(folder.iterdir()):
            raise InputError(
                f"{folder} must be a new folder for parts of the features; got one with other "
                "files: choose another --out"
            )
        folder.mkdir(parents=True, exist_ok=True)
        io.write_json(file, about)
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


def _embedder(built: build.BuiltRun, views: int) -> EmbedViews:
    """The frozen network of a run, applied to images and to views of them."""
    config, mesh = built.config, built.training.mesh
    heads = dataclasses.replace(config.network, projector=None, predictor=None)
    net, augment = network.make(heads), data_views.make(config.augment)
    shape = (1, *built.training.shape)
    params, stats = jax.eval_shape(net.init, jax.random.key(0), jax.ShapeDtypeStruct(shape, float))
    loaded = weights.load(str(heads.weights), heads.name, params["backbone"], stats["backbone"])
    replicated = NamedSharding(mesh, PartitionSpec())
    backbone = jax.device_put([{"backbone": tree} for tree in loaded], replicated)
    root = jax.random.key(config.seed)

    # The weights are arguments: as constants they would be compiled into the program.
    @functools.partial(jax.jit, out_shardings=replicated)
    def clean(backbone: Any, images: Array) -> Array:
        x = jax.vmap(augment.clean)(images)
        return net.forward(backbone[0], backbone[1], x, train=False, axis=None).representation

    @functools.partial(jax.jit, out_shardings=replicated)
    def view(backbone: Any, images: Array, index: Array, number: Array) -> Array:
        keys = image_keys(jax.random.fold_in(root, number), index)
        x = jax.vmap(augment.view)(keys, images)
        return net.forward(backbone[0], backbone[1], x, train=False, axis=None).representation

    def embed(images: Array, index: Array) -> NDArray:
        rows = [clean(backbone, images)]
        rows += [view(backbone, images, index, jnp.int32(number)) for number in range(views)]
        return np.stack(jax.device_get(rows), axis=1)

    return embed


def _embed_parts(
    run: TrainingRun, embed: EmbedViews, batch_size: int, folder: epath.Path
) -> NDArray:
    """Features of all images, float32 `[n, 1 + views, d]`; each part is written when it is done."""
    (axis,) = run.mesh.axis_names
    sharded = NamedSharding(run.mesh, PartitionSpec(axis))
    batch_size = -(-min(batch_size, run.dataset.size) // run.mesh.size) * run.mesh.size
    starts = range(0, run.dataset.size, PART)
    bar = tqdm(total=run.dataset.size, unit="image", desc="embedding", file=sys.stderr, delay=2.0)
    parts = []
    with bar:
        for start in starts:
            file = folder / f"{PART_NAME}{start:09d}.npz"
            members = np.arange(start, min(start + PART, run.dataset.size))
            if file.exists():
                parts.append(_read(file))
                bar.update(len(members))
                continue
            rows = []
            part = select(run.dataset, members)
            for images, index, count in batches.evaluation(
                part, batch_size=batch_size, process=0, processes=1
            ):
                # Keys of the views come from an image's place in the whole set.
                placed = jax.device_put((images, index + np.int32(start)), sharded)
                rows.append(embed(*placed)[:count])
                bar.update(count)
            parts.append(np.concatenate(rows))
            io.write_arrays(file, {"features": parts[-1]})
    return np.concatenate(parts)


def _read(file: epath.Path) -> NDArray:
    try:
        return io.read_arrays(file)["features"]
    except Exception as error:  # zipfile and zlib have errors of their own
        raise InputError(
            f"{file} must be a part that this command has written; got a damaged file: delete it, "
            "and run the same command again"
        ) from error
