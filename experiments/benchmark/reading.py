"""Requests and seconds of a training's labels and images, in blocks of records and one by one.

CIFAR-10 of `$CLUSTER_JAX_TEST_DATA/tfds` is read from the disk, and from a storage server of the
loopback (that of the tests, not Google's) that fails one request in twenty. Batches are those of
one process. Single records of the server are so slow that fewer are read; requests are counted for
the same number of images by proportion.
"""

import os
import pathlib
import tempfile
import time
from typing import Any

from cluster_jax.data import batches, datasets, tfds
from tests.faults.gcs_server import CUT, Server, every

IMAGES, SINGLE_IMAGES, BATCH, FAILING = 20_000, 1_024, 256, 20
SET = {
    "name": "cifar10", "split": f"train[:{IMAGES}]", "label": "label", "image_size": None,
    "interpolation": "bicubic", "limit": None, "cache_mb": 0.0, "max_corrupt_fraction": 0.0,
}  # fmt: skip


def measure() -> dict[str, Any]:
    """Requests and seconds for the labels, and for batches in blocks and of single records."""
    folder, server = pathlib.Path(os.environ["CLUSTER_JAX_TEST_DATA"]) / "tfds", Server("bucket")
    os.environ.update(server.environment, CLOUD_STORAGE_EMULATOR_ENDPOINT=server.url)
    for file in (folder / "cifar10" / "3.0.2").iterdir():
        server.put("bucket", f"tfds/cifar10/3.0.2/{file.name}", file.read_bytes())
    asked: list[object] = []
    server.faults += [asked.append, every(FAILING, (503, CUT), where="array_record")]
    try:
        return {
            "local": _figures(str(folder), [], IMAGES),
            "bucket": _figures("gs://bucket/tfds", asked, SINGLE_IMAGES),
        }
    finally:
        server.close()


def _figures(folder: str, asked: list[object], singles: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as run:
        _, first = _loaded(folder, run, asked)
        dataset, later = _loaded(folder, run, asked)
    single = dataset._replace(block_of=None, read_ahead=None)
    return {
        "labels": first,
        "labels_at_a_later_start": later,
        "blocks": _batches(dataset, asked, IMAGES),
        "single": _batches(single, asked, singles),
    }


def _loaded(folder: str, run: str, asked: list[object]) -> tuple[datasets.Dataset, dict[str, Any]]:
    """Opens the set, with labels that a file in the folder of a run has or gets."""
    asked.clear()
    start = time.perf_counter()
    labels = tfds.Labels(pathlib.Path(run) / "labels.npz")
    dataset = datasets.load(datasets.DataConfig(dir=folder, **SET), kept=labels)
    labels.write()
    return dataset, {"requests": len(asked), "seconds": time.perf_counter() - start}


def _batches(dataset: datasets.Dataset, asked: list[object], images: int) -> dict[str, Any]:
    asked.clear()
    start, steps = time.perf_counter(), images // BATCH
    stream = batches.stream(
        dataset, seed=0, batch_size=BATCH, labeled=None, steps=range(steps),
        prefetch=2,
    )  # fmt: skip
    for _ in stream:
        pass
    share = IMAGES / (steps * BATCH)
    seconds = time.perf_counter() - start
    return {
        "images": steps * BATCH,
        "requests": round(len(asked) * share),
        "seconds": seconds * share,
    }
