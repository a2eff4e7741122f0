"""The training loop, the same for all methods."""

import contextlib
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

import jax
import numpy as np
from etils import epath
from jax import Array
from jax.sharding import Mesh

from cluster_jax.core import mesh as meshes
from cluster_jax.core.devices import say
from cluster_jax.core.logs import logger
from cluster_jax.data import batches
from cluster_jax.data.datasets import Dataset
from cluster_jax.methods.base import Refresh
from cluster_jax.training import checkpoint, watch
from cluster_jax.training.progress import Log, Progress, read_log
from cluster_jax.training.state import State, TrainingRun
from cluster_jax.training.step import make_step

Embed = Callable[[State], dict[str, np.ndarray]]
REFRESH = 1  # separates the random key of a refresh from that of the next step


class Preempted(Exception):
    """The process was interrupted; the state is saved, and the same command resumes."""

    exit_code = 75  # of a command that it ends


def train(
    run: TrainingRun,
    initial: State,
    *,
    workdir: epath.PathLike,
    embed: Embed,
    probe: Embed | None = None,
) -> State:
    """Trains from the newest checkpoint, or from `initial`, up to step `run.total_steps`.

    Args:
        run: method, optimizer, lengths and data.
        initial: state to start from if there is no checkpoint; donated.
        workdir: folder for checkpoints and logs.
        embed: features of the whole data set with a state, which the method's refresh clusters.
        probe: embeds the images that the training is watched on, see `watch`; None: it is not.

    Returns:
        The state after `run.total_steps` steps.

    Raises:
        OSError: a checkpoint cannot be written or read.
        NotFinite: the loss or its gradient, in several steps in a row.
        Collapsed: see `TrainConfig.on_collapse`.
        Preempted: after SIGTERM or SIGINT; the state is saved.
    """
    section = run.train
    total_steps = run.total_steps
    with contextlib.ExitStack() as stack:
        folder = epath.Path(workdir) / checkpoint.FOLDER
        checkpoints = checkpoint.Checkpoints(folder, keep=section.keep_checkpoints)
        stack.enter_context(contextlib.closing(checkpoints))
        state = checkpoints.restore(initial) or initial
        start = int(state.step)
        if start >= total_steps:
            return state
        if start:
            say(f"the training goes on after step {start:,}")
        stream = stack.enter_context(contextlib.closing(_stream(run, start)))
        signals = stack.enter_context(_stop_signals())
        step_function = make_step(run.method, run.optimizer, run.mesh)
        resident = _resident(run.dataset, run.mesh)
        earlier = [line for line in read_log(workdir) if line["step"] <= start]
        log = Log(workdir, step=start, records=earlier) if jax.process_index() == 0 else None
        progress = Progress(run, log, start, earlier)
        stack.enter_context(contextlib.closing(progress))
        for step, batch in zip(range(start + 1, total_steps + 1), stream, strict=True):
            refresh = run.method.refresh
            if refresh is not None and refresh.is_due(step - 1):
                state = _refreshed(run, refresh, state, step - 1, embed)
            if run.dataset.images is not None and resident is None:
                batch = batches.with_images(batch, run.dataset.images)
            state, metrics = step_function(state, _place(batch, run.mesh), resident)
            progress.add(metrics)
            stop = bool(signals) or checkpoints.preempted(step)
            saving = step % section.checkpoint_every == 0 or step == total_steps
            looking = probe is not None and watch.is_due(step, total_steps, section.log_every)
            if saving or stop or looking or step % section.log_every == 0:
                progress.report(step, state, probe if looking else None)
            if saving or stop:
                progress.flush()
                checkpoints.save(state, step)
            if stop:
                break
    # After the last step, several processes may have agreed on the step that would follow.
    if stop or signals or checkpoints.preempted(total_steps + 1):
        saved = f"Interrupted after step {step}, which is saved in {workdir}"
        raise Preempted(f"{saved}. Run the same command again to resume.")
    return state


def _stream(run: TrainingRun, start: int) -> Generator[batches.Batch]:
    """Yields this process's rows of the batches from step `start` on."""
    return batches.stream(
        run.dataset,
        seed=run.seed,
        batch_size=run.train.batch_size,
        labeled=run.train.labeled_batch_size,
        steps=range(start, run.total_steps),
        share=(jax.process_index(), jax.process_count()),
        prefetch=run.train.prefetch,
    )


def _refreshed(run: TrainingRun, refresh: Refresh, state: State, step: int, embed: Embed) -> State:
    """Returns the state after the method's refresh before a step."""
    key = jax.random.fold_in(jax.random.fold_in(state.key, step), REFRESH)

    def embedding() -> dict[str, Any]:
        nearest = run.dataset.nearest
        if nearest is None:
            return embed(state)
        return {**embed(state), "neighbors": nearest}

    model_state = refresh.update(state.model_state, embedding, key, run.mesh)
    placed = jax.device_put(model_state, meshes.replicated(run.mesh))
    return state._replace(model_state=placed)


def _resident(dataset: Dataset, mesh: Mesh) -> Array | None:
    """Puts the whole data set on every device; None if it is not in memory.

    Also None on several CPU devices: they share the host's memory, which would hold a copy each.
    """
    if dataset.images is None or (jax.default_backend() == "cpu" and mesh.size > 1):
        return None
    whole = meshes.replicated(mesh)
    return jax.make_array_from_process_local_data(whole, dataset.images, dataset.images.shape)


def _place(batch: batches.Batch, mesh: Mesh) -> batches.Batch:
    """Spreads this process's rows, as arrays, over the devices of all processes."""
    sharding = meshes.sharded(mesh)
    return jax.tree.map(lambda v: jax.make_array_from_process_local_data(sharding, v), batch)


@contextlib.contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Records the first SIGTERM or SIGINT instead of stopping; a second one stops at once.

    With several processes JAX handles SIGTERM, so that all of them stop at the same step; SIGINT is
    turned into it.
    """
    received: list[int] = []
    handlers: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def record(number: int, frame: Any) -> None:
        received.append(number)
        logger.warning("interrupted: saving after this step")
        restore()

    def pass_on(number: int, frame: Any) -> None:
        signal.raise_signal(signal.SIGTERM)

    is_alone = jax.process_count() == 1
    numbers = (signal.SIGTERM, signal.SIGINT) if is_alone else (signal.SIGINT,)
    # Only the main thread may set signal handlers; a notebook's worker cannot.
    if threading.current_thread() is threading.main_thread():
        handlers |= {n: signal.signal(n, record if is_alone else pass_on) for n in numbers}
    try:
        yield received
    finally:
        restore()
