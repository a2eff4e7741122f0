"""Gaussian clusters, and their fit."""

import numpy as np

from cluster_jax.clustering.smooth_tree import SmoothTree


def blobs(sizes, d=20, gap=4.0, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    centers = gap * rng.normal(size=(len(sizes), d))
    return centers[truth] + rng.normal(size=(len(truth), d)), truth


def fit(x, **options):
    return SmoothTree("euclidean", **options).fit(x)
