"""Images packed in files: tars, as WebDataset's shards, and Parquet as `datasets` writes it.

They are read in place. The names of all images are found first; then an image in a tar is read by
the place of its bytes, one in a Parquet file with the images of its row group.
"""

import collections
import contextlib
import json
import os
import re
import shutil
import tarfile
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.core.checks import InputError, short
from cluster_jax.data import columns, images

SUFFIXES = (".tar", ".parquet")
_FILE = re.compile(r"(.*?\.(?:tar|parquet))/", re.IGNORECASE | re.DOTALL)
_END = bytes(tarfile.BLOCKSIZE)  # follows the last member of a tar
_CLASSES = (".cls", ".json")  # members that tell the class of an image
_IMAGES = ("image", "img")  # of several columns of images the one with such a title
_KEPT = 2**28  # bytes of row groups in memory; of larger sets they are in a temporary file
# Bytes that are read ahead in a bucket, of a tar from header to header.
_AHEAD_TAR, _AHEAD_PARQUET = 2**23, 2**16


class Packed(NamedTuple):
    """Images in files.

    Attributes:
        names: of the images, `FILE/MEMBER` in a tar, `FILE/ROW` or `FILE/ROW-NAME` in Parquet.
        read: name -> its bytes.
        classes: name -> class; empty unless every image has one.
        ignored: suffix or kind -> number of other members.
    """

    names: list[str]
    read: Callable[[str], bytes]
    classes: dict[str, str]
    ignored: collections.Counter[str]


class _Index(NamedTuple):
    """The images of one file.

    Attributes:
        names: in the file.
        places: byte and length in a tar; row group and row in it of Parquet.
        classes: of each image, or None.
        ignored: as in `Packed`.
        size: bytes of the row groups.
        generation: of the file in a bucket, which must stay it, or None.
    """

    names: list[str]
    places: list[tuple[int, int]]
    classes: list[str | None]
    ignored: collections.Counter[str]
    size: int
    generation: int | None


def index(
    root: epath.Path, files: Sequence[str], kind: Callable[[str], str | None], label: str | None
) -> Packed:
    """Finds the images in tars and Parquet files.

    Args:
        root: the folder of the files.
        files: their names.
        kind: name of a member of a tar -> why it is none of the images; None: it is one.
        label: column of Parquet, or key in the `.json` of a sample, with the class of an image, its
            name or number; a sample of a tar may have a `.cls` instead. None: without classes.

    Raises:
        InputError: a file is cut short or damaged, has no image, or two members of one name.
    """

    def one(file: str) -> _Index:
        if file.lower().endswith(".tar"):
            return _tar(root / file, kind, label)
        return _parquet(root / file, label)

    archives = list(images.map_threaded(one, files, "reading the index", "file"))
    names = [
        f"{file}/{name}"
        for file, archive in zip(files, archives, strict=True)
        for name in archive.names
    ]
    number = np.repeat(np.arange(len(files)), [len(archive.names) for archive in archives])
    places = np.concatenate([np.array(archive.places, np.int64) for archive in archives])
    rows = {name: i for i, name in enumerate(names)}
    generations = {file: each.generation for file, each in zip(files, archives, strict=True)}
    from_groups = _groups(root, sum(each.size for each in archives), generations)

    def read(name: str) -> bytes:
        i = rows[name]
        file, (first, second) = files[number[i]], places[i].tolist()
        if file.lower().endswith(".parquet"):
            return from_groups(file, first, second)
        data = _part(root / file, first, second)
        if len(data) < second:
            raise ValueError(f"{file} has become shorter")
        return data

    classes = [value for archive in archives for value in archive.classes if value is not None]
    class_of = dict(zip(names, classes, strict=True)) if len(classes) == len(names) else {}
    ignored = sum((archive.ignored for archive in archives), collections.Counter[str]())
    return Packed(names, read, class_of, ignored)


def _part(path: epath.Path, first: int, count: int) -> bytes:
    with path.open("rb") as file:
        file.seek(first)
        return file.read(count)


def is_packed(root: epath.PathLike, names: Sequence[str] | None) -> bool:
    """Returns whether images, by their names in a folder, are in tars or Parquet files."""
    match = _FILE.match(names[0]) if names else None
    return match is not None and not (epath.Path(root) / match[1]).is_dir()


def member(name: str) -> str:
    """Returns the name of an image in its tar or Parquet file."""
    return _FILE.sub("", name, count=1)


def _tar(path: epath.Path, kind: Callable[[str], str | None], label: str | None) -> _Index:
    places, classes = dict[str, tuple[int, int]](), dict[tuple[str, str], str]()
    ignored, must = collections.Counter[str](), f"{path} must be a whole tar"
    with path.open("rb") as stream:
        try:
            with tarfile.open(fileobj=stream, mode="r:") as archive:
                while (entry := archive.next()) is not None:
                    archive.members.clear()  # type: ignore[attr-defined]  # all that were read
                    name = os.path.normpath(entry.name)
                    if entry.size < 0:
                        raise tarfile.ReadError("a member of negative size")
                    if not entry.isreg() or entry.issparse():
                        continue
                    if os.path.splitext(name)[1].lower() in _CLASSES:
                        if label is not None and (told := _told(archive, entry, label)):
                            classes[_sample(name)] = told
                    elif reason := kind(name):
                        ignored[reason] += 1
                    elif name in places:
                        raise InputError(f"{path} must have one member of a name; got two {name}")
                    else:
                        places[name] = entry.offset_data, entry.size
                stream.seek(archive.offset)
        except tarfile.TarError as error:
            raise InputError(f"{must}; got {error}: copy it again") from error
        if stream.read(len(_END)) != _END:
            raise InputError(f"{must}; got its end missing: copy it again")
    if not places:
        others = ", ".join(f"{n:,} {suffix}" for suffix, n in ignored.items()) or "nothing"
        raise InputError(f"{path} must hold images, such as jpg or png; got {others}")
    told_of = [classes.get(_sample(name)) for name in places]
    return _Index(list(places), list(places.values()), told_of, ignored, 0, _generation(stream))


def _generation(stream: Any) -> int | None:
    return getattr(getattr(stream, "raw", None), "generation", None)


def _sample(name: str) -> tuple[str, str]:
    """Returns a member's sample, as WebDataset has it: its folder and name up to the first dot."""
    folder, base = os.path.split(name)
    return folder, base.partition(".")[0]


def _told(archive: tarfile.TarFile, entry: tarfile.TarInfo, label: str) -> str | None:
    """Reads the class in a `.cls`, or under a key of a `.json`."""
    file = archive.extractfile(entry)
    assert file
    text = file.read().decode("utf-8", "replace").strip()
    if not entry.name.lower().endswith(".json"):
        return text
    with contextlib.suppress(ValueError):
        values = json.loads(text)
        return _class(values.get(label)) if isinstance(values, Mapping) else None
    return None


def _class(value: Any, names: Any = None) -> str | None:
    """Names a class by its name or number; None for a number below 0 and other values."""
    if isinstance(value, int) and value >= 0:
        return names[value] if names and value < len(names) else str(value)
    return value if isinstance(value, str) else None


def _parquet(path: epath.Path, label: str | None) -> _Index:
    with _parquet_file(path) as (file, generation):
        schema, metadata = file.schema_arrow, file.metadata
        column, size = _image_column(path, schema), metadata.num_rows
        paths, values = [None] * size, [None] * size
        if schema.field(column).type.get_field_index("path") >= 0:
            rows = file.read([f"{column}.path"])[column].to_pylist()
            paths = [row and row["path"] for row in rows]
        if label in schema.names:
            values = file.read([label])[label].to_pylist()
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    if not size:
        raise InputError(f"{path} must hold images; got no row")
    names: Any = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    for key in ("info", "features", label, "names"):
        names = names.get(key) if isinstance(names, Mapping) else None
    return _Index(
        [f"{i}-{os.path.basename(at)}" if at else f"{i}" for i, at in enumerate(paths)],
        [(group, row) for group, rows in enumerate(sizes) for row in range(rows)],
        [_class(value, names) for value in values],
        collections.Counter(),
        sum(metadata.row_group(group).total_byte_size for group in range(len(sizes))),
        generation,
    )


def _image_column(path: epath.Path, schema: Any) -> str:
    titles = [
        field.name
        for field in schema
        if str(field.type).startswith("struct<") and field.type.get_field_index("bytes") >= 0
    ]
    if not titles:
        raise InputError(
            f"{path} must have a column of images, a struct of bytes and path as `datasets` writes "
            f"it; got {short(', '.join(schema.names))}"
        )
    return next((title for title in titles if title in _IMAGES), titles[0])


@contextlib.contextmanager
def _parquet_file(path: epath.Path, generation: int | None = None) -> Iterator[Any]:
    """Opens a `ParquetFile`, and tells its generation; errors of it become an `InputError`."""
    import pyarrow
    from pyarrow import parquet

    with path.open("rb") as stream:
        try:
            yield parquet.ParquetFile(stream), _generation(stream)
        except (pyarrow.ArrowException, OSError) as error:
            if getattr(error, "errno", None):
                raise
            reason = columns.damage(path) or short(" ".join(str(error).split()))
            raise InputError(f"{path} must be a whole Parquet file; got {reason}") from error


def _groups(
    root: epath.Path, total: int, generations: Mapping[str, int | None]
) -> Callable[[str, int, int], bytes]:
    """Reads an image by its file, row group and row in it.

    A group is read once: its images stay in memory, or those of a large set in a temporary file. If
    the disk has no room for them, the last groups stay in memory.

    Args:
        root: the folder of the files.
        total: bytes of all groups.
        generations: of the files, see `_Index`.
    """
    # The place in the file, or the bytes; and where each image ends.
    kept = dict[tuple[str, int], tuple[int | bytes, NDArray]]()
    lock, reading = threading.Lock(), collections.defaultdict[str, Any](threading.Lock)
    spool: int | None = None
    if _KEPT < total < shutil.disk_usage(tempfile.gettempdir()).free / 2:
        spool, name = tempfile.mkstemp()
        os.unlink(name)

    def load(file: str, group: int) -> tuple[int | bytes, NDArray]:
        with _parquet_file(root / file, generations[file]) as (opened, _):
            column = _image_column(root / file, opened.schema_arrow)
            rows = opened.read_row_group(group, [f"{column}.bytes"])[column].to_pylist()
        values = [(row and row["bytes"]) or b"" for row in rows]
        data, ends = b"".join(values), np.cumsum([len(value) for value in values])
        with lock:
            if spool is None:
                # Threads may be at the end of one group and in the next.
                while len(kept) > 1 and sum(e[-1] for _, e in kept.values()) + len(data) > _KEPT:
                    del kept[next(iter(kept))]
                return kept.setdefault((file, group), (data, ends))
            with open(spool, "ab", closefd=False) as stream:
                place = stream.tell()
                stream.write(data)
            return kept.setdefault((file, group), (place, ends))

    def read(file: str, group: int, row: int) -> bytes:
        with lock:
            alone = reading[file]
        with alone:  # One thread reads what others wait for.
            place, ends = kept.get((file, group)) or load(file, group)
        start, end = int(ends[row - 1]) if row else 0, int(ends[row])
        if start == end:
            raise ValueError("no bytes, at most the path of a file elsewhere")
        if isinstance(place, bytes):
            return place[start:end]
        assert spool is not None
        return os.pread(spool, end - start, place + start)

    if spool is not None:
        weakref.finalize(read, os.close, spool)
    return read
