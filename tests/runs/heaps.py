"""Rows in heaps that are far from each other, and what is in the files of their runs."""

import hashlib

import numpy as np

CENTERS = 20 * np.eye(6, 8)


def rows(*counts, seed=0):
    """So many of each heap, float32 `[n, 8]`."""
    rng = np.random.default_rng(seed)
    kinds = np.repeat(np.arange(len(counts)), counts)
    return (CENTERS[kinds] + rng.normal(size=(len(kinds), 8))).astype("f4")


def digests(run, *left_out):
    """What is in each file of a run but the lock and others that are left out, by their names."""
    kept = (path for path in run.rglob("*") if path.is_file())
    kept = (path for path in kept if path.name not in ("lock", *left_out))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in kept}
