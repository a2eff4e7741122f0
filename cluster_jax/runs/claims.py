"""Which run a folder is of: what was asked for, and of which images."""

import json
import os
import pathlib
import re
import shlex
from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath

from cluster_jax.clustering import custom
from cluster_jax.core import arrays, buckets, io
from cluster_jax.core.checks import InputError, short
from cluster_jax.data.images import Dataset
from cluster_jax.evaluation import own
from cluster_jax.evaluation.options import FINDERS
from cluster_jax.runs import config_paths
from cluster_jax.runs import workdir as workdirs

# Sections that may change in a trained run without training again.
AFTER_TRAINING = ("eval", "note")
# Keys that may change at any time, because they do not affect the result.
AT_ANY_TIME = {
    "train": (
        "log_every",
        "checkpoint_every",
        "keep_checkpoints",
        "prefetch",
        "on_collapse",
    ),
    "data": ("cache_mb", "threads"),
}

# Files and folders that a run writes.
_OF_A_RUN = (
    *("checkpoints", workdirs.RESULTS, workdirs.ASSIGNMENTS, workdirs.REPORT, workdirs.IMAGES),
    *(workdirs.ENCODER, workdirs.TRAIN_EMBEDDING, workdirs.TEST_EMBEDDING),
    *(workdirs.INITIAL_EMBEDDING, workdirs.TRAIN_FEATURES, workdirs.TEST_FEATURES),
)
# The most images of a streamed set, evenly spaced, whose pixels enter a fingerprint.
_SAMPLE = 256


def default_path(folder: str, name: str, values: Mapping[str, Any]) -> pathlib.Path:
    """Returns `FOLDER/NAME-HASH`, with a hash of `values`.

    Args:
        folder: "runs" or "clusters".
        name: name of the config or file; characters unsuitable for a file name become "_".
        values: everything that the result depends on, as JSON values.
    """
    hashed = workdirs.fingerprint(json.dumps(values, sort_keys=True).encode())
    stem = re.sub(r"[^\w.-]+", "_", name)
    return pathlib.Path(folder) / f"{stem}-{hashed[:8]}"


def default_workdir(config: Mapping[str, Any], name: str) -> pathlib.Path:
    """Returns `runs/NAME-HASH`, with a hash of all that embeddings depend on, see `training_part`.

    Args:
        config: the whole config, as JSON values; of its paths the absolute ones count.
        name: name of the config.
    """
    return default_path("runs", name, training_part(config_paths.with_absolute_paths(config)))


def training_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of the part of a config that checkpoints and embeddings depend on.

    Args:
        config: the whole config of a training or of photos, as JSON values.
    """
    values = {k: v for k, v in config.items() if k not in AFTER_TRAINING}
    for section in AT_ANY_TIME.keys() & values.keys():
        keys = AT_ANY_TIME[section]
        values[section] = {k: v for k, v in values[section].items() if k not in keys}
    if values.get("novel", {}).get("classes") is None:  # Labels are for scores only.
        values["data"].pop("labels", None)
    return values


def asked_again(stored: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the config of a finished run with what may change after its embedding.

    Args:
        stored: the config of the run.
        asked: the config that a user gives now; labels stay if it names none.
    """
    labels = asked["data"]["labels"] or stored["data"]["labels"]
    changed = {key: asked[key] for key in AFTER_TRAINING}
    return {**stored, "data": {**stored["data"], "labels": labels}, **changed}


def asked(section: Mapping[str, Any], sample: int | None) -> str:
    """Returns a digest, 12 characters, of what clusters and scores depend on after the embedding.

    It has the section `eval` and the files of the modules of the user's own that it names. Labels
    are left out: their path is another one once files have moved.

    Args:
        section: the section `eval`, as JSON values.
        sample: number of images that are clustered, to which others are then assigned; None: all.

    Raises:
        InputError: a module of `eval.method` or `eval.metrics` cannot be imported.
    """
    modules = [custom.file_hash(section["method"], FINDERS), own.files(section["metrics"])]
    about = json.dumps([section, modules, sample], sort_keys=True)
    return workdirs.fingerprint(about.encode())[:12]


def made_from(values: Mapping[str, Any], images: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of all that embeddings depend on, except the number of steps.

    Paths are left out: they are others once files have moved, and `claim` compares them.

    Args:
        values: the whole config, as JSON values.
        images: what `describe_images` returns.
    """
    paths = config_paths.paths_of(values)
    part = training_part(config_paths.with_paths(values, dict.fromkeys(paths)))
    part.get("train", {}).pop("duration", None)
    return workdirs.fingerprint(json.dumps([part, images], sort_keys=True).encode())


def check_folder(workdir: epath.PathLike) -> None:
    """Raises an `InputError` unless a run can be in a workdir, which need not exist.

    The path must lead to no file, and the folder must be writable, unless it has a `config.json`.
    """
    workdir = buckets.path(workdir)
    if "://" not in str(workdir):  # A bucket has no folders.
        for path in (workdir, *workdir.parents):
            if path.exists() and not path.is_dir():
                raise InputError(f"{path} is a file; choose another folder")
    if not (workdir / workdirs.CONFIG).exists():  # A finished run may be read-only.
        io.check_writable(workdir)


def claim(workdir: epath.Path, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Checks that a run of `config` may use a workdir, and returns its finished run, if any.

    Nothing is written or locked. Of a run of images, only the `training_part` must be equal.

    Args:
        workdir: folder of the run; need not exist.
        config: everything that the result depends on, as JSON values. The caller then writes it to
            `config.json`, before any other file.

    Returns:
        The values of `workdirs.about` for the finished run; None if there is none.

    Raises:
        InputError: the path is a file or leads through one; a folder without `config.json` cannot
            be written (with one this is not checked, because a finished run may be read-only) or
            has other files of a run; the run in the folder is of a different config, of another
            command or of an older version; or its `config.json` or newest state is damaged.
    """
    check_folder(workdir)
    there = buckets.names(workdir)
    if workdirs.CONFIG not in there:
        left = [name for name in _OF_A_RUN if name in there]
        left += [f"run-{number}.npz" for number in workdirs.states(workdir)]
        if left:
            raise InputError(
                f"{workdir} must have {workdirs.CONFIG} beside {left[0]}, to tell which run it is; "
                "got none: restore it from a copy, or choose another folder"
            )
        return None
    try:
        workdirs.of_run(workdir)
        finished = workdirs.about(workdir)
        stored = finished["config"] if finished else workdirs.stored_config(workdir)
    except io.DamagedFile as error:
        raise InputError(f"{error}, or choose another folder") from error
    _check_same(workdir, stored, json.loads(json.dumps(config)))
    return finished


def describe_images(dataset: Dataset) -> dict[str, Any]:
    """Returns "size" and "sha256" of the images of a run, to detect changes when it is resumed.

    The hash is of the pixels or features of all images in memory, of a streamed set of at most 256
    evenly spaced ones; of the names of all; and in novel class discovery of the known class of
    each. Gray images are described as the same in three channels, which some networks take.
    """
    from cluster_jax.discovery import splits  # Loads JAX, as above.

    dataset = dataset.shown or dataset
    rows = dataset.images
    if rows is None:
        rows = dataset.fetch(np.arange(0, dataset.size, 1 + (dataset.size - 1) // _SAMPLE))
    # Without the neighbors that features come with: they follow from the features.
    rows = rows[:, : dataset.shape[0] - dataset.neighbors]
    if dataset.has_images:
        rows = np.broadcast_to(rows, (*rows.shape[:3], 3))
    blocks = arrays.blocks(len(rows), rows[0].size)
    parts = [workdirs.fingerprint(rows[block].tobytes()).encode() for block in blocks]
    parts += [os.fsencode(name) for name in dataset.sources or ()]
    if dataset.partial_labels is not None:
        parts.append(dataset.partial_labels.astype(np.int32).tobytes())
        parts.append("\n".join(splits.known_names(dataset)).encode())
    return {"size": dataset.size, "sha256": workdirs.fingerprint(*parts)}


def check_images(workdir: epath.Path, images: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of `images.json`, `{}` without one, after a check of the images.

    Args:
        workdir: folder of the run; need not exist.
        images: see `describe_images`.

    Raises:
        InputError: the run began with other images, or the file is damaged (`DamagedFile`).
    """
    try:
        recorded = workdirs.read_values(workdir / workdirs.IMAGES)
    except FileNotFoundError:
        return {}
    if not images.items() <= recorded.items():
        raise changed(workdir)
    return recorded


def changed(workdir: epath.Path) -> InputError:
    """Returns the error for other images than those of the run in a workdir; raises nothing."""
    do = _update_instead(workdir)
    if not workdirs.states(workdir):
        do = "remove that folder, which has no results yet, or "
    return InputError(
        f"the images or their known classes have changed since the run in {workdir} started: {do}"
        "choose another folder"
    )


def _update_instead(workdir: epath.Path) -> str:
    """Returns the advice to update a run that has other photos or rows; "" if it cannot be."""
    command = f"cluster-jax update --workdir={shlex.quote(str(workdir))}"
    finished = workdirs.about(workdir) or {"kind": "unfinished"}
    if finished["kind"] == "photos" and finished["config"]["data"]["name"] == "folder":
        return f"`{command} FOLDER` takes new and moved photos in, or "
    if finished["kind"] == "rows" and finished["config"]["method"] == "tree":
        return f"`{command} --features=FILE` takes other rows in, or "
    return ""


def _check_same(workdir: epath.Path, stored: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Raises an `InputError` if a workdir has a run of another config, or of another command.

    Args:
        workdir: folder of the run, for messages.
        stored: the config of the run.
        config: the config that a user gives, after a round trip through JSON.
    """
    # `cluster` evaluates no network, and only a training trains.
    if any((section in stored) != (section in config) for section in ("eval", "train")):
        raise InputError(f"{workdir} has a run of another command; choose another folder")
    if stored.keys() != config.keys():
        raise workdirs.older_version(workdir)
    if "eval" in config:
        stored, config = training_part(stored), training_part(config)
    if keys := differing(stored, config):
        # Another method has other keys, too: its name says most.
        keys.sort(key=lambda key: key != "method.name")
        do = _update_instead(workdir) if keys[0] in ("data.dir", "data.features") else ""
        raise InputError(
            f"{workdir} has a run with another {short(', '.join(keys))}; {do}choose another folder"
        )


def differing(one: Mapping[str, Any], other: Mapping[str, Any], section: str = "") -> list[str]:
    """Returns the keys of the values in which two configs differ, such as "train.duration".

    They are in alphabetical order. A missing key is equal to one that is None.

    Args:
        one: a config, as JSON values.
        other: another one.
        section: what their keys begin with, such as "train.".
    """
    keys = list[str]()
    for key in sorted(one.keys() | other.keys()):
        value, another = one.get(key), other.get(key)
        if isinstance(value, Mapping) and isinstance(another, Mapping):
            keys += differing(value, another, f"{section}{key}.")
        elif value != another:
            keys.append(f"{section}{key}")
    return keys
