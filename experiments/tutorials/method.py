"""A method of your own: one file and one config

A minute on a CPU. A method is a file in `cluster_jax/methods` with a `Config` and a function
`make`, and a config that names it. Here it is alignment and uniformity (Wang and Isola 2020):
views of an image attract each other, and all images spread over the sphere.
"""

# %%
import sys
import types

# %% [markdown]
# ## The method file
#
# `objective` gets the projections of both views, `[b, d]`, and returns the loss, the method's state
# and what to log. `online.two_view` supplies everything else: the network, the augmentation, the
# training step over several devices, and NRCC, which works with any two-view method. Sums over the
# batch run over all devices through `collectives`.

# %%
FILE = '''
import dataclasses
import functools

import jax.numpy as jnp

from cluster_jax.core import collectives, ops
from cluster_jax.methods.encoders import online


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Weight of uniformity and its scale t."""

    weight: float
    t: float


def make(context, config):
    return online.two_view(
        context, functools.partial(objective, config), name="uniformity", predicts=False
    )


def objective(config, params, encoded, model_state, step, key, axis):
    a, b = (ops.l2_normalize(x) for x in encoded.projections)
    alignment = jnp.mean(jnp.sum((a - b) ** 2, axis=-1))
    others = collectives.gather(a, axis)  # the rows of all devices
    squared = jnp.sum((a[:, None] - others[None]) ** 2, axis=-1)
    uniformity = jnp.log(collectives.mean(jnp.mean(jnp.exp(-config.t * squared)), axis))
    metrics = {"alignment": alignment, "uniformity": uniformity}
    return alignment + config.weight * uniformity, model_state, metrics
'''

# %% [markdown]
# In a checkout, these lines are `cluster_jax/methods/uniformity.py`, and that is all: the file name
# is the method's name. This page must not write into the package, so it registers the module
# instead.

# %%
from cluster_jax.methods import base

module = types.ModuleType("cluster_jax.methods.uniformity")
exec(FILE, module.__dict__)
sys.modules[module.__name__] = module
names = [*base.names(), "uniformity"]
base.names = lambda: names

# %% [markdown]
# ## The config
#
# Everything but the section `method` is that of `nrcc_digits`; NRCC's weight is 0 here, and any
# positive number adds its regularizer.

# %%
from ml_collections import ConfigDict
from sklearn.datasets import load_digits

from cluster_jax import ImageClusterer
from cluster_jax.core.config import load_config
from cluster_jax.metrics import accuracy

config = load_config("nrcc_digits")
config.method = ConfigDict({"name": "uniformity", "weight": 1.0, "t": 2.0})
config.nrcc.weight = 0.0
config.train.duration = "500 steps"
config.eval.method = "tree"
config.eval.reduce.method = "pca"

digits = load_digits()
clusterer = ImageClusterer(config, verbose=False).fit(digits.images / 16)
print(
    f"{clusterer.n_clusters_} clusters, accuracy {accuracy(digits.target, clusterer.labels_):.1f}"
)

# %% [markdown]
# `tests/methods/cases.py` takes one line for the method, with which the suite checks its shapes,
# its gradient on two devices against plain loops, and that a killed run resumes bit for bit.
