"""Progress bar, throughput and log of a training; skipped steps, and signs of failure."""

import contextlib
import json
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath
from jax import Array

from cluster_jax.core import buckets, io, logs
from cluster_jax.core.logs import logger
from cluster_jax.training import watch
from cluster_jax.training.state import State, TrainingRun

# Steps in flight, at most. With 32 of them XLA's CPU client can deadlock on several devices: the
# threads that wait to launch a step are those that would compute another. Few also make Ctrl-C
# quick and the rate on the bar true.
_IN_FLIGHT = 2


# Name of the log, and seconds between copies of it to a bucket.
_LINES, SECONDS = "metrics.jsonl", 30.0


class NotFinite(ArithmeticError):
    """The loss or its gradient became NaN or infinite."""

    exit_code = 1  # of a command that it ends


class Collapsed(ArithmeticError):
    """The embedding collapsed, and `train.on_collapse` is "stop"."""

    exit_code = 1  # of a command that it ends


class Log:
    """`metrics.jsonl` and TensorBoard events of a run.

    A resumed run keeps the lines up to its step, so that no step appears twice. Buckets cannot
    append: there the files of a local folder are copied, every `SECONDS` and with each checkpoint.

    Args:
        workdir: folder of the run.
        step: step from which the training starts or resumes.
        records: of the log so far, see `read_log`.
    """

    def __init__(self, workdir: epath.PathLike, *, step: int, records: Sequence[Mapping]):
        before = set(os.environ)
        from tensorboardX import SummaryWriter

        for name in os.environ.keys() - before:  # The import sets one, which would stay.
            del os.environ[name]
        self._workdir = epath.Path(workdir)
        self._since = time.monotonic()
        self._here = tempfile.TemporaryDirectory() if buckets.is_in_bucket(workdir) else None
        self._folder = pathlib.Path(self._here.name if self._here else workdir)
        lines = [_line(record) for record in records if record["step"] <= step]
        io.write(self._folder / _LINES, "".join(lines))
        self._board = SummaryWriter(str(self._folder / "tensorboard"), purge_step=step + 1)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Adds one line; NaN and infinity become null."""
        with (self._folder / _LINES).open("a") as file:
            file.write(_line({"step": step, **values}))
        for name, value in values.items():
            self._board.add_scalar(name, value, step)
        if time.monotonic() - self._since > SECONDS:
            self.flush()

    def flush(self) -> None:
        """Copies the files to a bucket."""
        self._since = time.monotonic()
        if self._here is None:
            return
        self._board.flush()
        for file in filter(pathlib.Path.is_file, self._folder.rglob("*")):
            io.write(self._workdir / str(file.relative_to(self._folder)), file.read_bytes())

    def close(self) -> None:
        """Closes the TensorBoard events."""
        self._board.close()
        self.flush()
        if self._here is not None:
            self._here.cleanup()


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(io.plain(record)) + "\n"


def read_log(workdir: epath.PathLike) -> list[dict]:
    """Reads the lines of `metrics.jsonl` as dicts, up to the first incomplete one."""
    records = []
    file = epath.Path(workdir) / _LINES
    # A line may be cut off by a kill of the process; a resumed run logs those steps again.
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        for line in file.read_text().splitlines():
            records.append(json.loads(line))
    return records


class Progress:
    """Collects the metrics of steps; copies them from the device only when it reports them.

    Args:
        run: method, sizes and intervals of the training.
        log: of the first process, which is closed with the bar; None elsewhere.
        start: step from which the training starts or resumes.
        earlier: lines of the log up to `start`.
    """

    def __init__(
        self,
        run: TrainingRun,
        log: Log | None,
        start: int,
        earlier: Sequence[Mapping[str, Any]] = (),
    ):
        self._run, self._log = run, log
        self._steps: list[Mapping[str, Array]] = []
        self._since = start
        self._clock = time.perf_counter()
        self._bad = 0
        self._looks = watch.looks(earlier)
        self._told: set[str] = set()
        self._bar = logs.progress_bar(
            total=run.total_steps, initial=start, unit="step", desc="training",
            disable=log is None, mininterval=1.0,
        )  # fmt: skip
        if log is not None:
            logger.info("compiling")

    def add(self, metrics: Mapping[str, Array]) -> None:
        """Takes the metrics of the next step; waits until at most two steps are in flight."""
        self._steps.append(metrics)
        if len(self._steps) > _IN_FLIGHT:
            jax.block_until_ready(self._steps[-1 - _IN_FLIGHT])
        self._bar.update()

    def close(self) -> None:
        """Ends the bar and the log."""
        self._bar.close()
        if self._log is not None:
            self._log.close()

    def report(self, step: int, state: State, probe: Callable[[State], Any] | None) -> None:
        """Logs the means since the last report.

        Raises:
            NotFinite: too many steps in a row were not finite.
            Collapsed: the embedding has collapsed, and `train.on_collapse` is "stop".
        """
        steps = jax.device_get(self._steps)
        images = len(steps) * self._run.train.batch_size
        speed = images / max(time.perf_counter() - self._clock, 1e-9)
        values = {name: np.array([s[name] for s in steps], np.float64) for name in steps[0]}
        bad = ~(np.isfinite(values["loss"]) & np.isfinite(values["gradient_norm"]))
        # Skipped steps do not count in the means, unless all steps were skipped.
        means = {name: float((v if bad.all() else v[~bad]).mean()) for name, v in values.items()}
        rate = float(self._run.learning_rate(step - 1))
        means |= {"learning_rate": rate, "images_per_second": speed}
        if bad.any():
            means[watch.SKIPPED] = float(bad.sum())
        if probe is not None:
            watched = self._run.method.watched
            means |= watch.look(probe(state), state.model_state, means, watched)
            self._looks.append({"step": step, **means})
        text = f"loss {means['loss']:.4f}, {speed:,.0f} images/s"
        self._bar.set_postfix_str(text, refresh=False)
        if self._log is not None:
            self._log.write(step, means)
        self._check_bad(bad)
        if probe is not None:
            self._tell()
        self._steps = []
        self._since = step
        self._clock = time.perf_counter()

    def flush(self) -> None:
        """Writes the log where it is written from time to time."""
        if self._log is not None:
            self._log.flush()

    def _check_bad(self, bad: np.ndarray) -> None:
        """Logs skipped steps; raises `NotFinite` after `watch.PATIENCE` of them in a row."""
        for step, is_bad in enumerate(bad, start=self._since + 1):
            self._bad = self._bad + 1 if is_bad else 0
            if is_bad and self._log is not None:
                logger.warning("step %d skipped: its loss or gradient", step)
            if self._bad == watch.PATIENCE:
                raise NotFinite(
                    "the loss or its gradient must be finite; got NaN or infinity in "
                    f"{watch.PATIENCE} steps in a row from step {step + 1 - watch.PATIENCE}: start "
                    f"again in another folder with {watch.CALMER}"
                )

    def _tell(self) -> None:
        """Logs each finding once, as soon as two looks in a row have seen it.

        Raises:
            Collapsed: the embedding has collapsed, and `train.on_collapse` is "stop".
        """
        for finding in watch.findings(self._looks, self._run.total_steps):
            if finding.since == finding.until or finding.kind in self._told:
                continue
            self._told.add(finding.kind)
            if finding.kind == "collapse" and self._run.train.on_collapse == "stop":
                raise Collapsed(f"stopped, because {finding.text}")
            if self._log is not None:
                logger.warning("%s", finding.text)
