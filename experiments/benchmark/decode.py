"""Decoding of photos: at a fraction of their size, and with random crops of the whole image.

A photo is decoded, resized, and embedded by the network of the config `images`, once with the
package's `decode` and once from all of its pixels. Photos that are too small for a fraction are
decoded and cropped twice at random, as `data.crop` "host" does for the two views of a training
step, beside Pillow's own `open`, `convert`, `crop` and `resize` with the same boxes.
"""

import io
import pathlib
import statistics
import time
from typing import Any

import jax.numpy as jnp
import numpy as np
from PIL import Image

from cluster_jax.core import arrays
from cluster_jax.core.checks import InputError
from cluster_jax.core.config import load_config
from cluster_jax.data import host_crops, images
from cluster_jax.encoding.encoder import Encoder
from cluster_jax.pipeline.config import parse_config
from cluster_jax.training import state as states
from experiments.benchmark import _measure

REPEATS = 3
CROPS = images.HostCrops(224, (0.2, 1.0), (3 / 4, 4 / 3), "bilinear")
CROPPED = 200  # at most so many photos
# Written before measuring: a photo of 500 x 375 takes Pillow about 2.5 ms to decode and 0.6 ms for
# each crop; drawing the boxes, the EXIF tags and the copies of two crops add 0.15 ms.
PREDICTED_CROP_RATIO = 0.96


def measure(folder: str | None) -> dict[str, Any]:
    """Rate of random crops over Pillow's; of large photos also `_fractions`."""
    files = sorted(pathlib.Path(folder).expanduser().rglob("*.jp*g")) if folder else []
    sides = {file: min(Image.open(file).size) for file in files}
    large = [file for file in files if sides[file] >= 4 * CROPS.size]
    small = [file for file in files if CROPS.size <= sides[file] < 4 * CROPS.size]
    if not large and not small:
        raise InputError(
            f"--data must be a folder of JPEG photos of at least {CROPS.size} pixels a side; "
            f"got {folder}"
        )
    figures: dict[str, Any] = {}
    if small:
        small = small[:: max(1, len(small) // CROPPED)][:CROPPED]
        figures["crop_rate_over_pillow"] = _crop_ratio(small)
        figures["crop_rate_over_pillow"]["photos"] = _about(small)
    if large:
        figures |= _fractions(large)
    return figures


def _about(files: list[pathlib.Path]) -> dict[str, Any]:
    """Number and size of photos."""
    megapixels = [np.prod(Image.open(file).size) / 1e6 for file in files]
    return {"count": len(files), "megapixels": _measure.spread(megapixels)}


def _fractions(files: list[pathlib.Path]) -> dict[str, Any]:
    """CPU times of both ways, alternately, and the cosines between their features."""
    config = parse_config(load_config("images"))
    resize = config.data.resize
    fraction, full = [], []
    for _ in range(REPEATS):
        fraction.append(_time(lambda data: images.decode(data, resize, 3), files))
        full.append(_time(lambda data: _decode_fully(data, resize), files))
    encode = Encoder.pretrained().on(states.make_mesh())

    def embed(decode):
        pixels = jnp.stack([decode(file.read_bytes(), resize) for file in files])
        return arrays.normalize_rows(np.asarray(encode(pixels)))

    rows = embed(lambda data, resize: images.decode(data, resize, 3)), embed(_decode_fully)
    cosines = np.sum(rows[0] * rows[1], axis=1)
    seconds = {"fraction": fraction, "full": full}
    return {
        "cpu_ms_per_photo": {k: 1e3 * statistics.median(v) for k, v in seconds.items()},
        "time_ratio": _measure.ratios(fraction, full),
        "cosine": _measure.spread(cosines),
        "photos": _about(files),
    }


def _crop_ratio(files: list[pathlib.Path]) -> dict[str, Any]:
    """Rate of decoding and two crops over Pillow's with equal boxes, alternately, in CPU time."""
    contents = [file.read_bytes() for file in files]
    boxes = [
        [
            host_crops.random_box(row, *Image.open(file).size, CROPS)
            for row in host_crops.random_draws(0, 0, i)
        ]
        for i, file in enumerate(files)
    ]

    def pillow(i: int) -> np.ndarray:
        image = Image.open(io.BytesIO(contents[i])).convert("RGB")
        views = []
        for left, top, w, h in boxes[i]:
            view = image.crop((left, top, left + w, top + h))
            views.append(np.asarray(view.resize((CROPS.size,) * 2, Image.Resampling.BILINEAR)))
        return np.stack(views)

    dataset = images.Dataset(
        "photos", len(files), (256, 256, 3), None, lambda i: i,
        read=lambda i, decode: decode(contents[i]), crops=CROPS,
    )  # fmt: skip
    every, theirs, ours = np.arange(len(files)), [], []
    assert (host_crops.fetch(dataset, every[:1], seed=0, step=0)[0] == pillow(0)).all()
    for _ in range(4 * REPEATS):
        start = time.process_time()
        images.map_indices(pillow, every)
        middle = time.process_time()
        host_crops.fetch(dataset, every, seed=0, step=0)
        theirs.append(middle - start)
        ours.append(time.process_time() - middle)
    return {"ratio": _measure.ratios(theirs, ours)}


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
