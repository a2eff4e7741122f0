"""Decoding of photos: CPU time at a fraction of their size and at full size, and what changes.

A photo is decoded, resized, and embedded by the network of the config `images`, once with the
package's `decode` and once from all of its pixels.
"""

import pathlib
import statistics
import time

import jax.numpy as jnp
import numpy as np
from PIL import Image

from cluster_jax.core import arrays
from cluster_jax.core.checks import InputError
from cluster_jax.core.config import load_config
from cluster_jax.data import images
from cluster_jax.pipeline import pretrained_features
from cluster_jax.pipeline.config import parse_config
from cluster_jax.training import state as states

REPEATS = 3


def measure(folder: str | None) -> tuple[dict, dict]:
    """CPU times of both ways, alternately, and the cosines between their features."""
    config = parse_config(load_config("images"))
    resize = config.data.resize
    files = sorted(pathlib.Path(folder).expanduser().rglob("*.jp*g")) if folder else []
    files = [file for file in files if min(Image.open(file).size) >= 4 * resize.side]
    if not files:
        raise InputError(
            f"--data must be a folder of JPEG photos of at least {4 * resize.side} pixels a side; "
            f"got {folder}"
        )
    ratios, seconds = [], {"fraction": [], "full": []}
    for _ in range(REPEATS):
        fraction = _time(lambda data: images.decode(data, resize, 3), files)
        full = _time(lambda data: _decode_fully(data, resize), files)
        seconds["fraction"].append(fraction)
        seconds["full"].append(full)
        ratios.append(fraction / full)
    mesh = states.make_mesh()
    network = pretrained_features.make(config, config.network, 3, mesh)

    def embed(decode):
        pixels = jnp.stack([decode(file.read_bytes(), resize) for file in files])
        features = network.forward(pixels, jnp.arange(len(files)))["features"][:, 0]
        return arrays.normalize_rows(features)

    rows = embed(lambda data, resize: images.decode(data, resize, 3)), embed(_decode_fully)
    cosines = np.sum(rows[0] * rows[1], axis=1)
    megapixels = [np.prod(Image.open(file).size) / 1e6 for file in files]
    figures = {
        "cpu_ms_per_photo": {k: 1e3 * statistics.median(v) for k, v in seconds.items()},
        "time_ratio": statistics.median(ratios),
        "cosine": {"smallest": cosines.min(), "median": np.median(cosines)},
    }
    setup = {
        "photos": len(files),
        "megapixels": {"median": np.median(megapixels), "largest": max(megapixels)},
        "square": resize.side,
        "network": config.network.name,
        "repeats": REPEATS,
    }
    return figures, setup


def _time(decode, files) -> float:
    """CPU seconds per photo, in one thread."""
    data = [file.read_bytes() for file in files]
    start = time.process_time()
    for content in data:
        decode(content)
    return (time.process_time() - start) / len(files)


def _decode_fully(data, resize):
    pixels = Image.fromarray(images.decode(data, None, 3))
    return np.asarray(images.resize_and_crop(pixels, resize))
