"""What a run keeps of its images in its workdir, so that no later call reads these again.

The features of a run are the rows of its first embedding, if it has images, followed by those of
`FEATURES`, which grows. Rows never move or change: a state of the run says which of them it has.
The files `pictures-ROW.npz` have the thumbnails of these rows, and of files their facts: the first
one those of the first embedding, and each update with new images adds one, named by its first row.
"""

import contextlib
import io as streams
import os
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.core import arrays, buckets, io
from cluster_jax.data import images, thumbnails
from cluster_jax.data.datasets import Dataset
from cluster_jax.data.images import FACTS
from cluster_jax.encoding.embed import LABELS, Batch, Parts, readable_rows
from cluster_jax.runs import claims
from cluster_jax.runs import workdir as workdirs
from cluster_jax.training import build
from cluster_jax.training.build import Inputs
from cluster_jax.training.config import AnyConfig, PhotosConfig, own_files

FEATURES = "features.npy"
_PICTURES = re.compile(r"pictures-([0-9]+)\.npz")
# The most images of a training of which thumbnails are kept, as many as a page has points.
MOST_PICTURES = 100_000
# Embeddings of a run, each `{"backbone": [n, d], ...}`, by the name of their file in a workdir:
# `workdir.TRAIN_EMBEDDING` and, if there are any, `TEST_EMBEDDING` and `INITIAL_EMBEDDING`.
Embeddings = Mapping[str, dict[str, np.ndarray]]


def checksum(rows: NDArray) -> int:
    """Returns the CRC-32 of the bytes of rows `[n, d]`; 0 for no rows."""
    crc = 0
    for part in arrays.blocks(*rows.shape):
        crc = zlib.crc32(np.ascontiguousarray(rows[part]).data, crc)
    return crc


def size_and_checksum(workdir: epath.Path) -> tuple[int, int]:
    """Returns number and checksum of the rows in `FEATURES`, by which `read` checks them.

    Both are 0 if there is no such file.
    """
    if not (workdir / FEATURES).exists():
        return 0, 0
    rows = _mapped(workdir)
    return len(rows), checksum(rows)


def _mapped(workdir: epath.Path) -> NDArray:
    """Returns the rows in `FEATURES`, which must exist, as a memory map.

    Raises:
        DamagedFile: the file cannot be read.
    """
    try:
        return np.load(workdir / FEATURES, mmap_mode="r")
    except (ValueError, EOFError) as error:
        raise io.DamagedFile(workdir / FEATURES, "its rows cannot be read") from error


def read(workdir: epath.Path, part: str | None, known: tuple[int, int]) -> NDArray | None:
    """Returns all features `[s, d]` that a run has or had; None if they are not stored.

    The array may be a read-only memory map.

    Args:
        workdir: workdir of the run.
        part: `eval.features` of a run of images, "backbone" or "projection": the array of the
            first embedding that has their features; None: a run of embeddings.
        known: what `size_and_checksum` returned when the state was written. The file may have got
            more rows since. By default its rows are not compared with a checksum.

    Raises:
        DamagedFile: a file is not what was written, or the first embedding of images is gone.
    """
    there = buckets.names(workdir)
    parts = list[NDArray]()
    if part is not None:
        if workdirs.TRAIN_EMBEDDING not in there:
            raise io.DamagedFile(workdir / workdirs.TRAIN_EMBEDDING, "it is not there")
        embedding = readable_rows(io.read_arrays(workdir / workdirs.TRAIN_EMBEDDING))
        parts.append(embedding[part])
    if FEATURES in there:
        try:
            # Also those that an undone update has added: `append` writes after them.
            rows = _mapped(workdir)
        except io.DamagedFile:
            if known[0] or not parts:
                raise
            rows = parts[0][:0]  # A state of images before the first update needs none of them.
        if checksum(rows[: known[0]]) != known[1]:
            raise io.DamagedFile(workdir / FEATURES, "its rows do not match their checksum")
        parts.append(rows)
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def append(workdir: epath.Path, rows: NDArray) -> None:
    """Appends rows `[m, d]` to `FEATURES`, in place, in the dtype of the file.

    They have as many columns as the rows of the file. If there is no such file, or it is damaged,
    so that the state that `read` has returned has none of its rows, one is made, in the dtype of
    the rows. The number of rows in the header is written last, so that the file is valid
    at any time; bytes that a killed process left after the rows are overwritten. The header, 128
    bytes, is written at once.
    """
    path = workdir / FEATURES
    known = rows[:0]
    if path.exists():
        with contextlib.suppress(io.DamagedFile):
            known = _mapped(workdir)
    count = len(known)
    rows = np.ascontiguousarray(rows, known.dtype)
    header = _header(rows, count + len(rows))
    if not count:
        io.write(path, _header(rows, 0))
    with open(path, "r+b") as file:
        file.seek(len(header) + count * rows.dtype.itemsize * int(np.prod(rows.shape[1:])))
        file.write(rows.tobytes())
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        file.write(header)


def _header(rows: NDArray, count: int) -> bytes:
    """Returns the header of a `.npy` file of `count` rows, whose length does not depend on `count`.

    `rows` are any rows of the file: they give its dtype and number of columns.
    """
    header = streams.BytesIO()
    values = {
        "descr": np.lib.format.dtype_to_descr(rows.dtype),
        "fortran_order": False,
        "shape": (count, *rows.shape[1:]),
    }
    np.lib.format.write_array_header_1_0(header, values)
    return header.getvalue()


class Pictures(NamedTuple):
    """Thumbnails of images, and facts about their files.

    Attributes:
        rows: int64 `[m]`, ascending, the rows of the store.
        thumbnails: the thumbnail of each of these rows, see `thumbnails.encode`.
        facts: `[m]` of `data.images.FACTS`; zeros for images that are no files.
    """

    rows: NDArray
    thumbnails: Sequence[bytes]
    facts: NDArray

    def places(self, rows: NDArray) -> NDArray:
        """Returns the place of the thumbnail of each row int `[n]`, int64, -1 without one."""
        is_there = np.isin(rows, self.rows)
        return np.where(is_there, np.searchsorted(self.rows, rows), -1)

    def fetch(self, places: NDArray) -> NDArray:
        """Returns the thumbnails at places int `[b]`, uint8 `[b, height, width, 1 or 3]`."""
        return np.stack([thumbnails.decode(self.thumbnails[i]) for i in places.tolist()])


def write_pictures(workdir: epath.Path, first: int, pictures: Pictures) -> None:
    """Writes the pictures of rows of the store, of which `first` is the first one."""
    content = np.frombuffer(b"".join(pictures.thumbnails), np.uint8)
    ends = np.cumsum([len(file) for file in pictures.thumbnails], dtype=np.int64)
    stored = {"rows": pictures.rows, "facts": pictures.facts, "ends": ends, "content": content}
    io.write_arrays(workdir / f"pictures-{first}.npz", stored, compressed=False)


def read_pictures(workdir: epath.Path) -> Pictures:
    """Returns the pictures of all rows of the store that have one; none without a run.

    Raises:
        DamagedFile: a file is not what was written.
    """
    matches = map(_PICTURES.fullmatch, buckets.names(workdir))
    found = {int(match[1]): match[0] for match in matches if match}
    rows = [np.zeros(0, np.int64)]
    facts = [np.zeros(0, FACTS)]
    files = list[bytes]()
    for _, name in sorted(found.items()):
        stored = io.read_arrays(workdir / name)
        rows.append(stored["rows"])
        facts.append(stored["facts"])
        content = stored["content"].tobytes()
        ends = stored["ends"].tolist()
        files += [content[i:j] for i, j in zip([0, *ends], ends, strict=False)]
    return Pictures(np.concatenate(rows), files, np.concatenate(facts))


def encoded(pixels: NDArray) -> list[bytes]:
    """Returns the thumbnails of images, uint8 `[b, H, W, C]`; they are made in threads."""
    return images.map_indices(lambda i: thumbnails.encode(pixels[i]), np.arange(len(pixels)))


def complete(workdir: epath.Path, dataset: Dataset, most: int = MOST_PICTURES) -> None:
    """Writes the pictures of the first embedding from its images, if they are not there.

    Of more than `most` images a random sample has pictures.

    Args:
        workdir: folder of the run.
        dataset: the images that have a row, or features, of which a page shows no pictures.
        most: number of images that have pictures.
    """
    if dataset.shown is None or "pictures-0.npz" in buckets.names(workdir):
        return
    rows = images.subset(dataset.size, most).astype(np.int64)
    files = list[bytes]()
    for part in images.chunks(len(rows), "making thumbnails"):
        files += encoded(dataset.shown.fetch(rows[part]))
    facts = np.zeros(len(rows), FACTS) if dataset.facts is None else dataset.facts(rows)
    write_pictures(workdir, 0, Pictures(rows, files, facts))


class Store(NamedTuple):
    """The embeddings of a run in its workdir, and which of them are missing.

    Attributes:
        workdir: the folder.
        images: description of the images, see `claims.describe_images`.
        recorded: content of `images.json`; {} if no earlier call has written it.
        made_from: fingerprint of config and images.
        files: name of the file of an embedding -> number of training steps of its network. For the
            file of the encoder it is the text `STEPS:FEATURES`, because `eval.features` may change
            after the training.
        missing: the names in `files` of which no file exists, or one after other training steps.
    """

    workdir: epath.Path
    images: Mapping[str, Any]
    recorded: Mapping[str, Any]
    made_from: str
    files: Mapping[str, int | str]
    missing: tuple[str, ...]


def find(workdir: epath.Path, inputs: Inputs[AnyConfig], files: Mapping[str, int | str]) -> Store:
    """Returns which embeddings of a run its workdir has.

    Args:
        workdir: folder of the run; need not exist.
        inputs: the config and the images of the run.
        files: the files that the run needs, see `Store`.

    Raises:
        InputError: the workdir has embeddings of other images or of another config, or a file is
            damaged (`DamagedFile`).
    """
    # Facts about photos are in the store, by which `photos` tells other contents of a file.
    has_facts = isinstance(inputs.config, PhotosConfig) and inputs.dataset.facts is not None
    images = claims.describe_images(inputs.dataset, by_names=has_facts)
    made_from = claims.made_from(inputs.config.values, images)
    recorded = claims.check_images(workdir, images)
    there = (claims.has_embedding(workdir / name, made_from, by) for name, by in files.items())
    missing = tuple(name for name, is_there in zip(files, there, strict=True) if not is_there)
    return Store(workdir, images, recorded, made_from, files, missing)


def begin(store: Store, inputs: Inputs[AnyConfig], encoder: Mapping[str, Any]) -> None:
    """Writes `config.json` and `images.json`, in the first process only.

    Parts of embeddings that are complete are removed. What an earlier call has recorded of the
    network of photos and of the file of a method stays.

    Args:
        store: the embeddings in the workdir, which exists.
        inputs: the config and the images of the run.
        encoder: what `images.json` says of the encoder of photos, see `photos.prepare`; {} where
            it is recorded already, and for a training.
    """
    if jax.process_index() != 0:
        return
    config = inputs.config
    workdir = store.workdir
    io.write_json(workdir / workdirs.CONFIG, config.values)
    described = {
        "config": config.name,
        "code": own_files(config),
        **store.recorded,
        **store.images,
        **build.describe_images(inputs),
        "workdir": os.path.abspath(workdir),
        **encoder,
    }
    io.write_json(workdir / workdirs.IMAGES, described)
    for name in store.files.keys() - set(store.missing):  # left by a kill after the last part
        Parts(workdir / name, "").remove()


def write(
    store: Store,
    name: str,
    checksum: str,
    make: Callable[[Parts], Batch],
    labels: NDArray | None,
) -> None:
    """Computes and writes a missing embedding; parts of it are saved so that it resumes.

    Args:
        store: embeddings of the run.
        name: name of the file, a key of `store.files`.
        checksum: checksum of the network, by which parts of an earlier call are known again.
        make: embeds the images; its argument is the location for parts of the embedding.
        labels: int32 `[n]`, of all images, also unreadable ones; None: there are none.
    """
    parts = Parts(store.workdir / name, f"{origin(store, name)}:{checksum}")
    parts.finish({**make(parts), **_of_labels(labels)}, origin(store, name))


def write_labels(store: Store, name: str, labels: NDArray | None) -> None:
    """Writes the labels of now into an embedding that is there, if it has others.

    Labels may change after the training, since nothing but scores depends on them.

    Args:
        store: embeddings of the run.
        name: name of the file.
        labels: see `write`.
    """
    file = store.workdir / name
    before = io.read_array(file, LABELS)
    if labels is None or before is None:
        is_same = labels is before
    else:
        is_same = np.array_equal(labels, before)
    if not is_same:
        embedding = io.read_arrays(file)
        embedding.pop(LABELS, None)
        Parts(file, "").finish({**embedding, **_of_labels(labels)}, origin(store, name))


def _of_labels(labels: NDArray | None) -> Batch:
    return {} if labels is None else {LABELS: labels.astype(np.int32)}


def origin(store: Store, name: str) -> str:
    """Returns the fingerprint in the file of an embedding or of the encoder, by its name."""
    return f"{store.made_from}:{store.files[name]}"
