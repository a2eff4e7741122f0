"""Folders of images by cluster: links to the source files, or PNG files of images without one."""

import collections
import functools
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath
from numpy.typing import NDArray
from PIL import Image

from cluster_jax.core.checks import InputError
from cluster_jax.data import scan, splits
from cluster_jax.data.images import Dataset
from cluster_jax.pipeline import inference
from cluster_jax.pipeline.inference import TrainedRun

# Longest name of a folder; file systems allow 255 bytes, which are 63 characters at worst.
_MAX_NAME = 60


def check_has_images(data_name: str) -> None:
    """Raises an `InputError` if a run's data are features, of which there are no images."""
    if data_name == "features":
        raise InputError("what is exported or shown must be images; got a run on features")


def check(
    folder: os.PathLike | str,
    images: epath.PathLike | None = None,
    workdir: epath.PathLike | None = None,
) -> pathlib.Path:
    """The folder to export to, once it is clear that it can be used; nothing is written.

    Args:
        folder: must be new or empty.
        images: folder of the source images, which the new folder must not be part of, because it
            would add its links to them; or None.
        workdir: of the run, which must not be in the folder; or None.

    Raises:
        InputError: it cannot be used.
    """
    if "://" in str(folder):
        raise InputError(f"the folder to export to must be a local one; got {folder}")
    path = pathlib.Path(folder).expanduser()
    if os.path.lexists(path) and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"the folder to export to must be new or empty; got {folder}")
    parent = next(p for p in (path, *path.absolute().parents) if os.path.lexists(p))
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(
            f"the folder to export to must be in a folder that can be written; got {folder}"
        )
    real = path.resolve()
    if images is not None and real.is_relative_to(_resolved(images)):
        raise InputError(
            f"the folder to export to must be outside of the images' folder {images}; got {folder}"
        )
    if workdir is not None and _resolved(workdir).is_relative_to(real):
        raise InputError(f"the folder to export to must not hold the workdir; got {folder}")
    return path


def write(
    folder: os.PathLike | str,
    labels: NDArray,
    images: epath.PathLike | None,
    sources: Sequence[str] | None,
    load: Callable[[], Dataset],
) -> int:
    """Writes one folder per cluster; what an error interrupts is removed again.

    A file is linked to by its absolute path, or copied where links are not possible.

    Args:
        folder: must be new or empty.
        labels: cluster `[n]` of each image, int, or names of classes.
        images: the folder that `sources` are relative to; None without sources.
        sources: file of each image; None: the images become PNG files named by their index.
        load: the images; called only without `sources`.

    Returns:
        The number of folders.

    Raises:
        InputError: the folder cannot be used, or a source file does not exist any more.
    """
    path, names = check(folder), folder_names(labels)
    if sources is None or images is None:
        dataset = load()
        if dataset.size != len(labels):
            raise InputError(
                f"the images must be those of the run, {len(labels):,}; got {dataset.size:,}"
            )
        write_image = functools.partial(_write_pixels, dataset)
    else:
        root = epath.Path(images).expanduser()
        files = [root / source for source in sources]
        for file in files:
            if not file.exists():
                raise InputError(
                    f"the source images must still exist to be exported; {file} does not"
                )
        write_image = functools.partial(_link, files, collections.defaultdict(set))
    try:
        for name in names.values():
            (path / name).mkdir(parents=True)
        for i, label in enumerate(labels.tolist()):
            write_image(i, path / names[label])
    except BaseException:
        for name in names.values():
            shutil.rmtree(path / name, ignore_errors=True)
        raise
    return len(names)


def run_clusters(workdir: epath.PathLike, folder: os.PathLike | str) -> int:
    """Exports the images of a finished run by its clusters, or by their classes.

    Args:
        workdir: of the run.
        folder: must be new or empty.

    Returns:
        The number of folders.

    Raises:
        InputError: see `write`.
    """
    run = inference.read(workdir)
    found, _ = inference.fitted(run, by_kmeans=False)
    return training_images(run, found.cluster_labels, folder)


def training_images(run: TrainedRun, labels: NDArray, folder: os.PathLike | str) -> int:
    """Exports the training images of a run by their labels, see `write`."""
    section = run.config.data
    check_has_images(section.name)

    def load() -> Dataset:
        if section.name == "arrays" and section.dir is None:
            raise InputError(
                "the images to export must be in files; got a run on an array in memory"
            )
        return splits.load(section, run.config.novel)[0]

    root = scan.root(section.dir) if section.name == "folder" and section.dir else None
    return write(folder, labels, root, inference.files(run), load)


def folder_names(labels: NDArray) -> dict[Any, str]:
    """A safe folder name for each label: `cluster_03` for 3, "cat_dog" for the class "cat/dog"."""
    unique = np.unique(labels).tolist()
    width = max(2, len(str(max(unique)))) if labels.dtype.kind in "iu" else 0
    used: set[str] = set()
    names = {}
    for label in unique:
        text = f"cluster_{label:0{width}d}" if width else str(label)
        # No separators, no "." or "..", nothing hidden, nothing a shell reads as a flag.
        safe = re.sub(r"[^\w.-]+", "_", text).strip("._-")[:_MAX_NAME]
        names[label] = _unused(safe or "class", used)
    return names


def _unused(name: str, used: set[str]) -> str:
    """`name`, or `stem_2.ext`, `stem_3.ext`, ...: the first that is not used yet, which it now is.

    Upper and lower case count as the same, as on macOS.
    """
    stem, suffix = os.path.splitext(name)
    free, number = name, 1
    while free.casefold() in used:
        number += 1
        free = f"{stem}_{number}{suffix}"
    used.add(free.casefold())
    return free


def _resolved(path: epath.PathLike) -> pathlib.Path:
    return pathlib.Path(path).expanduser().resolve()


def _link(
    files: Sequence[epath.Path],
    used: Mapping[pathlib.Path, set[str]],
    i: int,
    folder: pathlib.Path,
) -> None:
    """A link to a local file; a copy of one in a bucket or where links are not possible.

    Args:
        files: files of all images.
        used: names that are used, by folder.
        i: the image.
        folder: of its cluster.
    """
    # The last part of a path, whatever the text.
    name = files[i].name.replace("/", "_").replace("\0", "_")
    target = folder / _unused("image" if name in ("", ".", "..") else name, used[folder])
    if "://" not in str(files[i]):
        try:
            os.symlink(os.path.realpath(files[i]), target)
            return
        except FileExistsError:
            raise
        except OSError:  # The file system has no links.
            pass
    with target.open("xb") as copy:
        copy.write(files[i].read_bytes())


def _write_pixels(dataset: Dataset, i: int, folder: pathlib.Path) -> None:
    image, width = dataset.fetch(np.array([i]))[0], len(str(dataset.size - 1))
    pixels = image[..., 0] if image.shape[-1] == 1 else image
    with (folder / f"{i:0{width}d}.png").open("xb") as file:
        Image.fromarray(pixels).save(file, "PNG")
