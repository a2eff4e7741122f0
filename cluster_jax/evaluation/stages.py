"""Stages of an evaluation, which are kept until it is complete, so that a killed one goes on."""

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.core import io

# Seconds of work above which a stage is kept.
SECONDS = 20.0


class Stages(NamedTuple):
    """Where the results of stages are kept.

    Attributes:
        folder: the folder of their files, which need not exist; None: nowhere.
        fingerprint: identifies all that the stages depend on; others are computed again.
    """

    folder: epath.Path | None
    fingerprint: str

    def arrays(self, name: str, make: Callable[[], dict[str, NDArray]]) -> dict[str, NDArray]:
        """Returns the arrays of a stage: those that an interrupted call has kept, or new ones."""
        if self.folder is None:
            return make()
        file = self.folder / f"{name}.npz"
        with contextlib.suppress(FileNotFoundError, io.DamagedFile):
            if io.read_fingerprint(file) == self.fingerprint:
                return io.read_arrays(file)
        since = time.monotonic()
        made = make()
        if time.monotonic() - since >= SECONDS:
            self.folder.mkdir(exist_ok=True)
            io.write_arrays(file, made, self.fingerprint, compressed=False)
        return made

    def values(self, name: str, make: Callable[[], Any]) -> Any:
        """Returns the JSON values of a stage in the same way; their keys become text."""
        made = self.arrays(name, lambda: {"values": np.array(json.dumps(io.plain(make())))})
        return json.loads(made["values"].item())

    def remove(self) -> None:
        """Deletes the files."""
        if self.folder is not None and self.folder.is_dir():
            self.folder.rmtree()


NOWHERE = Stages(None, "")
