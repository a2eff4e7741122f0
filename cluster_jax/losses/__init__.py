"""Losses: pure jitted functions of arrays, one file per paper or family.

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
