"""Peak memory of commands of the guide, and of a service, each in a process of its own, on Linux.

120 photos of 224 x 224 pixels are cut from the two of scikit-learn, and 300 rows of 64 columns are
three groups. The service is `load`, `warm_up(1)` and one photo, without a web server. Nothing is
compiled beforehand, which takes more memory than a program that is kept. The figures are what Linux
calls VmHWM, the most memory that was resident at once, in 10^6 bytes.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn import datasets

PHOTOS, SIDE, ROWS, COLUMNS, SEED = 120, 224, 300, 64, 0
COMMANDS = {
    "images": "images photos --workdir=run",
    "predict": "predict --workdir=run --images=photos",
    "images, less": "images photos --workdir=less --config.eval.batch_size=8 "
    "--config.eval.reduce=pca",
    "cluster": "cluster --features=x.npy --workdir=rows",
}
_RUN = "from cluster_jax.cli import app; app.main(sys.argv[1:])"
_SERVE = "from cluster_jax import ImageClusterer; ImageClusterer.load('run').warm_up(1).assign({})"
# The process says at its end what it has used: what its parent is told includes the parent's own.
_BEFORE = """import atexit, pathlib, sys
used = pathlib.Path("/proc/self/status")
atexit.register(lambda: pathlib.Path("used").write_text(used.read_text()))
"""


def measure() -> dict[str, dict[str, float]]:
    """Megabytes of each command, and of the service."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        found = {name: peak(folder, _RUN, *words.split()) for name, words in COMMANDS.items()}
        found["service"] = peak(folder, _SERVE.format(["photos/0.jpg"]))
    return {"megabytes": found}


def write(folder: Path) -> None:
    """Writes the photos and the rows into a folder."""
    rng = np.random.default_rng(SEED)
    (folder / "photos").mkdir()
    wholes = datasets.load_sample_images().images
    for i in range(PHOTOS):
        whole = wholes[i % len(wholes)]
        top, left = (rng.integers(size - SIDE) for size in whole.shape[:2])
        part = np.ascontiguousarray(whole[top : top + SIDE, left : left + SIDE])
        Image.fromarray(part).save(folder / f"photos/{i}.jpg")
    centers = 4 * rng.normal(size=(3, COLUMNS))[np.arange(ROWS) % 3]
    np.save(folder / "x.npy", (centers + rng.normal(size=(ROWS, COLUMNS))).astype(np.float32))


def peak(folder: str, program: str, *words: str) -> float:
    """The megabytes that a program in Python takes at most; its current folder is `folder`."""
    command = [sys.executable, "-c", f"{_BEFORE}{program}", *words]
    with tempfile.TemporaryDirectory() as empty:
        compiled = {"XDG_CACHE_HOME": empty, "JAX_COMPILATION_CACHE_DIR": ""}
        subprocess.run(command, cwd=folder, env={**os.environ, **compiled}, check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+)", Path(folder, "used").read_text())
    return int(kilobytes) * 1024 / 1e6
