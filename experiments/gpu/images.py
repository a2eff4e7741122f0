"""Images to carry: `python -m experiments.gpu.images --source=DIR --out=DIR` packs CIFAR-10.

DIR of `--source` has the set as TFDS prepares it. The images are stored without loss, 1,000 in one
WebP mosaic, at 1.7 kB an image: 60,000 in two or three pieces of 50 MB. `--data` of
`python -m experiments.gpu` takes the folder of pieces, or an `.npz` of `images` and `labels`.
"""

import argparse
import io as bytes_io
import pathlib
import zipfile

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cluster_jax.core.checks import InputError
from cluster_jax.core.config import load_config, parse_section
from cluster_jax.data import datasets
from cluster_jax.data.images import Dataset, in_memory
from experiments.gpu import pieces

MOSAIC, COLUMNS = 1000, 25
# Lossless; `quality` is the effort here.
WEBP = {"lossless": True, "quality": 80, "method": 6}


def pack(images: NDArray, labels: NDArray, names: tuple[str, ...]) -> bytes:
    """Images uint8 `[n, h, w, 3]` and labels `[n]` as the bytes of one `.npz` without pickles."""
    mosaics = {}
    for start in range(0, len(images), MOSAIC):
        buffer = bytes_io.BytesIO()
        Image.fromarray(_tile(images[start : start + MOSAIC])).save(buffer, "WEBP", **WEBP)
        mosaics[f"mosaic_{start // MOSAIC:04d}"] = np.frombuffer(buffer.getvalue(), np.uint8)
    packed = bytes_io.BytesIO()
    shape = np.array(images.shape)
    np.savez(packed, shape=shape, labels=labels.astype(np.int16), names=np.array(names), **mosaics)
    return packed.getvalue()


def unpack(content: bytes) -> tuple[NDArray, NDArray, tuple[str, ...]]:
    """Images, labels int32, and names of the classes that `pack` stored."""
    with np.load(bytes_io.BytesIO(content), allow_pickle=False) as file:
        count, height, width, channels = file["shape"]
        images = np.empty((count, height, width, channels), np.uint8)
        for start in range(0, count, MOSAIC):
            data = file[f"mosaic_{start // MOSAIC:04d}"].tobytes()
            mosaic = np.asarray(Image.open(bytes_io.BytesIO(data)).convert("RGB"))
            block = images[start : start + MOSAIC]
            block[:] = _untile(mosaic, height, width)[: len(block)]
        return images, file["labels"].astype(np.int32), tuple(file["names"].tolist())


def load(path: pathlib.Path) -> Dataset:
    """The data set of `--data`: a folder of pieces, or an `.npz` of `images` and `labels`.

    Raises:
        InputError: it is missing, incomplete, of another hash, or holds something else.
    """
    if path.is_dir():
        content, about = pieces.join(path)
        if about.get("kind") != "images":
            raise InputError(f"--data must hold packed images; got {path}, which holds {about}")
        images, labels, names = unpack(content)
        return in_memory(about["name"], images, labels, names, cache_mb=np.inf)
    if not path.is_file():
        raise InputError(f"--data must be a folder of pieces or an .npz file; got {path}: no such")
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            images, labels = file["images"], file["labels"]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(
            f"--data must be an .npz file with images and labels; {path} is none ({error})"
        ) from error
    is_rgb = images.ndim == 4 and images.shape[3] == 3 and images.dtype == np.uint8
    if not is_rgb or labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        raise InputError(
            "--data must hold uint8 images [n, h, w, 3] and integer labels [n]; got "
            f"{images.dtype} {list(images.shape)} and {labels.dtype} {list(labels.shape)}"
        )
    return in_memory(path.stem, images, labels.astype(np.int32), None, cache_mb=np.inf)


def main() -> None:
    """Packs a set that TFDS has prepared, training and test images."""
    parser = argparse.ArgumentParser(prog="python -m experiments.gpu.images")
    parser.add_argument("--source", required=True, help="data_dir of TFDS")
    parser.add_argument("--out", required=True, help="folder for the pieces")
    parser.add_argument("--piece-mb", type=float, default=pieces.PIECE_MB)
    arguments = parser.parse_args()
    config = load_config("ncc_cifar10")
    config.data.dir = arguments.source
    dataset = datasets.load(parse_section(datasets.DataConfig, "data", config.data.to_dict()))
    content = pack(dataset.images, dataset.labels, dataset.label_names)
    about = {"kind": "images", "name": config.data.name, "split": config.data.split}
    pieces.split(content, pathlib.Path(arguments.out), about, arguments.piece_mb)
    print(f"{dataset.size:,} images in {len(content) / 1e6:.1f} MB: {arguments.out}")


def _tile(images: NDArray) -> NDArray:
    """`[n, h, w, c] -> [rows * h, COLUMNS * w, c]`, padded with black images."""
    count, height, width, channels = images.shape
    rows = -(-count // COLUMNS)
    padded = np.zeros((rows * COLUMNS, height, width, channels), np.uint8)
    padded[:count] = images
    grid = padded.reshape(rows, COLUMNS, height, width, channels).swapaxes(1, 2)
    return grid.reshape(rows * height, COLUMNS * width, channels)


def _untile(mosaic: NDArray, height: int, width: int) -> NDArray:
    rows, columns = mosaic.shape[0] // height, mosaic.shape[1] // width
    grid = mosaic.reshape(rows, height, columns, width, -1).swapaxes(1, 2)
    return grid.reshape(rows * columns, height, width, -1)


if __name__ == "__main__":
    main()
