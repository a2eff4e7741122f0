"""Prepared TFDS data sets, read without TensorFlow."""

import os
import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from etils import epath

from cluster_jax.core.checks import InputError
from cluster_jax.data.images import (
    Dataset,
    Resize,
    decode,
    fetcher,
    fits,
    in_memory,
    map_threaded,
    subset,
)

FORMAT = "array_record"  # TFDS's format with random access that needs no TensorFlow


def load(
    *,
    name: str,
    dir: str | None,
    split: str | None,
    label: str,
    resize: Resize | None,
    cache_mb: float,
    limit: int | None,
) -> Dataset:
    """A TFDS data set, prepared as array_record, with the feature `image` and optional labels.

    If the set is streamed, one pass reads its labels.

    Args:
        name: TFDS name such as `cifar10`, `mnist:3.0.1` or `imagenet_resized/32x32`; without a
            version, the newest prepared version.
        dir: TFDS's data directory; None: `$TFDS_DATA_DIR`, else `~/tensorflow_datasets`.
        split: TFDS split such as `train`, `train+test` or `train[:10%]`.
        label: feature with the classes; a set without `"label"` has no labels.
        resize: the square that each image is resized and cropped to, or None if all have one size.
        cache_mb: sets up to this size are decoded into memory, in 10^6 bytes of uint8.
        limit: number of images of a fixed random subset, or None for all.

    Raises:
        ValueError: the set is missing, prepared in a different format, or without images; unknown
            split or label.
    """
    builder, source = _open(name, dir, split)
    features = dict(builder.info.features.items())
    if label not in features and label != "label":
        raise ValueError(
            f"data.label must be a feature of {name}, {', '.join(sorted(features))}; got {label!r}"
        )
    has_labels = label in features
    label_names = getattr(features.get(label), "names", None)
    label_names = None if label_names is None else tuple(label_names)
    channels = features["image"].shape[-1]
    if channels not in (1, 3):
        raise ValueError(f"images of {name} must have 1 or 3 channels; got {channels}")
    shape = (resize.side, resize.side, channels) if resize else features["image"].shape
    if None in shape:
        raise ValueError(
            f"images of {name} must have one size; got several: set data.image_size to resize and "
            "crop them"
        )
    records = subset(len(source), limit).tolist()

    def read(i: int) -> np.ndarray:
        return _decode(source[records[i]]["image"], resize, channels, name, records[i])

    def read_with_label(i: int) -> tuple[np.ndarray, int]:
        record = source[i]
        return _decode(record["image"], resize, channels, name, i), record.get(label, -1)

    labels = np.empty(len(records), np.int32)
    if fits(len(records), shape, cache_mb):
        images = np.empty((len(records), *shape), np.uint8)
        for row, pair in enumerate(map_threaded(read_with_label, records, f"reading {name}")):
            images[row], labels[row] = pair
        return in_memory(name, images, labels if has_labels else None, label_names, cache_mb)

    if has_labels:
        stored = map_threaded(lambda i: source[i][label], records, f"reading labels of {name}")
        labels[:] = np.fromiter(stored, np.int32, len(records))
    return Dataset(
        name,
        len(records),
        tuple(shape),
        None,
        fetcher(read),
        labels if has_labels else None,
        label_names,
        None,
        (),
    )


def _open(name: str, dir: str | None, split: str | None) -> tuple[Any, Sequence]:
    """TFDS's builder and its data source, which returns undecoded records."""
    root = epath.Path(
        dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    ).expanduser()
    prepare = (
        f"prepare it with TensorFlow (this package's extra tfds) by "
        f"`tfds build {name} --file_format={FORMAT} --data_dir={root}`"
    )
    folder = _version(root, name)
    if folder is None:
        raise ValueError(
            f"data.name must be digits, folder, arrays, or a TFDS set in {root}; got '{name}': if "
            f"TFDS has it, {prepare}"
        )
    with warnings.catch_warnings():
        # TFDS's import warns about its own dependencies.
        warnings.simplefilter("ignore")
        import tensorflow_datasets as tfds
    builder = tfds.builder_from_directory(folder)
    formats = {form.value for form in builder.info.available_file_formats()}
    if FORMAT not in formats:
        raise ValueError(
            f"{folder} must be prepared as {FORMAT}; got {', '.join(sorted(formats))}, which only "
            f"TensorFlow reads: {prepare}"
        )
    splits = ", ".join(sorted(builder.info.splits))
    if not split:
        raise ValueError(f"data.split must be a split of {name}, {splits}; got none")
    if "image" not in builder.info.features:
        raise ValueError(
            f"{name} must have a feature 'image'; got {', '.join(builder.info.features)}"
        )
    # Pillow decodes the images, so that images of all sources are resized in the same way.
    raw = {"image": tfds.decode.SkipDecoding()}
    try:
        return builder, builder.as_data_source(split=split, decoders=raw)
    except ValueError as error:
        raise ValueError(
            f"data.split must select from the splits of {name}, {splits}; got '{split}'"
        ) from error


def _version(root: epath.Path, name: str) -> epath.Path | None:
    """Folder of a set's version, by default of the newest; None if it is not prepared."""
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


def _decode(
    data: bytes, resize: Resize | None, channels: int, name: str, record: int
) -> np.ndarray:
    try:
        return decode(data, resize, channels)
    # Pillow raises errors of many types on damaged bytes.
    except Exception as error:
        raise InputError(
            f"record {record} of {name} must be a readable image; got an error ({error}): prepare "
            "the data set again"
        ) from error
