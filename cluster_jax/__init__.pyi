# The public names, which `core.lazy` reads.

from cluster_jax import (
    clustering as clustering,
    losses as losses,
    methods as methods,
    metrics as metrics,
    nets as nets,
    samplers as samplers,
)
from cluster_jax.clustering.gridshift import GridShift as GridShift
from cluster_jax.clustering.smooth_tree import SmoothTree as SmoothTree
from cluster_jax.clustering.tree import cut_tree as cut_tree
from cluster_jax.encoding.encoder import Encoder as Encoder
from cluster_jax.estimators import ImageClusterer as ImageClusterer, load as load

__version__: str
