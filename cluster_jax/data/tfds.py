"""Prepared TFDS data sets, read without TensorFlow."""

import collections
import contextlib
import functools
import itertools
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils

from cluster_jax.core import buckets, checks, io
from cluster_jax.core.checks import InputError
from cluster_jax.data import decode, images
from cluster_jax.data.decode import Resize
from cluster_jax.data.images import DataConfig, Dataset, Decoder

FORMAT = "array_record"  # TFDS's format with random access that needs no TensorFlow
_TOGETHER = 1024  # labels that a process reads before it waits for the others
BLOCK = 256  # consecutive records that are read by one request
_BLOCKS_KEPT = 256  # blocks in memory at most, where not all of their records are asked for
_READERS = 16  # threads that read blocks
_READ_AHEAD_BYTES = 16 * 2**20  # size of a request of a block


class Blocks:
    """Records in blocks of consecutive ones of a file, each of which is read by one request.

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
        self._kept: collections.OrderedDict[int, Future] = collections.OrderedDict()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_READERS)
        self._reader = functools.cache(_reader)

    def read_ahead(self, records: np.ndarray) -> None:
        """Begins to read the blocks of records, int `[n]`, that are not in memory."""
        with self._lock:
            for block in np.unique(self.of[records]).tolist():
                if block not in self._kept:
                    self._kept[block] = self._pool.submit(self._read, block)
            while len(self._kept) > _BLOCKS_KEPT:
                self._kept.popitem(last=False)

    def take(self, record: int) -> bytes | None:
        """Takes a record out of its block; None if the block, or the record, is not in memory."""
        block = int(self.of[record])
        with self._lock:
            reading = self._kept.get(block)
        if reading is None:
            return None
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

    Without it each start would read all records for them. All processes call each method, and get
    the same labels.

    Args:
        path: the file, which need not exist; None: labels are read anew.
    """

    def __init__(self, path: epath.PathLike | None = None) -> None:
        self._path = path
        self._kept = dict[str, np.ndarray]()
        self._read = dict[str, np.ndarray]()
        if path is not None and epath.Path(path).exists():
            # What is damaged is read out of the records again.
            with contextlib.suppress(io.DamagedFile):
                self._kept = io.read_arrays(path)

    def take(self, key: str, size: int, read: Callable[[], np.ndarray]) -> np.ndarray:
        """Returns the labels int32 `[size]` of a set: those of the file, or else by `read`."""
        kept = self._kept.get(key, np.empty(0, np.int32))
        is_kept = kept.shape == (size,)
        if jax.process_count() > 1:
            kept = kept if is_kept else np.empty(size, np.int32)
            is_kept, kept = multihost_utils.broadcast_one_to_all((np.bool_(is_kept), kept))
        if is_kept:
            return kept
        self._read[key] = read()
        return self._read[key]

    def write(self) -> None:
        """Writes labels that were read out of records into the file; the first process does."""
        if self._path is not None and self._read and jax.process_index() == 0:
            io.write_arrays(self._path, {**self._kept, **self._read})


def load(config: DataConfig, kept: Labels | None = None) -> Dataset:
    """Loads a TFDS data set, prepared as array_record, with `image` and optional labels.

    `data.name` is a TFDS name such as `cifar10`, `mnist:3.0.1` or `imagenet_resized/32x32`; without
    a version, the newest prepared version is read. `data.dir` is TFDS's data directory; None:
    `$TFDS_DATA_DIR`, else `~/tensorflow_datasets`. `data.split` is a TFDS split such as `train`,
    `train+test` or `train[:10%]`. If the set is streamed, one pass reads its labels.

    Args:
        config: the section `data`.
        kept: where these labels are kept. Then all processes call this, and each reads a share of
            those that are not; None: this process is alone.

    Raises:
        InputError: the set is missing, prepared in a different format, or without images; unknown
            split or label.
    """
    name, label, resize = config.name, config.label, config.resize
    builder, source, blocks = _open(name, config.dir, config.split)
    features = dict(builder.info.features.items())
    if label not in features and label != "label":
        must = f"data.label must be a feature of {name}, {', '.join(sorted(features))}"
        raise InputError(f"{must}; got {label!r}")
    label_names = tuple(getattr(features.get(label), "names", None) or ()) or None
    shape = _shape(features["image"].shape, name, resize)
    channels = shape[-1]
    records = images.subset(len(source), config.limit)
    size = len(records)
    # Of a small part of the records, most of a block would be read for nothing.
    in_blocks = 2 * size >= len(source)
    labels = np.empty(size, np.int32) if label in features else None

    def read_ahead(rows: np.ndarray) -> None:
        if in_blocks:
            blocks.read_ahead(records[rows])

    def record_of(row: int) -> Any:
        data = blocks.take(records[row])
        if data is None:
            return source[records[row]]
        return builder.info.features.deserialize_example_np(data, decoders=source.decoders)

    def label_of(row: int) -> Any:
        return record_of(row)[label]

    def in_order(rows: Iterable[int]) -> Iterator[int]:
        for row in rows:
            read_ahead(np.array([row, min(row + BLOCK, size - 1)]))
            yield row

    def read(row: int, decoder: Decoder) -> np.ndarray:
        record = record_of(row)
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
        decoded = images.map_threaded(
            lambda row: read(row, square), in_order(range(size)), f"reading {name}", size
        )
        for row, image in enumerate(decoded):
            pixels[row] = image
        return images.in_memory(name, pixels, config, labels=labels, label_names=label_names)
    if labels is not None:
        read_labels = functools.partial(_labels, label_of, in_order, size, name, kept is not None)
        if kept is None:
            labels[:] = read_labels()
        else:
            key = f"{builder.info.full_name} {config.split} {label} {config.limit}"
            labels[:] = kept.take(key, size, read_labels)
    fetch = images.fetcher(read, resize, channels)
    dataset = Dataset(name, size, shape, None, fetch, labels, label_names, read=read)
    if in_blocks:
        dataset = dataset._replace(block_of=blocks.of[records], read_ahead=read_ahead)
    return dataset


def _shape(stored: Sequence[Any], name: str, resize: Resize | None) -> tuple[int, ...]:
    """Returns `[H, W, C]` of the images of a set, as they are after resizing."""
    height, width, channels = stored
    checks.one_of(f"the number of channels of {name}", channels, (1, 3))
    if resize:
        return resize.side, resize.side, channels
    if height is None or width is None:
        must = f"images of {name} must have one size"
        raise InputError(f"{must}; got several: set data.image_size to resize and crop them")
    return height, width, channels


def _labels(
    read: Callable[[int], Any],
    in_order: Callable[[Iterable[int]], Iterator[int]],
    size: int,
    name: str,
    together: bool,
) -> np.ndarray:
    """Reads all labels, int32 `[size]`, for which whole records have to be read; see `load`."""
    processes = jax.process_count() if together else 1
    share = -(-size // processes)
    first = share * jax.process_index() if together else 0
    rows = [min(row, size - 1) for row in range(first, first + share)]
    task = f"reading labels of {name}"
    stored = images.map_threaded(read, in_order(rows), task, share)
    if processes == 1:
        return np.fromiter(stored, np.int32, size)
    # Some at a time: the first process to come waits half a minute for the last one.
    parts = (
        np.fromiter(itertools.islice(stored, _TOGETHER), np.int32)
        for _ in range(0, share, _TOGETHER)
    )
    gathered = [multihost_utils.process_allgather(part) for part in parts]
    return np.concatenate(gathered, axis=1).ravel()[:size]


def _open(name: str, dir: str | None, split: str | None) -> tuple[Any, Any, Blocks]:
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
    splits = ", ".join(sorted(builder.info.splits))
    if not split:
        raise InputError(f"data.split must be a split of {name}, {splits}; got none")
    if "image" not in builder.info.features:
        content = ", ".join(builder.info.features)
        raise InputError(f"{name} must have a feature 'image'; got {content}")
    # Pillow decodes the images, so that images of all sources are resized in the same way.
    raw = {"image": tfds.decode.SkipDecoding()}
    try:
        source = builder.as_data_source(split=split, decoders=raw)
        return builder, source, Blocks(builder.info.splits[split].file_instructions)
    except ValueError as error:
        must = f"data.split must select from the splits of {name}, {splits}"
        raise InputError(f"{must}; got '{split}'") from error
