"""Metrics of partitions and representations."""

from typing import TYPE_CHECKING

from cluster_jax.core import lazy

if TYPE_CHECKING:
    # fmt: off
    from cluster_jax.metrics.collapse import collapse as collapse
    from cluster_jax.metrics.knn import knn_accuracy as knn_accuracy
    from cluster_jax.metrics.linear_probe import linear_probe as linear_probe
    from cluster_jax.metrics.partition import (
        Contingency as Contingency, accuracy as accuracy, contingency as contingency,
        matching as matching, purity as purity, scores as scores,
    )
    from cluster_jax.metrics.silhouette import silhouette as silhouette
    # fmt: on
else:
    __getattr__, __dir__, __all__ = lazy.exports(__name__)
