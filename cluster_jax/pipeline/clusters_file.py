"""The file `clusters.npz` of a workdir: the clusters, and what new images are assigned by."""

from typing import NamedTuple

import numpy as np
from etils import epath

from cluster_jax.clustering.grouping import SampledTree
from cluster_jax.clustering.levels import Tree
from cluster_jax.core import io
from cluster_jax.pipeline import workdir as workdirs


class StoredClusters(NamedTuple):
    """Content of `clusters.npz` for the n images that were clustered, of N training images.

    The clusters are those of `eval.method`; its tree of groups, of m sampled images, and their
    probabilities are None for GridShift, the bandwidth is None for modes.

    Attributes:
        points: float32 `[n, p]`, the images in the reduced space in which clusters were found.
        centers: float64 `[k, p]`, of the clusters in that space.
        cluster_labels: int32 `[n]`.
        distances: float32 `[n]`, to the center of the cluster, in bandwidths if there is one.
        outliers: bool `[n]`, images of clusters too small to count.
        kmeans_labels: int32 `[n]`, clusters of k-means.
        novelty_threshold: float64 `[]`, see `clustering.out_of_sample.novelty_threshold`.
        linkage: float64 `[k - 1, 4]`, the tree of the clusters, in SciPy's form: for modes by the
            evidence of `levels.Tree`, else see `clustering.tree.cluster_linkage`.
        bandwidth: float64 `[]`, side length of GridShift's cells.
        unlabeled_rows: int64 `[n]`, indices of the clustered images; None: all were clustered.
        class_labels: int32 `[N]`, classes of novel class discovery, or None.
        class_novelty_threshold: float64 `[]`, the threshold of all training images, or None.
        leaves, merges, evidence: the `levels.Tree` of the sample.
        sample: int64 `[m]`, see `clustering.grouping.SampledTree`.
        probabilities: float64 `[n]`, of the cluster.
        runners_up: int64 `[n]`, the second likeliest cluster, -1 for none.
        runner_up_probabilities: float64 `[n]`.
    """

    points: np.ndarray
    centers: np.ndarray
    cluster_labels: np.ndarray
    distances: np.ndarray
    outliers: np.ndarray
    kmeans_labels: np.ndarray
    novelty_threshold: np.ndarray
    linkage: np.ndarray
    bandwidth: np.ndarray | None = None
    unlabeled_rows: np.ndarray | None = None
    class_labels: np.ndarray | None = None
    class_novelty_threshold: np.ndarray | None = None
    leaves: np.ndarray | None = None
    merges: np.ndarray | None = None
    evidence: np.ndarray | None = None
    sample: np.ndarray | None = None
    probabilities: np.ndarray | None = None
    runners_up: np.ndarray | None = None
    runner_up_probabilities: np.ndarray | None = None

    @property
    def tree(self) -> SampledTree | None:
        """The tree of groups, or None."""
        if self.leaves is None or self.merges is None or self.evidence is None:
            return None
        if self.sample is None:
            return None
        return SampledTree(Tree(self.leaves, self.merges, self.evidence), self.sample)


def write(workdir: epath.Path, clusters: StoredClusters) -> None:
    """Writes the file."""
    fields = {name: value for name, value in clusters._asdict().items() if value is not None}
    io.write_arrays(workdir / workdirs.CLUSTERS, fields)


def read(workdir: epath.Path) -> StoredClusters:
    """Reads the file.

    Raises:
        InputError: another version of the package wrote it.
    """
    try:
        return StoredClusters(**io.read_arrays(workdir / workdirs.CLUSTERS))
    except TypeError as error:
        raise workdirs.older_version(workdir) from error
