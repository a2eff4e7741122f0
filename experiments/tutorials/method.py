r"""A method of your own: one file and one config

Two minutes on two CPU cores, nothing to download. A method is a file in `cluster_jax/methods` with
a `Config` and a function `make`; a config names it. Here the method is alignment and uniformity
(after Wang and Isola, 2020): the two views of an image are to agree, and all images to spread over
the sphere.

$$L = \frac{1}{n} \sum_i \Big( \lVert a_i - b_i \rVert^2 +
w \log \frac{1}{n} \sum_j e^{-t \lVert a_i - a_j \rVert^2} \Big)$$
"""

# %% [markdown]
# ## The method: `cluster_jax/methods/uniformity.py`
#
# `Config` holds what a config file sets and checks it. `objective` gets the projections of both
# views, `[b, d]`, and returns the loss, the method's state (none here) and what is to be logged.
# `encoders.siamese` supplies the rest: the network, the two views, and the training step on all
# devices. Of the batch, `encoded` has the part of one device; `collectives.gather` collects the
# rows of all.

# %%
import dataclasses
import functools

import jax.numpy as jnp

from cluster_jax.core import checks, collectives, ops
from cluster_jax.methods import encoders


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Hyper-parameters: weight of uniformity, and its scale t."""

    weight: float
    t: float

    def __post_init__(self):
        checks.positive("method.t", self.t)


def make(context, config):
    return encoders.siamese(
        context, functools.partial(objective, config), name="uniformity", predicts=False
    )


def objective(config, params, encoded, model_state, step, key, axis):
    a, b = (ops.l2_normalize(projections) for projections in encoded.projections)
    alignment = jnp.mean(jnp.sum((a - b) ** 2, axis=-1))
    everyone = collectives.gather(a, axis)
    squared = 2 - 2 * ops.pairwise_dot(a, everyone)
    uniformity = jnp.log(jnp.mean(jnp.exp(-config.t * squared), axis=1)).mean()
    metrics = {"alignment": alignment, "uniformity": uniformity}
    return alignment + config.weight * uniformity, model_state, metrics


# %% [markdown]
# The mean of the loss over the devices must be the loss of the whole batch. So the logarithm is
# that of one row, whose mean runs over the rows of all devices; the paper's logarithm of the mean
# over all pairs would need another sum over devices.
#
# ## The config: `configs/uniformity_digits.py`
#
# It starts from another config and changes two sections. A weight of NRCC above 0 would add NRCC's
# regularizer, as to any method of two views.

# %%
from ml_collections import ConfigDict

from cluster_jax.core.config import load_config


def get_config():
    config = load_config("nrcc_digits")
    config.method = ConfigDict({"name": "uniformity", "weight": 1.0, "t": 2.0})
    config.nrcc.weight = 0.0
    config.train.duration = "500 steps"
    config.eval.update(method="tree", features="backbone")
    return config


# %% [markdown]
# ## Run it
#
# With these two files in a checkout, the command is `cluster-jax train --config=uniformity_digits`,
# and `--config.method.t=3` changes a value. This page leaves the package as it is, so a few lines
# stand in for the first file; `ImageClusterer` takes the config itself.

# %%
import sys
import types

from cluster_jax.methods import base

module = types.ModuleType("cluster_jax.methods.uniformity")
module.Config, module.make = Config, make
sys.modules[module.__name__] = module
base.names = lambda: ["uniformity"]

# %%
from sklearn.datasets import load_digits

from cluster_jax import ImageClusterer
from cluster_jax.metrics import accuracy

digits = load_digits()
clusterer = ImageClusterer(get_config(), verbose=False).fit(digits.images / 16)
for labels in (clusterer.labels_, clusterer.cut(k=10)):
    print(f"{labels.max() + 1} clusters, accuracy {accuracy(digits.target, labels):.2f}")

# %% [markdown]
# ## Test it
#
# An entry in `tests/methods/cases.py` runs the tests that every method passes: its state keeps its
# shapes and types, a step is compiled once, labels have no effect, a run resumes bit for bit, and
# (`pytest -m slow`) a step is the same on one and on several devices. A reference step, the loss in
# plain loops over the whole batch, shows that it computes what its paper says.
# [CONTRIBUTING](../../CONTRIBUTING.md#add-a-method) has the list.
