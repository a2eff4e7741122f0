"""One training loop for every method."""

import collections
import contextlib
import functools
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging
from etils import epath
from jax import Array
from jax.sharding import Mesh
from tqdm import tqdm

from cluster_jax.core import checks
from cluster_jax.data import batches
from cluster_jax.data.datasets import Dataset
from cluster_jax.methods.base import Method
from cluster_jax.training import state as states
from cluster_jax.training.checkpoint import Checkpoints
from cluster_jax.training.log import Log
from cluster_jax.training.state import State
from cluster_jax.training.step import make_step

REFRESH = 1  # tells the key of a refresh from that of the step after it


class NotFinite(ArithmeticError):
    """The loss or its gradient became infinite or not a number."""


class Preempted(Exception):
    """The process was told to stop; everything is saved and the same command continues."""


class TrainSchedule(NamedTuple):
    """How long and how often, in steps.

    Attributes:
        total: steps of the whole training.
        log_every: steps between lines of the log, which hold means over those steps.
        checkpoint_every: steps between checkpoints; the last step is always saved.
        prefetch: batches that are prepared ahead.
    """

    total: int
    log_every: int
    checkpoint_every: int
    prefetch: int


def train(
    method: Method,
    optimizer: Any,
    initial: State,
    dataset: Dataset,
    *,
    name: str,
    workdir: epath.PathLike,
    mesh: Mesh,
    batch_size: int,
    labeled: int | None,
    seed: int,
    keep: int,
    schedule: TrainSchedule,
    embedding: Callable[[State], Any],
    rate: Callable[[int], Array],
) -> State:
    """Trains from the newest checkpoint of `workdir`, or from `initial`, to `schedule.total` steps.

    Args:
        method: what to train.
        optimizer: an optax transformation.
        initial: the state to start from where there is no checkpoint; donated.
        dataset: the images.
        name: of the method, for the checkpoints.
        workdir: where checkpoints and logs go.
        mesh: the devices.
        batch_size: images a step, over all devices.
        labeled: how many of them are labeled ones, see `data.batches.parts`.
        seed: of the order of the images.
        keep: number of checkpoints to keep.
        schedule: lengths in steps.
        embedding: embeds the whole set with a state, for methods that refresh from it.
        rate: learning rate as a function of the step, for the log.

    Returns:
        The state after `schedule.total` steps.

    Raises:
        NotFinite: names the step and the newest checkpoint, which is older than the step.
        Preempted: after SIGTERM or SIGINT; the state is saved.
    """
    with contextlib.ExitStack() as stack:
        folder = epath.Path(workdir) / "checkpoints"
        checkpoints = Checkpoints(folder, keep=keep, method=name)
        stack.enter_context(contextlib.closing(checkpoints))
        state = checkpoints.restore(initial) or initial
        start = int(state.step)
        if start >= schedule.total:
            return state
        main = jax.process_index() == 0
        log = stack.enter_context(contextlib.closing(Log(workdir, step=start))) if main else None
        stream = batches.stream(
            dataset,
            seed=seed,
            batch_size=batch_size,
            labeled=labeled,
            start=start,
            stop=schedule.total,
            process=jax.process_index(),
            processes=jax.process_count(),
            prefetch=schedule.prefetch,
        )
        stack.enter_context(contextlib.closing(stream))
        bar = tqdm(
            total=schedule.total, initial=start, unit="step", desc="training", disable=not main,
            mininterval=1.0, file=sys.stderr,
        )  # fmt: skip
        stack.enter_context(bar)
        told_to_stop = stack.enter_context(_stop_signals())
        step_function = make_step(method, optimizer, mesh)
        resident = _resident(dataset, mesh)
        watch = _Watch(log, rate, batch_size, start)
        for done, batch in zip(range(start + 1, schedule.total + 1), stream, strict=True):
            if method.refresh_at(done - 1):
                # A refresh cannot use a state that is not finite, and would say less about it.
                watch.check(done - 1, checkpoints.latest(), bar)
                key = jax.random.fold_in(jax.random.fold_in(state.key, done - 1), REFRESH)
                model_state = method.refresh(
                    state.model_state, functools.partial(embedding, state), key, mesh
                )
                state = state._replace(
                    model_state=jax.device_put(model_state, states.replicated(mesh))
                )
            if dataset.images is not None and resident is None:
                batch = batches.with_images(batch, dataset.images)
            state, metrics = step_function(state, _place(batch, mesh), resident)
            watch.add(metrics)
            bar.update()
            stop = bool(told_to_stop) or checkpoints.preempted(done)
            saving = done % schedule.checkpoint_every == 0 or done == schedule.total or stop
            if done % schedule.log_every == 0 or saving:
                # Before saving: a state that is not finite must not become a checkpoint.
                watch.report(done, checkpoints.latest(), bar)
            if saving:
                checkpoints.save(state, done)
                if log:
                    log.flush()
            if stop and done < schedule.total:
                raise Preempted(f"stopped after step {done}, which is saved in {workdir}")
        return state


class _Watch:
    """Collects the metrics of steps on the device; reads them only when they are reported."""

    def __init__(self, log: Log | None, rate: Callable, batch_size: int, start: int):
        self._log, self._rate, self._batch_size = log, rate, batch_size
        self._steps: list[Mapping[str, Array]] = []
        self._since, self._clock = start, time.perf_counter()

    def add(self, metrics: Mapping[str, Array]) -> None:
        self._steps.append(metrics)

    def check(self, done: int, checkpoint: int | None, bar: tqdm) -> None:
        """The same as `report` where a step was bad, else nothing."""
        if self._steps and _bad(self._values()).any():
            self.report(done, checkpoint, bar)

    def report(self, done: int, checkpoint: int | None, bar: tqdm) -> None:
        """Logs the means since the last report; raises `NotFinite` at the first bad step."""
        if not self._steps:
            return
        steps, values = self._steps, self._values()
        bad = _bad(values)
        now = time.perf_counter()
        speed = len(steps) * self._batch_size / max(now - self._clock, 1e-9)
        means = {name: float(v.mean()) for name, v in values.items()}
        means |= {"learning_rate": float(self._rate(done - 1)), "images_per_second": speed}
        if self._log:
            self._log.write(done, means)
        bar.set_postfix_str(f"loss {means['loss']:.4f}, {speed:,.0f} images/s", refresh=False)
        if bad.any():
            step = self._since + int(np.argmax(bad)) + 1
            kept = "there is none" if checkpoint is None else f"the newest is of step {checkpoint}"
            raise NotFinite(
                f"the loss or its gradient is not finite at step {step}; of the checkpoints, all "
                f"older than that, {kept}; try a lower optimizer.learning_rate or a higher "
                f"temperature"
            )
        self._steps, self._since, self._clock = [], done, now

    def _values(self) -> dict[str, np.ndarray]:
        steps = jax.device_get(self._steps)
        return {name: np.array([s[name] for s in steps], np.float64) for name in steps[0]}


def _bad(values: Mapping[str, np.ndarray]) -> np.ndarray:
    return ~(np.isfinite(values["loss"]) & np.isfinite(values["gradient_norm"]))


def _resident(dataset: Dataset, mesh: Mesh) -> Array | None:
    """The whole set on every device, where it is small enough to be in memory.

    Not on several CPU devices, which share a memory: it would be there once for each.
    """
    if dataset.images is None or (jax.default_backend() == "cpu" and mesh.size > 1):
        return None
    whole = states.replicated(mesh)
    return jax.make_array_from_process_local_data(whole, dataset.images, dataset.images.shape)


def _place(batch: batches.Batch, mesh: Mesh) -> batches.Batch:
    """This process's rows as arrays spread over the devices of all processes."""
    sharding = states.sharded(mesh)
    return jax.tree.map(lambda v: jax.make_array_from_process_local_data(sharding, v), batch)


@contextlib.contextmanager
def _stop_signals() -> Iterator[collections.deque]:
    """While active, the first SIGTERM or SIGINT is noted, not obeyed; a second one is obeyed.

    With several processes the signals are left to JAX, which makes all of them stop at one step.
    """
    told: collections.deque[int] = collections.deque()

    def note(number: int, frame: Any) -> None:
        told.append(number)
        logging.warning("told to stop: saving after this step")
        for each, handler in before.items():
            signal.signal(each, handler)

    numbers = (signal.SIGTERM, signal.SIGINT) if jax.process_count() == 1 else ()
    try:
        before = {number: signal.signal(number, note) for number in numbers}
    except ValueError:  # Not the main thread (a notebook's worker): signals are not ours.
        yield told
        return
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def check(schedule: TrainSchedule, keep: int) -> None:
    """Raises an `InputError` for lengths that make no sense."""
    checks.at_least("train.duration", schedule.total, 1)
    checks.at_least("train.log_every", schedule.log_every, 1)
    checks.at_least("train.checkpoint_every", schedule.checkpoint_every, 1)
    checks.at_least("train.prefetch", schedule.prefetch, 1)
    checks.at_least("train.keep_checkpoints", keep, 1)
