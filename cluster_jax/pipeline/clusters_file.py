"""The file `clusters.npz` of a workdir: the clusters, and what new images are assigned by."""

from typing import NamedTuple

import numpy as np
from etils import epath

from cluster_jax.clustering.smooth import Smoother
from cluster_jax.clustering.smooth_tree import SmoothTree
from cluster_jax.core import io
from cluster_jax.pipeline import workdir as workdirs


class StoredClusters(NamedTuple):
    """Content of `clusters.npz` for the n images that were clustered, of N training images.

    The clusters are those of `eval.method`; the tree of m sampled images, their sharp rows and the
    probabilities are None for GridShift, the bandwidth is None for the tree.

    Attributes:
        points: float32 `[n, p]`, the map.
        centers: float64 `[k, c]`, of the clusters in the space in which they were found: the map,
            and for the tree its sharp rows.
        cluster_labels: int32 `[n]`.
        distances: float32 `[n]`, to the center of the cluster, in bandwidths if there is one.
        outliers: bool `[n]`, images of clusters too small to count.
        kmeans_labels: int32 `[n]`, clusters of k-means.
        novelty_threshold: float64 `[]`, see `clustering.out_of_sample.novelty_threshold`.
        linkage: float64 `[k - 1, 4]`, the tree of the clusters, in SciPy's form, see
            `clustering.smooth_tree.cluster_linkage` and `clustering.tree.cluster_linkage`.
        bandwidth: float64 `[]`, side length of GridShift's cells.
        unlabeled_rows: int64 `[n]`, indices of the clustered images; None: all were clustered.
        class_labels: int32 `[N]`, classes of novel class discovery, or None.
        class_novelty_threshold: float64 `[]`, the threshold of all training images, or None.
        tree: float64 `[m - 1, 4]`, `SmoothTree.linkage_`.
        sample: int64 `[m]`, `SmoothTree.sample_`.
        mean, components, sharp, is_cosine: of its `smooth.Smoother`, by which new images are
            assigned.
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
    tree: np.ndarray | None = None
    sample: np.ndarray | None = None
    mean: np.ndarray | None = None
    components: np.ndarray | None = None
    sharp: np.ndarray | None = None
    is_cosine: np.ndarray | None = None
    probabilities: np.ndarray | None = None
    runners_up: np.ndarray | None = None
    runner_up_probabilities: np.ndarray | None = None

    @property
    def smoother(self) -> Smoother | None:
        """The representation in which the tree was found, or None."""
        if self.mean is None or self.components is None or self.sharp is None:
            return None
        sharp = self.sharp
        return Smoother(self.mean, self.components, bool(self.is_cosine), sharp, (), sharp)

    def with_tree(self, model: SmoothTree) -> "StoredClusters":
        """These clusters and the tree that found them."""
        smoother, (_, *membership) = model.smoother_, model.membership_
        return self._replace(
            tree=model.linkage_,
            sample=model.sample_,
            mean=smoother.mean,
            components=smoother.components,
            sharp=smoother.sharp,
            is_cosine=np.asarray(smoother.is_cosine),
            **dict(
                zip(
                    ("probabilities", "runners_up", "runner_up_probabilities"),
                    membership,
                    strict=True,
                )
            ),
        )


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
