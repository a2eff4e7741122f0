"""Importing, fitting and placing leave the process as it was."""

import os
import subprocess
import sys

SCRIPT = """
import logging, os, signal, sys, warnings

def state():
    import jax
    signals = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    return (
        logging.root.handlers[:], logging.root.level, signals, sys.excepthook,
        sys.unraisablehook, warnings.showwarning, warnings.filters[:], dict(os.environ),
        sys.stdout, sys.stderr,
        jax.config.values.copy(), os.getcwd(), os.umask(0o22),
    )

import numpy as np, scipy.stats, sklearn.cluster  # They set filters.
before = state()
import cluster_jax
from cluster_jax import ImageClusterer, SmoothTree
from cluster_jax.runs import run
from cluster_jax.training import build
from cluster_jax.training import checkpoint

def compare(when):
    for i, (old, new) in enumerate(zip(before, state())):
        assert old == new, f"{when}: entry {i} was {old}, is {new}"

compare("import")
assert "orbax" not in sys.modules, "27 MB that a service without a trained network does not need"
rng = np.random.default_rng(0)
images = rng.integers(0, 255, (20, 8, 8), np.uint8)
rows = rng.normal(size=(60, 6)) + 9 * (np.arange(60) % 2)[:, None]
SmoothTree().fit(rows).assign(rows[:2])
from tests import toy
model = ImageClusterer(toy.config("").to_dict(), verbose=False).fit(images)
compare("fit")
model.assign(images[:1])
compare("assign")
logging.basicConfig(level=logging.INFO, format="application: %(message)s")
logging.info("still heard")
"""


def test_nothing_happens_to_the_process():
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    # Another test may have imported what sets a variable.
    environment = {name: value for name, value in os.environ.items() if "CRC32C" not in name}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "application: still heard" in done.stderr
