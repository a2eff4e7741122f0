"""Prepared TFDS data sets, read without TensorFlow."""

import functools
import itertools
import os
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils

from cluster_jax.core import buckets, checks
from cluster_jax.core.checks import InputError
from cluster_jax.data import decode, images
from cluster_jax.data.images import DataConfig, Dataset, Decoder

FORMAT = "array_record"  # TFDS's format with random access that needs no TensorFlow
_TOGETHER = 1024  # labels that a process reads before it waits for the others


def load(config: DataConfig, together: bool = False) -> Dataset:
    """Loads a TFDS data set, prepared as array_record, with `image` and optional labels.

    `data.name` is a TFDS name such as `cifar10`, `mnist:3.0.1` or `imagenet_resized/32x32`; without
    a version, the newest prepared version is read. `data.dir` is TFDS's data directory; None:
    `$TFDS_DATA_DIR`, else `~/tensorflow_datasets`. `data.split` is a TFDS split such as `train`,
    `train+test` or `train[:10%]`. If the set is streamed, one pass reads its labels.

    Args:
        config: the section `data`.
        together: whether all processes call this, of which each reads a share of these labels.

    Raises:
        InputError: the set is missing, prepared in a different format, or without images; unknown
            split or label.
    """
    name, label, resize = config.name, config.label, config.resize
    builder, source = _open(name, config.dir, config.split)
    features = dict(builder.info.features.items())
    if label not in features and label != "label":
        must = f"data.label must be a feature of {name}, {', '.join(sorted(features))}"
        raise InputError(f"{must}; got {label!r}")
    label_names = tuple(getattr(features.get(label), "names", None) or ()) or None
    shape = tuple(features["image"].shape)
    channels = shape[-1]
    checks.one_of(f"the number of channels of {name}", channels, (1, 3))
    shape = (resize.side, resize.side, channels) if resize else shape
    if None in shape:
        must = f"images of {name} must have one size"
        raise InputError(f"{must}; got several: set data.image_size to resize and crop them")
    records = images.subset(len(source), config.limit).tolist()
    size = len(records)
    labels = np.empty(size, np.int32) if label in features else None

    def read(row: int, decoder: Decoder) -> np.ndarray:
        record = source[records[row]]
        if labels is not None:
            labels[row] = record[label]
        try:
            return decoder(record["image"])
        # Pillow raises errors of many types on damaged bytes.
        except Exception as error:
            raise InputError(
                f"record {records[row]} of {name} must be a readable image; got an error "
                f"({error}): prepare the data set again"
            ) from error

    if config.fits(size, shape):
        pixels = np.empty((size, *shape), np.uint8)
        square = functools.partial(decode.decode, resize=resize, channels=channels)
        decoded = images.map_threaded(lambda row: read(row, square), range(size), f"reading {name}")
        for row, image in enumerate(decoded):
            pixels[row] = image
        return images.in_memory(name, pixels, config, labels=labels, label_names=label_names)
    if labels is not None:
        labels[:] = _labels(lambda row: source[records[row]][label], size, name, together)
    fetch = images.fetcher(read, resize, channels)
    return Dataset(name, size, shape, None, fetch, labels, label_names, read=read)


def _labels(read: Callable[[int], Any], size: int, name: str, together: bool) -> np.ndarray:
    """Reads all labels, int32 `[size]`, for which whole records have to be read; see `load`."""
    processes = jax.process_count() if together else 1
    share = -(-size // processes)
    first = share * jax.process_index() if together else 0
    rows = [min(row, size - 1) for row in range(first, first + share)]
    stored = images.map_threaded(read, rows, f"reading labels of {name}")
    if processes == 1:
        return np.fromiter(stored, np.int32, size)
    # Some at a time: the first process to come waits half a minute for the last one.
    parts = (
        np.fromiter(itertools.islice(stored, _TOGETHER), np.int32)
        for _ in range(0, share, _TOGETHER)
    )
    gathered = [multihost_utils.process_allgather(part) for part in parts]
    return np.concatenate(gathered, axis=1).ravel()[:size]


def _open(name: str, dir: str | None, split: str | None) -> tuple[Any, Sequence]:
    """Opens TFDS's builder and its data source, which returns undecoded records."""
    dir = dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    root = buckets.path(dir)
    prepare = (
        f"prepare it with TensorFlow (this package's extra tfds) by "
        f"`tfds build {name} --file_format={FORMAT} --data_dir={root}`"
    )
    folder = _version(root, name)
    if folder is None:
        sources = "digits, folder, arrays, or a prepared TFDS set"
        raise InputError(f"data.name must be {sources}; got '{name}': if TFDS has it, {prepare}")
    with warnings.catch_warnings():
        # TFDS's import warns about its own dependencies.
        warnings.simplefilter("ignore")
        import tensorflow_datasets as tfds
    builder = tfds.builder_from_directory(folder)
    formats = sorted(form.value for form in builder.info.available_file_formats())
    if FORMAT not in formats:
        content = f"{', '.join(formats)}, which only TensorFlow reads: {prepare}"
        raise InputError(f"{folder} must be prepared as {FORMAT}; got {content}")
    splits = ", ".join(sorted(builder.info.splits))
    if not split:
        raise InputError(f"data.split must be a split of {name}, {splits}; got none")
    if "image" not in builder.info.features:
        content = ", ".join(builder.info.features)
        raise InputError(f"{name} must have a feature 'image'; got {content}")
    # Pillow decodes the images, so that images of all sources are resized in the same way.
    raw = {"image": tfds.decode.SkipDecoding()}
    try:
        return builder, builder.as_data_source(split=split, decoders=raw)
    except ValueError as error:
        must = f"data.split must select from the splits of {name}, {splits}"
        raise InputError(f"{must}; got '{split}'") from error


def _version(root: epath.Path, name: str) -> epath.Path | None:
    """Finds the folder of a set's version, by default the newest; None if it is not prepared."""
    name, _, version = name.partition(":")
    base = root / name
    if not name or not base.is_dir():
        return None
    folders = {
        tuple(map(int, entry.name.split("."))): entry
        for entry in base.iterdir()
        if re.fullmatch(r"\d+\.\d+\.\d+", entry.name) and (entry / "dataset_info.json").exists()
    }
    if version:
        return next((path for path in folders.values() if path.name == version), None)
    return folders[max(folders)] if folders else None
