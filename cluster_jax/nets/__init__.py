"""Networks; the only package that imports Flax."""

from typing import TYPE_CHECKING

from cluster_jax.core import lazy

if TYPE_CHECKING:
    # fmt: off
    from cluster_jax.nets.backbone import names as names
    from cluster_jax.nets.config import (
        NetworkConfig as NetworkConfig, PredictorConfig as PredictorConfig,
        ProjectorConfig as ProjectorConfig,
    )
    from cluster_jax.nets.heads import classifier as classifier, classify as classify
    from cluster_jax.nets.network import Network as Network, Outputs as Outputs, make as make
    # fmt: on
else:
    __getattr__, __dir__, __all__ = lazy.exports(__name__)
