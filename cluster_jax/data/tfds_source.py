"""Prepared TFDS sets, read without TensorFlow."""

import os
import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from etils import epath

from cluster_jax.core.checks import InputError
from cluster_jax.data.images import Dataset, decode, each, fetcher, fits, in_memory, subset

FORMAT = "array_record"  # TFDS's format with random access that TensorFlow is not needed for


def load(
    *,
    name: str,
    dir: str | None,
    split: str | None,
    label: str,
    image_size: int | None,
    cache_mb: float,
    limit: int | None,
) -> Dataset:
    """A set that TFDS has prepared as array_record: feature `image`, and a class.

    A streamed set with labels is read through once for them.

    Args:
        name: as TFDS writes it, `cifar10`, `mnist:3.0.1` or `imagenet_resized/32x32`; without
            a version the newest one that is there.
        dir: TFDS's data directory; None: `$TFDS_DATA_DIR`, else `~/tensorflow_datasets`.
        split: as TFDS writes it, `train`, `train+test` or `train[:10%]`.
        label: feature with the classes; a set without `"label"` has none.
        image_size: side of the square that each image is fitted to, or None if all have one size.
        cache_mb: sets up to this size are decoded into memory, in 10^6 bytes of uint8.
        limit: number of images of a fixed random subset, or None for all.

    Raises:
        ValueError: not there, prepared in another format, unknown split or label, no images.
    """
    builder, source = _open(name, dir, split)
    features = builder.info.features
    known = dict(features.items())
    if label not in known and label != "label":
        raise ValueError(f"data.label = {label!r}; {name} has {', '.join(sorted(known))}")
    classes = known.get(label)
    label_names = tuple(classes.names) if hasattr(classes, "names") else None
    channels = features["image"].shape[-1]
    if channels not in (1, 3):
        raise ValueError(f"images of {name} have {channels} channels; only 1 or 3 can be used")
    shape = (image_size, image_size, channels) if image_size else features["image"].shape
    if None in shape:
        raise ValueError(
            f"images of {name} have no one size; set data.image_size to the side that all are fitted to"
        )
    chosen = subset(len(source), limit).tolist()

    def read(i: int) -> np.ndarray:
        return _picture(source[chosen[i]]["image"], image_size, channels, name, chosen[i])

    def read_both(i: int) -> tuple[np.ndarray, int]:
        record = source[i]
        return _picture(record["image"], image_size, channels, name, i), record.get(label, -1)

    if fits(len(chosen), shape, cache_mb):
        images = np.empty((len(chosen), *shape), np.uint8)
        labels = np.empty(len(chosen), np.int32)
        for row, both in enumerate(each(read_both, chosen, f"reading {name}")):
            images[row], labels[row] = both
        labels = None if classes is None else labels
        return in_memory(name, images, labels, label_names, cache_mb)

    labels = None
    if classes is not None:
        stored = each(lambda i: source[i][label], chosen, f"reading labels of {name}")
        labels = np.fromiter(stored, np.int32, len(chosen))
    return Dataset(
        name, len(chosen), tuple(shape), None, fetcher(read), labels, label_names, None, ()
    )


def _open(name: str, dir: str | None, split: str | None) -> tuple[Any, Sequence]:
    """TFDS's builder and its source of undecoded records."""
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
            f"no data set '{name}' in {root}: data.name is digits, folder, arrays, or a TFDS set "
            f"in data.dir; if it is one of TFDS, {prepare}"
        )
    with warnings.catch_warnings():
        # Importing it warns about its own dependencies, nothing that a user could act on.
        warnings.simplefilter("ignore")
        import tensorflow_datasets as tfds
    builder = tfds.builder_from_directory(folder)
    formats = {form.value for form in builder.info.available_file_formats()}
    if FORMAT not in formats:
        raise ValueError(
            f"{folder} is prepared as {', '.join(sorted(formats))}, which only TensorFlow reads; "
            f"{prepare}"
        )
    known = ", ".join(sorted(builder.info.splits))
    if not split:
        raise ValueError(f"data.split is not set; {name} has {known}")
    if "image" not in builder.info.features:
        raise ValueError(f"{name} has no feature 'image', only {', '.join(builder.info.features)}")
    # Pillow decodes, so that all sources of images are resized alike.
    raw = {"image": tfds.decode.SkipDecoding()}
    try:
        return builder, builder.as_data_source(split=split, decoders=raw)
    except ValueError as error:
        raise ValueError(
            f"data.split = '{split}' cannot be read from {name}, which has {known}"
        ) from error


def _version(root: epath.Path, name: str) -> epath.Path | None:
    """Folder of the wanted version of a set, of the newest if none is named, or None."""
    name, _, wanted = name.partition(":")
    base = root / name
    if not name or not base.is_dir():
        return None
    found = {
        tuple(map(int, entry.name.split("."))): entry
        for entry in base.iterdir()
        if re.fullmatch(r"\d+\.\d+\.\d+", entry.name) and (entry / "dataset_info.json").exists()
    }
    if wanted:
        return next((path for path in found.values() if path.name == wanted), None)
    return found[max(found)] if found else None


def _picture(
    data: bytes, image_size: int | None, channels: int, name: str, record: int
) -> np.ndarray:
    try:
        return decode(data, image_size, channels)
    # Pillow raises nearly any exception on damaged bytes.
    except Exception as error:
        raise InputError(
            f"record {record} of {name} cannot be decoded ({error}); prepare the set again"
        ) from error
