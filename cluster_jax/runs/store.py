"""The store of a run: features of photos or rows, and pictures, so that no later call reads them.

Its rows never move or change: a state of the run says which files have the rows of the store, and
which of these rows are its own. Each state with new features adds one file, `store-ROW.npz`, named
by its first row, with them and, of photos, their thumbnails. In it is a fingerprint of what the
rows were made from, by which a state knows it again: no state reads a file of another run, or one
that a killed or an undone update has left. The features of a training are the rows of its
embedding.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.core import buckets, io
from cluster_jax.data import images, thumbnails
from cluster_jax.data.datasets import Dataset
from cluster_jax.encoding.embed import readable_rows
from cluster_jax.runs import workdir as workdirs

# The most images of a training of which thumbnails are kept, as many as a page has points.
MOST_PICTURES = 100_000


def path_of(workdir: epath.Path, first: int = 0) -> epath.Path:
    """Returns the path of the file of which `first` is the first row of the store."""
    return workdir / f"store-{first}.npz"


class Pictures(NamedTuple):
    """Thumbnails of images.

    Attributes:
        rows: int64 `[m]`, ascending, the rows of the store.
        thumbnails: the thumbnail of each of these rows, see `thumbnails.encode`.
    """

    rows: NDArray
    thumbnails: Sequence[bytes]

    def places(self, rows: NDArray) -> NDArray:
        """Returns the place of the thumbnail of each row int `[n]`, int64, -1 without one."""
        is_there = np.isin(rows, self.rows)
        return np.where(is_there, np.searchsorted(self.rows, rows), -1)

    def fetch(self, places: NDArray) -> NDArray:
        """Returns the thumbnails at places int `[b]`, uint8 `[b, height, width, 1 or 3]`."""
        return np.stack([thumbnails.decode(self.thumbnails[i]) for i in places.tolist()])


def write(
    workdir: epath.Path,
    first: int,
    features: NDArray | None,
    pictures: Pictures | None = None,
    fingerprint: str | None = None,
) -> dict[int, str]:
    """Writes rows of the store; returns their file as in `Run.files`.

    Args:
        workdir: folder of the run.
        first: the first row.
        features: float `[l, d]`, the rows; None: a training has them elsewhere.
        pictures: those of the rows that have one; None: no row has.
        fingerprint: identifies what the rows were made from, so that rows that are made again have
            the same one; None: `features` are the user's own rows, and it is a hash of them.
    """
    if fingerprint is None:
        fingerprint = workdirs.fingerprint(np.ascontiguousarray(features).data)
    rows, files = pictures or Pictures(np.zeros(0, np.int64), ())
    content = np.frombuffer(b"".join(files), np.uint8)
    ends = np.cumsum([len(file) for file in files], dtype=np.int64)
    stored = {"rows": rows, "ends": ends, "content": content}
    if features is not None:
        stored["features"] = features
    io.write_arrays(path_of(workdir, first), stored, fingerprint, compressed=False)
    return {first: fingerprint}


def read(workdir: epath.Path, part: str | None, size: int, files: Mapping[int, str]) -> NDArray:
    """Returns the features of the rows of the store, float `[size, d]`.

    Args:
        workdir: folder of the run.
        part: `eval.features` of a training, "backbone" or "projection": the array of its embedding
            that has the features; None: a run of photos or of embeddings.
        size: number of rows, as a state says it.
        files: see `Run.files`.

    Raises:
        DamagedFile: a file is not what was written, or is gone.
    """
    if part is not None:
        path = workdir / workdirs.TRAIN_EMBEDDING
        try:
            rows = readable_rows(io.read_arrays(path))[part]
        except FileNotFoundError:
            raise io.DamagedFile(path, "it is not there") from None
        if len(rows) != size:
            raise io.DamagedFile(path, "it has other rows")
        return rows
    found = [stored["features"] for stored in _read(workdir, files, ("features",))]
    return found[0] if len(found) == 1 else np.concatenate(found)


def _read(
    workdir: epath.Path, files: Mapping[int, str], names: Collection[str]
) -> Iterator[dict[str, NDArray]]:
    """Yields arrays of the files of a store, in order; for the arguments see `read`.

    Raises:
        DamagedFile: a file is not what was written, is that of other rows, or is gone.
    """
    for first, fingerprint in sorted(files.items()):
        path = path_of(workdir, first)
        try:
            stored = io.read_arrays(path, names)
        except FileNotFoundError:
            raise io.DamagedFile(path, "it is not there") from None
        if io.read_fingerprint(path) != fingerprint:
            raise io.DamagedFile(path, "it has other rows")
        yield stored


def read_pictures(workdir: epath.Path, files: Mapping[int, str]) -> Pictures:
    """Returns the pictures of all rows of a store; a run of rows has none.

    Args:
        workdir: folder of the run.
        files: see `Run.files`.

    Raises:
        DamagedFile: a file is not what was written, is that of other rows, or is gone.
    """
    rows = [np.zeros(0, np.int64)]
    pictures = list[bytes]()
    for stored in _read(workdir, files, ("rows", "ends", "content")):
        rows.append(stored["rows"])
        content = stored["content"].tobytes()
        ends = stored["ends"].tolist()
        pictures += [content[i:j] for i, j in zip([0, *ends], ends, strict=False)]
    return Pictures(np.concatenate(rows), pictures)


def remove_others(workdir: epath.Path, files: Collection[int]) -> None:
    """Removes all files of a store but those with these first rows; nothing else is removed."""
    for name in buckets.names(workdir):
        match = re.fullmatch(r"store-([0-9]+)\.npz", name)
        if match and int(match[1]) not in files:
            (workdir / name).unlink()


def encoded(pixels: NDArray) -> list[bytes]:
    """Returns the thumbnails of images, uint8 `[b, H, W, C]`; they are made in threads."""
    return images.map_indices(lambda i: thumbnails.encode(pixels[i]), np.arange(len(pixels)))


def complete(workdir: epath.Path, dataset: Dataset, most: int = MOST_PICTURES) -> None:
    """Writes the pictures of the images of a training, if the store does not have them.

    Of more than `most` images a random sample has pictures; features have none.

    Args:
        workdir: folder of the run, with its `images.json`.
        dataset: the images that have a row, or features, of which a page shows no pictures.
        most: number of images that have pictures.
    """
    if path_of(workdir).exists():
        return
    pictures = None
    if dataset.shown is not None:
        rows = images.subset(dataset.size, most).astype(np.int64)
        files = list[bytes]()
        for part in images.chunks(len(rows), "making thumbnails"):
            files += encoded(dataset.shown.fetch(rows[part]))
        pictures = Pictures(rows, files)
    images_json = workdirs.read_values(workdir / workdirs.IMAGES)
    write(workdir, 0, None, pictures, of_training(images_json))


def of_training(images: Mapping[str, Any]) -> str:
    """Returns the fingerprint of the pictures of a training, of the content of `images.json`."""
    return str(images["sha256"])
