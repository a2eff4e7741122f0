# The public names, which `lazy_loader` reads.

from .gridshift import GridShift as GridShift
from .kmeans import (
    KMeansResult as KMeansResult,
    kmeans as kmeans,
    kmeans_blocks as kmeans_blocks,
)
from .label_spreading import label_spreading as label_spreading
from .reduce import reduce as reduce
from .smooth_tree import SmoothTree as SmoothTree
from .transport import sinkhorn as sinkhorn
from .tree import linkage_of_means as linkage_of_means, cut_tree as cut_tree
