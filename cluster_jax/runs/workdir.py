"""The workdir of a run: its files and its lock."""

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
from collections.abc import Iterator
from typing import Any, TextIO

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.core import buckets, io
from cluster_jax.core.checks import InputError
from cluster_jax.core.logs import logger
from cluster_jax.runs import config_paths

CONFIG, IMAGES = "config.json", "images.json"
# Outputs: no command reads what they say, but only whether they are of the newest state.
RESULTS = "results.json"
ASSIGNMENTS = "assignments.csv"
REPORT = "report.html"
DUPLICATES, CHANGES = "duplicates.csv", "changes.csv"
STATE = re.compile(r"run-([0-9]+)\.npz")  # a state of a finished run, see `run.Run`
FORMAT = 15  # of the files of a state; any change of their fields changes it
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
STAGES = "evaluation.parts"  # of an evaluation, until the state that it makes is written
LABELS = "labels.npz"  # of a streamed set, see `data.tfds.Labels`

# What to do about a damaged file, besides restoring a copy of it.
MADE_AGAIN = "run the command of the run again without that file, which is made again"


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


def states(workdir: epath.Path) -> list[int]:
    """Returns the numbers of the states in a folder, ascending."""
    found = (STATE.fullmatch(name) for name in buckets.names(workdir))
    return sorted(int(match[1]) for match in found if match)


def about(workdir: epath.PathLike) -> dict[str, Any] | None:
    """Returns config, results and other values of the newest state of a run; None without one.

    They are the JSON values of the state, such as "config", whose paths are those of now, see
    `config_paths.with_located`, "results", "named" and "updates", see `Run`; of its arrays only the
    names are read.

    Raises:
        DamagedFile: the file of the state is not as it was written.
    """
    workdir = epath.Path(workdir)
    if not (numbers := states(workdir)):
        return None
    path = workdir / f"run-{numbers[-1]}.npz"
    with damage_of(workdir, numbers[-1]):
        stored = io.read_arrays(path, ("about", "names"))
        values = values_of(stored.get("about"), path)
    how = workdir, values.get("images", {}), names_of(stored.get("names")) or ()
    return {**values, "config": config_paths.with_located(values["config"], *how)}


def names_of(stored: NDArray | None) -> tuple[str, ...] | None:
    """Returns the names of the rows of a state by its array "names"; None: it has none."""
    if stored is None:
        return None
    return tuple(stored.tobytes().decode("utf-8", "surrogateescape").split("\0"))


def values_of(about: NDArray | None, path: epath.Path) -> dict[str, Any]:
    """Returns the JSON values of a state without "format", the version of its fields.

    Args:
        about: the array "about" of the state; None: it has none.
        path: the file of the state.

    Raises:
        InputError: the format is that of another version of the package.
    """
    values = {} if about is None else json.loads(about.item())
    form = values.pop("format", None)
    if form != FORMAT:
        raise older_version(path.parent, f"format {form}, not {FORMAT}", "another")
    return values


@contextlib.contextmanager
def damage_of(workdir: epath.Path, number: int) -> Iterator[None]:
    """Lets an error about the damaged file of a state inside say what else can be done about it.

    A state can be made again if it is the only one, and an undo removes it if it is the newest one.
    """
    try:
        yield
    except io.DamagedFile as error:
        if epath.Path(error.path).name != f"run-{number}.npz":
            raise
        numbers = states(workdir)
        otherwise = "remove all files run-*.npz, with all corrections, and run the command again"
        if numbers == [1]:
            otherwise = MADE_AGAIN
        elif number == numbers[-1]:
            undo = f"`cluster-jax update --workdir={workdir} --undo`"
            otherwise = f"go back to the state before by {undo}"
        raise io.DamagedFile(error.path, error.reason, otherwise) from error


def stored_config(workdir: epath.Path) -> dict[str, Any]:
    """Returns the config of a finished run, or else of one that has begun.

    For its paths see `config_paths.with_located`.

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
    return config_paths.with_located(read_values(workdir / CONFIG), workdir, images)


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


def has_encoder(workdir: epath.Path, features: str) -> bool:
    """Returns whether the encoder of a training is there, and makes these features.

    It makes those of the last command, which are others than those of a state that an undo has
    brought back if that command had another `eval.features`.

    Args:
        workdir: folder of the run.
        features: `eval.features`, by which the fingerprint in the file ends.

    Raises:
        DamagedFile: it is not as it was written.
    """
    try:
        return io.read_fingerprint(workdir / ENCODER).endswith(f":{features}")
    except FileNotFoundError:
        return False


def states_of_run(workdir: epath.Path) -> list[int]:
    """Returns the numbers of the states of a run, ascending, at least one.

    Args:
        workdir: folder of the run, see `of_run`.

    Raises:
        InputError: the run is not finished.
    """
    if not (numbers := states(workdir)):
        raise InputError(
            f"the run in {workdir} is not finished; run its command again with --workdir={workdir}"
        )
    return numbers


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
def locked(workdir: epath.Path) -> Iterator[None]:
    """Makes a workdir and locks it, so that no second run uses it at the same time.

    The system drops the lock (`flock`) when the process ends, however it ends. It is valid between
    machines where their shared file system supports `flock`; buckets are not locked.

    Raises:
        InputError: the workdir cannot be written, or another run uses it.
    """
    if "://" in str(workdir):
        yield
        return
    io.check_writable(workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    with _lock(workdir):
        yield


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
