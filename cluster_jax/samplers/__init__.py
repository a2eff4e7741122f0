r"""Samplers of NRCC's third view: random keys, images and a potential -> views, `SamplerInfo`.

NRCC draws the third view of an image near regions in which its representation is like that of a
reference, by the potential (16)
$$P(x) = \frac{1}{1 + \operatorname{sim}(z(x), z_{\text{ref}})}$$
(`similarity_potential` with `inverse`). A sampler has the shape of an optax transformation: `init`
and `step` over any pytree, and `sample` runs it.

`sghmc` is stochastic-gradient Hamiltonian Monte Carlo, NRCC (17)-(18), with momentum $p$, noise
$r$ and the constants $\delta_1, \delta_2, \delta_3 = 0.1, 0.05, 0.99$:
$$p \leftarrow (1 - \delta_1)\, p - \delta_2 \nabla P(x) + \delta_3\, r, \qquad
x \leftarrow x + \delta_2\, p$$
Deviation: (18) prints the old momentum, with which one iteration is noise without any gradient;
the new momentum is the default. With the published constants the gradient is at most 4 % of a
step: `SamplerInfo` reports its share, and `normalize_gradient` raises it.

`hmc` (leapfrog steps and acceptance) and `monte_carlo` (a random walk without gradient) are the
peers of NRCC's Table 8.
"""

from typing import TYPE_CHECKING

from cluster_jax.core import lazy

if TYPE_CHECKING:
    # fmt: off
    from cluster_jax.samplers.base import (
        PotentialAndGrad as PotentialAndGrad, Sampler as Sampler, SamplerInfo as SamplerInfo,
        inverse as inverse, log_inverse_square as log_inverse_square, sample as sample,
        similarity_potential as similarity_potential,
    )
    from cluster_jax.samplers.hmc import HMCState as HMCState, hmc as hmc
    from cluster_jax.samplers.monte_carlo import monte_carlo as monte_carlo
    from cluster_jax.samplers.sghmc import SGHMCState as SGHMCState, sghmc as sghmc
    # fmt: on
else:
    __getattr__, __dir__, __all__ = lazy.exports(__name__)
