r"""Losses: pure jitted functions of arrays, one file per paper or family.

$a_i, b_i$ are the unit projections of two views of image $i$, $n$ is the global batch size, $\tau$
the temperature. Two-view losses are means $\frac{1}{2n} \sum_i (\ell_{ia} + \ell_{ib})$ over all
devices.

**InfoNCE** (`info_nce`, `info_nce_views`, `info_nce_queue`, `clip`) pulls the views of an image
together and pushes all other images away:
$$\ell_{ia} = -\frac{\langle a_i, b_i \rangle}{\tau}
+ \log \sum_{s \in \{a, b\}} \sum_{j \ne i} e^{\langle a_i, s_j \rangle / \tau}$$
NRCC (1)-(3) leave the positive out of the sum; SimCLR, Kernel-InfoNCE (8), CueCo (1) and NCL (6)
keep it (`positive_in_denominator`). Choose it where batches are large; a queue replaces a large
batch.

**BYOL and Barlow Twins** (`byol`, `byol_views`, `barlow_twins`) need no negatives: BYOL predicts
the target network's projection, $\ell_{ia} = 2 - 2 \cos(q(z_i^a), \bar z_i^b)$, and Barlow Twins
decorrelates the columns of the projections. Choose them where batches are small.

**NRCC** (`nrcc`, `nrcc_views`) is a regularizer for all of these, with a third view $c_j$ of each
image that a sampler makes (see `cluster_jax.samplers`):
$$R_{ia} = \log \sum_{j \ne i} e^{\langle a_i, c_j \rangle / \tau}
- \log \sum_j e^{\langle a_i, b_j \rangle / \tau}$$
Deviation: NRCC (5) and (6) print the ratio upside down; its gradients (10)-(14) agree with this
form. $c$ carries no gradient.

**Kernel-InfoNCE** (`make_kernel`, `kernel_info_nce_views`, `kernel_clip`) replaces the cosine by
$K(x, y) = \exp(-\lVert x - y \rVert^\gamma / \tau)$ and mixtures of two kernels. $\gamma = 2$ is
InfoNCE with temperature $\tau / 2$; $\gamma = 1$ and mixtures weigh far pairs less.

**Prototypes** (`proto_cl`, `centroid_contrast`, `variance_loss`) pull images to the center of their
pseudo-label and push the centers apart, NCC (7) and CueCo (4)-(5). The number of clusters must be
given.

**Novel classes** (`neighborhood_contrast`, `supervised_contrast`, `pairwise_bce`, `hard_negatives`
and others) are NCL's, where some classes have labels.

Example:
    A training step for a loop of one's own: two augmented views of each image, InfoNCE, and NRCC's
    regularizer with a third view that SGHMC samples from the first.

    >>> import jax, optax
    >>> from cluster_jax import losses, nets, samplers
    >>> from cluster_jax.data import augment
    >>> projector = nets.ProjectorConfig(hidden=64, out=32)
    >>> network = nets.make(nets.NetworkConfig("small", width=8, projector=projector))
    >>> optimizer = optax.adamw(2e-3)
    >>> augmentation = {"rotation": 0.3, "scale": 0.2, "shear": 0.3, "shift": 1.0}
    >>> view = jax.vmap(lambda key, image: augment.random_affine(key, image, **augmentation))
    >>> @jax.jit
    ... def step(params, stats, opt_state, key, images):
    ...     first, second, third = jax.random.split(key, (3, len(images)))
    ...     a, b = view(first, images), view(second, images)
    ...     def loss_fn(params):
    ...         def project(x):
    ...             out = network.forward(params, stats, x, train=True, axis=None)
    ...             return out.projection, out.stats
    ...         (za, _), (zb, new_stats) = project(a), project(b)
    ...         potential = samplers.similarity_potential(lambda x: project(x)[0], zb)
    ...         c, _ = samplers.sample(samplers.sghmc(potential), third, a)
    ...         regularizer = losses.nrcc_views(za, zb, za, zb, project(c)[0])
    ...         return losses.info_nce_views(za, zb) + 0.5 * regularizer, new_stats
    ...     (loss, stats), gradient = jax.value_and_grad(loss_fn, has_aux=True)(params)
    ...     updates, opt_state = optimizer.update(gradient, opt_state, params)
    ...     return optax.apply_updates(params, updates), stats, opt_state, loss

    `images` are floats in [0, 1], `[b, H, W, C]`:

    >>> from sklearn.datasets import load_digits
    >>> images = load_digits().images[:64, ..., None].astype("float32") / 16
    >>> params, stats = network.init(jax.random.key(0), images[:1])
    >>> opt_state, history = optimizer.init(params), []
    >>> for key in jax.random.split(jax.random.key(1), 40):
    ...     params, stats, opt_state, loss = step(params, stats, opt_state, key, images)
    ...     history.append(loss.item())
    >>> history[-1] < history[0]
    True
    >>> features = network.forward(params, stats, images, train=False, axis=None).representation
"""

from typing import TYPE_CHECKING

from cluster_jax.core import lazy

if TYPE_CHECKING:
    # fmt: off
    from cluster_jax.losses.barlow import barlow_twins as barlow_twins
    from cluster_jax.losses.byol import byol as byol, byol_views as byol_views
    from cluster_jax.losses.cueco import (
        centroid_contrast as centroid_contrast, variance_loss as variance_loss,
    )
    from cluster_jax.losses.hng import (
        HardNegatives as HardNegatives, hard_negatives as hard_negatives,
    )
    from cluster_jax.losses.infonce import (
        clip as clip, info_nce as info_nce, info_nce_queue as info_nce_queue,
        info_nce_views as info_nce_views,
    )
    from cluster_jax.losses.kernel_infonce import (
        Kernel as Kernel, kernel_clip as kernel_clip,
        kernel_info_nce_queue as kernel_info_nce_queue,
        kernel_info_nce_views as kernel_info_nce_views, make_kernel as make_kernel,
    )
    from cluster_jax.losses.ncc import (
        positive_samples as positive_samples, proto_cl as proto_cl,
        proto_cl_views as proto_cl_views, prototypes as prototypes,
    )
    from cluster_jax.losses.ncl import (
        consistency as consistency, cross_entropy as cross_entropy,
        neighborhood_contrast as neighborhood_contrast, pairwise_bce as pairwise_bce, ramp as ramp,
        similar as similar, supervised_contrast as supervised_contrast,
        target_weights as target_weights,
    )
    from cluster_jax.losses.nrcc import nrcc as nrcc, nrcc_views as nrcc_views
    # fmt: on
else:
    __getattr__, __dir__, __all__ = lazy.exports(__name__)
