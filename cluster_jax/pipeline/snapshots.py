"""Snapshot of the images or rows of a workdir, by which the next update keeps their clusters."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax import __version__
from cluster_jax.clustering import living
from cluster_jax.clustering.living import State
from cluster_jax.core import io
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.report.report_data import Changes

STATE = "living.npz"


class Snapshot(NamedTuple):
    """The n images or rows of a workdir and their clusters, as the last run or update left them.

    Attributes:
        state: their clusters, and the history of these.
        names: str `[n]`, as in `assignments.csv`, unescaped.
        contents: uint8 `[n, 16]`, digests.
        x: `[n, d]`, the features.
    """

    state: State
    names: NDArray
    contents: NDArray
    x: NDArray


def start(labels: NDArray, names: Sequence[str], contents: NDArray, x: NDArray) -> Snapshot:
    """Returns the snapshot after a first fit; `labels` int `[n]`, the others as in `Snapshot`."""
    return Snapshot(living.start(labels), np.array(names, np.str_), contents, x)


def write(folder: epath.Path, snapshot: Snapshot, *, has_rows: bool) -> None:
    """Writes `STATE` into a folder; `has_rows`: with the features, which nothing else stores."""
    stored = {
        "names": snapshot.names,
        "contents": snapshot.contents,
        "version": np.asarray(__version__),
        **({"x": snapshot.x} if has_rows else {}),
        **living.to_arrays(snapshot.state),
    }
    io.write_arrays(folder / STATE, stored, compressed=False)


def read(workdir: epath.Path, x: NDArray | None = None) -> Snapshot | None:
    """Reads `STATE`, or returns None; `x` are the features if they are stored elsewhere."""
    if not (workdir / STATE).exists():
        return None
    stored = io.read_arrays(workdir / STATE)
    try:
        rows = stored["x"] if x is None else x
        return Snapshot(living.from_arrays(stored), stored["names"], stored["contents"], rows)
    except (KeyError, TypeError) as error:
        raise workdirs.older_version(workdir, error) from error


def changes(workdir: epath.Path, names: Sequence[str]) -> Changes | None:
    """Returns what the last update has changed; None if it was not of these images or rows."""
    snapshot = read(workdir, np.empty(0))
    if snapshot is None or not snapshot.state.updates or snapshot.names.tolist() != list(names):
        return None
    return last_changes(snapshot.state)


def last_changes(state: State) -> Changes:
    """Returns what the last update has changed."""
    return Changes(state.updates, state.since == state.updates, state.events)
