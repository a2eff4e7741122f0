# The public names, which `core.lazy` reads.

from cluster_jax.clustering.gridshift import GridShift as GridShift
from cluster_jax.clustering.kmeans import (
    KMeansResult as KMeansResult,
    kmeans as kmeans,
    kmeans_blocks as kmeans_blocks,
)
from cluster_jax.clustering.knn import Neighbors as Neighbors, nearest as nearest
from cluster_jax.clustering.label_spreading import label_spreading as label_spreading
from cluster_jax.clustering.reduce import reduce as reduce
from cluster_jax.clustering.smooth_tree import SmoothTree as SmoothTree
from cluster_jax.clustering.transport import sinkhorn as sinkhorn
from cluster_jax.clustering.tree import linkage_of_means as linkage_of_means, cut_tree as cut_tree
from cluster_jax.clustering.two_levels import kmeans_two_levels as kmeans_two_levels
