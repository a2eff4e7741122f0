"""Your own loop: losses and samplers as pure functions

Under a minute on a CPU. The losses, the samplers, the networks and the augmentations of the
package are functions of arrays, which work in any JAX program. Here a loop of twenty lines trains
a small network by InfoNCE with NRCC's regularizer, whose third view SGHMC samples.
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
# representation, the projection and the new BatchNorm statistics. An augmentation takes a random
# key and an image; `jax.vmap` makes it one of a batch.

# %%
heads = nets.ProjectorConfig(hidden=128, out=64)
network = nets.make(nets.NetworkConfig("small", width=24, projector=heads))
optimizer = optax.adamw(2e-3)
affine = {"rotation": 0.3, "scale": 0.18, "shear": 0.3, "shift": 1.0}
view = jax.vmap(lambda key, image: augment.random_affine(key, image, **affine))

# %% [markdown]
# ## The loss
#
# Two views of each image attract each other, all other images repel. SGHMC starts from view a and
# follows the potential of NRCC (16) to a third view c; NRCC's regularizer contrasts it with the
# positives.


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
    regularizer = losses.nrcc_views(za, zb, za, zb, project(c)[0])
    return losses.info_nce_views(za, zb) + 0.5 * regularizer, new_stats


@jax.jit
def step(params, stats, opt_state, key, batch):
    (loss, stats), gradient = jax.value_and_grad(loss_fn, has_aux=True)(params, stats, key, batch)
    updates, opt_state = optimizer.update(gradient, opt_state, params)
    return optax.apply_updates(params, updates), stats, opt_state, loss


# %% [markdown]
# ## The loop

# %%
params, stats = network.init(jax.random.key(0), images[:1])
opt_state, rng = optimizer.init(params), np.random.default_rng(0)
history = []
for key in jax.random.split(jax.random.key(1), 600):
    batch = images[rng.choice(len(images), 128, replace=False)]
    params, stats, opt_state, loss = step(params, stats, opt_state, key, batch)
    history.append(float(loss))
print(f"loss {history[0]:.1f} at the start, {history[-1]:.1f} at the end")

# %% [markdown]
# ## What came out
#
# The representation of the clean images, clustered without their labels:

# %%
out = network.forward(params, stats, images, train=False, axis=None)
tree = SmoothTree().fit(np.asarray(out.representation))
print(f"{tree.n_clusters_} clusters, accuracy {accuracy(digits.target, tree.labels_):.1f}")

# %% [markdown]
# Over several devices the losses take the name of a mesh axis (`axis="data"`, inside `shard_map`)
# and are then those of the global batch; the package's own step does this for every method.
