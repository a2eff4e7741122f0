"""Writes the features of images by a pretrained network into one file, as data for training."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath

from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.data.splits import NovelConfig
from cluster_jax.pipeline import build, parts, pretrained_features
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.config import parse_config
from cluster_jax.pipeline.embed import embed, readable_images, readable_rows
from cluster_jax.pipeline.parts import Parts
from cluster_jax.training import state as states


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
        InputError: the config has no pretrained network, or the file exists.
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
    (config, dataset, _), mesh = build.load_inputs(config), states.make_mesh()
    folder = parts.folder_of(out)
    kept = {key: values[key] for key in ("seed", "data", "augment", "network")}
    images = workdirs.describe_images(dataset)
    about = {**kept, "views": views, "images": images}
    made_from = workdirs.fingerprint(json.dumps(io.plain(about), sort_keys=True).encode())
    network = pretrained_features.make(config, config.network, dataset.shape[2], mesh, views)
    embedded = embed(
        network.forward,
        dataset,
        batch_size=config.eval.batch_size,
        mesh=mesh,
        kept=Parts(folder, made_from),
    )
    dataset, features = readable_images(dataset, embedded), readable_rows(embedded)["features"]
    arrays = {"features": features if views else features[:, 0]}
    if dataset.labels is not None:
        arrays["labels"] = dataset.labels
    for name, texts in (("label_names", dataset.label_names), ("files", dataset.sources)):
        if texts is not None:
            arrays[name] = np.array(texts)
    io.write_arrays(out, arrays)
    parts.remove(folder)
    return Written(arrays["features"].shape, dataset.skipped)
