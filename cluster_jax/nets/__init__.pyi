# The public names, which `lazy_loader` reads.

from .backbone import names as names
from .config import (
    NetworkConfig as NetworkConfig,
    PredictorConfig as PredictorConfig,
    ProjectorConfig as ProjectorConfig,
)
from .network import (
    Network as Network,
    Outputs as Outputs,
    classifier as classifier,
    classify as classify,
    make as make,
)
