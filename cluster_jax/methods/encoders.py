"""Encoders of methods: the forward passes of a step by one network, by two, or with classifiers."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from cluster_jax.core import checks, schedules
from cluster_jax.core.checks import Fraction, InputError
from cluster_jax.core.collectives import Axis
from cluster_jax.data.batches import Batch
from cluster_jax.data.views import SmallCropConfig, View
from cluster_jax.losses.ncl import cross_entropy
from cluster_jax.methods import base
from cluster_jax.methods.base import Encoded, MethodContext, ModelState, PyTree, State, TwoView
from cluster_jax.nets import norm
from cluster_jax.nets.network import Outputs, classifier, classify

# (projections [b, d], index [b], step, key) -> the predictor's input in place of the projections.
Perturb = Callable[[Array, Array, Array, Array], Array]
# Names of the classifiers of known and of novel classes.
LABELED, NOVEL = "labeled", "novel"


@dataclasses.dataclass(frozen=True, kw_only=True)
class AverageConfig:
    """Hyper-parameters of a target network, the moving average of the parameters.

    Attributes:
        decay: decay at the first update (0.996; of MoCo and PCL 0.999 on ImageNet and 0.99 on small
            data sets).
        final_decay: decay at the last update, approached by half a cosine.
    """

    decay: Fraction
    final_decay: Fraction

    @property
    def decays(self) -> tuple[float, float]:
        """Both, as `momentum` takes them."""
        return self.decay, self.final_decay


class NetworkState(NamedTuple):
    """The state of a method without a target network or a queue.

    Attributes:
        batch_stats: running BatchNorm statistics.
    """

    batch_stats: PyTree


class Target(NamedTuple):
    """The target network: the moving average of the online network, without its predictor.

    Attributes:
        params: moving average of the online parameters that have the same names. Of a method's own
            parameters it has those of which the method's `init` puts a copy here.
        batch_stats: BatchNorm statistics of its own.
    """

    params: PyTree
    batch_stats: PyTree


class MomentumState(NamedTuple):
    """The state of a method with a target network; other methods add fields to these two.

    Attributes:
        batch_stats: running BatchNorm statistics of the online network.
        target: the target network.
    """

    batch_stats: PyTree
    target: Target


class HasTarget(ModelState, Protocol):
    """The state of any method with a target network."""

    @property
    def target(self) -> Target:
        """The target network."""


WithTarget = TypeVar("WithTarget", bound=HasTarget)


def target_network(params: PyTree, model_state: HasTarget) -> tuple[PyTree, PyTree]:
    """Returns parameters and BatchNorm statistics of the target network; `params` is unused."""
    return model_state.target.params, model_state.target.batch_stats


def siamese(
    context: MethodContext, objective: base.Objective[NetworkState], *, name: str, predicts: bool
) -> TwoView[NetworkState]:
    """Builds a method whose one network embeds all views (SimCLR, SimSiam, Barlow Twins, CC, SwAV).

    The network is kept after training.

    Args:
        context: network, augmentation and sizes.
        objective: the `objective` of the method, see `TwoView`.
        name: name of the method, for messages.
        predicts: whether the network has a predictor. The objective then gets `predictions`, and
            as `targets` the projections themselves as constants: each view predicts the other's
            projection.

    Raises:
        InputError: shuffled BatchNorm, or no predictor where one is needed.
    """
    if context.shuffle:
        must = "network.norm must be 'sync' or 'local' for a method without a target network"
        raise InputError(f"{must}; got 'shuffle'")
    predict = _predictor(context, name, predicts)

    def init(key: Array, images: Array) -> tuple[PyTree, NetworkState]:
        params, batch_stats = context.network.init(key, images)
        return params, NetworkState(batch_stats)

    def encode(
        params: PyTree,
        model_state: NetworkState,
        views: tuple[Array, ...],
        index: Array,
        step: Array,
        key: Array,
        axis: Axis,
    ) -> tuple[Encoded, NetworkState]:
        keys = jax.random.split(key, 3)
        inputs, representations, batch_stats = _project_views(
            context, params, model_state.batch_stats, views, keys, axis
        )
        z_a = inputs.projection
        z_b = inputs.reference
        predictions = targets = z_a, z_b
        if predict is not None:
            q_a, batch_stats = predict(params, batch_stats, z_a, train=True, axis=axis)
            q_b, batch_stats = predict(params, batch_stats, z_b, train=True, axis=axis)
            # SimSiam collapses without this; it also makes NRCC's positives constants, as in (6).
            predictions = q_a, q_b
            targets = lax.stop_gradient(z_a), lax.stop_gradient(z_b)
        more, batch_stats = _project_more(context, params, batch_stats, views, axis)
        encoded = Encoded((z_a, z_b), predictions, targets, inputs, index, representations, more)
        return encoded, model_state._replace(batch_stats=batch_stats)

    return TwoView(
        init,
        encode,
        objective,
        base.unchanged,
        context.augment,
        branches=("online",),
        anchor_layers=("projection", "prediction") if predicts else ("projection",),
    )


def momentum(
    context: MethodContext,
    objective: base.Objective[WithTarget],
    *,
    name: str,
    decays: tuple[float, float],
    predicts: bool,
    initial_state: Callable[[PyTree, Target], WithTarget],
    perturb: Perturb | None = None,
) -> TwoView[WithTarget]:
    """Builds a method whose network and its moving average embed the views (BYOL, MoCo, NCC, PCL).

    The moving average is the target network, which has no predictor. The online network is kept
    after training, unless the method's `kept` is replaced by `target_network`.

    The target's BatchNorm uses the statistics of the batch and keeps running ones of its own.
    With shuffled BatchNorm it sees the global batch in a permuted order.

    Args:
        context: network, augmentation and sizes.
        objective: the `objective` of the method, see `TwoView`.
        name: name of the method, for messages.
        decays: decay of the moving average at the first update and at the last one, which it
            approaches by half a cosine: 0.996 and 1 in BYOL's paper, 0.9 and 1 in the 1,500 steps
            of `byol_digits`.
        predicts: whether the online network has a predictor.
        initial_state: `(batch_stats, target) -> model_state` before the first step.
        perturb: changes the predictor's input (NCC's positive sampling); None: the projections
            are not changed.

    Raises:
        InputError: no predictor where one is needed.
    """
    predict = _predictor(context, name, predicts)

    def init(key: Array, images: Array) -> tuple[PyTree, WithTarget]:
        params, batch_stats = context.network.init(key, images)
        # Copies: the state is donated to a step and must not hold one buffer twice.
        target = jax.tree.map(jnp.copy, Target(*map(_without_predictor, (params, batch_stats))))
        return params, initial_state(batch_stats, target)

    def encode(
        params: PyTree,
        model_state: WithTarget,
        views: tuple[Array, ...],
        index: Array,
        step: Array,
        key: Array,
        axis: Axis,
    ) -> tuple[Encoded, WithTarget]:
        target = model_state.target
        # Each pass of the target has its own permutation, each view its own noise.
        keys = jax.random.split(key, 5)

        def encode_online(batch_stats: PyTree, i: int) -> tuple[Outputs, Array, PyTree]:
            out = context.network.forward(params, batch_stats, views[i], train=True, axis=axis)
            q, batch_stats = out.projection, out.stats
            if predict is not None:
                q = q if perturb is None else perturb(q, index, step, keys[3 + i])
                q, batch_stats = predict(params, batch_stats, q, train=True, axis=axis)
            return out, q, batch_stats

        # The order of the passes is that of the running statistics: view a, then view b, in each of
        # the two networks; the predictor's pass of a view follows its projection.
        a, q_a, batch_stats = encode_online(model_state.batch_stats, 0)
        b, q_b, batch_stats = encode_online(batch_stats, 1)
        more, batch_stats = _project_more(context, params, batch_stats, views, axis)
        inputs, _, target_stats = _project_views(context, *target, views, keys[:3], axis)
        # Neither a method's loss nor NRCC's positives may send a gradient into the target network.
        targets = (lax.stop_gradient(inputs.projection), lax.stop_gradient(inputs.reference))
        model_state = model_state._replace(
            batch_stats=batch_stats, target=target._replace(batch_stats=target_stats)
        )
        encoded = Encoded(
            projections=(a.projection, b.projection),
            predictions=(q_a, q_b),
            targets=targets,
            sampler_inputs=_with_branches(inputs, context, predict, params, batch_stats, axis),
            image_index=index,
            representations=(a.representation, b.representation),
            more=more,
        )
        return encoded, model_state

    return TwoView(
        init,
        encode,
        objective,
        _moving_average(decays, context.total_updates),
        context.augment,
        branches=("target", "target_predictor", "online") if predicts else ("target", "online"),
        anchor_layers=("projection", "prediction") if predicts else ("projection",),
    )


def _with_branches(
    inputs: base.SamplerInputs,
    context: MethodContext,
    predict: Callable[..., Any] | None,
    params: PyTree,
    batch_stats: PyTree,
    axis: Axis,
) -> base.SamplerInputs:
    """Adds the branches of a target network: constant networks, which embed the sampled view.

    Args:
        inputs: by the target network.
        context: network, augmentation and sizes.
        predict: the predictor, or None.
        params: online parameters.
        batch_stats: online BatchNorm statistics.
        axis: mesh axis that holds the batch, or None.
    """
    constants = lax.stop_gradient(params)

    def project_online(images: Array) -> Array:
        out = context.network.forward(constants, batch_stats, images, train=True, axis=axis)
        return out.projection

    branches = {"target": inputs.project, "online": project_online}
    if predict is not None:
        branches["target_predictor"] = lambda images: predict(
            constants, batch_stats, inputs.project(images), train=True, axis=axis
        )[0]
    return inputs._replace(branches=branches)


def _moving_average(decays: tuple[float, float], total_updates: int) -> base.After[WithTarget]:
    """Makes the update of a target network, see `momentum`."""
    ema_decay = schedules.cosine(*decays, total_updates)

    def average(
        params: PyTree, model_state: WithTarget, update: Array
    ) -> tuple[PyTree, WithTarget]:
        target = model_state.target
        decay = ema_decay(update)
        averaged = jax.tree.map(
            lambda new, old: old + (1 - decay).astype(old.dtype) * (new - old),
            {part: params[part] for part in target.params},
            target.params,
        )
        return params, model_state._replace(target=target._replace(params=averaged))

    return average


def _without_predictor(tree: PyTree) -> PyTree:
    """Returns the parts of the online network that a target network has."""
    return {name: part for name, part in tree.items() if name != "predictor"}


def _predictor(context: MethodContext, name: str, predicts: bool) -> Callable[..., Any] | None:
    """Returns the network's predictor if the method `name` uses one.

    Raises:
        InputError: the method uses one and the network has none.
    """
    if predicts and context.network.predict is None:
        raise InputError(f"network.predictor must be set for {name}; got None")
    return context.network.predict if predicts else None


def _project_views(
    context: MethodContext,
    params: PyTree,
    batch_stats: PyTree,
    views: tuple[Array, ...],
    keys: Array,
    axis: Axis,
) -> tuple[base.SamplerInputs, tuple[Array, Array], PyTree]:
    """Projects both views for a sampler: the inputs of its potential, features, new statistics.

    The features, of the backbone, have the permuted order of shuffled BatchNorm.
    With shuffled BatchNorm the groups hold other images than the online network's: through the
    statistics of a common group the online network could tell which key is its own (MoCo).
    The running statistics are updated by view a, then by view b; not by a sampler's passes.

    Args:
        context: network, augmentation and sizes.
        params: parameters of the network.
        batch_stats: its BatchNorm statistics.
        views: a and b `[b, H, W, C]`.
        keys: of the permutations of view a, view b and a sampler's passes, `[3]`.
        axis: mesh axis that holds the batch, or None.
    """

    def project(
        params: PyTree, stats: PyTree, images: Array, key: Array
    ) -> tuple[Array, tuple[Array, PyTree]]:
        if context.shuffle:
            images, order = norm.shuffle(key, images, axis)
        out = context.network.forward(params, stats, images, train=True, axis=axis)
        z = norm.unshuffle(out.projection, order, axis) if context.shuffle else out.projection
        return z, (out.representation, out.stats)

    # One forward pass of view a serves the loss and, through `vjp_fn`, a sampler.
    z_a, vjp_fn, (h_a, stats_a) = jax.vjp(
        lambda images: project(params, batch_stats, images, keys[0]), views[0], has_aux=True
    )
    z_b, (h_b, stats_b) = project(params, stats_a, views[1], keys[1])

    def project_constant(images: Array) -> Array:
        # The parameters are constants: a sampler differentiates with respect to images only.
        return project(lax.stop_gradient(params), stats_b, images, keys[2])[0]

    inputs = base.SamplerInputs(
        images=views[0],
        projection=z_a,
        vjp_fn=lambda cotangent: vjp_fn(cotangent)[0],
        other_images=views[1],
        reference=z_b,
        project=project_constant,
        branches={"online": project_constant},
    )
    return inputs, (h_a, h_b), stats_b


def _project_more(
    context: MethodContext,
    params: PyTree,
    batch_stats: PyTree,
    views: tuple[Array, ...],
    axis: Axis,
) -> tuple[tuple[Array, ...], PyTree]:
    """Projects the views beyond a and b in one pass; returns the new statistics too.

    Raises:
        InputError: their size is another one, which the network does not accept.
    """
    (a, _), more = views[:2], views[2:]
    if not more:
        return (), batch_stats
    joined = jnp.concatenate(more)
    if not context.network.any_size and joined.shape[1:] != a.shape[1:]:
        size, other = (" x ".join(map(str, x.shape[1:3])) for x in (a, joined))
        raise InputError(
            f"the method's further views must have the size of views a and b, {size}, for a "
            "network that does not average its last feature map; got "
            f"{other} (encoders.small_crops checks it before the training)"
        )
    out = context.network.forward(params, batch_stats, joined, train=True, axis=axis)
    return tuple(jnp.split(out.projection, len(more))), out.stats


def check_classifiers(context: MethodContext, name: str, *, labeled: int | None) -> None:
    """Raises an `InputError` unless batches have `labeled` rows and there is no projector."""
    key = f"train.labeled_batch_size for the method {name}"
    checks.one_of(key, context.labeled_batch_size, (labeled,))
    if context.shuffle:
        raise InputError(f"network.norm must be 'sync' for the method {name}; got 'shuffle'")
    if context.network.projections != context.network.features or context.network.predict:
        must = f"network.projector and network.predictor must be None for the method {name}"
        why = "which classifies the backbone's features"
        raise InputError(f"{must}, {why}; got at least one of them")


def forward_classifiers(
    context: MethodContext, params: PyTree, batch_stats: PyTree, images: Array, axis: Axis
) -> tuple[dict[str, Array], Array, PyTree]:
    """Computes for training: logits `[b, classes]` per head, features `[b, f]`, new statistics."""
    out = context.network.forward(params, batch_stats, images, train=True, axis=axis)
    return _logits(params, out.representation), out.representation, out.stats


def _logits(params: PyTree, features: Array) -> dict[str, Array]:
    return {name: classify(head, features) for name, head in params["heads"].items()}


def with_classifiers(
    context: MethodContext,
    loss: base.Loss[State],
    classes: Mapping[str, int],
    initial_state: Callable[[PyTree], State],
) -> base.Method[State]:
    """Builds a method of one network and linear classifiers; all logits are stored.

    Args:
        context: network, augmentation and sizes.
        loss: see `Method`.
        classes: number of classes of each head.
        initial_state: `(batch_stats) -> model_state` before the first step.
    """
    network = context.network

    def init(key: Array, images: Array) -> tuple[PyTree, State]:
        params, batch_stats = network.init(key, images)
        # Sorted, so that a head's initial values do not depend on the order of the mapping.
        classifiers = {
            name: classifier(jax.random.fold_in(key, i), network.features, count)
            for i, (name, count) in enumerate(sorted(classes.items()), start=1)
        }
        return {**params, "heads": classifiers}, initial_state(batch_stats)

    def stored(params: PyTree, outputs: Outputs) -> base.Features:
        rows = outputs.representation
        return {"backbone": rows, **_logits(params, rows)}

    return base.Method(init, loss, base.unchanged, stored=stored)


def one_head(
    context: MethodContext,
    head: str,
    classes: int,
    examples: Callable[[Batch, Array], tuple[Array, Array]],
) -> base.Method[NetworkState]:
    """Builds a method that minimizes one classifier's cross-entropy; it logs the accuracy too.

    Args:
        context: network, augmentation and sizes.
        head: name of the classifier.
        classes: number of its classes.
        examples: `(batch, key) -> images [n, H, W, C], classes int32 [n]` of a step.
    """

    def loss(
        params: PyTree, state: NetworkState, batch: Batch, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, base.Aux[NetworkState]]:
        images, labels = examples(batch, key)
        logits, _, stats = forward_classifiers(context, params, state.batch_stats, images, axis)
        value = cross_entropy(logits[head], labels)
        accuracy = jnp.mean(jnp.argmax(logits[head], axis=1) == labels)
        return value, base.Aux(NetworkState(stats), {"loss": value, "accuracy": accuracy})

    method = with_classifiers(context, loss, {head: classes}, NetworkState)
    return method._replace(watched=base.Watched(chance=("loss", math.log(classes))))


def small_crops(context: MethodContext, config: SmallCropConfig | None) -> tuple[View, ...]:
    """Returns a method's `more` with small crops, as they stand in its config; None: without.

    Raises:
        InputError: the data are features, or the network takes no images of another size.
    """
    if config is None:
        return ()
    if context.augment.small is None:
        raise InputError("method.small must be None for features, which have no crops; got crops")
    if not context.network.any_size:
        where = "a network that does not average its last feature map"
        checks.none("method.small.size", config.size, where)
    return (context.augment.small(config),) * config.count
