# The public names, which `lazy_loader` reads.

from .base import (
    PotentialAndGrad as PotentialAndGrad,
    Sampler as Sampler,
    SamplerInfo as SamplerInfo,
    inverse as inverse,
    log_inverse_square as log_inverse_square,
    sample as sample,
    similarity_potential as similarity_potential,
)
from .hmc import HMCState as HMCState, hmc as hmc
from .monte_carlo import monte_carlo as monte_carlo
from .sghmc import SGHMCState as SGHMCState, sghmc as sghmc
