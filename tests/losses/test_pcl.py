"""PCL's concentrations of copies; their values are those of the reference steps."""

import numpy as np

from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.losses.pcl import concentrations


def test_concentrations_of_copies_are_those_of_singletons_whatever_is_rounded():
    """The prototype of equal rows differs from them by rounding."""
    x = np.random.default_rng(0).normal(size=(300, 64)).astype(np.float32)
    rows = np.concatenate([x, x[:60]])
    found = kmeans(rows, 100, metric="spherical", n_init=1)
    phi = concentrations(rows, found.centers, found.labels)
    assert 0.1 < phi.min() < phi.max() < 0.3
