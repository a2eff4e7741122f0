"""One file per method; the file name is its name in a config."""

from typing import TYPE_CHECKING

from cluster_jax.core import lazy

if TYPE_CHECKING:
    # fmt: off
    from cluster_jax.methods.base import (
        Aux as Aux, Encoded as Encoded, Method as Method, MethodContext as MethodContext,
        SamplerInputs as SamplerInputs, TwoView as TwoView, as_method as as_method, build as build,
        names as names, parse as parse,
    )
    from cluster_jax.methods.wrappers.nrcc import (
        HMCConfig as HMCConfig, MonteCarloConfig as MonteCarloConfig, NoiseConfig as NoiseConfig,
        NRCCConfig as NRCCConfig, SGHMCConfig as SGHMCConfig, with_nrcc as with_nrcc,
    )
    # fmt: on
else:
    __getattr__, __dir__, __all__ = lazy.exports(__name__)
