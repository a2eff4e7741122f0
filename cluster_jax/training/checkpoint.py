"""Orbax checkpoints: asynchronous and atomic; the newest few are kept.

Each carries a checksum of its values, written with it and checked when it is restored: TensorStore
returns a damaged array without an error.
"""

import contextlib
import logging as std_logging
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from jax.experimental import multihost_utils
from orbax.checkpoint import checkpoint_managers

from cluster_jax.core import disk, io
from cluster_jax.core.checks import InputError
from cluster_jax.training import checked
from cluster_jax.training.state import State

# Name of the folder in a workdir.
FOLDER = "checkpoints"


def read(folder: epath.PathLike, state: State, step: int) -> State:
    """Reads one checkpoint of a finished run; changes nothing in the folder.

    Args:
        folder: folder of the checkpoints.
        state: gives structure, shapes, dtypes and devices; may hold `jax.ShapeDtypeStruct`s.
        step: step of the checkpoint.

    Raises:
        InputError: the checkpoint is missing, damaged, or was written by a different network.
    """
    path = _absolute(folder)
    if not (path / str(step)).exists():
        raise InputError(
            f"there is no checkpoint {path / str(step)}; restore it from a copy, or train again"
        )
    options = ocp.CheckpointManagerOptions(create=False)
    handler = ocp.StandardCheckpointHandler()
    with ocp.CheckpointManager(path, item_handlers=handler, options=options) as manager:
        try:
            # Shapes are compared first: a failed restore leaves background tasks that log errors.
            stored_shapes = jax.tree.map(lambda x: tuple(x.shape), manager.item_metadata(step).tree)
            expected_params = jax.tree.map(lambda x: tuple(x.shape), state.params)
            if stored_shapes["params"] != expected_params:
                raise InputError(
                    f"{path / str(step)} was written by a different network from the one in the "
                    "run's config.json; use both files of the same run"
                )
            return checked.restore(manager, step, jax.tree.map(_like, state._asdict()))
        except InputError:
            raise
        except Exception as error:  # Orbax and TensorStore raise many types.
            raise io.DamagedFile(path / str(step), checked.reason(error)) from error


def damage(folder: epath.PathLike) -> str | None:
    """Why the newest checkpoint cannot be used; None if it can, or if there is none.

    Reads it without a method or network and changes nothing in the folder. Of several processes
    all call this: Orbax waits for each of them.
    """
    path = _absolute(folder)
    if not path.exists():
        return None
    if not path.is_dir():
        return "it is not a folder"
    options = ocp.CheckpointManagerOptions(create=False)
    handler = ocp.StandardCheckpointHandler()
    try:
        with ocp.CheckpointManager(path, item_handlers=handler, options=options) as manager:
            steps = manager.all_steps()
            if checked.not_folders(path):
                return "it is not a folder"
            if steps:
                newest = max(steps)
                stored = manager.item_metadata(newest).tree
                checked.restore(
                    manager, newest, jax.tree.map(lambda x: np.empty(x.shape, x.dtype), stored)
                )
    except Exception as error:
        return checked.reason(error)
    return None


def steps(folder: epath.PathLike) -> list[int]:
    """Steps of the complete checkpoints in a folder, which need not exist."""
    path = _absolute(folder)
    return sorted(ocp.utils.checkpoint_steps(path)) if path.is_dir() else []


def exists(folder: epath.PathLike) -> bool:
    """Whether a folder has a complete checkpoint of any step."""
    return bool(steps(folder))


class Checkpoints:
    """The checkpoints of a run, in `folder/<step>`.

    If the newest checkpoint cannot be read, it is moved to `damaged/<step>` beside the folder and
    the previous one is used. If that cannot be read either, nothing else is moved: the cause is
    then probably not a damaged file.

    Args:
        folder: folder of the checkpoints.
        keep: number of checkpoints to keep.
        method: name of the method, stored in each checkpoint because the states of several
            methods have the same arrays.
    """

    def __init__(self, folder: epath.PathLike, *, keep: int, method: str):
        self._folder = _absolute(folder)
        self._keep = keep
        self._method = method
        # What Orbax logs of an error it also raises, and here that becomes one sentence.
        std_logging.getLogger("absl").addFilter(_is_not_orbax)
        try:
            self._manager = self._open()
        except Exception as error:
            raise InputError(
                f"{self._folder} cannot be used ({checked.reason(error)}); restore it from a copy, "
                "or remove it to start over"
            ) from error

    def _open(self) -> ocp.CheckpointManager:
        options = ocp.CheckpointManagerOptions(
            preservation_policy=checkpoint_managers.LatestN(self._keep),
            cleanup_tmp_directories=True,
        )
        # Given here so that `_differs` can read the shapes of a checkpoint before any restore.
        handler = ocp.StandardCheckpointHandler()
        return ocp.CheckpointManager(self._folder, item_handlers=handler, options=options)

    def latest(self) -> int | None:
        """Step of the newest checkpoint, None if there is none."""
        return self._manager.latest_step()

    def steps(self) -> list[int]:
        """Steps of all checkpoints."""
        return list(self._manager.all_steps())

    def save(self, state: State, step: int) -> None:
        """Starts an asynchronous save; does nothing if the step is saved already.

        Raises:
            WriteError: this or the previous save failed.
        """
        if step in self._manager.all_steps():
            return
        values = state._asdict()
        metadata = {"method": self._method, "step": step, "checksum": checked.checksum(values)}
        arguments = ocp.args.StandardSave(values)
        with self._writing():
            # Before Orbax starts threads that fail one after the other.
            disk.reserve(self._folder, sum(x.nbytes for x in jax.tree.leaves(state)))
            self._manager.save(step, args=arguments, custom_metadata=metadata, force=True)

    def restore(self, state: State) -> State | None:
        """Restores the newest checkpoint, or if it is damaged the previous one; None without any.

        Args:
            state: gives structure, shapes, dtypes and the devices to restore to, whose number may
                differ from when the checkpoint was saved.

        Raises:
            InputError: the newest checkpoint was written by a different method or network, or the
                newest two cannot be read.
        """
        target = jax.tree.map(_like, state._asdict())
        self._set_aside_files()
        newest = self.latest()
        if newest is None:
            return None
        if self._differs(newest, state):
            raise InputError(
                f"{self._folder / str(newest)} was written by a different method or network; "
                "choose another --workdir"
            )
        try:
            return checked.restore(self._manager, newest, target)
        except Exception as error:  # Orbax and TensorStore raise many types.
            reason = checked.reason(error)
        *older, _ = sorted(self._manager.all_steps())
        if not older:
            raise InputError(
                f"{self._folder / str(newest)}, the only checkpoint, is damaged ({reason}); "
                f"remove {self._folder} to start over, or choose another --workdir"
            )
        self._set_aside(newest, reason)
        try:
            return checked.restore(self._manager, older[-1], target)
        except Exception as error:
            raise InputError(
                f"the newest two checkpoints cannot be read ({reason}), so the files are probably "
                f"not damaged; check {self._folder}, or choose another --workdir"
            ) from error

    def _differs(self, step: int, state: State) -> bool:
        """Whether an intact checkpoint is of a different method or has different arrays."""
        try:
            stored_shapes = _shapes(self._manager.item_metadata(step).tree)
            metadata = self._manager.metadata(step).custom_metadata or {}
        except Exception:  # Damaged; the restore reports it.
            return False
        other_method = metadata.get("method", self._method) != self._method
        return other_method or stored_shapes != _shapes(state._asdict())

    def _set_aside_files(self) -> None:
        """Moves files that have the place of a checkpoint.

        Raises:
            InputError: there is no checkpoint beside them.
        """
        files = checked.not_folders(self._folder)
        if files and self.latest() is None:
            raise InputError(
                f"{self._folder / files[0]}, the only checkpoint, is damaged (it is not a folder); "
                f"restore it from a copy, or remove {self._folder} to start over"
            )
        for name in files:
            self._set_aside(int(name), "it is not a folder")

    def _set_aside(self, step: int, reason: str) -> None:
        damaged = self._folder.parent / io.DAMAGED / str(step)
        logging.warning(
            "checkpoint %s is damaged (%s); moved it to %s and using the previous one",
            self._folder / str(step),
            reason,
            damaged,
        )
        self._manager.close()
        if jax.process_index() == 0:
            damaged.parent.mkdir(parents=True, exist_ok=True)
            if damaged.exists():
                damaged.rmtree() if damaged.is_dir() else damaged.unlink()
            (self._folder / str(step)).rename(damaged)
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices(f"damaged-{step}")
        self._manager = self._open()

    def preempted(self, step: int) -> bool:
        """Whether any host was told to stop; all hosts return the same answer for a step."""
        return jax.process_count() > 1 and self._manager.reached_preemption(step)

    def close(self) -> None:
        """Waits for pending saves and closes the manager.

        Raises:
            WriteError: a save failed.
        """
        try:
            with self._writing():
                self._manager.wait_until_finished()
        finally:
            with contextlib.suppress(Exception):  # Told already.
                self._manager.close()
            std_logging.getLogger("absl").removeFilter(_is_not_orbax)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Turns whatever Orbax raises of a save into one sentence."""
        checked.ignore_leftovers()
        try:
            yield
        except Exception as error:  # Orbax and TensorStore raise many types.
            raise disk.WriteError(self._folder, error, saved(self._folder)) from error


def wait_for_all(name: str) -> None:
    """Waits until all processes are here, a day if need be.

    A collective operation, which the first of them to come would start, waits half a minute only.
    """
    if jax.process_count() > 1:
        ocp.multihost.get_barrier_sync_fn()(key=name, timeout_ms=24 * 3600 * 1000)


def saved(folder: epath.PathLike) -> str:
    """Says which step is saved."""
    found = steps(folder)
    return f"the last good step is {found[-1]}" if found else "no step is saved yet"


def _is_not_orbax(record: std_logging.LogRecord) -> bool:
    return "orbax" not in pathlib.Path(record.pathname).parts


def _absolute(folder: epath.PathLike) -> epath.Path:
    """The absolute path that Orbax requires; a bucket's is absolute already."""
    path = epath.Path(folder)
    return path if "://" in str(folder) else path.resolve()


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """Path -> shape of every array of a state, or of Orbax's metadata of a stored state."""
    shapes = {
        jax.tree_util.keystr(path, simple=True, separator="/"): tuple(x.shape)
        for path, x in jax.tree.leaves_with_path(tree)
    }
    return {**shapes, "key": ()}  # Orbax stores the key as its raw integers.


def _like(x: jax.Array | jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
