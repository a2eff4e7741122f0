"""The workdir of a run: its path, its files, and checks before a command writes into it."""

import hashlib
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from absl import logging
from etils import epath

from cluster_jax import __version__
from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.data import splits
from cluster_jax.data.images import Dataset

CONFIG, RESULTS = "config.json", "results.json"
ASSIGNMENTS, REPORT = "assignments.csv", "report.html"
DUPLICATES = "duplicates.csv"
# Needed to assign new images without the training images.
IMAGES, CLUSTERS = "images.json", "clusters.npz"
WEIGHTS = "weights_sha256"  # in images.json: of a pretrained network that is not trained
# Embeddings of the training images, of held-out test images, and of the training images by the
# network with which the last stage starts.
TRAIN_EMBEDDING, TEST_EMBEDDING = "embedding.npz", "embedding_test.npz"
INITIAL_EMBEDDING = "embedding_before.npz"

# Number of evenly spaced images whose pixels enter a fingerprint.
_FINGERPRINT_IMAGES = 256


def read_values(file: epath.Path) -> dict[str, Any]:
    """Reads one of the JSON files of a workdir.

    Raises:
        DamagedFile: it is not what a command has written.
    """
    values = io.read_json(file)
    if not isinstance(values, dict):
        raise io.DamagedFile(file, "it has other content")
    return values


def default_path(folder: str, name: str, values: Mapping[str, Any]) -> pathlib.Path:
    """`FOLDER/NAME-HASH`, with a hash of `values`.

    Args:
        folder: "runs" or "clusters".
        name: name of the config or file; characters unsuitable for a file name become "_".
        values: all that the result depends on, as JSON values.
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
    repair: Callable[[epath.Path], bool] | None = None,
) -> dict[str, Any] | None:
    """Checks that a run of `config` may use a workdir.

    Args:
        workdir: folder of the run; need not exist.
        config: all that the result depends on, as JSON values; the first file that the command
            writes is this config, as `config.json`.
        compared: selects the part of a config that must be equal to resume a run.
        required: files of a finished run besides `config.json` and `results.json`.
        own_folder: whether other files in the folder are an error.
        repair: puts damaged files aside, and says whether there were any, so that the run is not
            finished; called once the folder is known to be this run's. None: `put_aside`.

    Returns:
        The results if a run of exactly this config is finished, else None.

    Raises:
        InputError: the workdir is a file, contains a run of a different config or an older version
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
    if (put_aside if repair is None else repair)(workdir):
        return None
    results = finished_results(workdir, required)
    return results if results is not None and results["config"] == config else None


def put_aside(workdir: epath.Path, names: tuple[str, ...] = (RESULTS,)) -> bool:
    """Moves damaged files to the folder `damaged`, with a warning each; True if there were any.

    Args:
        workdir: folder of the run.
        names: files that the run makes again where they lack.
    """
    reasons = {name: _damage(workdir / name) for name in names}
    for name, reason in reasons.items():
        if reason is None:
            continue
        aside = workdir / io.DAMAGED / name
        aside.parent.mkdir(exist_ok=True)
        if aside.exists():
            aside.rmtree() if aside.is_dir() else aside.unlink()
        (workdir / name).rename(aside)
        logging.warning(
            "%s is damaged (%s); moved it to %s and making it again", workdir / name, reason, aside
        )
    return any(reason is not None for reason in reasons.values())


def _damage(file: epath.Path) -> str | None:
    """Why a file cannot be used; None if it can, or if it does not exist."""
    if not file.exists():
        return None
    try:
        if file.suffix == ".npz":
            io.read_arrays(file)
        else:
            read_values(file)
    except io.DamagedFile as error:
        return error.reason
    return None


def finished_results(
    workdir: epath.PathLike, required: tuple[str, ...] = ()
) -> dict[str, Any] | None:
    """The content of `results.json`; None if the run is not finished.

    Raises:
        InputError: an older version of the package wrote it.
    """
    workdir = epath.Path(workdir)
    if not all((workdir / name).exists() for name in (RESULTS, CONFIG, *required)):
        return None
    results = read_values(workdir / RESULTS)
    if "provenance" not in results:
        raise older_version(workdir)
    # An interrupted second evaluation has written its config next to the first one's results.
    return results if results["config"] == read_values(workdir / CONFIG) else None


def older_version(workdir: epath.PathLike, reason: object = None) -> InputError:
    """The error for a workdir that an older version of the package wrote."""
    because = "" if reason is None else f" ({reason})"
    return InputError(
        f"{workdir} was written by an older version of cluster_jax{because}; choose another "
        "--workdir to run it again, or use that version"
    )


def fingerprint(*parts: bytes | memoryview) -> str:
    """SHA-256 of the concatenated parts, in hexadecimal."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def describe_images(dataset: Dataset) -> dict[str, Any]:
    """Number and fingerprint of a run's images, to detect changes when the run is resumed."""
    dataset = dataset.shown or dataset
    count = min(dataset.size, _FINGERPRINT_IMAGES)
    rows = dataset.fetch(np.arange(count) * dataset.size // count)
    # Without the neighbors that features come with: they follow from the features.
    parts = [rows[:, : dataset.shape[0] - dataset.neighbors].tobytes()]
    parts += [os.fsencode(name) for name in dataset.sources or ()]
    if dataset.known is not None:
        parts.append(dataset.known.astype(np.int32).tobytes())
        parts.append("\n".join(splits.known_names(dataset)).encode())
    return {"size": dataset.size, "sha256": fingerprint(*parts)}


def check_images(workdir: epath.Path, images: Mapping[str, Any]) -> None:
    """Raises an `InputError` if the run in a workdir was started with other images.

    Args:
        workdir: folder of the run; need not exist.
        images: see `describe_images`.
    """
    file = workdir / IMAGES
    if file.exists() and not images.items() <= read_values(file).items():
        raise InputError(
            f"the images or their known classes have changed since the run in {workdir} started; "
            "choose another --workdir"
        )


def _check_empty(workdir: epath.Path) -> None:
    names = sorted(file.name for file in workdir.iterdir()) if workdir.exists() else []
    # A killed `io.write` may have left a temporary file, which is harmless.
    names = [n for n in names if not (n.startswith(".") and n.endswith(".partial"))]
    if names:
        raise InputError(
            f"{workdir} contains other files, such as {names[0]}; choose another --workdir"
        )


def _read_config(workdir: epath.Path) -> dict[str, Any]:
    try:
        return read_values(workdir / CONFIG)
    except io.DamagedFile as error:
        raise InputError(f"{error}, or choose another --workdir") from error


def _check_same(workdir: epath.Path, stored: Any, config: Any) -> None:
    differences = list(_differences(stored, config))
    if not differences:
        return
    if [key for key, *_ in differences] == ["version"]:
        raise InputError(
            f"{workdir} was written by version {stored.get('version')} of cluster_jax, but this is "
            f"version {__version__}; choose another --workdir"
        )
    # A different method also has different keys; its name is the clearest difference.
    key, old, new = min(differences, key=lambda difference: difference[0] != "method.name")
    more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
    raise InputError(
        f"{workdir} contains a run with {key} = {_short(old)}, not {_short(new)}{more}; choose "
        "another --workdir"
    )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _keys(config: Mapping[str, Any]) -> dict[str, set[str]]:
    """Keys of a config and its sections, which are fixed for a version of the package.

    Excludes the keys of the method and the stages, and sections that are None.
    """
    keys = {"": set(config)}
    for name, values in config.items():
        if isinstance(values, Mapping) and name not in ("method", "stages"):
            keys[name] = set(values)
    return keys


def _differences(stored: Any, config: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(key, stored value, new value) for each value that differs, depth first."""
    if isinstance(stored, Mapping) and isinstance(config, Mapping):
        for name in sorted(set(stored) | set(config)):
            yield from _differences(stored.get(name), config.get(name), f"{key}.{name}".strip("."))
    elif stored != config:
        yield key, stored, config
