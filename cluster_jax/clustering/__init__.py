"""Clustering of embeddings on the host."""

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
