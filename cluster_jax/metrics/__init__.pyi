# The public names, which `core.lazy` reads.

from cluster_jax.metrics.collapse import collapse as collapse
from cluster_jax.metrics.knn import knn_accuracy as knn_accuracy
from cluster_jax.metrics.linear_probe import linear_probe as linear_probe
from cluster_jax.metrics.partition import (
    Contingency as Contingency,
    accuracy as accuracy,
    contingency as contingency,
    matching as matching,
    purity as purity,
    scores as scores,
)
from cluster_jax.metrics.silhouette import silhouette as silhouette
