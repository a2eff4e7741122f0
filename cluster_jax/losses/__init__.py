r"""Losses: pure jitted functions of arrays, one file per paper or family.

$a_i$ and $b_i$ are the projections of two views of image $i$, of length one, $n$ is the global
batch size and $\tau$ the temperature. The formulas are those of view a; losses of two views are the
mean over both, over all images of all devices.

**InfoNCE** (`info_nce`, `info_nce_views`, `info_nce_queue`, `clip`) pulls the views of an image
together and pushes all other images away:

$$\ell_i = -\frac{\langle a_i, b_i \rangle}{\tau} + \log \Big( \sum_{j \ne i}
e^{\langle a_i, a_j \rangle / \tau} + \sum_j e^{\langle a_i, b_j \rangle / \tau} \Big)$$

NRCC (1)-(3) leave the positive $b_i$ out of the sum; SimCLR, Kernel-InfoNCE (8), CueCo (1) and NCL
(6) keep it (`positive_in_denominator`). Take InfoNCE where batches are large, and its queue of
earlier keys where they are not.

**BYOL and Barlow Twins** (`byol`, `byol_views`, `barlow_twins`) need no negatives. BYOL predicts
the projection by a target network, $\ell_i = 2 - 2 \cos(q(a_i), \bar b_i)$; Barlow Twins
draws the correlations $C$ of the columns of both views towards the identity,
$\sum_k (1 - C_{kk})^2 + \lambda \sum_{k \ne l} C_{kl}^2$. Take them where batches are small.

**NRCC** (`nrcc`, `nrcc_views`) is a regularizer for all of these. A sampler makes a third view of
each image (`cluster_jax.samplers`), with the embedding $c_i$, a constant for the gradient:

$$R_i = \log \sum_{j \ne i} e^{\langle a_i, c_j \rangle / \tau} -
\log \sum_j e^{\langle a_i, b_j \rangle / \tau}$$

Deviation: NRCC (5) and (6) print the ratio upside down; the paper's gradients (10)-(14) agree with
this form (`test_nrcc_eq_5_and_6_misprint_the_ratio_upside_down`). The test suite's
`losses/test_closed_forms.py` has the gradients of the five papers in closed form, and the
misprints: a docstring that claims one names its test. NRCC costs a gradient with respect to the
images and one more forward pass.

**Kernel-InfoNCE** (`Kernel`, `kernel_info_nce_views`, `kernel_clip`) replaces
$e^{\langle x, y \rangle / \tau}$ by $\exp(-\lVert x - y \rVert^\gamma / \tau)$ or a mixture of two.
$\gamma = 2$ is InfoNCE at the temperature $\tau / 2$; smaller $\gamma$ weighs far pairs less.

**Prototypes** (`proto_cl`, `centroid_contrast`, `variance_loss`, `prototype_contrast`) pull images
to the mean of their pseudo-label and push these means apart, NCC (7), CueCo (4)-(5) and PCL, whose
temperatures are the `concentrations` of the clusters. CC contrasts the columns of a batch's
assignments instead (`cluster_contrast`, `entropy_deficit`), and SwAV predicts the assignment of one
view, balanced by `sinkhorn_codes`, from another (`swapped_prediction`). Take them where the number
of clusters is known, at least roughly; PCL and SwAV have many more prototypes than that.

**In any program.** Inside `jax.shard_map`, `jax.pmap` or `jax.vmap` a loss takes the name of the
axis that holds the batch; arrays that are sharded over a mesh need none. NaN in, NaN out. The guide
in `experiments/guide` has a table of what is tested.

**Novel classes** (`neighborhood_contrast`, `supervised_contrast`, `pairwise_bce`, `hard_negatives`
and others) are NCL's, for images of which some classes have labels.

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
    ...         regularizer = losses.nrcc_views(za, zb, project(c)[0])
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

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
