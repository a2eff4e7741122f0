"""Streaming: a folder of 1.28 million names starts, memory stays flat, and the step does not wait.

Generated JPEGs of 256 pixels lie in a temporary folder, which is removed afterward; names beyond
the number of different files are hard links, which cost a folder's reader the same. Each figure is
measured in a process of its own.
"""

import dataclasses
import os
import pathlib
import tempfile
import time
from typing import Any

import numpy as np
from PIL import Image

from cluster_jax.core.config import load_config, parse_section
from cluster_jax.data import batches, datasets, host_crops, views
from cluster_jax.data.images import DataConfig, Dataset
from cluster_jax.pipeline import workdir
from experiments.benchmark import _measure

NAMES, CLASSES = 1_280_000, 1_000
HEADERS = 10_000  # files whose headers are read, for comparison
SIZES = (20_000, 200_000)
DIFFERENT = 1_000  # generated files
SIDE, BATCH, STEPS = 256, 64, 60
# Written before measuring. Start: 1.28 million entries at 2 us for a listing and 2 us for sorting,
# labels and the order of an epoch, and a second for the first batch. Memory: 180,000 more names of
# 100 bytes beside 330 MB.
# Wait: a batch is ready before it is needed where the step takes 1/0.9 of the decoding.
PREDICTED = {"seconds_to_first_batch": 8.0, "peak_memory_ratio": 1.05, "wait": 0.02}


def measure() -> dict[str, Any]:
    """Seconds and memory until the first batch; memory over sizes; share of time waited."""
    with tempfile.TemporaryDirectory() as root:
        different = _write_images(pathlib.Path(root) / "different")
        names = pathlib.Path(root) / "names"
        _link(different, names, NAMES)
        start = _measure.alone(_start, str(names))
        streams = {}
        for size in SIZES:
            _link(different, pathlib.Path(root) / str(size), size)
            for crop in ("square", "host"):
                folder = str(pathlib.Path(root) / str(size))
                # Crops of the host are four times as slow: not all files are read.
                steps = size // BATCH if crop == "square" else STEPS
                streams[f"{crop} {size}"] = _measure.alone(_stream, folder, crop, steps)
    small, large = SIZES
    return {
        "start": start,
        "streams": streams,
        "peak_memory_ratio": {
            crop: streams[f"{crop} {large}"]["peak_mb"] / streams[f"{crop} {small}"]["peak_mb"]
            for crop in ("square", "host")
        },
    }


def _write_images(folder: pathlib.Path) -> list[pathlib.Path]:
    """JPEGs of smooth colors with noise, about 20 kB each."""
    folder.mkdir()
    rng, files = np.random.default_rng(0), []
    for i in range(DIFFERENT):
        small = Image.fromarray(rng.integers(0, 256, (8, 10, 3), dtype=np.uint8))
        pixels = np.asarray(small.resize((SIDE * 5 // 4, SIDE), Image.Resampling.BICUBIC), np.int16)
        pixels = np.clip(pixels + rng.normal(0, 8, pixels.shape), 0, 255).astype(np.uint8)
        files.append(folder / f"{i}.jpg")
        Image.fromarray(pixels).save(files[-1], quality=85)
    return files


def _link(files: list[pathlib.Path], folder: pathlib.Path, count: int) -> None:
    """`count` hard links in `CLASSES` folders."""
    for label in range(CLASSES):
        target = folder / f"class{label:04d}"
        target.mkdir(parents=True)
        source, prefix = str(files[label % len(files)]), f"{target}/image_{label:04d}_"
        for i in range(count // CLASSES):
            os.link(source, f"{prefix}{i:06d}.jpg")


def _config(folder: str, crop: str) -> DataConfig:
    values = load_config("nrcc_imagenet").data.to_dict()
    values |= {"name": "folder", "dir": folder, "split": None, "crop": crop}
    return parse_section(DataConfig, "data", values)


def _load(config: DataConfig) -> Dataset:
    augment = parse_section(views.AugmentConfig, "augment", load_config("nrcc_imagenet").augment)
    dataset = datasets.load(config)
    return host_crops.with_crops(dataset, config, augment) if config.crop == "host" else dataset


def _batches(dataset: Dataset, steps: int):
    return batches.stream(
        dataset, seed=0, batch_size=BATCH, labeled=None, start=0, stop=steps, process=0,
        processes=1, prefetch=2,
    )  # fmt: skip


def _start(folder: str) -> dict:
    """From the config to the first batch; and what reading all headers would take."""
    config, before = _config(folder, "square"), _measure.memory_mb("VmRSS")
    start = time.perf_counter()
    dataset = _load(config)
    loaded = time.perf_counter()
    workdir.describe_images(dataset)
    described = time.perf_counter()
    stream = _batches(dataset, 1)
    next(stream)
    seconds, memory = time.perf_counter() - start, _measure.memory_mb("VmRSS")
    stream.close()
    assert dataset.sources is not None
    header = time.perf_counter()
    for name in dataset.sources[:: dataset.size // HEADERS][:HEADERS]:
        with Image.open(f"{folder}/{name}") as image:
            assert image.size
    header = (time.perf_counter() - header) / HEADERS
    return {
        "seconds_to_first_batch": seconds,
        "seconds_of_names": loaded - start,
        "seconds_of_fingerprint": described - loaded,
        "resident_mb": memory,
        "resident_mb_before": before,
        "seconds_of_all_headers": header * dataset.size,
    }


def _stream(folder: str, crop: str, steps: int) -> dict:
    """Memory after all batches; the rate of decoding, and the wait of a step that is slower."""
    dataset = _load(dataclasses.replace(_config(folder, crop), cache_mb=0.0))
    stream = _batches(dataset, 4 + steps + STEPS)
    for _ in range(4):
        next(stream)
    start = time.perf_counter()
    for _ in range(steps):
        next(stream)
    seconds = (time.perf_counter() - start) / steps
    waited, start = 0.0, time.perf_counter()
    for _ in range(STEPS):
        before = time.perf_counter()
        next(stream)
        waited += time.perf_counter() - before
        time.sleep(seconds / 0.9)  # the step, on a device
    return {
        "images_per_second": BATCH / seconds,
        "wait": waited / (time.perf_counter() - start),
        "resident_mb": _measure.memory_mb("VmRSS"),
        "peak_mb": _measure.memory_mb(),
    }
