"""Orbax checkpoints: asynchronous and atomic; the newest few are kept."""

from typing import Any

import jax
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from jax.experimental import multihost_utils
from orbax.checkpoint import checkpoint_managers

from cluster_jax.core.checks import InputError
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
            target = jax.tree.map(_like, state._asdict())
            return State(**manager.restore(step, args=ocp.args.StandardRestore(target)))
        except InputError:
            raise
        except Exception as error:  # Orbax and TensorStore raise many types.
            raise InputError(
                f"{path / str(step)} cannot be read ({_first_line(error)}); restore it from a copy"
            ) from error


def exists(folder: epath.PathLike) -> bool:
    """Whether a folder has a complete checkpoint of any step."""
    path = _absolute(folder)
    return path.exists() and bool(ocp.utils.checkpoint_steps(path))


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
        self._manager = self._open()

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

    def save(self, state: State, step: int) -> None:
        """Starts an asynchronous save; does nothing if the step is saved already."""
        if step not in self._manager.all_steps():
            self._manager.save(
                step,
                args=ocp.args.StandardSave(state._asdict()),
                custom_metadata={"method": self._method},
                force=True,
            )

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
        arguments = ocp.args.StandardRestore(target)
        newest = self.latest()
        if newest is None:
            return None
        if self._differs(newest, state):
            raise InputError(
                f"{self._folder / str(newest)} was written by a different method or network; "
                "choose another --workdir"
            )
        try:
            return State(**self._manager.restore(newest, args=arguments))
        except Exception as error:  # Orbax and TensorStore raise many types.
            reason = _first_line(error)
        if len(self._manager.all_steps()) == 1:
            raise InputError(
                f"{self._folder / str(newest)}, the only checkpoint, cannot be read ({reason}); "
                f"remove {self._folder} to start over, or choose another --workdir"
            )
        self._set_aside(newest, reason)
        previous = self.latest()
        try:
            return State(**self._manager.restore(previous, args=arguments))
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

    def _set_aside(self, step: int, reason: str) -> None:
        damaged = self._folder.parent / "damaged" / str(step)
        logging.warning(
            "checkpoint %s cannot be read (%s); moved it to %s and using the previous one",
            self._folder / str(step),
            reason,
            damaged,
        )
        self._manager.close()
        if jax.process_index() == 0:
            damaged.parent.mkdir(parents=True, exist_ok=True)
            if damaged.exists():
                damaged.rmtree()
            (self._folder / str(step)).rename(damaged)
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices(f"damaged-{step}")
        self._manager = self._open()

    def preempted(self, step: int) -> bool:
        """Whether any host was told to stop; all hosts return the same answer for a step."""
        return jax.process_count() > 1 and self._manager.reached_preemption(step)

    def close(self) -> None:
        """Waits for pending saves and closes the manager."""
        self._manager.wait_until_finished()
        self._manager.close()


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


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]


def _like(x: jax.Array | jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
