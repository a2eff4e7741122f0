"""The workdir of a run: its path, its files, its claim by a config, and its lock."""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO

import numpy as np
from etils import epath

from cluster_jax.core import arrays, buckets, io
from cluster_jax.core.checks import InputError, short
from cluster_jax.core.logs import logger
from cluster_jax.data.images import Dataset

CONFIG, IMAGES = "config.json", "images.json"
# Outputs, which no command reads.
RESULTS = "results.json"
ASSIGNMENTS = "assignments.csv"
REPORT = "report.html"
DUPLICATES, CHANGES = "duplicates.csv", "changes.csv"
STATE = re.compile(r"run-([0-9]+)\.npz")  # a state of a finished run, see `run.Run`
FORMAT = 5  # of the files of a state; any change of their fields changes it
_OF_OLDER_VERSIONS = ("clusters.npz", "clusterer.npz")
WEIGHTS = "weights_sha256"  # in images.json: of a pretrained network that is not trained
# Embeddings of the training images, of held-out test images, and of the training images by the
# network with which the last stage starts.
TRAIN_EMBEDDING = "embedding.npz"
TEST_EMBEDDING = "embedding_test.npz"
INITIAL_EMBEDDING = "embedding_before.npz"
# Features of images that a run trains on, and of held-out test images.
TRAIN_FEATURES, TEST_FEATURES = "features.npz", "features_test.npz"
ENCODER = "encoder.npz"  # of a training, see `encoding.encoder.FILE`
# Locked by the run that uses the workdir; contains the name of its process.
LOCK = "lock"
LABELS = "labels.npz"  # of a streamed set, see `data.tfds.Labels`

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

# Keys of a config that may be local paths; "*" is the name of any stage.
_PATHS = (
    *("data.dir", "data.labels", "encoder", "init_from"),
    *("network.weights", "stages.*.network.weights"),
)
# Files and folders that a run writes.
_OF_A_RUN = (
    *("checkpoints", RESULTS, ASSIGNMENTS, REPORT, IMAGES, ENCODER, TRAIN_EMBEDDING),
    *(TEST_EMBEDDING, INITIAL_EMBEDDING, TRAIN_FEATURES, TEST_FEATURES),
)
# What to do about a damaged file, besides restoring a copy of it.
MADE_AGAIN = ", or remove it and run the command of the run again, which makes it again"

# The most images of a streamed set, evenly spaced, whose pixels enter a fingerprint.
_SAMPLE = 256


def read_values(file: epath.Path) -> dict[str, Any]:
    """Returns the values of one of the JSON files of a workdir.

    Raises:
        DamagedFile: the file is not as a command has written it.
        FileNotFoundError: there is no such file.
    """
    values = io.read_json(file)
    if not isinstance(values, dict):
        raise io.DamagedFile(file, "it has other content")
    return values


def default_path(folder: str, name: str, values: Mapping[str, Any]) -> pathlib.Path:
    """Returns `FOLDER/NAME-HASH`, with a hash of `values`.

    Args:
        folder: "runs" or "clusters".
        name: name of the config or file; characters unsuitable for a file name become "_".
        values: everything that the result depends on, as JSON values.
    """
    text = json.dumps(values, sort_keys=True)
    stem = re.sub(r"[^\w.-]+", "_", name)
    return pathlib.Path(folder) / f"{stem}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def default_workdir(config: Mapping[str, Any], name: str) -> pathlib.Path:
    """Returns `runs/NAME-HASH`, with a hash of all that embeddings depend on, see `training_part`.

    Args:
        config: the whole config, as JSON values; of its paths the absolute ones count.
        name: name of the config.
    """
    return default_path("runs", name, training_part(with_absolute_paths(config)))


def normalized(path: str | None) -> str | None:
    """Returns local paths, one a line, as absolute ones, each once, without blank lines.

    "~" is expanded. None stays as it is, and so does a text that has "://" anywhere.

    Example:
        >>> normalized("/photos/../x/"), normalized("gs://bucket/photos/")
        ('/x', 'gs://bucket/photos/')
    """
    if path is None or "://" in path:
        return path
    lines = (os.path.expanduser(line) for line in path.split("\n") if line)
    return "\n".join(dict.fromkeys(map(os.path.abspath, lines)))


def paths_of(config: Mapping[str, Any]) -> dict[tuple[str, ...], str]:
    """Returns the local paths in a config by the names of their sections and key.

    They are `data.dir`, which may be several, one a line; `data.labels` if it is a file;
    `network.weights`, also of a stage, and `encoder` if they are a `.safetensors` file; and
    `init_from`.

    Args:
        config: the whole config of a run of images, as JSON values.

    Example:
        >>> stages = {"first": {"network": {"weights": "a.safetensors"}}}
        >>> paths_of({"init_from": "run", "stages": stages})
        {('init_from',): 'run', ('stages', 'first', 'network', 'weights'): 'a.safetensors'}
    """
    found = dict[tuple[str, ...], str]()
    for keys in _PATHS:
        for path, value in _values_at(config, keys.split(".")):
            if not isinstance(value, str) or "://" in value or value in ("", "folders"):
                continue
            is_name = value.startswith("hf:") or not value.endswith(".safetensors")
            if path[-1] not in ("weights", "encoder") or not is_name:
                found[path] = value
    return found


def _values_at(config: Any, keys: Sequence[str]) -> list[tuple[tuple[str, ...], Any]]:
    """Returns the values at keys, of which "*" is every key, each with its own keys."""
    if not keys:
        return [((), config)]
    if not isinstance(config, Mapping):
        return []
    names = list(config) if keys[0] == "*" else [keys[0]] if keys[0] in config else []
    return [
        ((name, *below), value)
        for name in names
        for below, value in _values_at(config[name], keys[1:])
    ]


def with_paths(
    config: Mapping[str, Any], paths: Mapping[tuple[str, ...], str | None]
) -> dict[str, Any]:
    """Returns a copy of a config with other paths, by their keys as in `paths_of`."""
    copy = dict(config)
    for (key, *below), path in paths.items():
        copy[key] = with_paths(copy[key], {tuple(below): path}) if below else path
    return copy


def with_absolute_paths(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of a config with absolute paths."""
    return with_paths(config, {key: normalized(path) for key, path in paths_of(config).items()})


def with_located(
    config: Mapping[str, Any], workdir: epath.Path, images: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns a copy of a config whose paths lead to where their files are now.

    A path is the stored one. If nothing is there, it may have moved together with the workdir: then
    it is the path at the same place relative to the workdir, if something is there, or if the path
    was in the folder of the workdir, which has moved. The config of a run of embeddings, which has
    no section `eval`, stays as it is.

    Args:
        config: the stored config of the run.
        workdir: the folder of the run now.
        images: content of its `images.json`, which has the path of the workdir at that time.
    """
    before = images.get("workdir")
    if before is None or "eval" not in config:
        return dict(config)
    now = os.path.abspath(workdir)
    around = os.path.dirname(before) + os.sep

    def moved(line: str) -> str:
        beside = os.path.normpath(os.path.join(now, os.path.relpath(line, before)))
        has_moved = now != before and line.startswith(around)
        if not os.path.exists(line) and (os.path.exists(beside) or has_moved):
            return beside
        return line

    paths = paths_of(config).items()
    located = {key: "\n".join(map(moved, path.split("\n"))) for key, path in paths}
    return with_paths(config, located)


def relocated(names: Sequence[str], before: str, now: str) -> tuple[str, ...]:
    """Returns the names of images for their new places.

    Args:
        names: paths relative to the folder of `before`, see `folder.root`.
        before: folders and files, one a line, as `data.dir`.
        now: the new places of these, in the same order.
    """
    from cluster_jax.data import folder  # Loads much, as above.

    if before == now:
        return tuple(names)
    old, new = str(folder.root(before)), str(folder.root(now))
    lines = dict(zip(before.split("\n"), now.split("\n"), strict=True))

    def moved(name: str) -> str:
        path = os.path.normpath(os.path.join(old, name))
        for line, there in lines.items():
            if path == line or path.startswith(line + os.sep):
                return os.path.relpath(there + path[len(line) :], new)
        return name

    return tuple(map(moved, names))


def states(workdir: epath.Path) -> list[int]:
    """Returns the numbers of the states in a folder, ascending."""
    found = (STATE.fullmatch(name) for name in buckets.names(workdir))
    return sorted(int(match[1]) for match in found if match)


def about(workdir: epath.PathLike) -> dict[str, Any] | None:
    """Returns config, results and other values of the newest state of a run; None without one.

    They are the JSON values of the state, such as "config", whose paths are those of now, see
    `with_located`, "results", "named" (pairs) and "updates", see `Run`; its arrays are not read.

    Raises:
        DamagedFile: the file of the state is not as it was written.
    """
    workdir = epath.Path(workdir)
    if not (numbers := states(workdir)):
        return None
    path = workdir / f"run-{numbers[-1]}.npz"
    try:
        with (
            io.in_memory(path),
            path.open("rb") as file,
            np.load(file, allow_pickle=False) as stored,
        ):
            values = json.loads(stored["about"].item())
    except MemoryError:
        raise
    except Exception as error:  # zipfile and zlib have errors of their own.
        otherwise = after_damage(workdir, numbers)
        raise io.DamagedFile(path, "its arrays cannot be read", otherwise) from error
    values = checked_format(values, workdir)
    return {**values, "config": with_located(values["config"], workdir, values.get("images", {}))}


def checked_format(values: dict[str, Any], workdir: epath.Path) -> dict[str, Any]:
    """Returns the JSON values of a state without "format", the version of its fields.

    Raises:
        InputError: the format is that of another version of the package.
    """
    form = values.pop("format", None)
    if form != FORMAT:
        raise older_version(workdir, f"format {form}, not {FORMAT}", "another")
    return values


def after_damage(workdir: epath.Path, numbers: list[int], back: int = 0) -> str:
    """Returns the end of a message: what to do about a damaged state, besides restoring a copy.

    Args:
        workdir: folder of the run.
        numbers: numbers of all states in the folder, ascending.
        back: how many states before the newest one the damaged state is.
    """
    if numbers == [1]:
        return MADE_AGAIN
    if not back:
        return (
            f", or go back to the state before by `cluster-jax update --workdir={workdir} --undo`"
        )
    return ", or remove all files run-*.npz, with all corrections, and run the command again"


def stored_config(workdir: epath.Path) -> dict[str, Any]:
    """Returns the config of a finished run, or else of one that has begun, see `with_located`.

    Raises:
        DamagedFile: the file that has the config is damaged.
        FileNotFoundError: there is no run in the folder.
    """
    values = about(workdir)
    if values is not None:
        return values["config"]
    images = dict[str, Any]()
    with contextlib.suppress(FileNotFoundError, io.DamagedFile):  # Of which others tell.
        images = read_values(workdir / IMAGES)
    return with_located(read_values(workdir / CONFIG), workdir, images)


def is_of_embeddings(workdir: epath.Path) -> bool:
    """Returns whether the run in a folder, see `of_run`, is one of the command `cluster`.

    Raises:
        DamagedFile: `config.json` is damaged.
    """
    return "eval" not in read_values(workdir / CONFIG)


def of_run(path: epath.PathLike) -> epath.Path:
    """Returns the folder of a run, finished or not, after checking that this version can read it.

    Raises:
        InputError: the value is no path, there is no run at the path, or an older version wrote it.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"path must be the workdir of a finished run; got {path!r}")
    workdir = buckets.path(path)
    there = buckets.names(workdir)
    problem = None
    if not workdir.exists():
        problem = "which does not exist"
    elif workdir.is_file():
        problem = "which is a file (SmoothTree.load reads a saved SmoothTree)"
    elif CONFIG not in there:
        problem = f"which is no folder of a run: it has no {CONFIG}"
    if problem:
        raise InputError(f"the workdir must be that of a finished run; got {workdir}, {problem}")
    if there & set(_OF_OLDER_VERSIONS):
        raise older_version(workdir)
    return workdir


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


def made_from(values: Mapping[str, Any], images: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of all that embeddings depend on, except the number of steps.

    Paths are left out: they are others once files have moved, and `claim` compares them.

    Args:
        values: the whole config, as JSON values.
        images: what `describe_images` returns.
    """
    part = training_part(with_paths(values, dict.fromkeys(paths_of(values))))
    part.get("train", {}).pop("duration", None)
    return fingerprint(json.dumps([part, images], sort_keys=True).encode())


def check_folder(workdir: epath.PathLike) -> None:
    """Raises an `InputError` unless a run can be in a workdir, which need not exist.

    The path must lead to no file, and the folder must be writable, unless it has a `config.json`.
    """
    workdir = buckets.path(workdir)
    if "://" not in str(workdir):  # A bucket has no folders.
        for path in (workdir, *workdir.parents):
            if path.exists() and not path.is_dir():
                raise InputError(f"{path} is a file; choose another folder")
    if not (workdir / CONFIG).exists():  # A finished run may be read-only.
        io.check_writable(workdir)


def claim(workdir: epath.Path, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Checks that a run of `config` may use a workdir, and returns its finished run, if any.

    Nothing is written or locked. Of a run of images, only the `training_part` must be equal.

    Args:
        workdir: folder of the run; need not exist.
        config: everything that the result depends on, as JSON values. The caller then writes it to
            `config.json`, before any other file.

    Returns:
        The values of `about` for the finished run; None if there is none.

    Raises:
        InputError: the path is a file or leads through one; a folder without `config.json` cannot
            be written (with one this is not checked, because a finished run may be read-only) or
            has other files of a run; the run in the folder is of a different config, of another
            command or of an older version; or its `config.json` or newest state is damaged.
    """
    check_folder(workdir)
    there = buckets.names(workdir)
    if CONFIG not in there:
        left = [name for name in _OF_A_RUN if name in there]
        left += [f"run-{number}.npz" for number in states(workdir)]
        if left:
            raise InputError(
                f"{workdir} must have {CONFIG} beside {left[0]}, to tell which run it is; got "
                "none: restore it from a copy, or choose another folder"
            )
        return None
    try:
        of_run(workdir)
        stored = stored_config(workdir)
    except io.DamagedFile as error:
        raise InputError(f"{error}, or choose another folder") from error
    _check_same(workdir, stored, json.loads(json.dumps(config)))
    return about(workdir)


def agree(done: bool, workdir: epath.Path) -> bool:
    """Returns `done` after checking that it is the same in all processes.

    All processes call this together, since they must make the same collective calls afterwards. A
    single process checks nothing.

    Raises:
        InputError: it differs, because the workdir is not shared by all processes.
    """
    import jax
    from jax.experimental import multihost_utils

    if not jax.distributed.is_initialized():
        return done
    if bool(multihost_utils.broadcast_one_to_all(np.int32(done))) != done:
        raise InputError(f"{workdir} is not the same folder for all processes; choose a shared one")
    return done


def check_unused(workdir: epath.Path) -> None:
    """Raises an `InputError` if another run uses a workdir, which need not exist."""
    if "://" not in str(workdir) and (workdir / LOCK).exists():
        _lock(workdir).close()


@contextlib.contextmanager
def locked(workdir: epath.Path) -> Iterator[Callable[[], None]]:
    """Makes a workdir and locks it, so that no second run uses it at the same time.

    The system drops the lock (`flock`) when the process ends, however it ends. It is valid between
    machines where their shared file system supports `flock`; buckets are not locked.

    Yields:
        A function that raises an `InputError` once the folder was deleted, to be called before
        something is written.

    Raises:
        InputError: the workdir cannot be written, or another run uses it.
    """
    if "://" in str(workdir):
        yield lambda: None
        return
    io.check_writable(workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    with _lock(workdir) as file:

        def check() -> None:
            try:
                is_same = os.path.samestat(os.stat(workdir / LOCK), os.fstat(file.fileno()))
            except (FileNotFoundError, NotADirectoryError):
                is_same = False
            if not is_same:
                raise InputError(
                    f"{workdir} must stay as it is during a run; got it deleted or emptied: run "
                    "the same command again to start over"
                )

        try:
            yield check
        except OSError:
            check()  # A folder that is gone explains any error.
            raise


def _lock(workdir: epath.Path) -> TextIO:
    """Returns the locked file of a workdir; only the lock is dropped later, the file stays.

    Raises:
        InputError: another run has locked it.
    """
    file = open(workdir / LOCK, "a+")  # noqa: SIM115 - it stays open as long as it is locked
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        with file:
            raise InputError(
                f"{workdir} is used by another run, {file.read()}; wait for it, or choose "
                "another folder"
            ) from None
    except OSError as error:
        logger.warning("%s cannot be locked (%s): start no second run in it", workdir, error)
    file.truncate(0)
    file.write(f"process {os.getpid()} on {platform.node()}")
    file.flush()
    return file


def outputs(workdir: epath.Path) -> dict[str, str]:
    """Returns the paths of "report", "assignments" and "metrics" of a run, of those that exist."""
    files = {"report": REPORT, "assignments": ASSIGNMENTS, "metrics": RESULTS}
    return {key: str(workdir / name) for key, name in files.items() if (workdir / name).exists()}


def older_version(
    workdir: epath.PathLike, reason: object = None, version: str = "an older"
) -> InputError:
    """Returns the error for a workdir that an older version of the package wrote; raises nothing.

    `reason` is what cannot be read there, for the message, and `version` which version wrote it.
    """
    because = "" if reason is None else f" ({reason})"
    return InputError(
        f"{workdir} was written by {version} version of cluster_jax{because}; choose another "
        "folder to run it again, or use that version"
    )


def fingerprint(*parts: bytes | memoryview) -> str:
    """Returns the SHA-256 of the concatenated parts, in hexadecimal."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def describe_images(dataset: Dataset, *, by_names: bool = False) -> dict[str, Any]:
    """Returns "size" and "sha256" of the images of a run, to detect changes when it is resumed.

    The hash is of the pixels or features of all images in memory, of a streamed set of at most 256
    evenly spaced ones; of the names of all; and in novel class discovery of the known class of
    each. Gray images are described as the same in three channels, which some networks take.

    Args:
        dataset: the images.
        by_names: whether the names alone are described.
    """
    from cluster_jax.discovery import splits  # Loads JAX, as above.

    dataset = dataset.shown or dataset
    if by_names:
        names = [os.fsencode(name) + b"\0" for name in dataset.sources or ()]
        return {"size": dataset.size, "sha256": fingerprint(*names)}
    rows = dataset.images
    if rows is None:
        rows = dataset.fetch(np.arange(0, dataset.size, 1 + (dataset.size - 1) // _SAMPLE))
    # Without the neighbors that features come with: they follow from the features.
    rows = rows[:, : dataset.shape[0] - dataset.neighbors]
    if dataset.has_images:
        rows = np.broadcast_to(rows, (*rows.shape[:3], 3))
    blocks = arrays.blocks(len(rows), rows[0].size)
    parts = [fingerprint(rows[block].tobytes()).encode() for block in blocks]
    parts += [os.fsencode(name) for name in dataset.sources or ()]
    if dataset.partial_labels is not None:
        parts.append(dataset.partial_labels.astype(np.int32).tobytes())
        parts.append("\n".join(splits.known_names(dataset)).encode())
    return {"size": dataset.size, "sha256": fingerprint(*parts)}


def check_images(workdir: epath.Path, images: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of `images.json`, `{}` without one, after a check of the images.

    Args:
        workdir: folder of the run; need not exist.
        images: see `describe_images`.

    Raises:
        InputError: the run began with other images, or the file is damaged (`DamagedFile`).
    """
    try:
        recorded = read_values(workdir / IMAGES)
    except FileNotFoundError:
        return {}
    if not images.items() <= recorded.items():
        raise changed(workdir)
    return recorded


def changed(workdir: epath.Path) -> InputError:
    """Returns the error for other images than those of the run in a workdir; raises nothing."""
    return InputError(
        f"the images or their known classes have changed since the run in {workdir} started: "
        f"`cluster-jax update --workdir={workdir}` takes photos in, or choose another folder"
    )


def has_embedding(file: epath.Path, fingerprint: str, step: int | str) -> bool:
    """Returns whether a file was written by this run, from its network after `step` training steps.

    The file is an embedding or the encoder. The result is False if the file does not exist, or was
    written after another number of steps.

    Args:
        file: path of the embedding or of the encoder; need not exist.
        fingerprint: fingerprint of the run's config and images.
        step: number of training steps of the network; for the encoder the text `STEPS:FEATURES`,
            such as `1000:backbone`.

    Raises:
        InputError: the file was written by another run, or is damaged (`DamagedFile`).
    """
    try:
        made_by, _, made_at = io.read_fingerprint(file).partition(":")
    except FileNotFoundError:
        return False
    if made_by != fingerprint:
        raise InputError(
            f"{file} must be the embedding of this run; got that of another config or of other "
            "images: choose another folder"
        )
    return made_at == str(step)


def _check_same(workdir: epath.Path, stored: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Raises an `InputError` if a workdir has a run of another config, or of another command.

    Args:
        workdir: folder of the run, for messages.
        stored: the config of the run.
        config: the config that a user gives, after a round trip through JSON.
    """
    # `cluster` evaluates no network, and only a training trains.
    if any((section in stored) != (section in config) for section in ("eval", "train")):
        raise InputError(f"{workdir} contains a run of another command; choose another folder")
    if stored.keys() != config.keys():
        raise older_version(workdir)
    if "eval" in config:
        stored = training_part(stored)
        config = training_part(config)
    if differing := difference(stored, config):
        do = "choose another folder"
        if differing.startswith("data.dir") and "train" not in config:
            do = f"`cluster-jax update --workdir={workdir} FOLDER` takes moved photos, or {do}"
        raise InputError(f"{workdir} contains a run with {differing}; {do}")


def difference(stored: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Returns the differences of two configs, `KEY = OLD, not NEW (and KEY, ...)`; "" if equal.

    `method.name` comes first, then the keys in alphabetical order. A missing key is equal to one
    that is None, and a missing section to an empty one.
    """
    old, new = dict(_flat(stored)), dict(_flat(config))
    # A different method also has different keys; its name is the clearest difference.
    keys = sorted(old | new, key=lambda key: (key != "method.name", key))
    keys = [key for key in keys if old.get(key) != new.get(key)]
    if not keys:
        return ""
    more = f" (and {short(', '.join(keys[1:]))})" if len(keys) > 1 else ""
    # Several folders are one a line.
    was, now = (str(values.get(keys[0])).replace("\n", " and ") for values in (old, new))
    return f"{keys[0]} = {was:.120}, not {now:.120}{more}"


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (`section.key`, value) for each value of a config."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
