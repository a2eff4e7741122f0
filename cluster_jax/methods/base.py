"""The interface of training methods: named tuples of pure functions.

A `Method` is what the training loop needs. A `TwoView` is a method of two augmented views, whose
forward passes are separate from its objective so that a regularizer such as NRCC can use them too;
`as_method` makes it a `Method`. All names without an underscore are public, for methods outside of
the package, too; `experiments/tutorials/method.md` shows one.
"""

import collections
import dataclasses
import functools
import importlib
import pathlib
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Generic, NamedTuple, Protocol, Self, TypeVar

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh
from numpy.typing import ArrayLike

from cluster_jax.clustering.kmeans import KMeansResult, kmeans
from cluster_jax.core import checks, outside
from cluster_jax.core.checks import InputError
from cluster_jax.core.collectives import Axis
from cluster_jax.core.config import config_names, parse_section
from cluster_jax.data.batches import Batch
from cluster_jax.data.views import Augment, View
from cluster_jax.nets.network import Network, Outputs

PyTree = Any  # nested dictionaries of arrays: parameters, BatchNorm statistics
MethodConfig: Any = object  # the `Config` of the method's file
Features = dict[str, Array]
Clusters = Annotated[int, functools.partial(checks.whole, least=2)]  # the type of a config key
Embedding = Callable[[], Features]  # embeds all images of a data set when it is called


class ModelState(Protocol):
    """The state of a method beside its parameters: a named tuple of arrays and of trees of them."""

    @property
    def batch_stats(self) -> PyTree:
        """Running BatchNorm statistics of the network that the optimizer trains."""

    def _replace(self, *fields: Any, **changes: Any) -> Self: ...


State = TypeVar("State", bound=ModelState)

MAX_ITER = 100  # iterations of one run of k-means in a refresh; it usually converges earlier


class MethodContext(NamedTuple):
    """The network, the augmentation and the sizes of a training, from which a method is built.

    Attributes:
        network: backbone, projector and, where the config has one, predictor.
        augment: functions that turn images into views.
        shuffle: whether the target network sees the global batch in a permuted order, so that
            its BatchNorm groups differ from the online network's (MoCo's shuffle-BN).
        images: number of training images.
        total_steps: length of the training in steps.
        steps_per_epoch: batches in one pass over the training images.
        batch_size: images per step, over all devices.
        total_updates: how often the parameters are updated; fewer than `total_steps` where
            `train.accumulate` is more than 1.
        labeled_batch_size: number of labeled images per step; None: batches have no labels.
        known_classes: number of known classes; 0 if the data set has no labels.
        unlabeled_rows: indices of the unlabeled images; None if the data set has no labels.
    """

    network: Network
    augment: Augment
    shuffle: bool
    images: int
    total_steps: int
    steps_per_epoch: int
    batch_size: int
    total_updates: int
    labeled_batch_size: int | None = None
    known_classes: int = 0
    unlabeled_rows: np.ndarray | None = None


class Aux(NamedTuple, Generic[State]):
    """Auxiliary outputs of a loss, which are not differentiated.

    Attributes:
        model_state: the new state, of the same shapes and dtypes, equal on all devices.
        metrics: scalars to log, of this device's images; the step averages them over the devices.
    """

    model_state: State
    metrics: Mapping[str, Array]


# (key, images) -> params, model_state. Only the shape of `images`, floats [1, H, W, C], is used.
# `params` is a dictionary of the network's parts and of others, all of which are trained.
Init = Callable[[Array, Array], tuple[PyTree, State]]
# (params, model_state, batch, step, key, axis) -> loss, Aux. The mean of the loss over the devices
# is the loss of the global batch; only `params` is differentiated. `step` counts batches from 0;
# `key` is equal on all devices. `batch` is {"image": uint8 [b, H, W, C], "index": int32 [b]}.
# With `train.labeled_batch_size` it is {"labeled": {...}, "unlabeled": {...}}, two dictionaries of
# this form, and "labeled" also has "label", int32 [b].
Loss = Callable[[PyTree, State, Batch, Array, Array, Axis], tuple[Array, Aux[State]]]
# (params, model_state, update) -> params, model_state, after an update of the parameters. `update`
# counts from 0; it is the number of the step unless `train.accumulate` is more than 1.
After = Callable[[PyTree, State, Array], tuple[PyTree, State]]
# (params, model_state) -> parameters and BatchNorm statistics of a network, such as
# `online_network`; a predictor among them is left.
Kept = Callable[[PyTree, State], tuple[PyTree, PyTree]]
# (params, outputs of the kept network) -> {"backbone": [b, f], ...}, what is stored of images.
Stored = Callable[[PyTree, Outputs], Features]


def online_network(params: PyTree, model_state: ModelState) -> tuple[PyTree, PyTree]:
    """Returns parameters and BatchNorm statistics of the network that the optimizer trains."""
    return params, model_state.batch_stats


def both_layers(params: PyTree, outputs: Outputs) -> Features:
    """Returns the outputs of backbone and projector."""
    return {"backbone": outputs.representation, "projection": outputs.projection}


class Refresh(NamedTuple, Generic[State]):
    """A periodic update of the method's state on the host, between two steps: clustering.

    Attributes:
        is_due: `(step) -> bool`, whether the state is updated before this step.
        update: `(model_state, embedding, key, mesh) -> model_state` of the same structure, shapes
            and dtypes, called on every process. `embedding()` returns the features of all images
            and, as "neighbors", `Dataset.nearest` if the data set has it. The images are embedded
            only if `embedding` is called.
        kept: the network that computes the features for `embedding()`; None: the method's `kept`.
        needs: names of the features that `embedding()` returns; others are neither computed nor
            collected. None: all.
    """

    is_due: Callable[[int], bool]
    update: Callable[[State, Embedding, Array, Mesh], State]
    kept: Kept[State] | None = None
    needs: tuple[str, ...] | None = None


class Watched(NamedTuple, Generic[State]):
    """Quantities from which failed trainings are detected, see `training.watch`.

    The spread and the effective rank of the features of `embed` are watched in any case.

    Attributes:
        chance: name of a logged loss, and its value if the network gives every image the same
            embedding, such as `("loss", math.log(K))` for assignments to K prototypes; None: that
            value is not known for any loss of the method. With NRCC "loss" is the objective alone.
        pseudo_labels: `(model_state) -> int [images]`, cluster of each training image (of NCL, each
            unlabeled one), all zero before the first refresh; None: there are no pseudo-labels.
    """

    chance: tuple[str, float] | None = None
    pseudo_labels: Callable[[State], Array | np.ndarray] | None = None


class Method(NamedTuple, Generic[State]):
    """A training method. The types above give the arguments and results of its functions.

    Attributes:
        init: parameters and state before the first step.
        loss: loss of a batch.
        after: update of parameters and state after the optimizer's step, such as a moving average.
        kept: the network that is kept after training, whose features are clustered.
        refresh: clustering between two steps; None: the method has none.
        watched: loss of chance and pseudo-labels.
        stored: what is stored of each image: `both_layers`, or `"backbone"` and what classifiers
            make of it.
    """

    init: Init[State]
    loss: Loss[State]
    after: After[State]
    kept: Kept[State] = online_network
    refresh: Refresh[State] | None = None
    watched: Watched[State] = Watched()
    stored: Stored = both_layers


class SamplerInputs(NamedTuple):
    """Inputs of NRCC's sampler: forward passes of the network that defines the potential (16).

    Attributes:
        images: view a, network inputs `[b, H, W, C]`.
        projection: projections of view a `[b, d]`.
        vjp_fn: cotangent of `projection` -> gradient with respect to `images`.
        other_images: view b, network inputs `[b, H, W, C]`.
        reference: projections of view b by the same network `[b, d]`.
        project: `images -> projections` by the same network; running statistics do not change.
        branches: name -> `images -> embedding` for the sampled view c; always has `"online"`.
    """

    images: Array
    projection: Array
    vjp_fn: Callable[[Array], Array]
    other_images: Array
    reference: Array
    project: Callable[[Array], Array]
    branches: Mapping[str, Callable[[Array], Array]]


class Encoded(NamedTuple):
    """All forward passes of one step. Pairs hold view a and view b, each `[b, d]`.

    Attributes:
        projections: online projections, differentiable.
        predictions: online predictions; for a method without predictor, the projections.
        targets: what the predictions are compared with: target projections, or those of the network
            itself, constants; for a method with neither target network nor predictor, the
            projections, differentiable.
        sampler_inputs: inputs of NRCC's sampler.
        image_index: index of each image in the data set, int32 `[b]`.
        representations: online backbone features, each `[b, f]`, differentiable.
        more: online projections of the views beyond a and b, differentiable.
    """

    projections: tuple[Array, Array]
    predictions: tuple[Array, Array]
    targets: tuple[Array, Array]
    sampler_inputs: SamplerInputs
    image_index: Array
    representations: tuple[Array, Array]
    more: tuple[Array, ...] = ()


# (params, model_state, views, index, step, key, axis) -> Encoded, model_state: all forward passes
# of a step; `views` are a and b [b, H, W, C] and those of `TwoView.more`, all of one size, `index`
# int32 [b] is that of their images.
Encode = Callable[
    [PyTree, State, tuple[Array, ...], Array, Array, Array, Axis], tuple[Encoded, State]
]
# (params, encoded, model_state, step, key, axis) -> loss, model_state, metrics; needs no images.
# The arguments are those of `Loss`, the results those of `Aux`.
Objective = Callable[
    [PyTree, Encoded, State, Array, Array, Axis], tuple[Array, State, dict[str, Array]]
]


# (encoded, batch, keys, axis) -> term, metrics: a term that is added to the objective. `keys` [2].
Regularizer = Callable[[Encoded, Batch, Array, Axis], tuple[Array, dict[str, Array]]]


def unchanged(params: PyTree, model_state: State, update: Array) -> tuple[PyTree, State]:
    """Changes nothing: the `after` of a method whose parameters and state stay as they are."""
    return params, model_state


class TwoView(NamedTuple, Generic[State]):
    """A method of two views, whose forward passes are separate from its objective.

    `init`, `kept`, `refresh`, `watched` and `stored` are those of `Method`, whose `after` is this
    `after` and then `average`: a method that replaces `after` keeps its moving average.

    Attributes:
        encode: the forward passes of a step.
        objective: the loss of the embeddings that `encode` returns.
        average: moving average of what `after` returns; `unchanged` without a target network.
        augment: turns uint8 images into network inputs.
        branches: names of the branches of its `SamplerInputs`, the default first.
        anchor_layers: layers that NRCC can regularize: `("projection",)` or, for a method with
            predictor, `("projection", "prediction")`.
        more: functions that make further views, such as `Augment.small`, all of one size, which the
            network must accept (`Network.any_size`); see `encoders.small_crops`.
        after: update of the parameters after the optimizer's step, such as a normalization.
    """

    init: Init[State]
    encode: Encode[State]
    objective: Objective[State]
    average: After[State]
    augment: Augment
    branches: tuple[str, ...]
    anchor_layers: tuple[str, ...]
    kept: Kept[State] = online_network
    more: tuple[View, ...] = ()
    after: After[State] = unchanged
    refresh: Refresh[State] | None = None
    watched: Watched[State] = Watched()
    stored: Stored = both_layers


class Term(NamedTuple):
    """What a method adds to the objective of a two-view method, with parameters and a state.

    Attributes:
        init: `key -> params, state`: parameters beside the network's, a dictionary, and a named
            tuple, whose fields are added to the method's state.
        value: `(params, encoded, model_state, step, axis) -> value, metrics`.
        refresh: clustering on which the value depends, or None.
        pseudo_labels: see `Watched`.
        heads: `(params, features) -> outputs of its classifiers`, stored beside the features.
    """

    init: Callable[[Array], tuple[PyTree, Any]]
    value: Callable[[PyTree, Encoded, Any, Array, Axis], tuple[Array, dict[str, Array]]]
    refresh: Refresh | None = None
    pseudo_labels: Callable[[Any], Array | np.ndarray] | None = None
    heads: Callable[[PyTree, Features], Features] = lambda params, features: {}


def names() -> list[str]:
    """Lists the names of the methods: the files of this folder that define `make`."""
    files = pathlib.Path(__file__).parent.glob("*.py")
    return sorted({file.stem for file in files} - {"__init__", "base", "encoders", "nrcc"})


def parse(name: str, values: Mapping[str, Any]) -> MethodConfig:
    """Parses the `Config` of the method `name`.

    Args:
        name: key `name` of the section `method`: one of `names()`, or the full name of a module
            outside of the package, such as `my_lab.vicreg`, that defines `Config` and `make`.
        values: the other keys of the section.

    Raises:
        InputError: no such method, or a key of its config is missing, unknown or out of range.
    """
    config = _module(name).Config
    keys = [field.name for field in dataclasses.fields(config)]
    example = f"{name}_digits"
    # Both missing and unknown keys: those of another method, of which only the name was changed.
    is_other = set(keys) - values.keys() and values.keys() - set(keys)
    if is_other and example in config_names():
        valid = ", ".join(keys)
        others = ", ".join(sorted(values))
        must = f"method must have the keys of {name} ({valid}), as --config={example} has them"
        raise InputError(f"{must}; got {others}")
    return parse_section(config, "method", values)


def build(name: str, config: MethodConfig, context: MethodContext) -> TwoView | Method:
    """Builds the method `name`.

    Raises:
        InputError: the config does not suit the context.
    """
    return _module(name).make(context, config)


def parse_term(name: str, values: Mapping[str, Any]) -> MethodConfig:
    """Parses the `TermConfig` of the method `name`.

    Raises:
        InputError: the method has no term, or a key of its config is missing, unknown or out of
            range.
    """
    with_terms = tuple(name for name in names() if hasattr(_module(name), "term"))
    checks.one_of("term.name", name, with_terms)
    return parse_section(_module(name).TermConfig, "term", values)


def build_term(name: str, config: MethodConfig, context: MethodContext) -> Term:
    """Builds the term of the method `name`.

    Raises:
        InputError: the config does not suit the context.
    """
    keys = [field.name for field in dataclasses.fields(config)]
    with checks.named({f"method.{key}": f"term.{key}" for key in keys}):
        return _module(name).term(context, config)


def _module(name: str) -> Any:
    """Imports the module of a method."""
    if name in names():
        return importlib.import_module(f"cluster_jax.methods.{name}")
    module = outside.module("method.name", name, names(), ("Config", "make"))
    if not dataclasses.is_dataclass(module.Config):
        raise InputError(f"Config of method.name {name} must be a dataclass; got {module.Config!r}")
    return module


def with_network(model_state: State, params: PyTree, batch_stats: PyTree) -> State:
    """Returns a method's state for a training that starts from the network of another one.

    A target network starts as a copy of this network, without the predictor.
    """
    changes = {"batch_stats": batch_stats}
    if (target := getattr(model_state, "target", None)) is not None:
        changes["target"] = target._replace(
            params={part: params[part] for part in target.params},
            batch_stats={part: batch_stats[part] for part in target.batch_stats},
        )
    return model_state._replace(**changes)


def spherical_kmeans(
    features: ArrayLike, clusters: int, key: Array, mesh: Mesh, n_init: int, last: Any = None
) -> KMeansResult:
    """Runs the spherical k-means of a refresh until convergence; see `clustering.kmeans.kmeans`.

    Args:
        features: rows to cluster `[n, d]`.
        clusters: K.
        key: random key of the refresh.
        mesh: all devices.
        n_init: number of runs.
        last: centers of the last refresh `[K, d]`, from which one run starts unless they are all
            zero, as before the first refresh; None: all runs start by k-means++.
    """
    seed = int(jax.random.randint(key, (), 0, np.iinfo(np.int32).max))
    start = np.asarray(last) if last is not None and np.any(last) else clusters
    how: dict[str, Any] = {"metric": "spherical", "n_init": n_init, "max_iter": MAX_ITER}
    return kmeans(features, start, **how, seed=seed, mesh=mesh)


def refresh_schedule(
    context: MethodContext, warmup: str, update_every: str
) -> tuple[int, Callable[[int], bool]]:
    """Schedules the updates of a method's clusters: after the warm-up, then periodically.

    Args:
        context: sizes of the training.
        warmup: duration without clusters.
        update_every: duration between two updates.

    Returns:
        The warm-up in steps, and `Refresh.is_due`.

    Raises:
        InputError: a value is not a duration, or the warm-up is as long as the training.
    """
    first = checks.steps("method.warmup", warmup, context.steps_per_epoch)
    period = checks.steps("method.update_every", update_every, context.steps_per_epoch)
    checks.at_least("method.update_every", period, 1)
    most = context.total_steps - 1
    checks.at_most("method.warmup", first, most, "steps, shorter than train.duration")
    return first, lambda step: step >= first and (step - first) % period == 0


def image_keys(key: Array, index: Array) -> Array:
    """Derives a random key per image from its index `[b]`: the same on any number of devices."""
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(index)


def augmented(view: View, key: Array, rows: Batch) -> Array:
    """Draws a view `[b, H, W, C]` of each image of `rows`, each with a key of its own."""
    return jax.vmap(view)(image_keys(key, rows["index"]), rows["image"])


def all_views(
    augment: Augment, key: Array, batch: Batch, more: tuple[View, ...] = ()
) -> tuple[Array, ...]:
    """Draws views a, b and more `[b, H, W, C]` of a batch, each with a key of its own."""
    functions = augment.view, augment.other, *more
    keys = jax.random.split(key, len(functions))
    return tuple(augmented(view, k, batch) for view, k in zip(functions, keys, strict=True))


def stateless(loss: Callable[[Encoded, Axis], Array]) -> Objective:
    """Makes the objective of a loss `(encoded, axis) -> loss` that only needs the embeddings."""
    return lambda params, encoded, state, step, key, axis: (loss(encoded, axis), state, {})


def as_method(base: TwoView[State], regularizer: Regularizer | None = None) -> Method[State]:
    """Makes the method that trains on a two-view objective.

    Args:
        base: the two-view method.
        regularizer: a term to add to its objective, or None. Metrics are then `loss`, the sum, and
            `base_loss`, the objective alone.
    """

    def loss(
        params: PyTree, model_state: State, batch: Batch, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, Aux[State]]:
        keys = jax.random.split(key, 5)
        view_key, encoder_key, loss_key = keys[:3]
        views = all_views(base.augment, view_key, batch, base.more)
        encoded, model_state = base.encode(
            params, model_state, views, batch["index"], step, encoder_key, axis
        )
        added = None if regularizer is None else regularizer(encoded, batch, keys[3:], axis)
        value, model_state, metrics = base.objective(
            params, encoded, model_state, step, loss_key, axis
        )
        if added is None:
            return value, Aux(model_state, {"loss": value, **metrics})
        total = value + added[0]
        return total, Aux(model_state, {"loss": total, "base_loss": value, **added[1], **metrics})

    def after(params: PyTree, model_state: State, update: Array) -> tuple[PyTree, State]:
        return base.average(*base.after(params, model_state, update), update)

    watched = base.watched
    if regularizer is not None and watched.chance is not None and watched.chance[0] == "loss":
        watched = watched._replace(chance=("base_loss", watched.chance[1]))
    return Method(base.init, loss, after, base.kept, base.refresh, watched, base.stored)


def with_term(base: TwoView[Any], term: Term) -> TwoView[Any]:
    """Makes the two-view method that trains on `base objective + term`.

    Its metric `instance` is the objective of `base`.
    """

    def init(key: Array, images: Array) -> tuple[PyTree, Any]:
        params, state = base.init(key, images)
        more, fields = term.init(jax.random.fold_in(key, 1))
        return {**params, **more}, joined(state, fields)

    def objective(
        params: PyTree, encoded: Encoded, state: Any, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, Any, dict[str, Array]]:
        instance, state, metrics = base.objective(params, encoded, state, step, key, axis)
        value, more = term.value(params, encoded, state, step, axis)
        return instance + value, state, {"instance": instance, **metrics, **more}

    def stored(params: PyTree, outputs: Outputs) -> Features:
        features = base.stored(params, outputs)
        return {**features, **term.heads(params, features)}

    chance = base.watched.chance and ("instance", base.watched.chance[1])
    return base._replace(
        init=init,
        objective=objective,
        refresh=term.refresh,
        watched=Watched(chance, term.pseudo_labels),
        stored=stored,
    )


def joined(state: Any, fields: Any) -> Any:
    """Joins the fields of two named tuples: functions of either leave the other's alone."""
    types: tuple[Any, Any] = type(state), type(fields)
    return _joined_type(*types)(*state, *fields)


@functools.cache  # One type for all states of a method, as JAX wants.
def _joined_type(first: Any, second: Any) -> Any:
    make: Any = collections.namedtuple
    fields = (*first._fields, *second._fields)
    return make(f"{first.__name__}With{second.__name__}", fields)


def embed(
    method: Method[State],
    network: Network,
    clean: Callable[[Array], Array],
    params: PyTree,
    model_state: State,
    images: Array,
) -> Features:
    """Embeds images by the network that a method keeps.

    Args:
        method: the method.
        network: see `MethodContext`.
        clean: see `Augment`.
        params: parameters.
        model_state: the method's state.
        images: uint8 `[b, H, W, C]`; or features `[b, v, d]`.

    Returns:
        See `Method.stored`; at least float32, not normalized.
    """
    kept, stats = method.kept(params, model_state)
    inputs = jax.vmap(clean)(images)
    out = network.forward(kept, stats, inputs, train=False, axis=None)
    return method.stored(params, out)
