"""The contract of a method: a value made of pure functions (no class to inherit from)."""

import importlib
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from numpy.typing import ArrayLike

from cluster_jax.clustering.kmeans import KMeansResult, kmeans
from cluster_jax.core import checks
from cluster_jax.core.collectives import Axis
from cluster_jax.core.config import bind_section
from cluster_jax.data.views import Augment
from cluster_jax.nets.network import Network

Tree = Any

# Of one run of k-means in a refresh: it rests earlier as a rule.
ITERATIONS = 100


class MethodContext(NamedTuple):
    """What every method is built upon.

    Attributes:
        network: backbone, projector and, where the config has one, predictor.
        augment: how a view is made.
        shuffle: whether the target network sees the global batch in a permuted order, so that
            its BatchNorm groups differ from the online network's (MoCo's shuffle-BN).
        images: number of training images.
        total_steps: length of the training in steps.
        steps_per_epoch: batches in one pass over the training images.
        batch_size: images a step, over all devices.
        labeled_batch_size: how many of them are of known classes; None: a batch has no labels.
        known_classes: number of these classes; 0 where none is known.
    """

    network: Network
    augment: Augment
    shuffle: bool
    images: int
    total_steps: int
    steps_per_epoch: int
    batch_size: int
    labeled_batch_size: int | None = None
    known_classes: int = 0


class Aux(NamedTuple):
    """What a loss returns beside its value: the new `model_state` and scalars to log."""

    model_state: Tree
    metrics: Mapping[str, Array]


class Method(NamedTuple):
    """A training method.

    Attributes:
        init: `(key, images) -> params, extra`; `images` are floats `[1, H, W, C]`.
        loss: `(params, extra, batch, step, key, axis) -> loss, Aux`; the mean of `loss` over the
            devices is the loss of the global batch. `batch` is `{"image": uint8 [b, H, W, C],
            "index": int32 [b]}`; with `train.labeled_batch_size` it has two such parts, `"labeled"`,
            which has a `"label"` too (int32 `[b]`), and `"unlabeled"`.
        after: `(params, extra, step) -> extra`, once the optimizer has moved the parameters
            (moving averages).
        embed: `(params, extra, images) -> {"backbone": [b, d], ...}` of uint8 images
            `[b, H, W, C]`, by the network that is kept after training: `"projection"` `[b, e]`
            beside, or the logits of classifiers.
        refresh_at: `(step) -> bool`, on the host: is `refresh` due before this step?
        refresh: `(model_state, embedding, key, mesh) -> extra` on the host of every process; same
            shapes and dtypes. `embedding()` embeds the whole training set, only when called.
    """

    init: Callable
    loss: Callable
    after: Callable
    embed: Callable
    refresh_at: Callable
    refresh: Callable


class SamplerInputs(NamedTuple):
    """What a sampler needs of the density network, the one whose projection defines (16).

    Attributes:
        images: network inputs `[b, H, W, C]` at which the forward pass was made: view a.
        projection: their projections `[b, d]`.
        pull: cotangent of `projection` -> gradient with respect to `images`.
        other_images: view b's network inputs `[b, H, W, C]`.
        reference: projections of view b by the same network `[b, d]`.
        project: `images -> projections` by the same network, running statistics untouched.
        branches: name -> `images -> embedding` for the sampled view c; always has `"online"`.
    """

    images: Array
    projection: Array
    pull: Callable[[Array], Array]
    other_images: Array
    reference: Array
    project: Callable[[Array], Array]
    branches: Mapping[str, Callable[[Array], Array]]


class Encoded(NamedTuple):
    """All forward passes of one step. Pairs hold view a and view b, each `[b, d]`.

    Attributes:
        projections: online projections, differentiable.
        predictions: online predictions, or None for a method without predictor.
        targets: target projections, constants, or None for a method without target network.
        sampler_inputs: what a sampler needs.
        index: number of each image in the data set, int32 `[b]`.
    """

    projections: tuple[Array, Array]
    predictions: tuple[Array, Array] | None
    targets: tuple[Array, Array] | None
    sampler_inputs: SamplerInputs
    index: Array


class TwoView(NamedTuple):
    """A method of two views, split so that a wrapper can use its forward passes.

    `encode(params, extra, views, index, step, key, axis) -> Encoded, extra` makes all forward
    passes, `index` and `views` being those of the batch;
    `objective(params, encoded, extra, step, key, axis) -> loss, extra, metrics` needs no images.
    `augment` turns uint8 images into network inputs. `branches` names those of its `SamplerInputs`,
    `anchors` is `("projection",)` or, for a method with predictor, `("projection",
    "prediction")`. The other fields are those of `Method`.
    """

    init: Callable
    encode: Callable
    objective: Callable
    after: Callable
    embed: Callable
    refresh_at: Callable
    refresh: Callable
    augment: Augment
    branches: tuple[str, ...]
    anchors: tuple[str, ...]


def names() -> list[str]:
    """Names of the methods: the files of this folder that define `make`."""
    files = pathlib.Path(__file__).parent.glob("*.py")
    return sorted(f.stem for f in files if f.stem not in ("__init__", "base", "nrcc"))


def build(name: str, values: Mapping[str, Any], context: MethodContext) -> TwoView | Method:
    """The method `name`, made by `make(context, **values)` of its file.

    Raises:
        InputError: no such method, or a key of its config is missing or spare.
    """
    checks.one_of("method.name", name, tuple(names()))
    module = importlib.import_module(f"cluster_jax.methods.{name}")
    return bind_section(module.make, "method", values, context)


def never(step: int) -> bool:
    """The `refresh_at` of a method without refresh."""
    return False


def unchanged(model_state: Tree, embedding: Callable, key: Array, mesh: Mesh) -> Tree:
    """The `refresh` of a method without refresh."""
    return model_state


def spherical_clusters(
    features: ArrayLike,
    clusters: int,
    *,
    n_init: int,
    key: Array,
    init: ArrayLike | None,
    mesh: Mesh,
) -> KMeansResult:
    """Spherical k-means of a refresh, run until convergence; see `clustering.kmeans.kmeans`."""
    return kmeans(
        features,
        clusters,
        metric="spherical",
        n_init=n_init,
        max_iter=ITERATIONS,
        seed=int(jax.random.randint(key, (), 0, np.iinfo(np.int32).max)),
        init=init,
        mesh=mesh,
    )


def image_keys(key: Array, index: Array) -> Array:
    """One key per image from its index in the data set: the same on any number of devices."""
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(index)


def two_views(augment: Augment, key: Array, batch: Mapping) -> tuple[Array, Array]:
    """Views a and b `[b, H, W, C]` of every image of a batch, each from a key of its own."""
    first, second = jax.random.split(key)
    return (
        jax.vmap(augment.view)(image_keys(first, batch["index"]), batch["image"]),
        jax.vmap(augment.other)(image_keys(second, batch["index"]), batch["image"]),
    )


def as_method(base: TwoView) -> Method:
    """The method that trains on the two-view objective alone."""

    def loss(
        params: Tree, model_state: Tree, batch: Mapping, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, Aux]:
        view_key, encoder_key, loss_key = jax.random.split(key, 3)
        views = two_views(base.augment, view_key, batch)
        encoded, model_state = base.encode(
            params, model_state, views, batch["index"], step, encoder_key, axis
        )
        value, model_state, metrics = base.objective(
            params, encoded, model_state, step, loss_key, axis
        )
        return value, Aux(model_state, {"loss": value, **metrics})

    return Method(base.init, loss, base.after, base.embed, base.refresh_at, base.refresh)


def embedder(
    network: Network, augment: Augment, kept: Callable[[Tree, Tree], tuple[Tree, Tree]]
) -> Callable:
    """The `embed` of a method that keeps the network `kept(params, extra) -> params, stats`."""

    def embed(params: Tree, model_state: Tree, images: Array) -> dict[str, Array]:
        inputs = jax.vmap(augment.clean)(images)
        out = network.forward(*kept(params, model_state), inputs, train=False, axis=None)
        return {"backbone": out.representation, "projection": out.projection}

    return embed


def moving_average(new: Tree, old: Tree, decay: Array) -> Tree:
    """Exponential moving average of a pytree of floats: `decay * old + (1 - decay) * new`."""
    return jax.tree.map(lambda n, o: o + (1 - decay).astype(o.dtype) * (n - o), new, old)


def constants(tree: Tree) -> Tree:
    """The tree with its gradient stopped."""
    return jax.tree.map(jax.lax.stop_gradient, tree)


def copy(tree: Tree) -> Tree:
    """New buffers with the same values: a donated state must not hold one buffer twice."""
    return jax.tree.map(jnp.copy, tree)
