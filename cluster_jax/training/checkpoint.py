"""Orbax checkpoints: asynchronous and atomic; the newest few are kept.

Each carries a checksum of its values, written with it and checked when it is restored: TensorStore
returns a damaged array without an error.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils

from cluster_jax.core import checks, io
from cluster_jax.core.checks import InputError
from cluster_jax.core.logs import logger
from cluster_jax.training import state as states
from cluster_jax.training.state import State

# Name of the folder in a workdir.
FOLDER = "checkpoints"
# What TensorStore writes after the cause of an error.
_PLACES = re.compile(r" ?\[(source locations|tensorstore_spec)=.*")
# Characters of a long message that are shown.
_BEGINNING, _CAUSE = 80, 200
_DAMAGED = "its values do not match their checksum"
# Settings of JAX by which the numbers of a training differ.
_SETTINGS = ("jax_enable_x64", "jax_threefry_partitionable")


def read(folder: epath.PathLike, state: State, step: int) -> State:
    """Reads one checkpoint of a finished run.

    Args:
        folder: folder of the checkpoints.
        state: gives structure, shapes, dtypes and devices; may hold `jax.ShapeDtypeStruct`s.
        step: step of the checkpoint.

    Raises:
        InputError: the checkpoint is missing or damaged.
        OSError: it cannot be read.
    """
    path = _absolute(folder) / str(step)
    if not path.exists():
        raise InputError(f"there is no checkpoint {path}; restore it from a copy, or train again")
    with contextlib.closing(Checkpoints(folder, keep=1)) as checkpoints:
        restored = checkpoints.read(state, step)
    if restored is None:
        raise io.DamagedFile(path, _DAMAGED)
    return restored


def steps(folder: epath.PathLike) -> list[int]:
    """Lists the steps of the complete checkpoints in a folder, which need not exist, ascending."""
    path = _absolute(folder)
    if path.is_dir():
        return sorted(_orbax().utils.checkpoint_steps(path))
    return []


class Checkpoints:
    """The checkpoints of a run, in `folder/<step>`.

    Args:
        folder: folder of the checkpoints.
        keep: number of checkpoints to keep.
    """

    def __init__(self, folder: epath.PathLike, *, keep: int):
        self._folder = _absolute(folder)
        options = _orbax().CheckpointManagerOptions(
            preservation_policy=_orbax().checkpoint_managers.LatestN(keep),
            cleanup_tmp_directories=True,
        )
        handler = _orbax().StandardCheckpointHandler()
        manager = _orbax().CheckpointManager
        self._manager = manager(self._folder, item_handlers=handler, options=options)

    def save(self, state: State, step: int) -> None:
        """Starts an asynchronous save of the state after a step.

        Raises:
            OSError: this or the previous save failed.
        """
        values = state._asdict()
        metadata = {"checksum": states.checksum(values), "settings": _settings()}
        arguments = _orbax().args.StandardSave(values)
        with self._writing():
            self._manager.save(step, args=arguments, custom_metadata=metadata, force=True)

    def restore(self, state: State) -> State | None:
        """Restores the newest checkpoint that is not damaged; None if there are none at all.

        All processes take the same one. Damaged ones are then deleted; where all are damaged none
        is.

        Args:
            state: gives structure, shapes, dtypes and the devices to restore to, whose number may
                differ from when the checkpoint was saved.

        Raises:
            InputError: all are damaged; or a setting of JAX is another one than at a save, so that
                the training would go on with other numbers.
            OSError: one cannot be read, which is no sign that it is damaged.
        """
        damaged: list[int] = []
        for step in sorted(self._manager.all_steps(), reverse=True):
            self._check_settings(step)
            restored = self.read(state, step)
            if not np.all(multihost_utils.process_allgather(np.array(restored is not None))):
                damaged.append(step)
                continue
            for each in damaged:
                logger.warning("%s is damaged (%s): deleted", self._folder / str(each), _DAMAGED)
                self._manager.delete(each)
            return restored
        if damaged:
            raise InputError(
                f"{self._folder / str(damaged[0])} is damaged ({_DAMAGED}), and no other "
                f"checkpoint can be used; restore it from a copy, remove {self._folder} to start "
                "over, or choose another folder"
            )
        return None

    def _check_settings(self, step: int) -> None:
        """Raises an `InputError` if a setting of JAX is another one than when a step was saved."""
        try:
            saved = (self._manager.metadata(step).custom_metadata or {}).get("settings", {})
        except Exception:  # Of a damaged checkpoint, of which `read` tells.
            return
        for name, value in _settings().items():
            if saved.get(name, value) != value:
                must = f"{name.upper()} must be {int(saved[name])} to go on with {self._folder}"
                do = "set it, or choose another folder to train anew"
                raise InputError(f"{must}, as when it was saved; got {int(value)}: {do}")

    def read(self, state: State, step: int) -> State | None:
        """Restores one checkpoint, see `restore`; None if its values are not those saved."""
        target = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state._asdict()
        )
        try:
            metadata = self._manager.metadata(step).custom_metadata or {}
            values = self._manager.restore(step, args=_orbax().args.StandardRestore(target))
        except Exception as error:  # Orbax and TensorStore raise many types.
            must = f"{self._folder / str(step)} must be a checkpoint of the same network"
            to_do = "run the same command again, or move it away to go on from the one before"
            said = f"{must} that can be read; got an error ({_reason(error)}): {to_do}"
            raise OSError(checks.sentence(said)) from error
        if metadata.get("checksum") == states.checksum(values):
            return State(**values)
        return None

    def preempted(self, step: int) -> bool:
        """Returns whether any host was told to stop; the same on all hosts for a step."""
        return jax.process_count() > 1 and self._manager.reached_preemption(step)

    def close(self) -> None:
        """Waits for pending saves and closes the manager.

        Raises:
            OSError: a save failed.
        """
        try:
            with self._writing():
                self._manager.wait_until_finished()
        finally:
            with contextlib.suppress(Exception):  # The error of the save was raised above.
                self._manager.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Turns any error of Orbax during a save into one sentence."""
        try:
            yield
        except Exception as error:  # Orbax and TensorStore raise many types.
            must = f"{self._folder} cannot be written ({_reason(error)})"
            to_do = "free space or make it writable, and run the same command again to resume"
            raise OSError(checks.sentence(f"{must}: {to_do}")) from error


def _settings() -> dict[str, bool]:
    """Returns the settings of JAX by which the numbers of a training differ."""
    return {name: bool(getattr(jax.config, name)) for name in _SETTINGS}


def _orbax() -> Any:
    """Imports Orbax, which takes 27 MB: a service without a trained network needs none."""
    import orbax.checkpoint

    return orbax.checkpoint


def _reason(error: BaseException) -> str:
    """Returns the message of a library in one line: of a long one the beginning, and the cause.

    Libraries write what failed first and its cause last, and TensorStore where in its code after
    that.
    """
    text = " ".join(str(error).split()) or repr(error.__cause__)
    text = _PLACES.sub("", text) or text
    if len(text) <= _BEGINNING + _CAUSE:
        return text
    return f"{text[:_BEGINNING]} ... {text[-_CAUSE:]}"


def _absolute(folder: epath.PathLike) -> epath.Path:
    """Returns the absolute path that Orbax requires; a bucket's is absolute already."""
    path = epath.Path(folder)
    return path if "://" in str(folder) else path.resolve()
