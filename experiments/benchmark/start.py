"""The start and the memory of a service of photos: a new process imports, loads and answers.

The starts differ in what is there: without and with JAX's compilation cache of an earlier start,
without packages that nothing here needs, and with another setting of malloc, which gives freed
memory back at once. Seconds are those of each step, the memory that after it.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from experiments.benchmark import _measure

PHOTOS, WIDTH, HEIGHT, SEED = 64, 640, 480, 0
# Packages that nothing here needs, and that scikit-learn and Pillow's readers load where they are.
OPTIONAL = ("pandas", "pillow_heif")
START = """
import json, pathlib, sys, time
sys.modules.update(dict.fromkeys(sys.argv[3:]))  # as if they were not installed
seconds, mb, last = {}, {}, time.perf_counter()

def done(step):
    global last
    now = time.perf_counter()
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    kb = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}
    names = {"resident": "VmRSS", "of its own": "RssAnon", "peak": "VmHWM"}
    mb[step] = {name: kb[key] / 1e3 for name, key in names.items()}
    seconds[step], last = now - last, now

import numpy
done("numpy")
import jax
done("jax")
import sklearn.base
done("scikit-learn")
import cluster_jax
model = cluster_jax.load(sys.argv[1])
done("load")
model.warm_up(1)
done("warm_up")
for _ in range(50):
    model.locate(sys.argv[2])
done("50 photos")
print(json.dumps({"seconds": seconds, "mb": mb}))
"""


def measure() -> dict[str, Any]:
    """Seconds and MB of each start."""
    with tempfile.TemporaryDirectory() as folder:
        run, photos = make(pathlib.Path(folder))
        cached = {
            "JAX_COMPILATION_CACHE_DIR": str(pathlib.Path(folder, "cache")),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        trimmed = {**cached, "MALLOC_TRIM_THRESHOLD_": "131072"}
        return {
            name: _start(run, photos[0], variables, hidden)
            for name, variables, hidden in (
                ("first", cached, ()),
                ("with a compilation cache", cached, ()),
                ("and without optional packages", cached, OPTIONAL),
                ("and with MALLOC_TRIM_THRESHOLD_=131072", trimmed, OPTIONAL),
            )
        }


def make(folder: pathlib.Path) -> tuple[str, list[str]]:
    """A run of photos, and these."""
    photos, run = _photos(folder), str(folder / "run")
    _measure.alone(_fit, photos, run)
    return run, photos


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
    by_pca = {"eval.reduce.method": "pca"}  # A service shows no map.
    cluster_jax.ImageClusterer(workdir=run, overrides=by_pca, verbose=False).fit(folder)


def _start(
    run: str, photo: str, environment: dict[str, str], hidden: Sequence[str]
) -> dict[str, float]:
    start = time.perf_counter()
    command = [sys.executable, "-c", START, run, photo, *hidden]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return {"whole": time.perf_counter() - start, **json.loads(done.stdout)}
