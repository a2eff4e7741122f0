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
        self._board = _summary_writer(f"{workdir}/tensorboard", step) if self._appends else None
        self._lines = [_line(record) for record in read(workdir) if record["step"] <= step]
        io.write(self._path, "".join(self._lines))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Adds one line; NaN and infinity become null."""
        self._lines.append(_line({"step": step, **values}))
        if self._appends:
            with self._path.open("a") as file:
                file.write(self._lines[-1])
        else:
            io.write(self._path, "".join(self._lines))
        if self._board:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)

    def close(self) -> None:
        """Closes the TensorBoard events."""
        if self._board:
            self._board.close()


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(io.plain(record)) + "\n"


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
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break  # Cut off when the process was killed; a resumed run logs those steps again.
    return records
