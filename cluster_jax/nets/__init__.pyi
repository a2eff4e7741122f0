# The public names, which `core.lazy` reads.

from cluster_jax.nets.backbone import names as names
from cluster_jax.nets.config import (
    NetworkConfig as NetworkConfig,
    PredictorConfig as PredictorConfig,
    ProjectorConfig as ProjectorConfig,
)
from cluster_jax.nets.network import (
    Network as Network,
    Outputs as Outputs,
    classifier as classifier,
    classify as classify,
    make as make,
)
