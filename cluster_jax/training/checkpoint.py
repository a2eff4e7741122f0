"""Checkpoints by Orbax: asynchronous, atomic, the last few kept."""

from typing import Any

import jax
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from jax.experimental import multihost_utils
from orbax.checkpoint import checkpoint_managers

from cluster_jax.core.checks import InputError
from cluster_jax.training.state import State


def read(folder: epath.PathLike, state: State, step: int) -> State:
    """The checkpoint of a step, for a run that is over; changes nothing in the folder.

    Args:
        folder: of the checkpoints.
        state: gives structure, shapes, dtypes and devices; `jax.ShapeDtypeStruct`s will do.
        step: whose.

    Raises:
        InputError: there is none of that step, or it is of another network or damaged.
    """
    path = _absolute(folder)
    if not (path / str(step)).exists():
        raise InputError(
            f"there is no checkpoint {path / str(step)}, so no network for new images; restore it"
        )
    options = ocp.CheckpointManagerOptions(create=False)
    handler = ocp.StandardCheckpointHandler()
    with ocp.CheckpointManager(path, item_handlers=handler, options=options) as manager:
        try:
            # Compared first: a restoration that fails leaves tasks behind that complain.
            held = jax.tree.map(lambda x: tuple(x.shape), manager.item_metadata(step).tree)
            wanted = jax.tree.map(lambda x: tuple(x.shape), state.params)
            if held["params"] != wanted:
                raise InputError(
                    f"{path / str(step)} is of another network than the run's config.json says; "
                    "restore both from one run"
                )
            target = jax.tree.map(_like, state._asdict())
            return State(**manager.restore(step, args=ocp.args.StandardRestore(target)))
        except InputError:
            raise
        except Exception as error:  # Orbax and TensorStore raise many kinds.
            reason = str(error).strip().split("\n")[0][:200]
            raise InputError(f"{path / str(step)} cannot be read ({reason}); restore it") from error


def exists(folder: epath.PathLike) -> bool:
    """Whether a folder holds a whole checkpoint of any step."""
    path = _absolute(folder)
    return path.exists() and bool(ocp.utils.checkpoint_steps(path))


class Checkpoints:
    """The checkpoints of a run, in `folder/<step>`.

    If the newest cannot be read, it is moved to `damaged/<step>` beside the folder and the one
    before it is used. If that cannot be read either, nothing more is moved: then something else
    is wrong.

    Args:
        folder: of the checkpoints.
        keep: how many of them.
        method: name of the method, written into each: several methods have the same arrays.
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
        # Named, so that `_of_another` can ask what a checkpoint holds before any is restored.
        handler = ocp.StandardCheckpointHandler()
        return ocp.CheckpointManager(self._folder, item_handlers=handler, options=options)

    def latest(self) -> int | None:
        """Step of the newest checkpoint, None if there is none."""
        return self._manager.latest_step()

    def save(self, state: State, step: int) -> None:
        """Starts to save; returns before the files are complete. A step saved already is kept."""
        if step not in self._manager.all_steps():
            self._manager.save(
                step,
                args=ocp.args.StandardSave(state._asdict()),
                custom_metadata={"method": self._method},
                force=True,
            )

    def restore(self, state: State, step: int | None = None) -> State | None:
        """The newest readable checkpoint, or that of a step; None if there is none.

        Args:
            state: gives structure, shapes, dtypes and the devices to restore to, which may be
                more or fewer than those that saved.
            step: None for the newest, or the one before where that is damaged.

        Raises:
            InputError: there are checkpoints, but the newest is of another method or network, or
                the last two cannot be read.
        """
        target = jax.tree.map(_like, state._asdict())
        arguments = ocp.args.StandardRestore(target)
        if step is not None:
            return State(**self._manager.restore(step, args=arguments))
        newest = self.latest()
        if newest is None:
            return None
        if self._of_another(newest, state):
            raise InputError(
                f"{self._folder / str(newest)} is of another method or network than the config "
                "says; give another --workdir"
            )
        try:
            return State(**self._manager.restore(newest, args=arguments))
        except Exception as error:  # Orbax and TensorStore raise many kinds.
            reason = str(error).strip().split("\n")[0][:200]
        if len(self._manager.all_steps()) == 1:
            raise InputError(
                f"{self._folder / str(newest)}, the only checkpoint, cannot be read ({reason}); "
                f"remove {self._folder} to train anew, or give another --workdir"
            )
        self._set_aside(newest, reason)
        before = self.latest()
        try:
            return State(**self._manager.restore(before, args=arguments))
        except Exception as error:
            raise InputError(
                f"two checkpoints in a row cannot be read ({reason}); the cause is likely not "
                f"damage: look at {self._folder}, or give another --workdir"
            ) from error

    def _of_another(self, step: int, state: State) -> bool:
        """Whether a checkpoint is of another method or other arrays, which is no damage."""
        try:
            held = _shapes(self._manager.item_metadata(step).tree)
            noted = self._manager.metadata(step).custom_metadata or {}
        except Exception:  # Damaged, as the restoration will say.
            return False
        other = noted.get("method", self._method) != self._method
        return other or held != _shapes(state._asdict())

    def _set_aside(self, step: int, reason: str) -> None:
        damaged = self._folder.parent / "damaged" / str(step)
        logging.warning(
            "checkpoint %s cannot be read (%s); it was moved to %s and the one before it is used",
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

    def wait(self) -> None:
        """Returns when everything asked for is on disk."""
        self._manager.wait_until_finished()

    def preempted(self, step: int) -> bool:
        """Whether any host was told to stop; all hosts answer alike for a step."""
        return jax.process_count() > 1 and self._manager.reached_preemption(step)

    def close(self) -> None:
        """Waits for the files and lets go of them."""
        self._manager.wait_until_finished()
        self._manager.close()


def _absolute(folder: epath.PathLike) -> epath.Path:
    """The path as Orbax wants it; a bucket's is absolute."""
    path = epath.Path(folder)
    return path if "://" in str(folder) else path.resolve()


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """Path -> shape of every array, of a state as of what Orbax says of a stored one."""
    found = {
        jax.tree_util.keystr(path, simple=True, separator="/"): tuple(x.shape)
        for path, x in jax.tree.leaves_with_path(tree)
    }
    return {**found, "key": ()}  # stored as the numbers it is made of


def _like(x: jax.Array | jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
