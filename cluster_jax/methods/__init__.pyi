# The public names, which `lazy_loader` reads.

from .base import (
    Aux as Aux,
    Encoded as Encoded,
    Method as Method,
    MethodContext as MethodContext,
    SamplerInputs as SamplerInputs,
    Term as Term,
    TwoView as TwoView,
    as_method as as_method,
    build as build,
    build_term as build_term,
    names as names,
    parse as parse,
    parse_term as parse_term,
    with_term as with_term,
)
from .nrcc import (
    HMCConfig as HMCConfig,
    MonteCarloConfig as MonteCarloConfig,
    NoiseConfig as NoiseConfig,
    NRCCConfig as NRCCConfig,
    SGHMCConfig as SGHMCConfig,
    with_nrcc as with_nrcc,
)
