"""The store of a run: features and pictures of its images, so that no later call reads these.

The features of photos and of embeddings are the rows of `FEATURES`, which grows; those of a
training are the rows of its embedding. Rows never move or change: a state of the run says which of
them it has. The files `pictures-ROW.npz` have the thumbnails of these rows, and of files their
facts: each state with new images adds one, named by its first row.
"""

import re
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.core import buckets, io
from cluster_jax.data import images, thumbnails
from cluster_jax.data.datasets import Dataset
from cluster_jax.data.images import FACTS
from cluster_jax.encoding.embed import readable_rows
from cluster_jax.runs import workdir as workdirs

FEATURES = "features.npy"
_PICTURES = re.compile(r"pictures-([0-9]+)\.npz")
# The most images of a training of which thumbnails are kept, as many as a page has points.
MOST_PICTURES = 100_000


def size_and_checksum(workdir: epath.Path, spare: int) -> tuple[int, int]:
    """Returns number and checksum of the rows in `FEATURES`, by which `read` checks them.

    The last `spare` rows of the store are left out. Both are 0 if there are none, see `_grown`.
    """
    rows = _grown(workdir)
    if rows is None or len(rows) <= spare:
        return 0, 0
    return len(rows) - spare, zlib.crc32(rows[: len(rows) - spare].data)


def _grown(workdir: epath.Path) -> NDArray | None:
    """Returns the rows in `FEATURES` as a memory map; None if there is no file, or a damaged one.

    They may be more than the newest state has: an undone update has left them.
    """
    try:
        return np.load(workdir / FEATURES, mmap_mode="r")
    except (FileNotFoundError, ValueError, EOFError):
        return None


def read(workdir: epath.Path, part: str | None, known: tuple[int, int]) -> NDArray | None:
    """Returns all features `[s, d]` that a run has or had; None if they are not stored.

    The array may be a read-only memory map.

    Args:
        workdir: workdir of the run.
        part: `eval.features` of a training, "backbone" or "projection": the array of its embedding
            that has the features; None: a run of photos or of embeddings.
        known: what `size_and_checksum` returned when the state was written. The file may have got
            more rows since, which are not compared with a checksum.

    Raises:
        DamagedFile: a file is not what was written, or is gone.
    """
    there = buckets.names(workdir)
    if part is not None:
        if workdirs.TRAIN_EMBEDDING not in there:
            raise io.DamagedFile(workdir / workdirs.TRAIN_EMBEDDING, "it is not there")
        return readable_rows(io.read_arrays(workdir / workdirs.TRAIN_EMBEDDING))[part]
    size, checksum = known
    rows = _grown(workdir)
    if rows is None and size:
        reason = "its rows cannot be read" if FEATURES in there else "it is not there"
        raise io.DamagedFile(workdir / FEATURES, reason)
    if rows is not None and zlib.crc32(rows[:size].data) != checksum:
        raise io.DamagedFile(workdir / FEATURES, "its rows do not match their checksum")
    return rows


def write(workdir: epath.Path, rows: NDArray, first: int) -> None:
    """Writes rows `[m, d]` into `FEATURES`, of which `first` is the number of the first one.

    The rows before it stay, and those after it, which a killed first run has left, do not. The file
    is replaced as a whole: a process that is killed leaves the one of before. It keeps its dtype.
    """
    stored = _grown(workdir) if first else None
    known = rows[:0] if stored is None else stored[:first]
    header = np.lib.format.header_data_from_array_1_0(known)
    header["shape"] = (len(known) + len(rows), *rows.shape[1:])
    with io.replacing(workdir / FEATURES) as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.write(known.data)  # No copy of many rows in memory.
        file.write(np.ascontiguousarray(rows, known.dtype).data)


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
