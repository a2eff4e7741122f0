r"""Samplers of NRCC's third view: random keys, images and a potential -> views, `SamplerInfo`.

NRCC repels an image from *sampled* views of the other images. They are drawn from
$p(x) \propto e^{-P(x)}$, with the potential (16)

$$P(x) = \frac{1}{1 + \operatorname{sim}(z(x), z_{\text{ref}})}$$

of the projection $z(x)$ and a reference $z_{\text{ref}}$, the image's other view: P is low where
the network sees the two as alike. `similarity_potential` makes it, with `inverse` for this shape
and `log_inverse_square` for another. A sampler has the form of an optax transformation, `init` and
`step`, over an array or a pytree; `sample` runs it. Each image has a random key of its own, so that
its view does not depend on the rest of the batch.

**`sghmc`**, stochastic-gradient Hamiltonian Monte Carlo, is NRCC's choice, (17)-(18). The momentum
$p$ starts as noise, $r$ is standard normal, and $\delta_1, \delta_2, \delta_3$ are friction, step
size and noise (0.1, 0.05, 0.99):

$$p \leftarrow (1 - \delta_1)\, p - \delta_2 \nabla P(x) + \delta_3\, r, \qquad
x \leftarrow x + \delta_2\, p$$

Deviation: (18) prints the old momentum, by which a single iteration, as in the paper, is noise
without any gradient (`test_nrcc_eq_18_as_printed_is_noise_without_any_gradient` in
`tests/losses/test_closed_forms.py`); here the new one moves the image, `momentum="old"` is the
printed form. With the published constants the gradient was a share of 0.00001 to 0.00015 of the
displacement in our trainings (`experiments/README.md`), so that the view was noise. `SamplerInfo`
reports the share, and `normalize_gradient` raises it. Take `sghmc` with NRCC: one iteration reuses
the gradient of the forward pass.

**`hmc`** adds leapfrog steps and an accept step, at a gradient for each leapfrog step; take it
where the samples are to follow the density. **`monte_carlo`** is a random walk without gradients,
the cheapest: take it as a control, since what `sghmc` gains over it is due to the potential. Both
are peers in NRCC's Table 8, which does not specify them further.

**A sampler of one's own** is a module with a function
`sample(keys, images, potential_and_grad) -> views, SamplerInfo`, whose name is the value of
`nrcc.sampler`; `experiments/guide/own_parts.md` shows Langevin dynamics. For it are
`standard_normal`, noise by a key per image; `shape_gradient`, which clips and normalizes, as
`normalize_by_rms` does; `norm_ratio`, for the gradient's share of the displacement, and
`gradient_share`, the same between two states; `expand_like` and `sum_of_squares` for one number per
image; and `repeat`, for loops that are compiled step by step. Or it makes a `Sampler`, and passes
it to `sample`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
