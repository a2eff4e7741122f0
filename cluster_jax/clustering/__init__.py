r"""Clustering of embeddings, with and without a given number of clusters.

**`SmoothTree`** finds the number of clusters in any embedding. It keeps the principal axes that
stand out of noise and averages each row with its nearest neighbors,
$x_i \leftarrow \sum_j w_{ij} x_j$, which contracts dense regions. For each number of clusters, cuts
of Ward's tree of the smoothed rows start k-means; the number with the highest mean silhouette wins,
if that exceeds the silhouette of a Gaussian reference, and how far it does says whether the answer
is clear. `cut` gives coarser and finer levels of the tree, `predict` places new rows by a vote of
their neighbors. Choose it first.

**`GridShift`** with `reduce` is NRCC's way (section 3.6.1): UMAP to three dimensions, then mean
shift on a grid of cells of side $h$, in which all occupied cells move to the mean of their
neighborhood until none moves. The bandwidth $h$ can be found without labels. It scales to ten
million points in three dimensions, and its answer depends on the map.

**`kmeans`** needs the number of clusters. It is Euclidean or spherical, starts by k-means++ and
runs on all devices of a mesh, as in NCC's E-step.

`label_spreading` spreads labels over the graph of nearest neighbors (Zhou et al. 2004), `sinkhorn`
balances assignments, `nearest` searches neighbors, and `cluster_linkage` with `cut_tree` joins
clusters by the likeness of their means.
"""

from typing import TYPE_CHECKING

from cluster_jax.core import lazy

if TYPE_CHECKING:
    from cluster_jax.clustering.gridshift import GridShift as GridShift
    from cluster_jax.clustering.kmeans import KMeansResult as KMeansResult, kmeans as kmeans
    from cluster_jax.clustering.knn import Neighbors as Neighbors, nearest as nearest
    from cluster_jax.clustering.label_spreading import label_spreading as label_spreading
    from cluster_jax.clustering.reduce import reduce as reduce
    from cluster_jax.clustering.smooth_tree import SmoothTree as SmoothTree
    from cluster_jax.clustering.transport import sinkhorn as sinkhorn
    from cluster_jax.clustering.tree import cluster_linkage as cluster_linkage, cut_tree as cut_tree
else:
    __getattr__, __dir__, __all__ = lazy.exports(__name__)
