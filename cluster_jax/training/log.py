"""Training log: one JSON line and TensorBoard scalars per logged step."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging
from etils import epath

from cluster_jax.core import io

# Marks a line with the values of a single step, of a training that was interrupted before they were
# reported: it goes on with the mean that it would have reported.
UNREPORTED = "unreported"


class Log:
    """`metrics.jsonl` and TensorBoard events of a run.

    A resumed run keeps the lines up to its step, so that no step appears twice. Buckets cannot
    append: there every `flush` rewrites the file, and no TensorBoard events are written.

    Args:
        workdir: folder of the run.
        step: step from which the training starts or resumes.
    """

    def __init__(self, workdir: epath.PathLike, *, step: int):
        self._path = epath.Path(workdir) / "metrics.jsonl"
        self._appends = "://" not in str(workdir)
        self._board = None
        if self._appends:
            self._board = _summary_writer(f"{workdir}/tensorboard", step)
        self.records = [r for r in _lines(workdir) if r["step"] <= step]
        self.flush()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Adds one line; NaN and infinity become null."""
        self._add({"step": step, **values})
        if self._board:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)

    def keep(self, step: int, steps: Sequence[Mapping[str, float]]) -> None:
        """Adds the values of the last steps up to one, for `unreported`."""
        for i, values in enumerate(steps, start=step + 1 - len(steps)):
            self._add({"step": i, UNREPORTED: True, **values})

    def _add(self, values: Mapping[str, Any]) -> None:
        record = io.plain(values)
        self.records.append(record)
        if self._appends:
            with self._path.open("a") as file:
                file.write(json.dumps(record) + "\n")

    def saved(self) -> None:
        """Rewrites the file, once the state is saved, without unreported steps before a report."""
        last = max((r["step"] for r in self.records if UNREPORTED not in r), default=0)
        self.records = [r for r in self.records if UNREPORTED not in r or r["step"] > last]
        self.flush()

    def flush(self) -> None:
        """Rewrites the whole file."""
        io.write(self._path, "".join(json.dumps(r) + "\n" for r in self.records))
        if self._board:
            self._board.flush()

    def close(self) -> None:
        """Flushes and closes the files."""
        self.flush()
        if self._board:
            self._board.close()


def _summary_writer(folder: str, step: int) -> Any:
    """A writer of TensorBoard events after `step`; None on a machine without tensorboardX."""
    try:
        from tensorboardX import SummaryWriter
    except ModuleNotFoundError:
        logging.info("tensorboardX is not installed: no TensorBoard events are written")
        return None
    return SummaryWriter(folder, purge_step=step + 1)


def read(workdir: epath.PathLike) -> list[dict]:
    """Reads the reports in `metrics.jsonl` as dicts, up to the first incomplete line."""
    return [record for record in _lines(workdir) if UNREPORTED not in record]


def unreported(workdir: epath.PathLike, step: int) -> list[dict[str, float]]:
    """The values of each step from the last report up to a step; empty if that was reported."""
    lines = [line for line in _lines(workdir) if line["step"] <= step]
    last = max((line["step"] for line in lines if UNREPORTED not in line), default=0)
    return [
        {k: math.nan if v is None else v for k, v in line.items() if k not in ("step", UNREPORTED)}
        for line in lines
        if line["step"] > last
    ]


def _lines(workdir: epath.PathLike) -> list[dict]:
    path = epath.Path(workdir) / "metrics.jsonl"
    records = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            records.append(json.loads(line))
        except (
            json.JSONDecodeError
        ):  # Cut off when the process was killed; a resumed run logs those steps again.
            break
    return records
