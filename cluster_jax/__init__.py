"""Contrastive deep clustering of images without labels, in JAX and Flax.

The estimators are here; their parts are functions in the packages `losses`, `samplers`, `nets`,
`methods`, `clustering` and `metrics`. Each name is loaded where it is first used: importing
`GridShift` loads neither JAX nor UMAP.

.. include:: ../README.md
"""

from cluster_jax.core import lazy

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy.exports(__name__)
