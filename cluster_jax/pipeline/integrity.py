"""Checks of a workdir's files before they are read again; damaged ones are put aside."""

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils

from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.pipeline import embedder, parts
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.training import checkpoint

# What a run makes again where it lacks.
_MADE_AGAIN = (
    workdirs.RESULTS,
    workdirs.IMAGES,
    workdirs.CLUSTERS,
    workdirs.TRAIN_EMBEDDING,
    workdirs.TEST_EMBEDDING,
    workdirs.INITIAL_EMBEDDING,
    embedder.TRAIN_FEATURES,
    embedder.TEST_FEATURES,
)


def put_aside(workdir: epath.Path) -> bool:
    """Moves damaged files to the folder `damaged`; True if there were any.

    Checkpoints stay, but also count: a training restores an older one and continues from there, see
    `training.checkpoint.Checkpoints`. The first process moves, before the others look.
    """
    damaged = jax.process_index() == 0 and workdirs.put_aside(workdir, _MADE_AGAIN)
    damaged |= checkpoint.damage(workdir / checkpoint.FOLDER) is not None
    if jax.process_count() > 1:
        damaged = bool(multihost_utils.broadcast_one_to_all(np.int32(damaged)))
    return damaged


def check_has_config(workdir: epath.Path) -> None:
    """Raises an `InputError` if a workdir has the files of a run but not its config."""
    if (workdir / workdirs.CONFIG).exists():
        return
    for name in (checkpoint.FOLDER, *_MADE_AGAIN):
        if (workdir / name).exists():
            raise InputError(
                f"{workdir} must have {workdirs.CONFIG} beside {name}, to tell which run it is; "
                "got none: restore it from a copy, or choose another --workdir"
            )


def has_saved(workdir: epath.Path) -> bool:
    """Whether a run in a workdir, which need not exist, has something to resume from."""
    folders = [workdir, *workdir.glob("stages/*")]
    return (
        any(step > 0 for folder in folders for step in checkpoint.steps(folder / checkpoint.FOLDER))
        or any((workdir / name).exists() for name in _MADE_AGAIN if name != workdirs.IMAGES)
        or any(parts.exist(folder) for folder in workdir.glob(f"*{parts.SUFFIX}"))
    )


def has_embedding(file: epath.Path, fingerprint: str, step: int) -> bool:
    """Whether a file has the embedding of a run after a number of steps.

    Args:
        file: an embedding of the workdir; need not exist.
        fingerprint: of the run's config and images.
        step: number of steps of the network that made it.

    Raises:
        InputError: it is the embedding of another run.
    """
    if not file.exists():
        return False
    made_by, _, made_at = io.read_fingerprint(file).partition(":")
    if made_by != fingerprint:
        raise InputError(
            f"{file} must be the embedding of this run; got that of another config or of other "
            "images: choose another --workdir"
        )
    return made_at == str(step)


def write_embedding(
    file: epath.Path, features: dict[str, np.ndarray], fingerprint: str, step: int
) -> None:
    """Writes an embedding with what made it, see `has_embedding`."""
    io.write_arrays(file, features, f"{fingerprint}:{step}")
