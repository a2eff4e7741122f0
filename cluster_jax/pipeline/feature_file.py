"""Writes the features of images by a pretrained network into one file, or into shards."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath

from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.data.images import select
from cluster_jax.data.splits import NovelConfig
from cluster_jax.pipeline import build, parts
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.config import parse_config
from cluster_jax.pipeline.embed import embed, pretrained, readable_images, readable_rows
from cluster_jax.pipeline.parts import Batch, Parts
from cluster_jax.training import state as states

# Labels and names of the rows of all shards, in their folder.
ROWS = "rows.npz"


class Written(NamedTuple):
    """Shape of the features, and path and reason of each file that could not be read."""

    shape: tuple[int, ...]
    skipped: tuple[tuple[str, str], ...]


def write(values: Mapping[str, Any], out: epath.PathLike, views: int) -> Written | None:
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
        What was written; None if another process has written it.

    Raises:
        InputError: the config has no pretrained network, the file exists, or the folder has shards
            of another number of processes.
    """
    out, process, processes = epath.Path(out).expanduser(), jax.process_index(), jax.process_count()
    in_shards = out.suffix != ".npz"
    file = out / ROWS if in_shards else out
    if file.exists():
        raise InputError(f"--out must be new; got {out}, which exists")
    shard = f"features-{process:05d}-of-{processes:05d}.npy"
    if in_shards:
        if views:
            raise InputError(f"--views must be 0 for shards; got {views}: name an .npz file")
        others = {*out.glob("*.npy")} - {*out.glob(f"*{shard[-13:]}")} if out.exists() else ()
        if others:
            raise InputError(
                f"--out must be new, or have shards of as many processes, {processes}; got {out} "
                f"with {min(others).name}"
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
    folder = parts.folder_of(out)
    kept = {key: values[key] for key in ("seed", "data", "augment", "network")}
    images = workdirs.describe_images(dataset)
    about = {**kept, "views": views, "images": images}
    made_from = workdirs.fingerprint(json.dumps(io.plain(about), sort_keys=True).encode())
    network = pretrained(config, dataset.shape[2], mesh, views)
    batch_size = max(1, config.eval.batch_size // processes)
    rows = parts.share(dataset.size, batch_size)

    def make(kept: Parts) -> Batch:
        embedded = embed(
            network.forward, dataset, batch_size=batch_size, mesh=mesh, rows=rows, kept=kept
        )
        features = readable_rows(embedded)["features"]
        features = features if views else features[:, 0]
        own = select(dataset._replace(images=None), np.array(rows))
        own = readable_images(own, embedded)
        skipped = np.array(own.skipped, str).reshape(-1, 2)
        arrays = {"shape": np.array([features.shape]), "skipped": skipped}
        if in_shards:
            out.mkdir(exist_ok=True)
            partial = out / f".{shard}.partial"
            with partial.open("wb") as content:
                np.save(content, features)
            partial.replace(out / shard)
        else:
            arrays["features"] = features
        if own.labels is not None:
            arrays["labels"] = own.labels
        return arrays if own.sources is None else {**arrays, "files": np.array(own.sources)}

    arrays = parts.shared(Parts(folder, made_from), make)
    if arrays is None:
        return None
    shapes, skipped = arrays.pop("shape"), arrays.pop("skipped").tolist()
    if dataset.label_names is not None:
        arrays["label_names"] = np.array(dataset.label_names)
    io.write_arrays(file, arrays)
    parts.remove(folder)
    return Written((int(shapes[:, 0].sum()), *shapes[0, 1:].tolist()), tuple(map(tuple, skipped)))
