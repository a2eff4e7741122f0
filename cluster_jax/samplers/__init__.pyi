# The public names, which `lazy_loader` reads.

from .base import (
    PotentialAndGrad as PotentialAndGrad,
    Sampler as Sampler,
    SamplerInfo as SamplerInfo,
    expand_like as expand_like,
    gradient_share as gradient_share,
    inverse as inverse,
    log_inverse_square as log_inverse_square,
    norm_ratio as norm_ratio,
    normalize_by_rms as normalize_by_rms,
    repeat as repeat,
    sample as sample,
    shape_gradient as shape_gradient,
    similarity_potential as similarity_potential,
    standard_normal as standard_normal,
    sum_of_squares as sum_of_squares,
)
from .hmc import HMCState as HMCState, hmc as hmc
from .monte_carlo import monte_carlo as monte_carlo
from .sghmc import SGHMCState as SGHMCState, sghmc as sghmc
