"""One photo at a time, as a service places it, beside PyTorch and ONNX Runtime; start and memory.

A call takes JPEG files of 640 x 480 pixels: ours decodes, embeds and places them
(`ImageClusterer.locate`); the peers decode them by the same function and run the same network, as
in `embed`, and place nothing. The start is that of a new process: imports, `load`, and the first
answer, without and with JAX's compilation cache of an earlier start; the memory is that after 50
photos.
"""

import concurrent.futures
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from experiments.benchmark import _measure, embed

PHOTOS, WIDTH, HEIGHT, REPEATS, SEED = 64, 640, 480, 20, 0
SIZES, CLIENTS, REQUESTS = (1, 8, 64), 4, 10
# Packages that nothing here needs, and that scikit-learn and Pillow's readers load where they are.
OPTIONAL = ("pandas", "pillow_heif")
START = """
import json, pathlib, sys, time
sys.modules.update(dict.fromkeys(sys.argv[3:]))  # as if they were not installed
start = time.perf_counter()
import cluster_jax
model = cluster_jax.load(sys.argv[1])
loaded = time.perf_counter()
model.warm_up(1)
ready = time.perf_counter()
for _ in range(50):
    model.locate(sys.argv[2])
answered = time.perf_counter()
status = pathlib.Path("/proc/self/status").read_text().splitlines()
mb = {line.split(":")[0]: int(line.split()[1]) / 1e3 for line in status if line.endswith(" kB")}
print(json.dumps({
    "load": loaded - start,
    "warm_up": ready - loaded,
    "photo": (answered - ready) / 50,
    "resident_mb": mb["VmRSS"],
    "of_its_own_mb": mb["RssAnon"],
    "peak_mb": mb["VmHWM"],
}))
"""


def measure() -> dict[str, Any]:
    """Seconds of calls and their ratios, of the start, of four clients, and MB of memory."""
    with tempfile.TemporaryDirectory() as folder:
        photos, run = _photos(pathlib.Path(folder)), str(pathlib.Path(folder, "run"))
        _measure.alone(_fit, photos, run)
        cache = str(pathlib.Path(folder, "cache"))
        set_ = {
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        trimmed = {**set_, "MALLOC_TRIM_THRESHOLD_": "131072"}
        starts = {
            name: _start(run, photos[0], variables, hidden)
            for name, variables, hidden in (
                ("first", set_, ()),
                ("with a compilation cache", set_, ()),
                ("and without optional packages", set_, OPTIONAL),
                ("and with MALLOC_TRIM_THRESHOLD_=131072", trimmed, OPTIONAL),
            )
        }
        return {"start": starts, **_beside(run, photos)}


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
    cluster_jax.ImageClusterer(workdir=run, verbose=False).fit(folder)


def _start(
    run: str, photo: str, environment: dict[str, str], hidden: Sequence[str]
) -> dict[str, float]:
    start = time.perf_counter()
    command = [sys.executable, "-c", START, run, photo, *hidden]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return {"whole": time.perf_counter() - start, **json.loads(done.stdout)}


def _beside(run: str, photos: Sequence[str]) -> dict[str, Any]:
    import onnxruntime
    import torch

    import cluster_jax
    from cluster_jax.data import images

    model = cluster_jax.load(run).warm_up()
    network = model.results_["config"]["network"]["name"]
    eager, session = embed._torch(network)
    resize = images.Resize(embed.SIDE, "bilinear")

    def decoded(files: Sequence[str]) -> np.ndarray:
        read = [pathlib.Path(file).read_bytes() for file in files]
        return np.stack([images.decode(data, resize, 3) for data in read])

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
        "clients": {name: _clients(call, photos) for name, call in sides.items()},
        "network": network,
        "torch": torch.__version__,
        "onnxruntime": onnxruntime.__version__,
    }


def _clients(call: Callable[[Sequence[str]], object], photos: Sequence[str]) -> dict[str, float]:
    """Seconds of a request, and requests a second, of clients that each ask without a pause."""

    def client(number: int) -> list[float]:
        return [_measure.seconds(call, [photos[number + CLIENTS * i]]) for i in range(REQUESTS)]

    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        taken = [seconds for times in pool.map(client, range(CLIENTS)) for seconds in times]
    every = time.perf_counter() - start
    return {
        "median_seconds": statistics.median(taken),
        "highest_seconds": max(taken),
        "requests_per_second": len(taken) / every,
    }
