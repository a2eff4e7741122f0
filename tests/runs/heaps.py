"""Rows in heaps that are far from each other."""

import numpy as np

CENTERS = 20 * np.eye(6, 8)


def rows(*counts, seed=0):
    """So many of each heap, float32 `[n, 8]`."""
    rng = np.random.default_rng(seed)
    kinds = np.repeat(np.arange(len(counts)), counts)
    return (CENTERS[kinds] + rng.normal(size=(len(kinds), 8))).astype("f4")
