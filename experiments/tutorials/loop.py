"""A loss in your own loop: functions of arrays

Under a minute on two CPU cores, nothing to download. The losses, samplers, networks and
augmentations of the package are functions of arrays and work in any JAX program. Here a loop with
optax trains a small network by InfoNCE and NRCC's regularizer, whose third view SGHMC samples.
"""

# %%
import jax
import numpy as np
import optax
from sklearn.datasets import load_digits

from cluster_jax import SmoothTree, losses, nets, samplers
from cluster_jax.data import augment
from cluster_jax.metrics import accuracy

digits = load_digits()
images = (digits.images[..., None] / 16).astype(np.float32)

# %% [markdown]
# ## Network and augmentation
#
# `nets.make` gives a network as two functions, `init` and `forward`; `forward` returns the
# representation, the projection and the new BatchNorm statistics. Any other network will do, as
# long as it gives projections `[b, d]`. An augmentation takes a random key and an image `[H, W, C]`
# in [0, 1]; `jax.vmap` applies it to a batch, with a key for each image.

# %%
heads = nets.ProjectorConfig(hidden=128, out=64)
network = nets.make(nets.NetworkConfig("small", width=24, projector=heads))
steps = 400
optimizer = optax.adamw(optax.cosine_decay_schedule(2e-3, steps), weight_decay=1e-4)
affine = {"rotation": 0.3, "scale": 0.18, "shear": 0.3, "shift": 1.0}
view = jax.vmap(lambda key, image: augment.random_affine(key, image, **affine))

# %% [markdown]
# ## The loss
#
# InfoNCE pulls the two views of an image together and pushes all other images away. NRCC adds a
# third view: SGHMC starts from view a and follows the gradient of a potential, which is low where
# the network takes an image for its view b. The regularizer pushes images away from the third views
# of all others.
#
# $$L = \text{InfoNCE}(a, b) + \frac{1}{2} R(a, b, c), \qquad
# R_i = \log \sum_{j \ne i} e^{\langle a_i, c_j \rangle / \tau} -
# \log \sum_j e^{\langle a_i, b_j \rangle / \tau}$$


# %%
def loss_fn(params, stats, key, batch):
    first, second, third = jax.random.split(key, (3, len(batch)))
    a, b = view(first, batch), view(second, batch)

    def project(x):
        out = network.forward(params, stats, x, train=True, axis=None)
        return out.projection, out.stats

    (za, _), (zb, new_stats) = project(a), project(b)
    potential = samplers.similarity_potential(lambda x: project(x)[0], zb)
    c, _ = samplers.sample(samplers.sghmc(potential), third, a)
    regularizer = losses.nrcc_views(za, zb, za, zb, project(c)[0], temperature=0.5)
    return losses.info_nce_views(za, zb, temperature=0.5) + 0.5 * regularizer, new_stats


@jax.jit
def step(params, stats, opt_state, key, batch):
    (loss, stats), gradient = jax.value_and_grad(loss_fn, has_aux=True)(params, stats, key, batch)
    updates, opt_state = optimizer.update(gradient, opt_state, params)
    return optax.apply_updates(params, updates), stats, opt_state, loss


# %% [markdown]
# The sampled view carries no gradient, so `jax.value_and_grad` sees an ordinary loss.
#
# ## The loop

# %%
params, stats = network.init(jax.random.key(0), images[:1])
opt_state, rng = optimizer.init(params), np.random.default_rng(0)
history = []
for key in jax.random.split(jax.random.key(1), steps):
    batch = images[rng.choice(len(images), 128, replace=False)]
    params, stats, opt_state, loss = step(params, stats, opt_state, key, batch)
    history.append(float(loss))
print(f"loss {history[0]:.1f} at the start, {history[-1]:.1f} at the end")

# %% [markdown]
# ## What it learned
#
# `SmoothTree` clusters the pixels, and the network's representation of the same images. Both find
# finer groups than the ten classes, because a digit is written in more than one way. Labels only
# score, after each tree is cut at the number of classes.

# %%
out = network.forward(params, stats, images, train=False, axis=None)
for name, x in {"pixels": digits.data, "network": np.asarray(out.representation)}.items():
    tree = SmoothTree().fit(x)
    score = accuracy(digits.target, tree.cut(k=10))
    print(f"{name}: {tree.n_clusters_} clusters ({tree.verdict_}); accuracy of 10 {score:.2f}")

# %% [markdown]
# ## From here
#
# - Another sampler: `samplers.hmc(potential)` in place of `samplers.sghmc`, or more steps by
#   `samplers.sample(..., iterations=3)`.
# - Another loss: `losses.byol_views`, `losses.barlow_twins`, `losses.kernel_info_nce_views`.
# - Several devices: inside `jax.shard_map`, losses take the name of the mesh axis that holds the
#   batch (`axis="data"`), and the mean of their values over the devices is the loss of the global
#   batch.
# - The package's own training step does this for every method: [a method of your own](method.md).
