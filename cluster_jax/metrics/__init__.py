"""Metrics of partitions and representations."""

from cluster_jax.core import lazy

__getattr__, __dir__, __all__ = lazy.exports(__name__)
