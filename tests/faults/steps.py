"""`python -m tests.faults.steps FILE STEPS CASE ...`: trainings and k-means of a whole job.

In float64, by the loop itself; the first process writes all states and labels.
"""

import functools
import sys

import jax
import numpy as np

from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.core import devices
from cluster_jax.training import loop
from cluster_jax.training import state as states
from tests import toy
from tests.methods import cases


def _state(name, steps, file):
    """The state of a case after some steps, on the host."""
    method, nrcc = name.split("+")[0], name.endswith("+nrcc")
    run = cases.build(method, nrcc, steps=steps)
    state = states.create(run.method, run.optimizer, seed=3, shape=run.shape, mesh=run.mesh)
    state = jax.jit(toy.wide, out_shardings=states.replicated(run.mesh))(state)
    embed = functools.partial(cases.embedding, run, mesh=run.mesh)
    state = loop.train(run, state, workdir=f"{file}.{name}", embed=embed)
    return jax.device_get(state._replace(key=jax.random.key_data(state.key)))


def _labels(metric):
    """Clusters of 1,999 rows in overlapping blobs."""
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(30, 7))[rng.integers(0, 30, 1999)] + rng.normal(size=(1999, 7)) / 3
    rows = rows.astype(np.float32)
    found = kmeans(rows, 20, metric=metric, n_init=2, seed=1, mesh=states.make_mesh())
    return found.labels


if __name__ == "__main__":
    file, steps, *names = sys.argv[1:]
    jax.config.update("jax_enable_x64", True)
    devices.distribute()
    made = {name: _state(name, int(steps), file) for name in names}
    with jax.enable_x64(False):
        made |= {f"labels by {m} k-means": _labels(m) for m in ("euclidean", "spherical")}
    if devices.is_first():
        np.savez(file, **states.named(made))
