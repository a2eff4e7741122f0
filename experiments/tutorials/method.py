r"""A method and a clusterer of your own: a file each

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
# `Config` holds what a config file sets, and its types check it. `objective` gets the projections
# of both views and returns the loss, the method's state (here as it came) and what is to be logged.
# `encoders.siamese` supplies the rest: the network, the two views, and the training step on all
# devices.

# %%
import dataclasses
import functools

import jax.numpy as jnp

from cluster_jax.core import checks, collectives, ops
from cluster_jax.methods import encoders


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Hyper-parameters: weight of uniformity, and its scale t."""

    weight: checks.NonNegative
    t: checks.Positive


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
# `objective` runs on each device, for the b images of the batch that are there. d is
# `context.network.projections`, in the config `network.projector.out`.
#
# | argument, or result | form | what it is |
# |---|---|---|
# | `params` | dictionary | `"backbone"`, `"projector"`, `"predictor"` where the network has them, and your own; the loss is differentiated by these alone |
# | `encoded.projections` | two of `[b, d]` | views a and b after the projector, at least float32, of any length |
# | `encoded.predictions` | two of `[b, d]` | the same after the predictor; without one, the projections |
# | `encoded.targets` | two of `[b, d]` | of views a and b in this order, not swapped; with `encoders.momentum` projections by the target network, constants; with `siamese` the projections, constants if there is a predictor |
# | `encoded.representations` | two of `[b, f]` | views a and b after the backbone |
# | `encoded.more` | tuple of `[b, d]` | projections of further views, one entry for each; by the network that is trained alone, the average does not see them |
# | `encoded.image_index` | int32 `[b]` | which of the `context.images` training images each row shows |
# | `model_state` | named tuple | what the last step left, and the new BatchNorm statistics; constants. `objective` is called once a step, also with NRCC, whose sampled view is not in `encoded` |
# | `step` | int32 `[]` | number of the batch, from 0; traced: `jnp.where`, not `if`. A schedule: `schedules.cosine(0.9, 1.0, context.total_steps)(step)` |
# | `key` | random key | of the step, equal on all devices; `base.image_keys(key, encoded.image_index)` makes one for each image |
# | `axis` | name or None | that of the devices, for `core.collectives` and `losses` |
# | returned: loss | float `[]` | of these b images; the mean over the devices must be the loss of the whole batch |
# | returned: state | as `model_state` | of the same shapes and dtypes, equal on all devices; never differentiated |
# | returned: metrics | dictionary of floats `[]` | of these b images: the step averages them over the devices, the log over `train.log_every` steps |
#
# `collectives.gather` gives the rows of all devices, of which `collectives.local_rows(b, axis)` are
# this device's; `collectives.mean` averages over devices; both are differentiable. The logarithm
# here is that of one row, and the mean of the loss runs over all rows. For the paper's logarithm of
# the mean over all pairs, `collectives.mean` would come first.
#
# The types of `Config` are those of `core.checks` and of Python, which refuse other values. Several
# fields are checked together in `__post_init__`, which raises `checks.InputError`, and in `make` against its `context`, the network
# and the sizes of the training (`base.MethodContext`).
#
# | type | values |
# |---|---|
# | `Positive`, `NonNegative` | numbers above 0, of at least 0 |
# | `Fraction`, `BelowOne`, `AtLeastOne` | 0 to 1, 0 to below 1, at least 1 |
# | `Count`, `CountOrZero`, `base.Clusters` | whole numbers of at least 1, 0, 2 |
# | `Duration` | "1500 steps", "2 epochs", "0 steps"; `checks.steps("method.freeze", config.freeze, context.steps_per_epoch)` counts the steps |
# | `Literal["a", "b"]`, `tuple[Positive, ...]`, `Positive \| None` | one of the texts; a list; None, too |
# | `SmallCropConfig \| None` of `data.views` | a section (`count`, `size`, `scale`), as of any frozen dataclass |
# | `Annotated[int, f]` | what `f(name, value)` lets pass, such as `functools.partial(checks.whole, least=3)` |
#
# ## The config, in the same file
#
# It starts from another config, and gives each field of `Config` a value. The keys are explained in
# [configs/base.py](../../configs/base.py); these concern a method:
#
# | key | what to know |
# |---|---|
# | `method.name` | the module as `import` takes it, such as `my_lab.uniformity`; `__name__` is this file's |
# | `network.predictor` | None, or for `predicts=True` a section; `network.projector` is the head of the projections: linear, BatchNorm, ReLU, linear, not scaled to length one. A head of your own takes `encoded.representations`; NRCC and `eval.features=projection` stay with the projector |
# | `nrcc.weight` | 0: no NRCC. Start with 0.05: with 0.5, that of `nrcc_digits`, SwAV collapses on the digits. The paper's is 0.1 |
# | `nrcc.branch` | which network embeds the sampled view: `"online"`, the one that is trained; with `encoders.momentum` also `"target"`, its average |
# | `optimizer.warmup` | of the learning rate alone; shorter than `train.duration` |
# | `eval.features` | what is clustered, by the network that is kept: `"backbone"` `[n, f]` or `"projection"` `[n, d]` |
# | `optimizer` | SGD, LARS, AdamW or [your own](../guide/own_parts.md#an-optimizer-lionpy); `clip_norm` clips gradients, `schedule` is what follows the warm-up; no parameter is left out but through `after` |
# | `train.accumulate` | batches for one update of the parameters: `step` counts batches, `update` and the average of `encoders.momentum` count updates |

# %%
from ml_collections import ConfigDict

from cluster_jax.core.config import load_config


def get_config():
    config = load_config("nrcc_digits")
    config.method = ConfigDict({"name": __name__, "weight": 1.0, "t": 2.0})
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
# cluster-jax train --config=uniformity.py --workdir=run --config.method.t=3
# cluster-jax train --config=uniformity.py --workdir=nrcc --config.nrcc.weight=0.5
# cluster-jax predict --workdir=run --images=DIR
# ```
#
# For a first try: `--config.train.duration="5 steps" --config.optimizer.warmup="1 step"
# --config.train.log_every=1`. The first losses
# in `metrics.jsonl` are then the same, up to rounding, after `JAX_NUM_CPU_DEVICES=1` and `=2`.
# After Ctrl-C (exit code 75) the same command goes on. After an edit of the file choose another
# `--workdir`: a run knows its config, and warns that the code has changed.
# `ImageClusterer` takes the config itself; on this page the code is the module `__main__`.

# %%
from sklearn.datasets import load_digits

from cluster_jax import ImageClusterer
from cluster_jax.metrics import accuracy

digits = load_digits()
clusterer = ImageClusterer(get_config(), verbose=False).fit(digits.images / 16)
for labels in (clusterer.labels_, clusterer.cut(n_clusters=10)):
    print(f"{labels.max() + 1} clusters, accuracy {accuracy(digits.target, labels):.2f}")

# %% [markdown]
# ## A clusterer of your own: `mixture.py`
#
# A clusterer is a Python file, too, with a function `fit`. It gets the features `[n, d]`, by default
# rows of length one; the number of clusters, or None if it is to be found; and a seed. It returns a
# whole number for each row, below 0 for a row that is in no cluster. The map, the scores, the report
# and the tables are made of these numbers; a new image has the cluster of most of the nearest
# images, so that neither `fit` nor its file is needed again. Here it is a Gaussian mixture, whose
# number of parts has the lowest Bayesian information criterion.

# %%
from sklearn.decomposition import PCA
from sklearn.mixture import GaussianMixture


def fit(x, n_clusters, seed):
    rows = PCA(10, random_state=seed).fit_transform(x)
    counts = range(2, 21) if n_clusters is None else [n_clusters]
    mixtures = [GaussianMixture(n, random_state=seed).fit(rows) for n in counts]
    return min(mixtures, key=lambda mixture: mixture.bic(rows)).predict(rows)


labels = fit(clusterer.transform(digits.images / 16), None, 0)
print(f"{labels.max() + 1} clusters, accuracy {accuracy(digits.target, labels):.2f}")

# %% [markdown]
# ```bash
# cluster-jax images PHOTOS --config.eval.method=mixture
# cluster-jax cluster --features=features.npy --method=mixture --n-clusters=10
# ```
#
# A training takes it by `config.eval.method`, `ImageClusterer` by `overrides={"eval.method":
# "mixture"}`. Levels (`cut`), probabilities and `update` belong to the tree, the default.
#
# ## What else a method can have
#
# `make` returns a `TwoView`, a named tuple; `._replace` changes what the method needs. All names of
# `methods.base`, `methods.encoders` and `core` without an underscore are for your methods, too.
#
# | field | takes and returns | for example |
# |---|---|---|
# | `init` | `key, images -> params, model_state` | prototypes, a second head; once, before the first step |
# | `after` | `params, model_state, update -> params, model_state` | rows scaled to length one; after each update of the parameters, counted from 0 |
# | `more` | functions `key, image -> view`: uint8 `[H, W, C]` to float `[h, w, C]` | `encoders.small_crops(context, config.small)`; all of one size, which may differ from that of the views for networks with an average over the last feature map (ResNets), and not for `small` of the digits: there `size` is None |
# | `augment` | a `data.views.Augment` | masked views: `context.augment._replace(view=...)` |
# | `refresh` | `base.Refresh(is_due, update)` | k-means of all features, every few epochs |
# | `watched` | `base.Watched(chance, pseudo_labels)` | the loss of equal rows, which tells a collapse |
#
# **Parameters** of your own are further entries of `params`; `fold_in` gives them their own key:
#
# ```python
# def init(key, images):
#     params, state = two_view.init(key, images)
#     shape = config.n_prototypes, context.network.projections
#     rows = jax.random.normal(jax.random.fold_in(key, 1), shape)
#     return {**params, "prototypes": ops.l2_normalize(rows)}, state
# ```
#
# `jnp.where(step < n, jax.lax.stop_gradient(x), x)` freezes them for n steps, except that weight
# decay shrinks every array of two or more axes.
#
# **A state** of your own is a `NamedTuple` with `batch_stats: base.PyTree`, with a teacher `target:
# encoders.Target`, and what else survives a step, such as `center: jax.Array`. `init`
# returns it, or with `encoders.momentum` the argument `initial_state`, such as `lambda batch_stats,
# target: State(batch_stats, target, jnp.zeros(k))`. A queue (`core.queue`) takes the rows of
# `collectives.gather`, a center the `collectives.mean` of the devices' means.
#
# **A teacher** is the moving average of what `after` returns: `encoders.momentum` in place of
# `siamese`, with `target` in the state. `decays` are those of the first and the last update, half a
# cosine apart: (0.996, 1.0) in BYOL's paper, (0.9, 1.0) in the 1,500 steps of `byol_digits`. Your
# parameters have an average if `init` puts the same arrays into `state.target.params`, too: `target =
# state.target._replace(params={**state.target.params, "prototypes": rows})`. The
# average of rows of length one is shorter: scale it where it is used. The teacher is the network that is kept after `._replace(kept=encoders.target_network)`.
#
# **Clusters** of all images are found between two steps, on the host:
#
# ```python
# def update(model_state, embedding, key, mesh):
#     rows = embedding()["projection"]  # [images, d], not augmented, by the network that is kept
#     found = base.spherical_kmeans(rows, config.n_clusters, key, mesh, n_init=3)
#     centers = found.centers.astype(model_state.centers.dtype)
#     return model_state._replace(labels=found.labels, centers=centers)
# ```
#
# Both are in the state from the start, as zeros, `labels` as int32 `[context.images]`; those of a
# batch are `labels[encoded.image_index]`. Of two durations, `base.refresh_schedule(context,
# config.warmup, config.update_every)` makes the step of the first clustering, and `is_due`.
#
# **Not in `encoded`** are tokens of patches. A method that needs them (iBOT), or no two views,
# replaces `encode`, or returns a `base.Method`, whose `loss` gets the images
# ([rotation.py](../../cluster_jax/methods/rotation.py)); NRCC takes a `TwoView` only.
#
# Two whole methods: [SwAV](../../cluster_jax/methods/swav.py), with prototypes and small crops; and a
# [teacher](../guide/own_parts.md#a-method-with-a-teacher-teacherpy) with a center, in the manner of
# DINO, in forty lines outside of the package. That page has a backbone, an optimizer, a sampler, an
# augmentation and a metric, too. What else a method in the package has says
# [CONTRIBUTING](../../CONTRIBUTING.md#add-a-method-a-clusterer-a-backbone).
#
# ## What the log says
#
# `metrics.jsonl` has your metrics, `loss`, and with NRCC `base_loss` (your loss alone), `nrcc` (the
# regularizer of `encoded.projections`, without its weight) and `gradient_share`: how much of the
# sampled view's way is due to the gradient of its potential, and not to noise. It is near 0 with the
# paper's constants, in which noise prevails ([the log](../log.md#trainings)), and no fault of yours.
#
# About twenty times in a training up to 512 images, not augmented, are embedded by the network that
# is kept. Of their projections, scaled to length one, `watch_spread` is the standard deviation
# times the root of d (1 where they point everywhere, 0 where all are equal), and `watch_rank` the
# effective rank, a number of directions. A spread below 0.3 or a rank below 3, twice in a row or at
# the end, is a collapse: the run warns, and ends with `--config.train.on_collapse=stop`. It also
# warns of a loss within 0.5 % of that of equal embeddings, `Watched.chance` (`watch_loss_gap` is how far
# it is from that, as a fraction), and of `pseudo_labels`
# that are nearly all the same. For K prototypes (SwAV, DINO) the first is `("loss", math.log(K))`,
# also with NRCC; it may name a metric of yours, such as one term of the loss.
