# The public names, which `lazy_loader` reads.

from .collapse import collapse as collapse
from .knn import knn_accuracy as knn_accuracy
from .linear_probe import linear_probe as linear_probe
from .partition import (
    Contingency as Contingency,
    accuracy as accuracy,
    contingency as contingency,
    matching as matching,
    purity as purity,
    scores as scores,
)
from .probe_settings import ProbeSettings as ProbeSettings
from .silhouette import silhouette as silhouette
