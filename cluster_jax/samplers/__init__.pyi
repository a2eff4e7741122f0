# The public names, which `core.lazy` reads.

from cluster_jax.samplers.base import (
    PotentialAndGrad as PotentialAndGrad,
    Sampler as Sampler,
    SamplerInfo as SamplerInfo,
    inverse as inverse,
    log_inverse_square as log_inverse_square,
    sample as sample,
    similarity_potential as similarity_potential,
)
from cluster_jax.samplers.hmc import HMCState as HMCState, hmc as hmc
from cluster_jax.samplers.monte_carlo import monte_carlo as monte_carlo
from cluster_jax.samplers.sghmc import SGHMCState as SGHMCState, sghmc as sghmc
