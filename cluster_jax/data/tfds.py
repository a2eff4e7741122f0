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

from cluster_jax.core import buckets, checks, hosts, io
from cluster_jax.core.buckets import BucketError
from cluster_jax.core.checks import InputError
from cluster_jax.data import images
from cluster_jax.data.images import DataConfig, Dataset, ItemReader

FORMAT = "array_record"  # TFDS's format with random access that needs no TensorFlow
BLOCK = 256  # consecutive records that are read by one request
_BLOCKS_KEPT = 128  # blocks in memory, about as many as `batches.WINDOW` has in use
_READERS = 16  # threads that read blocks
_READ_AHEAD_BYTES = 16 * 2**20  # size of a request of a block


class Blocks:
    """Records in a bucket, in blocks of consecutive ones of a file, each read by one request.

    One by one, records would take a request each, which array_record does not send at the same
    time. `blocks[i]` are the bytes of record i, and threads may read at the same time. A block that
    cannot be read raises a `BucketError`, and is read anew when it is asked for again.

    Args:
        files: TFDS's instructions for the files (`filename`, `skip`, the first record, and `take`,
            the number of records), in order.

    Attributes:
        of: int32 `[N]`, ascending, the block of each record.
    """

    def __init__(self, files: Sequence[Any]) -> None:
        blocks = [
            (file.filename, first, min(first + BLOCK, file.skip + file.take))
            for file in files
            for first in range(file.skip, file.skip + file.take, BLOCK)
        ]
        sizes = [stop - first for _, first, stop in blocks]
        self.of = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        self._starts = np.cumsum([0, *sizes])
        self._files = [file for file, _, _ in blocks]
        self._lock = threading.Lock()
        pool = ThreadPoolExecutor(_READERS)
        reader = functools.cache(_reader)

        @functools.lru_cache(_BLOCKS_KEPT)
        def reading(block: int) -> Future:
            file, first, stop = blocks[block]
            return pool.submit(lambda: reader(file).read(first, stop))

        self._reading = reading

    def __getitem__(self, record: int) -> bytes:
        block = int(self.of[record])
        with self._lock:
            reading = self._reading(block)
        try:
            return reading.result()[record - int(self._starts[block])]
        except Exception as error:
            # It is not kept: an error of the network may not occur again.
            with self._lock:
                self._reading.cache_clear()
            raise BucketError(f"{self._files[block]} cannot be read; got {error}") from error


def _reader(file: str) -> Any:
    """Opens a file of records, in which a span is read by as few requests as its size allows."""
    from array_record.python import array_record_module

    options = f"readahead_buffer_size:{_READ_AHEAD_BYTES}"
    return array_record_module.ArrayRecordReader(file, options=options)


class Labels:
    """Labels of sets, which a run keeps in one small file beside it.

    Without this file each start would read all records for their labels.

    Args:
        path: the file, which need not exist and may be damaged; None: labels are read anew, and
            `write` does nothing.
    """

    def __init__(self, path: epath.PathLike | None = None) -> None:
        self._path = path
        self._kept: dict[str, np.ndarray] = {}
        if path is not None and epath.Path(path).exists():
            # What is damaged is read out of the records again.
            with contextlib.suppress(io.DamagedFile):
                self._kept = io.read_arrays(path)
        self._known = set(self._kept)

    def take(self, key: str, read: Callable[[], np.ndarray]) -> np.ndarray:
        """Returns the labels of a set: those of the file, or else by `read`.

        Several processes call this together: the first one reads, and sends them to the others.

        Args:
            key: text that names the set, its split, label and limit; see `load`.
            read: function that reads the labels. It is called at most once for a key.
        """
        is_first = jax.process_index() == 0
        if key not in self._kept and is_first:
            self._kept[key] = read()
        if jax.process_count() > 1:  # One may have read labels for minutes.
            hosts.wait_for_all("labels")
            sent = hosts.from_first({"labels": self._kept[key]} if is_first else None)
            self._kept[key] = sent["labels"]
        return self._kept[key]

    def write(self) -> None:
        """Writes all labels into the file if any were read anew; only the first process writes."""
        is_new = self._kept.keys() - self._known
        if self._path is not None and is_new and jax.process_index() == 0:
            io.write_arrays(self._path, self._kept)


def load(config: DataConfig, kept: Labels | None = None) -> Dataset:
    """Loads a TFDS data set, prepared as array_record, with `image` and optional labels.

    `data.name` is a TFDS name such as `cifar10`, `mnist:3.0.1` or `imagenet_resized/32x32`; without
    a version, the newest prepared version is read. `data.dir` is TFDS's data directory; None:
    `$TFDS_DATA_DIR`, else `~/tensorflow_datasets`. `data.split` is a TFDS split such as `train`,
    `train+test` or `train[:10%]`. One pass reads its labels.

    Args:
        config: the section `data`.
        kept: where these labels are kept; None: nowhere.

    Raises:
        InputError: the set is missing, prepared in a different format, or without images; the split
            or label is unknown; or a record cannot be read, for which later `fetch` raises it, too.
        BucketError: the bucket that it is in, or the network, fails; of `fetch`, too.
        ImportError: TFDS is not installed.
    """
    name, label = config.name, config.label
    with buckets.named(_root(config.dir)):
        builder, source, blocks = _open(name, config.dir, config.split)
    features = dict(builder.info.features)
    if label not in features and label != "label":
        must = f"data.label must be a feature of {name}, {', '.join(sorted(features))}"
        raise InputError(f"{must}; got {label!r}")
    rows = images.subset(len(source), config.limit).tolist()
    key = f"{builder.info.full_name} {config.split} {label} {config.limit}"

    def record(i: int) -> Any:
        try:
            if blocks is None:
                return source[rows[i]]
            decoded = builder.info.features.deserialize_example_np
            return decoded(blocks[rows[i]], decoders=source.decoders)
        except BucketError:
            raise
        except Exception as error:  # The libraries that read it have errors of their own.
            must = f"record {rows[i]} of {name} must be readable"
            raise InputError(f"{must}; got an error ({error})") from error

    def read_labels() -> np.ndarray:
        labels = np.empty(len(rows), np.int32)
        for part in images.chunks(len(rows), "reading labels"):
            labels[part] = images.map_indices(lambda i: record(i)[label], part)
        return labels

    names = [f"record {row}" for row in rows]
    channels = 1 if features["image"].shape[-1] == 1 else 3
    reader = ItemReader(lambda i: record(i)["image"], names, config, name, channels)
    classes = getattr(features.get(label), "names", None)
    dataset = images.load(
        name,
        reader,
        labels=(kept or Labels()).take(key, read_labels) if label in features else None,
        label_names=tuple(classes) if classes else None,
        block_of=None if blocks is None else blocks.of[rows],
    )
    return dataset._replace(sources=None, load=None, facts=None)


def _root(dir: str | None) -> epath.Path:
    """Returns TFDS's data directory; `dir` is that of `DataConfig`."""
    return buckets.path(dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")


def _open(name: str, dir: str | None, split: str | None) -> tuple[Any, Any, Blocks | None]:
    """Opens TFDS's builder, its data source of undecoded records, and of a bucket these in blocks.

    The arguments are `name`, `dir` and `split` of `DataConfig`. The third entry is None if the set
    is not in a bucket.

    Raises:
        InputError: the set is missing, prepared in a different format, or without images; or the
            split is unknown.
        ImportError: TFDS is not installed.
    """
    root = _root(dir)
    prepare = (
        f"prepare it with TensorFlow (this package's extra tfds) by "
        f"`tfds build {name} --file_format={FORMAT} --data_dir={root}`"
    )
    with warnings.catch_warnings():
        # TFDS's import warns about its own dependencies.
        warnings.simplefilter("ignore")
        import tensorflow_datasets as tfds
    try:
        builder = tfds.core.read_only_builder.builder_from_files(name, data_dir=os.fspath(root))
    except (OSError, ImportError):
        raise
    except Exception as error:  # Also of protobuf, which reads the files about the set.
        if (folder := _stored(root / name.partition(":")[0])) is not None:
            reason = checks.short(str(error).partition("\n")[0], 200)
            got = reason if (folder / "features.json").exists() else "no features.json"
            must = f"{folder} must be a complete set that this version of TFDS reads"
            raise InputError(f"{must}; got {got}: copy or prepare it again") from error
        sources = "digits, folder, arrays, or a prepared TFDS set"
        must = f"data.name must be {sources}; got '{name}': if TFDS has it, {prepare}"
        raise InputError(must) from error
    formats = sorted(form.value for form in builder.info.available_file_formats())
    if FORMAT not in formats:
        content = f"{', '.join(formats)}, which only TensorFlow reads: {prepare}"
        raise InputError(f"{builder.data_dir} must be prepared as {FORMAT}; got {content}")
    if "image" not in builder.info.features:
        content = ", ".join(builder.info.features)
        raise InputError(f"{name} must have a feature 'image'; got {content}")
    # Pillow decodes the images, so that images of all sources are resized in the same way.
    raw = {"image": tfds.decode.SkipDecoding()}
    try:
        source = builder.as_data_source(split=split or "", decoders=raw)
        blocks = None
        if buckets.is_in_bucket(root):
            blocks = Blocks(builder.info.splits[split].file_instructions)
        return builder, source, blocks
    except ValueError as error:
        must = f"data.split must select from the splits of {name}, "
        must += ", ".join(sorted(builder.info.splits))
        raise InputError(f"{must}; got {split!r}") from error


def _stored(folder: epath.Path) -> epath.Path | None:
    """Returns the folder of the newest version of a set that is there, complete or not, or None."""
    if not folder.exists():
        return None
    patterns = ("*/dataset_info.json", "*/*/dataset_info.json")  # maybe below a config
    files = sorted(file for pattern in patterns for file in folder.glob(pattern))
    return files[-1].parent if files else None
