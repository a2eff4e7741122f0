"""Training log: one JSON line and TensorBoard scalars per logged step."""

import json
from collections.abc import Mapping
from typing import Any

from absl import logging
from etils import epath

from cluster_jax.core import io


class Log:
    """`metrics.jsonl` and TensorBoard events of a run.

    A resumed run keeps the lines up to its step, so that no step appears twice. Buckets cannot
    append: there every line rewrites the file, and no TensorBoard events are written.

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
        self.records = [r for r in read(workdir) if r["step"] <= step]
        self.flush()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Adds one line; NaN and infinity become null."""
        record = io.plain({"step": step, **values})
        self.records.append(record)
        if self._appends:
            with self._path.open("a") as file:
                file.write(json.dumps(record) + "\n")
        else:
            self.flush()
        if self._board:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)

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
    """Reads the lines of `metrics.jsonl` as dicts, up to the first incomplete one."""
    path = epath.Path(workdir) / "metrics.jsonl"
    records = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            break  # Cut off when the process was killed; a resumed run logs those steps again.
        if "unreported" not in record:  # A single step, which earlier versions wrote.
            records.append(record)
    return records
