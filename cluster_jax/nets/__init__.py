"""Networks; the only package that imports Flax."""

from cluster_jax.core import lazy

__getattr__, __dir__, __all__ = lazy.exports(__name__)
