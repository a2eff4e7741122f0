"""Prepared TFDS data sets, read without TensorFlow."""

import contextlib
import functools
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from etils import epath

from cluster_jax.core import buckets, io
from cluster_jax.core.checks import InputError
from cluster_jax.data import images
from cluster_jax.data.images import DataConfig, Dataset, ItemReader

FORMAT = "array_record"  # TFDS's format with random access that needs no TensorFlow
BLOCK = 256  # consecutive records that are read by one request
_BLOCKS_KEPT = 256  # blocks in memory at most
_READERS = 16  # threads that read blocks
_READ_AHEAD_BYTES = 16 * 2**20  # size of a request of a block


class Blocks:
    """Records in a bucket, in blocks of consecutive ones of a file, each read by one request.

    One by one they would take a request each, which array_record does not send at the same time.

    Args:
        files: TFDS's instructions for the files (name, first record, number of records), in order.

    Attributes:
        of: int32 `[N]`, ascending, the block of each record.
    """

    def __init__(self, files: Sequence[Any]) -> None:
        self._blocks = [
            (file.filename, first, min(first + BLOCK, file.skip + file.take))
            for file in files
            for first in range(file.skip, file.skip + file.take, BLOCK)
        ]
        sizes = [stop - first for _, first, stop in self._blocks]
        self.of = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        self._starts = np.cumsum([0, *sizes])
        self._kept, self._lock = dict[int, Future](), threading.Lock()
        self._pool, self._reader = ThreadPoolExecutor(_READERS), functools.cache(_reader)

    def take(self, record: int) -> bytes | None:
        """Takes a record out of its block, which is read first; None if it has been taken."""
        block = int(self.of[record])
        with self._lock:
            if block not in self._kept:
                self._kept[block] = self._pool.submit(self._read, block)
            if len(self._kept) > _BLOCKS_KEPT:
                del self._kept[next(iter(self._kept))]
            reading = self._kept[block]
        records = reading.result()
        data = records.pop(record, None)
        if not records:
            with self._lock:
                self._kept.pop(block, None)
        return data

    def _read(self, block: int) -> dict[int, bytes]:
        """Reads a block: number of the record -> its bytes."""
        file, first, stop = self._blocks[block]
        return dict(enumerate(self._reader(file).read(first, stop), int(self._starts[block])))


def _reader(file: str) -> Any:
    """Opens a file of records, of which a span is read by as few requests as its size allows."""
    from array_record.python import array_record_module

    options = f"readahead_buffer_size:{_READ_AHEAD_BYTES}"
    return array_record_module.ArrayRecordReader(file, options=options)


class Labels:
    """Labels of streamed sets, which a run keeps in one small file beside it.

    Without it each start would read all records for them.

    Args:
        path: the file, which need not exist; None: labels are read anew.
    """

    def __init__(self, path: epath.PathLike | None = None) -> None:
        self._path, self._kept = path, dict[str, np.ndarray]()
        if path is not None and epath.Path(path).exists():
            # What is damaged is read out of the records again.
            with contextlib.suppress(io.DamagedFile):
                self._kept = io.read_arrays(path)
        self._known = set(self._kept)

    def take(self, key: str, read: Callable[[], np.ndarray]) -> np.ndarray:
        """Returns the labels of a set: those of the file, or else by `read`."""
        if key not in self._kept:
            self._kept[key] = read()
        return self._kept[key]

    def write(self) -> None:
        """Writes labels that were read out of records into the file; the first process does."""
        is_new = self._kept.keys() - self._known
        if self._path is not None and is_new and jax.process_index() == 0:
            io.write_arrays(self._path, self._kept)


def load(config: DataConfig, kept: Labels | None = None) -> Dataset:
    """Loads a TFDS data set, prepared as array_record, with `image` and optional labels.

    `data.name` is a TFDS name such as `cifar10`, `mnist:3.0.1` or `imagenet_resized/32x32`; without
    a version, the newest prepared version is read. `data.dir` is TFDS's data directory; None:
    `$TFDS_DATA_DIR`, else `~/tensorflow_datasets`. `data.split` is a TFDS split such as `train`,
    `train+test` or `train[:10%]`. If the set is streamed, one pass reads its labels.

    Args:
        config: the section `data`.
        kept: where these labels are kept; None: nowhere.

    Raises:
        InputError: the set is missing, prepared in a different format, or without images; unknown
            split or label; a record cannot be read.
    """
    name, label = config.name, config.label
    builder, source, blocks = _open(name, config.dir, config.split)
    features = dict(builder.info.features)
    if label not in features and label != "label":
        must = f"data.label must be a feature of {name}, {', '.join(sorted(features))}"
        raise InputError(f"{must}; got {label!r}")
    label_names = tuple(getattr(features.get(label), "names", None) or ()) or None
    rows = images.subset(len(source), config.limit).tolist()
    labels = np.empty(len(rows), np.int32) if label in features else None

    def item(i: int) -> Any:
        try:
            data = blocks and blocks.take(rows[i])
            if data is None:
                record = source[rows[i]]
            else:
                of = builder.info.features
                record = of.deserialize_example_np(data, decoders=source.decoders)
        except Exception as error:  # The libraries that read it have errors of their own.
            must = f"record {rows[i]} of {name} must be readable"
            raise InputError(f"{must}; got an error ({error})") from error
        if labels is not None:
            labels[i] = record[label]
        return record["image"]

    def read_labels() -> np.ndarray:
        stored = images.map_threaded(item, range(len(rows)), "reading labels", len(rows))
        for _ in stored:
            pass
        assert labels is not None
        return labels

    channels = 1 if features["image"].shape[-1] == 1 else 3
    reader = ItemReader(item, [f"record {row}" for row in rows], config, name, channels)
    if labels is not None and not config.fits(reader.size, reader.shape):
        key = f"{builder.info.full_name} {config.split} {label} {config.limit}"
        labels[:] = (kept or Labels()).take(key, read_labels)
    dataset = images.load(name, reader, config, labels=labels, label_names=label_names)
    block_of = None if blocks is None or dataset.images is not None else blocks.of[rows]
    return dataset._replace(sources=None, load=None, facts=None, block_of=block_of)


def _open(name: str, dir: str | None, split: str | None) -> tuple[Any, Any, Blocks | None]:
    """Opens TFDS's builder, its data source of undecoded records, and these in blocks."""
    dir = dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    root = buckets.path(dir)
    prepare = (
        f"prepare it with TensorFlow (this package's extra tfds) by "
        f"`tfds build {name} --file_format={FORMAT} --data_dir={root}`"
    )
    with warnings.catch_warnings():
        # TFDS's import warns about its own dependencies.
        warnings.simplefilter("ignore")
        import tensorflow_datasets as tfds
    base, _, version = name.partition(":")
    versions = list(map(str, tfds.core.utils.version.list_all_versions(root / base)))
    version = version or (versions or [""])[-1]
    if version not in versions:
        sources = "digits, folder, arrays, or a prepared TFDS set"
        raise InputError(f"data.name must be {sources}; got '{name}': if TFDS has it, {prepare}")
    folder = root / base / version
    builder = tfds.builder_from_directory(folder)
    formats = sorted(form.value for form in builder.info.available_file_formats())
    if FORMAT not in formats:
        content = f"{', '.join(formats)}, which only TensorFlow reads: {prepare}"
        raise InputError(f"{folder} must be prepared as {FORMAT}; got {content}")
    if "image" not in builder.info.features:
        content = ", ".join(builder.info.features)
        raise InputError(f"{name} must have a feature 'image'; got {content}")
    # Pillow decodes the images, so that images of all sources are resized in the same way.
    raw = {"image": tfds.decode.SkipDecoding()}
    try:
        source, blocks = builder.as_data_source(split=split or "", decoders=raw), None
        if buckets.is_in_bucket(root):
            blocks = Blocks(builder.info.splits[split].file_instructions)
        return builder, source, blocks
    except ValueError as error:
        must = f"data.split must select from the splits of {name}, "
        must += ", ".join(sorted(builder.info.splits))
        raise InputError(f"{must}; got {split!r}") from error
