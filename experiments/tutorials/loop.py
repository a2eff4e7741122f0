"""A loss in your own loop: functions of arrays

About a minute on two CPU cores, nothing to download. The losses, samplers, networks and
augmentations of the package are functions of arrays and work in any JAX program. Here a loop with
optax trains a small network by InfoNCE and NRCC's regularizer, whose third view SGHMC samples.
"""

# %%
import functools

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
# `nets.make` returns a network as two functions, `init` and `forward`. `forward` returns the
# representation, the projection and the new BatchNorm statistics. You can use any other network
# that returns projections `[b, d]`. An augmentation takes a random key and an image `[H, W, C]` in
# [0, 1]. `jax.vmap` applies it to a batch, with a key for each image.

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
# InfoNCE pulls the two views a and b of an image together, and pushes the views of other images
# away. NRCC adds a third view c, and pushes each image away from the third views of all others.
# SGHMC samples it: it starts from view a, and follows the gradient of a potential that is low where
# the network finds an image similar to view b. With the paper's constants a step is nearly all
# noise; `samplers.sghmc(..., normalize_gradient=True)` changes that.
#
# $$L = \text{InfoNCE}(a, b) + \frac{1}{2} R(a, b, c), \qquad
# R_i = \log \sum_{j \ne i} e^{\langle a_i, c_j \rangle / \tau} -
# \log \sum_j e^{\langle a_i, b_j \rangle / \tau}$$


# %%
def forward(params, stats, x, axis):
    out = network.forward(params, stats, x, train=True, axis=axis)
    return out.projection, out.stats


def loss_fn(params, stats, keys, batch, axis=None, forward=forward):
    first, second, third = keys
    a, b = view(first, batch), view(second, batch)

    def project(x):
        return forward(params, stats, x, axis)

    (za, _), (zb, new_stats) = project(a), project(b)
    potential = samplers.similarity_potential(lambda x: project(x)[0], zb)
    c, _ = samplers.sample(samplers.sghmc(potential), third, a)
    regularizer = losses.nrcc_views(za, zb, project(c)[0], temperature=0.5, axis=axis)
    info_nce = losses.info_nce_views(za, zb, temperature=0.5, axis=axis)
    return info_nce + 0.5 * regularizer, new_stats


def one_device(params, stats, keys, batch):
    return jax.value_and_grad(loss_fn, has_aux=True)(params, stats, keys, batch)


@functools.partial(jax.jit, static_argnums=0)
def step(gradient_of, params, stats, opt_state, key, batch):
    keys = jax.random.split(key, (3, len(batch)))
    (loss, stats), gradient = gradient_of(params, stats, keys, batch)
    updates, opt_state = optimizer.update(gradient, opt_state, params)
    return optax.apply_updates(params, updates), stats, opt_state, loss


# %% [markdown]
# `nrcc_views` takes the projection of the third view for a constant, without a gradient. Therefore
# the loss that is printed may rise at first.
#
# ## The loop

# %%
params, stats = network.init(jax.random.key(0), images[:1])
opt_state, rng = optimizer.init(params), np.random.default_rng(0)
history = []
for key in jax.random.split(jax.random.key(1), steps):
    batch = images[rng.choice(len(images), 128, replace=False)]
    params, stats, opt_state, loss = step(one_device, params, stats, opt_state, key, batch)
    history.append(float(loss))
print(f"loss {history[0]:.1f} at the start, {history[-1]:.1f} at the end")

# %% [markdown]
# ## What it learned
#
# `SmoothTree` clusters the pixels, and the network's representation of the same images. It finds
# more clusters than digits, because people write a digit in more than one way. To score them, each
# tree is cut into ten groups.

# %%
out = network.forward(params, stats, images, train=False, axis=None)
for name, x in {"pixels": digits.data, "network": np.asarray(out.representation)}.items():
    tree = SmoothTree().fit(x)
    score = accuracy(digits.target, tree.cut(n_clusters=10))
    print(f"{name}: {tree.n_clusters_} clusters ({tree.verdict_}); accuracy of 10 {score:.2f}")

# %% [markdown]
# ## On several devices
#
# Inside `jax.shard_map` a loss takes the name of the mesh axis that holds the batch. It compares
# the rows of its device with those of all devices. The mean over the devices is the loss of the
# whole batch. You can take the gradient outside of `jax.shard_map`:

# %%
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
specs: dict = {"mesh": mesh, "in_specs": (P(), P(), P(None, "data"), P("data")), "out_specs": P()}


def mean_loss(params, stats, keys, batch, forward=forward):
    loss, stats = loss_fn(params, stats, keys, batch, "data", forward)
    return jax.lax.pmean(loss, "data"), stats


def outside(params, stats, keys, batch):
    sharded = jax.shard_map(mean_loss, **specs)
    return jax.value_and_grad(sharded, has_aux=True)(params, stats, keys, batch)


# %% [markdown]
# You can also take it inside. Then the differentiated function must contain the `pmean`, because
# JAX adds up the gradients of parameters that are equal on all devices. Without `pmean` the
# gradient is too large, by a factor that is the number of devices.


# %%
def inside(params, stats, keys, batch, forward=forward):
    mean = functools.partial(mean_loss, forward=forward)
    gradient_of_mean = jax.value_and_grad(mean, has_aux=True)
    return jax.shard_map(gradient_of_mean, **specs)(params, stats, keys, batch)


arguments = params, stats, jax.random.split(key, (3, 128)), images[:128]
_, wanted = jax.jit(one_device)(*arguments)
for way in (outside, inside):
    _, gradient = jax.jit(way)(*arguments)
    difference = optax.tree.norm(optax.tree.sub(gradient, wanted)) / optax.tree.norm(wanted)
    print(f"gradient {way.__name__}: that of one device: {bool(difference < 1e-3)}")

# %% [markdown]
# To train on all devices, call `step(inside, ...)` in place of `step(one_device, ...)`.
# [The guide](../guide/losses.md) has a table of other ways, such as `jax.pmap` and sharded arrays.
#
# ## The same with NNX
#
# You can use any network that is a pure function. Here is one of Flax NNX, with BatchNorm over all
# devices. `nnx.split` returns its parameters and statistics, and `nnx.merge` the network.

# %%
from flax import nnx


class Encoder(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(64, 128, rngs=rngs)
        self.norm = nnx.BatchNorm(128, axis_name="data", rngs=rngs)
        self.out = nnx.Linear(128, 64, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.relu(self.norm(self.hidden(x.reshape(len(x), -1)))))


graph, *split = nnx.split(Encoder(nnx.Rngs(0)), nnx.Param, nnx.BatchStat)
nnx_params, nnx_stats = split


def nnx_forward(params, stats, x, axis):
    model = nnx.merge(graph, params, stats, copy=True)
    return model(x), nnx.state(model, nnx.BatchStat)


nnx_gradient = functools.partial(inside, forward=nnx_forward)
state, nnx_history = (nnx_params, nnx_stats, optimizer.init(nnx_params)), []
for _ in range(10):
    *state, loss = step(nnx_gradient, *state, key, images[:256])
    nnx_history.append(float(loss))
print(f"NNX: the loss falls: {nnx_history[-1] < nnx_history[0]}")

# %% [markdown]
# ## From here
#
# - Another sampler: `samplers.hmc(potential, leapfrog_steps=5, step_size=0.05)` in place of
#   `samplers.sghmc(potential)`, or more steps by `samplers.sample(..., iterations=3)`.
# - Another loss, such as `losses.barlow_twins(za, zb)`.
# - The package's own training step does this for every method: [a method of your own](method.md).
