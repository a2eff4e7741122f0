"""The folder of a run: its name, its files, and whether a command may write into it."""

import hashlib
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from cluster_jax import __version__
from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.data import splits
from cluster_jax.data.images import Dataset

CONFIG, RESULTS = "config.json", "results.json"
ASSIGNMENTS, REPORT = "assignments.csv", "report.html"
# What must be known to assign new images without the training images.
IMAGES, CLUSTERS = "images.json", "clusters.npz"
# Embeddings: of the training images, of those held out for a test, and of the training images at
# the start of a training that begins with another's network.
TRAIN_EMBEDDING, TEST_EMBEDDING = "embedding.npz", "embedding_test.npz"
INITIAL_EMBEDDING = "embedding_before.npz"

# Images whose pixels enter a fingerprint, evenly spaced.
_FINGERPRINT_IMAGES = 256


class StoredClusters(NamedTuple):
    """What `clusters.npz` holds of the n images that were clustered.

    Attributes:
        points: float32 `[n, p]`, the reduced space in which GridShift ran.
        centers: float64 `[k, p]`, GridShift's modes in that space.
        bandwidth: float64 `[]`, the side of GridShift's cells.
        cluster_labels: int32 `[n]`, GridShift's.
        distances: float32 `[n]`, to the center of the cluster, in bandwidths.
        outliers: bool `[n]`, GridShift's.
        kmeans_labels: int32 `[n]`.
        novelty_threshold: float64 `[]`, see `clustering.out_of_sample.novelty_threshold`.
        unlabeled_rows: int64 `[n]`, which of the training images were clustered; None: all.
        class_labels: int32, class of every training image by novel class discovery, or None.
        class_novelty_threshold: float64 `[]`, of all training images, or None.
    """

    points: np.ndarray
    centers: np.ndarray
    bandwidth: np.ndarray
    cluster_labels: np.ndarray
    distances: np.ndarray
    outliers: np.ndarray
    kmeans_labels: np.ndarray
    novelty_threshold: np.ndarray
    unlabeled_rows: np.ndarray | None = None
    class_labels: np.ndarray | None = None
    class_novelty_threshold: np.ndarray | None = None


def write_clusters(workdir: epath.Path, clusters: StoredClusters) -> None:
    """Writes `clusters.npz`."""
    fields = {name: value for name, value in clusters._asdict().items() if value is not None}
    io.write_arrays(workdir / CLUSTERS, fields)


def read_clusters(workdir: epath.Path) -> StoredClusters:
    """Reads `clusters.npz`.

    Raises:
        InputError: an older version of the package wrote it.
    """
    try:
        return StoredClusters(**io.read_arrays(workdir / CLUSTERS))
    except TypeError as error:
        raise older_version(workdir) from error


def default_path(folder: str, name: str, values: Mapping[str, Any]) -> pathlib.Path:
    """`FOLDER/NAME-HASH`, the hash of all that the result depends on.

    Args:
        folder: "runs" or "clusters".
        name: of the config or the file; characters that a file name should not have become "_".
        values: JSON values.
    """
    text = json.dumps(values, sort_keys=True)
    stem = re.sub(r"[^\w.-]+", "_", name)
    return pathlib.Path(folder) / f"{stem}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def claim(
    workdir: epath.Path,
    config: Mapping[str, Any],
    *,
    compared: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
    required: tuple[str, ...] = (),
    own_folder: bool = False,
) -> dict[str, Any] | None:
    """Checks that a run of `config` may use a workdir.

    Args:
        workdir: need not exist.
        config: what the result depends on, as JSON values; the command writes it to `config.json`
            before anything else.
        compared: the part of a config that must be the same for the run to be continued.
        required: files that a finished run has besides `config.json` and `results.json`.
        own_folder: whether other files in the folder are an error.

    Returns:
        The results of a finished run of exactly this config; None: there is none yet.

    Raises:
        InputError: the workdir is a file, holds a run of another config or of an older version
            or, with `own_folder`, other files.
    """
    if "://" not in str(workdir):  # A bucket has no folders.
        for path in (workdir, *workdir.parents):
            if path.exists() and not path.is_dir():
                raise InputError(f"{path} is a file; choose another --workdir")
    if not (workdir / CONFIG).exists():
        if own_folder:
            _check_empty(workdir)
        return None
    config = json.loads(json.dumps(config))
    stored = _read_config(workdir)
    if _keys(stored) != _keys(config):
        raise older_version(workdir)
    _check_same(workdir, compared(stored), compared(config))
    results = finished_results(workdir, required)
    return results if results is not None and results["config"] == config else None


def finished_results(
    workdir: epath.PathLike, required: tuple[str, ...] = ()
) -> dict[str, Any] | None:
    """What `results.json` holds; None where the run is not finished.

    Raises:
        InputError: an older version of the package wrote it.
    """
    workdir = epath.Path(workdir)
    if not all((workdir / name).exists() for name in (RESULTS, CONFIG, *required)):
        return None
    results = io.read_json(workdir / RESULTS)
    if "provenance" not in results:
        raise older_version(workdir)
    # A second evaluation that was interrupted leaves its config beside the first one's results.
    return results if results["config"] == io.read_json(workdir / CONFIG) else None


def older_version(workdir: epath.PathLike, reason: object = None) -> InputError:
    """The error for a workdir whose files have the names of an older version."""
    because = "" if reason is None else f" ({reason})"
    return InputError(
        f"{workdir} was written by an older version of cluster_jax{because}; choose another "
        "--workdir to run it again, or use that version"
    )


def fingerprint(*parts: bytes | memoryview) -> str:
    """SHA-256 of the parts, one after the other, in hexadecimal."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def describe_images(dataset: Dataset) -> dict[str, Any]:
    """Number and fingerprint of a run's images: tells whether they are those it began with."""
    count = min(dataset.size, _FINGERPRINT_IMAGES)
    parts = [dataset.fetch(np.arange(count) * dataset.size // count).tobytes()]
    parts += [os.fsencode(name) for name in dataset.sources or ()]
    if dataset.known is not None:
        parts.append(dataset.known.astype(np.int32).tobytes())
        parts.append("\n".join(splits.known_names(dataset)).encode())
    return {"size": dataset.size, "sha256": fingerprint(*parts)}


def check_images(workdir: epath.Path, images: Mapping[str, Any]) -> None:
    """Raises an `InputError` if the run in a workdir began with other images.

    Args:
        workdir: need not exist.
        images: see `describe_images`.
    """
    file = workdir / IMAGES
    if file.exists() and not images.items() <= io.read_json(file).items():
        raise InputError(
            f"the images, or the classes given for some of them, have changed since the run in "
            f"{workdir} began; choose another --workdir"
        )


def _check_empty(workdir: epath.Path) -> None:
    names = sorted(file.name for file in workdir.iterdir()) if workdir.exists() else []
    # What `io.write` leaves when it is killed is no obstacle.
    names = [n for n in names if not (n.startswith(".") and n.endswith(".partial"))]
    if names:
        raise InputError(
            f"{workdir} holds other files, {names[0]} among them; choose another --workdir"
        )


def _read_config(workdir: epath.Path) -> dict[str, Any]:
    try:
        stored = io.read_json(workdir / CONFIG)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{workdir / CONFIG} cannot be read ({error}); choose another --workdir"
        ) from error
    if not isinstance(stored, dict):
        raise InputError(f"{workdir / CONFIG} is not a run's config; choose another --workdir")
    return stored


def _check_same(workdir: epath.Path, stored: Any, config: Any) -> None:
    differences = list(_differences(stored, config))
    if not differences:
        return
    if [key for key, *_ in differences] == ["version"]:
        raise InputError(
            f"{workdir} was written by version {stored.get('version')} of cluster_jax, and this "
            f"is {__version__}; choose another --workdir"
        )
    # Another method has other keys too: its name says more than any of them.
    key, old, new = min(differences, key=lambda difference: difference[0] != "method.name")
    more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
    raise InputError(
        f"{workdir} holds a run with {key} = {_short(old)}, not {_short(new)}{more}; choose "
        "another --workdir"
    )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _keys(config: Mapping[str, Any]) -> dict[str, set[str]]:
    """Keys of a config and its sections, which differ only between versions of the package.

    Except those of the method and of the stages, and of a section that is None in one config.
    """
    keys = {"": set(config)}
    for name, values in config.items():
        if isinstance(values, Mapping) and name not in ("method", "stages"):
            keys[name] = set(values)
    return keys


def _differences(stored: Any, config: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(key, stored value, value of the config) of the values that differ, depth first."""
    if isinstance(stored, Mapping) and isinstance(config, Mapping):
        for name in sorted(set(stored) | set(config)):
            yield from _differences(stored.get(name), config.get(name), f"{key}.{name}".strip("."))
    elif stored != config:
        yield key, stored, config
