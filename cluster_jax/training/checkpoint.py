"""Checkpoints by Orbax: asynchronous, atomic, the last few kept."""

import jax
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from orbax.checkpoint import checkpoint_managers

from cluster_jax.training.state import State


class Checkpoints:
    """The checkpoints of a run, in `folder/<step>`.

    A checkpoint that cannot be read is moved to `damaged/<step>` beside the folder and the one
    before it is used.
    """

    def __init__(self, folder: epath.PathLike, *, keep: int):
        path = epath.Path(folder)
        # Orbax takes absolute paths only; a bucket's is absolute.
        self._folder = path if "://" in str(folder) else path.resolve()
        self._keep = keep
        self._manager = self._open()

    def _open(self) -> ocp.CheckpointManager:
        options = ocp.CheckpointManagerOptions(
            preservation_policy=checkpoint_managers.LatestN(self._keep),
            cleanup_tmp_directories=True,
        )
        return ocp.CheckpointManager(self._folder, options=options)

    def latest(self) -> int | None:
        """Step of the newest checkpoint, None if there is none."""
        return self._manager.latest_step()

    def save(self, state: State, step: int) -> None:
        """Starts to save; returns before the files are complete. A step saved already is kept."""
        if step not in self._manager.all_steps():
            self._manager.save(step, args=ocp.args.StandardSave(state._asdict()), force=True)

    def restore(self, state: State, step: int | None = None) -> State | None:
        """The newest readable checkpoint, or that of a step; None if there is none.

        Args:
            state: gives structure, shapes, dtypes and the devices to restore to, which may be
                more or fewer than those that saved.
            step: None for the newest, passing over what is damaged.
        """
        target = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state._asdict()
        )
        arguments = ocp.args.StandardRestore(target)
        if step is not None:
            return State(**self._manager.restore(step, args=arguments))
        while (newest := self.latest()) is not None:
            try:
                return State(**self._manager.restore(newest, args=arguments))
            except Exception as error:  # Orbax and TensorStore raise many kinds.
                self._set_aside(newest, error)
        return None

    def _set_aside(self, step: int, error: Exception) -> None:
        damaged = self._folder.parent / "damaged" / str(step)
        logging.warning(
            "checkpoint %s cannot be read (%s); it was moved to %s and the one before it is used",
            self._folder / str(step),
            str(error).strip().split("\n")[0][:200],
            damaged,
        )
        self._manager.close()
        if jax.process_index() == 0:
            damaged.parent.mkdir(parents=True, exist_ok=True)
            if damaged.exists():
                damaged.rmtree()
            (self._folder / str(step)).rename(damaged)
        if jax.process_count() > 1:
            jax.experimental.multihost_utils.sync_global_devices(f"damaged-{step}")
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
