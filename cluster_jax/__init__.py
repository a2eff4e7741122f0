"""Contrastive deep clustering of images without labels, in JAX and Flax.

The estimators are here; their parts are functions in the packages `losses`, `samplers`, `nets`,
`methods`, `clustering` and `metrics`. Each name is loaded where it is first used: importing
`GridShift` loads neither JAX nor UMAP.

.. include:: ../README.md
"""

from typing import TYPE_CHECKING

from cluster_jax.core import lazy

__version__ = "0.2.0"

if TYPE_CHECKING:
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
    from cluster_jax.estimators import ImageClusterer as ImageClusterer, load as load
else:
    __getattr__, __dir__, __all__ = lazy.exports(__name__)
