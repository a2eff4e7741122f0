"""Orbax checkpoints: asynchronous and atomic; the newest few are kept.

Each carries a checksum of its values, written with it and checked when it is restored: TensorStore
returns a damaged array without an error.
"""

import contextlib
import logging
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
from etils import epath
from jax.experimental import multihost_utils

from cluster_jax.core import buckets, devices, disk, io, logs
from cluster_jax.core.checks import InputError
from cluster_jax.training import state as states
from cluster_jax.training.state import State

if TYPE_CHECKING:
    import orbax.checkpoint as ocp

# Name of the folder in a workdir.
FOLDER = "checkpoints"
# Bytes a second that a save into a bucket writes at least, or it has failed, beside the time that
# one request may wait.
_SLOWEST = 10_000_000


def read(folder: epath.PathLike, state: State, step: int) -> State:
    """Reads one checkpoint of a finished run; changes nothing in the folder.

    Args:
        folder: folder of the checkpoints.
        state: gives structure, shapes, dtypes and devices; may hold `jax.ShapeDtypeStruct`s.
        step: step of the checkpoint.

    Raises:
        InputError: the checkpoint is missing, damaged, or was written by a different network.
    """
    path = _absolute(folder) / str(step)
    if not path.exists():
        raise InputError(f"there is no checkpoint {path}; restore it from a copy, or train again")
    with _manager(path.parent, _orbax().CheckpointManagerOptions(create=False)) as manager:
        return _restore(manager, path, state)


def steps(folder: epath.PathLike) -> list[int]:
    """Lists the steps of the complete checkpoints in a folder, which need not exist, ascending."""
    path = _absolute(folder)
    with contextlib.suppress(FileNotFoundError):  # In a bucket, see `_manager`.
        return sorted(_orbax().utils.checkpoint_steps(path)) if path.is_dir() else []
    return []


class Checkpoints:
    """The checkpoints of a run, in `folder/<step>`.

    Args:
        folder: folder of the checkpoints.
        keep: number of checkpoints to keep.
        expected: bytes of each, see `size`, which say how long a save may take.

    Attributes:
        unreported: the metrics of steps that were saved with the checkpoint that was restored.
    """

    def __init__(self, folder: epath.PathLike, *, keep: int, expected: int = 0):
        self._folder = _absolute(folder)
        self.unreported: list[dict[str, float]] = []
        # What Orbax logs of an error it also raises, and here that becomes one sentence.
        logging.getLogger("absl").addFilter(_is_not_orbax)
        orbax = _orbax()
        patience = orbax.AsyncOptions()
        if buckets.is_in_bucket(self._folder):
            # TensorStore tries for ever what a bucket refuses by 412 during a save.
            seconds = int(buckets.PATIENCE + expected / _SLOWEST)
            patience = orbax.AsyncOptions(timeout_secs=seconds)
        options = orbax.CheckpointManagerOptions(
            preservation_policy=orbax.checkpoint_managers.LatestN(keep),
            cleanup_tmp_directories=True,
            async_options=patience,
        )
        self._manager = _manager(self._folder, options)

    def steps(self) -> list[int]:
        """Lists the steps of all checkpoints."""
        return list(self._manager.all_steps())

    def save(self, state: State, step: int, unreported: Sequence[Mapping[str, float]] = ()) -> None:
        """Starts an asynchronous save; does nothing if the step is saved already.

        Args:
            state: after the step.
            step: its number.
            unreported: metrics of the last steps that the log does not have yet, so that a training
                that goes on logs the same means.

        Raises:
            InputError: the disk has no room for it.
            WriteError: this or the previous save failed.
        """
        if step in self._manager.all_steps():
            return
        values = state._asdict()
        # Before Orbax starts threads that fail one after the other. TensorStore takes a refusal by
        # 412 for another writer, and tries again for as long as Orbax lets it, ten minutes.
        disk.check(self._folder, size(state) + 10**6, f"checkpoint {step}")
        if jax.process_index() == 0:
            disk.check(self._folder)
        metadata = {"step": step, "checksum": states.checksum(values), "unreported": [*unreported]}
        arguments = _orbax().args.StandardSave(values)
        with self._writing():
            self._manager.save(step, args=arguments, custom_metadata=metadata, force=True)

    def restore(self, state: State) -> State | None:
        """Restores the newest checkpoint that is not damaged; None if there are none at all.

        Damaged ones are then moved to the folder `damaged` beside that of the checkpoints. Where
        all are damaged none is moved: the cause is then probably another one.

        Args:
            state: gives structure, shapes, dtypes and the devices to restore to, whose number may
                differ from when the checkpoint was saved.

        Raises:
            InputError: all are damaged, or were written by a different network.
        """
        with self._writing():
            self._manager.wait_until_finished()
        damaged: list[io.DamagedFile] = []
        for step in sorted(self._manager.all_steps(), reverse=True):
            try:
                restored = _restore(self._manager, self._folder / str(step), state)
            except io.DamagedFile as error:
                damaged.append(error)
                continue
            if damaged:
                self._set_aside(damaged)
            self.unreported = self._manager.metadata(step).custom_metadata.get("unreported", [])
            return restored
        if damaged:
            raise InputError(
                f"{damaged[0].path} is damaged ({damaged[0].reason}), and no other checkpoint can "
                f"be used; restore it from a copy, remove {self._folder} to start over, or choose "
                "another folder"
            )
        return None

    def _set_aside(self, damaged: list[io.DamagedFile]) -> None:
        if jax.process_index() == 0:
            for error in damaged:
                io.set_aside(epath.Path(error.path), self._folder.parent, error.reason)
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices("damaged checkpoints are set aside")
        self._manager.reload()

    def preempted(self, step: int) -> bool:
        """Returns whether any host was told to stop; the same on all hosts for a step."""
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
            with contextlib.suppress(Exception):  # The error of the save was raised above.
                self._manager.close()
            logging.getLogger("absl").removeFilter(_is_not_orbax)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Turns any error of Orbax during a save into a `WriteError`."""
        try:
            yield
        except Exception as error:  # Orbax and TensorStore raise many types.
            raise disk.WriteError(self._folder, error) from error


def _orbax() -> Any:
    """Imports Orbax, which takes 27 MB: a service without a trained network needs none."""
    with logs.untouched():
        import orbax.checkpoint
    return orbax.checkpoint


def _manager(
    folder: epath.Path, options: "ocp.CheckpointManagerOptions"
) -> "ocp.CheckpointManager":
    orbax = _orbax()

    def opened() -> "ocp.CheckpointManager":
        # The handler is given here so that shapes can be read before anything is restored.
        handler = orbax.StandardCheckpointHandler()
        return orbax.CheckpointManager(folder, item_handlers=handler, options=options)

    try:
        return opened()
    except FileNotFoundError:
        # In a bucket a folder goes with the last of its files: it can be there when Orbax looks for
        # it, and gone when Orbax lists it.
        return opened()


def _restore(manager: "ocp.CheckpointManager", path: epath.Path, state: State) -> State:
    """Restores the checkpoint at a path and checks its values; see `read`.

    Raises:
        DamagedFile: it cannot be read, or its arrays or values differ from the saved ones.
    """
    step, target = int(path.name), jax.tree.map(_like, state._asdict())
    try:
        # Shapes are compared first: a failed restore leaves background tasks that log errors.
        is_same = _shapes(manager.item_metadata(step).tree) == _shapes(target)
        metadata = manager.metadata(step).custom_metadata or {}
        arguments = _orbax().args.StandardRestore(target)
        values = manager.restore(step, args=arguments) if is_same else None
    except Exception as error:  # Orbax and TensorStore raise many types.
        if devices.ended_elsewhere(error):  # The checkpoint is not damaged.
            raise
        text = error.strerror if isinstance(error, OSError) else None
        raise io.DamagedFile(path, text or "its files cannot be read") from error
    if values is None:
        raise io.DamagedFile(path, "it was written by a different network")
    if metadata.get("checksum") != states.checksum(values):
        raise io.DamagedFile(path, "its values do not match their checksum")
    if metadata.get("step") != step:
        raise io.DamagedFile(path, f"it is of step {metadata.get('step')}")
    # Without its metadata of arrays, Orbax gives the integers of a key.
    if not states.is_key(values["key"]):
        values["key"] = jax.random.wrap_key_data(values["key"])
    return State(**values)


def size(state: State) -> int:
    """Returns the bytes of a checkpoint."""
    return sum(x.nbytes for x in jax.tree.leaves(state))


def wait_for_all(name: str) -> None:
    """Waits until all processes are here, a day if need be.

    A collective operation, which the first of them to come would start, waits half a minute only.
    """
    if jax.process_count() > 1:
        _orbax().multihost.get_barrier_sync_fn()(key=name, timeout_ms=24 * 3600 * 1000)


def _is_not_orbax(record: logging.LogRecord) -> bool:
    return "orbax" not in pathlib.Path(record.pathname).parts


def _absolute(folder: epath.PathLike) -> epath.Path:
    """Returns the absolute path that Orbax requires; a bucket's is absolute already."""
    path = epath.Path(folder)
    return path if "://" in str(folder) else path.resolve()


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    # Orbax stores the key as its raw integers.
    return {name: () if name == "key" else tuple(x.shape) for name, x in states.named(tree).items()}


def _like(x: jax.Array | jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
