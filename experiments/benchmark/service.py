"""One photo at a time, as a service places it, beside PyTorch and ONNX Runtime.

A call takes JPEG files of 640 x 480 pixels: ours decodes, embeds and places them
(`ImageClusterer.locate`); the peers decode them by the same function and run the same network, as
in `embed`, and place nothing.
"""

import functools
import pathlib
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from experiments.benchmark import _measure, embed

PHOTOS, WIDTH, HEIGHT, SEED, REPEATS = 64, 640, 480, 0, 20
SIZES = (1, 8, 64)


def measure() -> dict[str, Any]:
    """Seconds of calls of so many photos, and their ratios."""
    with tempfile.TemporaryDirectory() as folder:
        photos, run = _photos(pathlib.Path(folder)), f"{folder}/run"
        _measure.alone(_fit, photos, run)
        return _beside(run, photos)


def _photos(folder: pathlib.Path) -> list[str]:
    rng, files = np.random.default_rng(SEED), []
    (folder / "photos").mkdir()
    for i in range(PHOTOS):
        small = rng.integers(0, 256, (6, 8, 3), np.uint8)
        picture = Image.fromarray(small).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        files.append(str(folder / "photos" / f"{i}.jpg"))
        picture.save(files[-1])
    return files


def _fit(photos: Sequence[str], run: str) -> None:
    import cluster_jax

    folder = str(pathlib.Path(photos[0]).parent)
    by_pca = {"eval.reduce": "pca"}  # A service shows no map.
    cluster_jax.ImageClusterer(workdir=run, overrides=by_pca, verbose=False).fit(folder)


def _beside(run: str, photos: Sequence[str]) -> dict[str, Any]:
    import onnxruntime
    import torch

    import cluster_jax
    from cluster_jax.data import decode
    from cluster_jax.nets import pretrained

    model = cluster_jax.load(run).warm_up()
    network = pretrained.overrides(model.results_["config"]["encoder"])["name"]
    eager, session = embed._torch()
    resize = decode.Resize(embed.SIDE, "bilinear")

    def decoded(files: Sequence[str]) -> np.ndarray:
        read = [pathlib.Path(file).read_bytes() for file in files]
        return np.stack([decode.decode(data, resize, 3) for data in read])

    sides: dict[str, Callable[[Sequence[str]], object]] = {
        "ours": lambda files: model.locate(list(files)),
        "torch": lambda files: eager(decoded(files)),
        "onnxruntime": lambda files: session(decoded(files)),
    }
    times, ratios = {}, {}
    for size in SIZES:
        calls = {name: functools.partial(call, photos[:size]) for name, call in sides.items()}
        _measure.alternate(calls, 1)
        taken = _measure.alternate(calls, REPEATS if size < PHOTOS else 5)
        times[str(size)] = {name: _measure.spread(values) for name, values in taken.items()}
        ratios[str(size)] = {
            f"ours / {peer}": _measure.ratios(taken["ours"], taken[peer])
            for peer in ("torch", "onnxruntime")
        }
    return {
        "seconds": times,
        "ratio": ratios,
        "network": network,
        "torch": torch.__version__,
        "onnxruntime": onnxruntime.__version__,
    }
