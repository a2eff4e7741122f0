"""The options of clustering features, and their checks."""

import dataclasses

import numpy as np

from cluster_jax.clustering.reduce import METHODS
from cluster_jax.core import checks
from cluster_jax.core.checks import InputError

CLUSTERINGS = ("modes", "gridshift", "kmeans")
METRICS = ("cosine", "euclidean")
# The largest value of counters and seeds, that of int32.
_INT32_MAX = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class ClusterOptions:
    """How features are clustered.

    Attributes:
        method: `"modes"` for `clustering.modes.ModeTree`, `"gridshift"`, or `"kmeans"` for a given
            number of clusters.
        k: number of clusters of k-means, or of the cut of the modes' tree; None there for the cut
            that is found, and for GridShift.
        reduce: a method of `clustering.reduce`; None: none for k-means and up to three columns,
            else UMAP. The reduced features are what is clustered.
        n_components: columns of the reduced features.
        n_neighbors: UMAP's neighbors, t-SNE's perplexity.
        min_dist: UMAP's closest distance.
        metric: `"cosine"` or `"euclidean"`, of the features as UMAP, t-SNE and k-means on the
            features themselves compare them; None: cosine where one of these compares more than
            three columns, else Euclidean.
        bandwidth: GridShift's, a number or `"auto"`.
        n_init: runs of k-means.
        max_iter: iterations of a run of k-means, at most.
        seed: of everything random.
    """

    method: str
    k: int | None
    reduce: str | None
    n_components: int
    n_neighbors: int
    min_dist: float
    metric: str | None
    bandwidth: float | str
    n_init: int
    max_iter: int
    seed: int

    def __post_init__(self) -> None:
        checks.one_of("method", self.method, CLUSTERINGS)
        if self.reduce is not None:
            checks.one_of("reduce", self.reduce, METHODS)
        if self.metric is not None:
            checks.one_of("metric", self.metric, METRICS)
        checks.whole("seed", self.seed, 0, _INT32_MAX)
        if self.method == "kmeans":
            self._check_kmeans()
        elif self.method == "gridshift":
            self._check_gridshift()
        else:
            self._check_no_bandwidth("modes")

    def _check_kmeans(self) -> None:
        if self.k is None:
            raise InputError("k must be given for k-means; got none")
        self._check_no_bandwidth("k-means")
        checks.whole("n_init", self.n_init, 1, _INT32_MAX)
        checks.whole("max_iter", self.max_iter, 1, _INT32_MAX)

    def _check_no_bandwidth(self, name: str) -> None:
        if self.bandwidth != "auto":
            raise InputError(
                f"bandwidth must be left out for {name}; got {self.bandwidth} (or set the method "
                "to gridshift)"
            )

    def _check_gridshift(self) -> None:
        if self.k is not None:
            raise InputError(
                f"k must be left out for GridShift, which finds the number of clusters; got "
                f"{self.k} (or set the method to modes or kmeans)"
            )
        if self.bandwidth != "auto" and not (
            isinstance(self.bandwidth, int | float) and 0 < self.bandwidth < np.inf
        ):
            raise InputError(
                f"bandwidth must be 'auto' or a number greater than 0; got {self.bandwidth}"
            )


@dataclasses.dataclass(frozen=True)
class ResolvedOptions(ClusterOptions):
    """Options with all defaults filled in, see `cluster_features.resolve`."""

    reduce: str
    metric: str
