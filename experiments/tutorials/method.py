r"""A method of your own: one file

Two minutes on two CPU cores, nothing to download. A method is a Python file anywhere with a
`Config` and a function `make`; a config names it, and may stand in the same file. Here the method
is alignment and uniformity (after Wang and Isola, 2020): the two views of an image are to agree,
and all images to spread over the sphere.

$$L = \frac{1}{n} \sum_i \Big( \lVert a_i - b_i \rVert^2 +
w \log \frac{1}{n} \sum_j e^{-t \lVert a_i - a_j \rVert^2} \Big)$$
"""

# %% [markdown]
# ## The method: `uniformity.py`
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
# ## The config, in the same file
#
# It starts from another config and changes two sections; `name` is the name of the module, as
# `import` takes it. A weight of NRCC above 0 would add NRCC's regularizer, as to any method of two
# views.

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
# Python must find the file, by `PYTHONPATH` or because it is installed:
#
# ```bash
# export PYTHONPATH=.
# cluster-jax train --config=uniformity.py --out=run --config.method.t=3
# cluster-jax predict --workdir=run --images=DIR
# ```
#
# On this page, as in a notebook, the code above is the module `__main__`, and `ImageClusterer`
# takes the config itself.

# %%
from sklearn.datasets import load_digits

from cluster_jax import ImageClusterer
from cluster_jax.metrics import accuracy

digits = load_digits()
config = get_config()
config.method.name = "__main__"
clusterer = ImageClusterer(config, verbose=False).fit(digits.images / 16)
for labels in (clusterer.labels_, clusterer.cut(k=10)):
    print(f"{labels.max() + 1} clusters, accuracy {accuracy(digits.target, labels):.2f}")

# %% [markdown]
# ## What else a method can have
#
# `make` returns a `TwoView`, a named tuple; `._replace` changes what the method needs, as SwAV does
# ([swav.py](../../cluster_jax/methods/swav.py), all of it in 100 lines):
#
# | field | takes and returns | for example |
# |---|---|---|
# | `init` | `key, images -> params, model_state` | prototypes, a second head |
# | `objective` | as `objective` above | a queue in `model_state`, a warm-up by `step` |
# | `after` | `params, model_state, update -> params, model_state` | rows scaled to length one |
# | `more` | functions `key, image -> view` | `encoders.small_crops`, projected in `encoded.more` |
# | `refresh` | see `methods.base.Refresh` | k-means of all features, every few epochs |
# | `watched` | see `methods.base.Watched` | the loss of equal rows, which tells a collapse |
#
# `encoders.momentum` in place of `encoders.siamese` adds a target network, the moving average
# (BYOL, MoCo; DINO's teacher): `encoded.targets` are its projections, constants. The average is
# made of what a method's `after` returns. Its argument `initial_state` makes the method's state, a
# `NamedTuple` that begins with `batch_stats` and `target` and has what else survives a step, such
# as a center or a queue: equal on all devices, so made of rows that `collectives.gather` or
# `collectives.mean` have joined. Parameters of your own have a moving average, too, where `init`
# puts a copy of them into `state.target.params` under the same key (without it,
# `state.target.params["prototypes"]` is a `KeyError`). Parameters are frozen for some steps by
# `jnp.where(step < n, jax.lax.stop_gradient(x), x)`; weight decay still shrinks them. Features are
# those of the network that is trained, or of its moving average with
# `kept_network=encoders.target_network`. All of this, small crops included, is in DINO as a method
# outside of the package, about a hundred lines with its config:
# [dino.py](../../tests/methods/dino.py).
#
# `Config` is checked by its annotations: the types of `core.checks` (`Positive`, `Fraction`,
# `Count`, `Duration`) refuse other values, and `checks.steps(name, value, context.steps_per_epoch)`
# makes steps of a `Duration` such as "1 epoch". A flag sets a key that is None in the config file,
# too; a whole section is switched off by `--config.method.small=None`. NRCC regularizes
# `encoded.projections`, not prototypes of your own; its `branch` is `online` for
# `encoders.siamese`, and may be `target` for `encoders.momentum`.
#
# ## In the package
#
# A method that comes with the package has, beside `cluster_jax/methods/uniformity.py` and
# `configs/uniformity_digits.py`:
#
# | what | where |
# |---|---|
# | a new loss | `cluster_jax/losses/uniformity.py`, its name in `cluster_jax/losses/__init__.pyi` |
# | the loss in every way to run it | a line in `tests/losses/test_table.py` |
# | the contract of all methods | its section `method` in `tests/methods/cases.py` |
# | a step in plain loops | `tests/methods/reference_step.py`, a line in `test_reference_step.py` |
# | its name | the tables of `cluster_jax/methods/__init__.py` and of the README |
#
# The contract's tests show that its state keeps its shapes and types, a step is compiled once,
# labels have no effect, a run resumes bit for bit, and (`pytest -m slow`) a step is the same on one
# and on several devices. The step in plain loops over the whole batch shows that it computes what
# its paper says.
