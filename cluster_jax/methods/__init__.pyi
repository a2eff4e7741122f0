# The public names, which `core.lazy` reads.

from cluster_jax.methods.base import (
    Aux as Aux,
    Encoded as Encoded,
    Method as Method,
    MethodContext as MethodContext,
    SamplerInputs as SamplerInputs,
    TwoView as TwoView,
    as_method as as_method,
    build as build,
    names as names,
    parse as parse,
)
from cluster_jax.methods.wrappers.nrcc import (
    HMCConfig as HMCConfig,
    MonteCarloConfig as MonteCarloConfig,
    NoiseConfig as NoiseConfig,
    NRCCConfig as NRCCConfig,
    SGHMCConfig as SGHMCConfig,
    with_nrcc as with_nrcc,
)
