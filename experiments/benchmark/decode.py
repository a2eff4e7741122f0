"""Images/s that one core decodes and resizes, by the number of threads (`data.threads`).

The JPEG photos are the two of scikit-learn, of 640 x 427 pixels; ImageNet's have about 400 x 350.
They are decoded and resized to 256 pixels as in `configs/nrcc_imagenet.py`, from memory, so that no
disk is measured. Views are made on the accelerator, and are no part of this. `small` are JPEGs of
8 x 8 pixels, whose time is Python's, in which one thread runs at a time: no host reads more
images/s than these, however many cores it has.
"""

import io
import time
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn import datasets

from cluster_jax.core import devices
from cluster_jax.data.images import DataConfig, ItemReader

COUNT, BATCH, SIDE, THREADS = 400, 100, 256, (1, 2, 8, 32, 64)
SMALL, SMALL_COUNT = 8, 4_000


def measure() -> dict:
    """Images per second of the machine and per CPU second, by the number of threads."""
    files = [Path(file).read_bytes() for file in datasets.load_sample_images().filenames]
    Image.new("RGB", (SMALL, SMALL)).save(small := io.BytesIO(), "JPEG")
    return {
        "cores": devices.cores(),
        "threads": {str(n): _measured(files, n, COUNT, SIDE) for n in THREADS},
        "small": {str(n): _measured([small.getvalue()], n, SMALL_COUNT, SMALL) for n in THREADS},
    }


def _measured(files: list[bytes], threads: int, count: int, side: int) -> dict[str, float]:
    config = DataConfig(
        "folder", None, None, "label", image_size=side, interpolation="bicubic", limit=None,
        cache_mb=0.0, max_corrupt_fraction=0.0, threads=threads,
    )  # fmt: skip
    names = [f"{i}.jpg" for i in range(count)]
    reader = ItemReader(lambda i: files[i % len(files)], names, config, "memory")
    reader.fetch(np.arange(BATCH))
    start, cpu = time.perf_counter(), time.process_time()
    for first in range(0, count, BATCH):
        reader.fetch(np.arange(first, first + BATCH))
    wall, used = time.perf_counter() - start, time.process_time() - cpu
    return {"images_per_second": count / wall, "per_cpu_second": count / used}
