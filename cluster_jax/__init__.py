"""Contrastive deep clustering of images without labels, in JAX and Flax."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # For type checkers; at run time `__getattr__` imports them.
    from cluster_jax.clustering.gridshift import GridShift
    from cluster_jax.clustering.smooth_tree import SmoothTree
    from cluster_jax.clustering.tree import cut_tree
    from cluster_jax.estimators import ImageClusterer, load

__version__ = "0.1.0"

_HOMES = {
    "GridShift": "cluster_jax.clustering.gridshift",
    "ImageClusterer": "cluster_jax.estimators",
    "SmoothTree": "cluster_jax.clustering.smooth_tree",
    "cut_tree": "cluster_jax.clustering.tree",
    "load": "cluster_jax.estimators",
}

__all__ = ["GridShift", "ImageClusterer", "SmoothTree", "__version__", "cut_tree", "load"]


def __getattr__(name: str) -> object:
    """Loads a public name where it is used: importing `GridShift` loads neither JAX nor UMAP."""
    if name not in _HOMES:
        raise AttributeError(f"cluster_jax has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
