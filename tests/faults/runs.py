"""What tests do to runs: stop them at a step, copy them as they are, compare them."""

import contextlib
import shutil

import numpy as np

from cluster_jax.core import io
from cluster_jax.runs import workdir as workdirs
from cluster_jax.training import loop


def before_step(monkeypatch, step, act):
    """Calls `act` before a step of the next training; steps count from 1."""
    make = loop.make_step

    def made(*arguments):
        function = make(*arguments)

        def stepped(state, *values):
            if int(state.step) == step - 1:
                act()
            return function(state, *values)

        return stepped

    monkeypatch.setattr(loop, "make_step", made)


def left_by_a_kill(workdir, to):
    """A copy of what is on the disk; the system drops the lock.

    Files that are replaced or removed in the meantime are left out.
    """
    with contextlib.suppress(shutil.Error):
        shutil.copytree(workdir, to)
    assert (to / workdirs.LOCK).exists()
    return to


def assert_same(folder, other):
    """The same figures, clusters and embeddings of two workdirs, bit for bit."""
    first, second = (io.read_json(path / "results.json")["metrics"] for path in (folder, other))
    assert first == second
    table = (other / "assignments.csv").read_bytes()
    assert (folder / "assignments.csv").read_bytes() == table
    newest = (f"run-{workdirs.states(path)[-1]}.npz" for path in (folder, other))
    for names in (("embedding.npz", "embedding.npz"), newest):
        left, right = (
            io.read_arrays(path / name) for path, name in zip((folder, other), names, strict=True)
        )
        left.pop("about", None), right.pop("about", None)  # It has paths and times.
        assert left.keys() == right.keys()
        for key, array in left.items():
            np.testing.assert_array_equal(right[key], array)
