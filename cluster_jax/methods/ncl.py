"""NCL: novel class discovery by neighborhood contrastive learning, its third stage (NCL (16))."""

import dataclasses
import functools
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from numpy.typing import NDArray
from scipy import optimize

from cluster_jax.clustering.label_spreading import among, label_spreading
from cluster_jax.clustering.transport import sinkhorn
from cluster_jax.core import arrays, checks, collectives, ops
from cluster_jax.core.checks import Count, Duration, Fraction, NonNegative, Positive
from cluster_jax.core.collectives import Axis
from cluster_jax.core.queue import Queue, create_queue, enqueue
from cluster_jax.data.batches import Batch
from cluster_jax.losses import ncl
from cluster_jax.methods import base, encoders
from cluster_jax.methods.base import Aux, Method, MethodContext, PyTree, Refresh, Watched
from cluster_jax.methods.encoders import LABELED, NOVEL

N_INIT = 10  # runs of k-means in each clustering
# Variants of HNG: the queue whose entries are mixed and which of them, the queue of their partners
# and which of those; see `losses.hard_negatives`.
HNG_VARIANTS = {
    "added": ("unlabeled", "easiest", "labeled", "random"),
    "replacing": ("unlabeled", "easiest", "labeled", "random"),
    "labeled": ("labeled", "random", "labeled", "random"),
    "unlabeled": ("unlabeled", "easiest", "unlabeled", "easiest"),
    "nearest": ("unlabeled", "easiest", "labeled", "nearest"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightsConfig:
    """Weights of the terms of (16), each >= 0, at least one > 0; a term of weight 0 is left out.

    Attributes:
        ce: weight of the cross-entropy (1).
        bce: weight of the binary cross-entropy of pairs (3).
        consistency: weight of the consistency (4), multiplied by its ramp.
        ncl: weight of neighborhood contrastive learning (6).
        scl: weight of supervised contrastive learning (11).
    """

    ce: NonNegative
    bce: NonNegative
    consistency: NonNegative
    ncl: NonNegative
    scl: NonNegative

    def __post_init__(self) -> None:
        if not any(dataclasses.astuple(self)):
            raise checks.InputError("one of method.weights must be greater than 0; got none")


@dataclasses.dataclass(frozen=True, kw_only=True)
class HNGConfig:
    """Hyper-parameters of hard negative generation, see `losses.hard_negatives`.

    Attributes:
        count: k_2, number of generated negatives and of the entries of the queue that are mixed,
            >= 0; with 0, no negatives are generated.
        rounds: N, number of partners with which each entry is mixed, >= 1.
        mixing: values of mu, each 0 to 1.
        start: duration before the first generated negatives.
        variant: `"added"`, the paper's, or one of Figure 4: the easiest entries are `"removed"`
            (V1) or the negatives are `"replacing"` them (V2); random `"labeled"` entries alone are
            mixed (V4; with `mixing=(1.0,)` and one round they are the negatives, V3), or the
            easiest `"unlabeled"` ones alone (V5); the partners are the `"nearest"` labeled entries
            (V6).
    """

    count: checks.CountOrZero
    rounds: Count
    mixing: tuple[Fraction, ...]
    start: Duration
    variant: Literal["added", "removed", "replacing", "labeled", "unlabeled", "nearest"]

    def __post_init__(self) -> None:
        if not self.mixing:
            raise checks.InputError("method.hng.mixing must be values between 0 and 1; got none")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Hyper-parameters of NCL.

    Attributes:
        n_classes: C^u, the number of novel classes, >= 2.
        threshold: lambda of (2), the least cosine of a pair of one class, -1 to 1 (0.95); None: the
            cosine that 1 / C^u of the pairs reach.
        ramp: T of omega(t), a duration.
        consistency_weight: omega after the ramp, >= 0.
        consistency: `"own"`: each head is applied to its own images, as in (4); `"both"`: both
            heads are applied to all images, as in the authors' code
            (`test_ncl_eq_5_and_16_gradient_of_the_overall_loss` has both).
        temperature: tau of the contrastive losses, > 0 (0.05).
        alpha: weight of the augmented view in NCL, 0 to 1 (0.2).
        queue: length of each of the two queues, a multiple of the labeled and of the unlabeled rows
            of a batch (2,048; the paper's 2,000 is not divisible by 64).
        neighbors: k_1, 1 to the length of the queue; the paper's is queue / C^u / 2.
        contrast_from: duration before NCL and SCL begin ("1 epoch": from the second epoch).
        hng: hard negative generation.
        head: loss of the novel head: `"pairs"`, the paper's pairwise loss (3), or `"clusters"`,
            cross-entropy with clusters of the features, see `ncl.make`.
        update_every: duration between two clusterings for the head `"clusters"`.
        weights: weights of CE, BCE (or the cross-entropy with clusters), consistency, NCL and SCL.

    Raises:
        InputError: a value is out of range.
    """

    n_classes: base.Clusters
    threshold: Annotated[float, functools.partial(checks.between, low=-1, high=1)] | None
    ramp: Duration
    consistency_weight: NonNegative
    consistency: Literal["own", "both"]
    temperature: Positive
    alpha: Fraction
    queue: Count
    neighbors: Count
    contrast_from: Duration
    hng: HNGConfig
    head: Literal["pairs", "clusters"]
    update_every: Duration
    weights: WeightsConfig

    def __post_init__(self) -> None:
        checks.at_most("method.neighbors", self.neighbors, self.queue, "entries of the queue")


class NCLState(NamedTuple):
    """State of NCL.

    Attributes:
        batch_stats: running BatchNorm statistics.
        labeled: unit features of earlier labeled images and their classes,
            `{"z": [Q, f], "label": int32 [Q]}`.
        unlabeled: unit features of earlier unlabeled images `[Q, f]`.
        pseudo_labels: cluster of each training image, int32 `[images]`, for the head "clusters";
            zeros before the first clustering, and for labeled images.
        centers: centers of the clusters `[C^u, f]`; zeros before the first clustering.
    """

    batch_stats: PyTree
    labeled: Queue
    unlabeled: Queue
    pseudo_labels: Array | np.ndarray
    centers: Array | np.ndarray


def make(context: MethodContext, config: Config) -> Method[NCLState]:
    """Builds Neighborhood Contrastive Learning; Zhong et al. (2021), the discovery stage.

    Two linear heads classify the features z of the backbone, one into the labeled classes and one
    into the novel classes. Both views of labeled and unlabeled images pass through one network.
    View a is classified, and its features are the anchors and enter the two queues, one for labeled
    and one for unlabeled images. A batch does not contain labels of unlabeled images.

    With `head = "clusters"`, which is not in the paper, the novel head is trained by cross-entropy
    with pseudo-labels: spherical k-means of the features of the unlabeled images at the start and
    after every `update_every`, with one run from the centers of the last clustering. Label
    spreading over the graph of the 10 nearest neighbors (`clustering.label_spreading`, which
    compares all pairs) then smooths the cosines between rows and centers, so that rows between two
    centers get the label of their neighbors. If the data set consists of features whose views are
    drawn toward neighbors, the 10 nearest unlabeled rows of the data set are neighbors too: they do
    not depend on earlier pseudo-labels, and not on their errors. Last,
    `clustering.transport.sinkhorn` turns the smoothed cosines into classes of about equal size, as
    in the benchmarks of novel class discovery (experiments/log.md). After training, label
    spreading smooths the predictions of the head for unlabeled images (`discovery.scores`).

    Metrics of the unlabeled images: `similar`, the share of pairs that (2) assigns to one class,
    and `confidence`, the mean of the novel head's highest probability. A confidence near 1 / C^u
    means that the head does not separate any classes.

    Raises:
        InputError: the batch has no labeled or no unlabeled rows, the length of the queue or a
            duration does not suit the training, or the network has a projector.
    """
    most = context.batch_size - 1
    checks.whole("train.labeled_batch_size for ncl", context.labeled_batch_size, 1, most)
    rows = context.labeled_batch_size or 0
    encoders.check_classifiers(context, "ncl", labeled=rows)
    for kind, count in (("labeled", rows), ("unlabeled", context.batch_size - rows)):
        checks.multiple("method.queue", config.queue, count, f"the {kind} rows of a batch")

    def initial_state(batch_stats: PyTree) -> NCLState:
        z = jnp.zeros(context.network.features)
        labeled = create_queue(config.queue, {"z": z, "label": jnp.zeros((), jnp.int32)})
        return NCLState(
            batch_stats,
            labeled,
            create_queue(config.queue, z),
            jnp.zeros(context.images, jnp.int32),
            jnp.zeros((config.n_classes, context.network.features)),
        )

    loss = _loss(context, config)
    classes = {LABELED: context.known_classes, NOVEL: config.n_classes}
    method = encoders.with_classifiers(context, loss, classes, initial_state)
    if config.head == "pairs":
        return method
    _, is_due = base.refresh_schedule(context, "0 steps", config.update_every)
    return method._replace(
        refresh=Refresh(is_due, functools.partial(_cluster, context, config), needs=("backbone",)),
        watched=Watched(pseudo_labels=functools.partial(_novel_labels, context)),
    )


def _novel_labels(context: MethodContext, model_state: NCLState) -> NDArray:
    """Returns the pseudo-labels of the unlabeled images."""
    return np.asarray(jax.device_get(model_state.pseudo_labels))[context.unlabeled_rows]


def _cluster(
    context: MethodContext,
    config: Config,
    model_state: NCLState,
    embedding: base.Embedding,
    key: Array,
    mesh: Mesh,
) -> NCLState:
    """Clusters the unlabeled images into pseudo-labels, see `base.Refresh.update`."""
    last = np.asarray(model_state.centers)
    embedded = embedding()
    unlabeled = np.asarray(context.unlabeled_rows)
    features = np.asarray(embedded["backbone"])[unlabeled]
    result = base.spherical_kmeans(features, config.n_classes, key, mesh, N_INIT, last)
    centers = result.centers.astype(last.dtype)
    # The head keeps its classes: new clusters are matched with the most similar old ones.
    centers = centers[optimize.linear_sum_assignment(-last @ centers.T)[1]]
    rows = arrays.normalize_rows(features)
    others = None
    if "neighbors" in embedded:
        others = among(np.asarray(embedded["neighbors"]), unlabeled)
    cosines = label_spreading(rows @ centers.T, rows, others)
    pseudo_labels = np.zeros(context.images, np.int32)
    pseudo_labels[unlabeled] = sinkhorn(cosines).argmax(axis=1)
    return model_state._replace(pseudo_labels=pseudo_labels, centers=centers)


class _View(NamedTuple):
    """Outputs of the network for a view, labeled rows first."""

    logits: Array  # of the labeled head [b, C^l]
    labeled_probs: Array  # softmax of these
    novel_logits: Array  # of the novel head [b, C^u]
    novel_probs: Array  # softmax of these
    features: Array  # z [b, f]


def _loss(context: MethodContext, config: Config) -> base.Loss[NCLState]:
    """Builds the loss, the sum (16) of the weighted terms."""
    in_steps = functools.partial(checks.steps, steps_per_epoch=context.steps_per_epoch)
    ramp = in_steps("method.ramp", config.ramp)
    # Before these steps neither NCL nor SCL counts, and no negatives are generated.
    contrast_from = in_steps("method.contrast_from", config.contrast_from)
    hng_from = in_steps("method.hng.start", config.hng.start)

    def loss(
        params: PyTree, state: NCLState, batch: Batch, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, Aux[NCLState]]:
        view_key, mix_key = jax.random.split(key)
        labeled, unlabeled = batch["labeled"], batch["unlabeled"]
        # One pass for both parts: BatchNorm sees labeled and unlabeled images together. The first
        # `count` rows are labeled. View a's pass updates the running statistics before view b's.
        rows = {k: jnp.concatenate([labeled[k], unlabeled[k]]) for k in ("index", "image")}
        count = len(labeled["index"])
        views = base.all_views(context.augment, view_key, rows)
        a, batch_stats = _forward(context, params, state.batch_stats, views[0], axis)
        b, batch_stats = _forward(context, params, batch_stats, views[1], axis)
        pairs = ncl.similar(
            a.features[count:], threshold=config.threshold, n_classes=config.n_classes, axis=axis
        )
        mix_keys = base.image_keys(mix_key, unlabeled["index"])
        # In the loss the queues hold earlier batches only; this batch enters them below.
        terms = {
            "ce": ncl.cross_entropy(a.logits[:count], labeled["label"]),
            "bce": _novel_loss(config, state, pairs, a, b, unlabeled["index"], axis),
            "consistency": _consistency(config.consistency, a, b, count),
            **_contrast(config, step >= hng_from, state, a, b, labeled["label"], mix_keys),
        }
        dtype = a.features.dtype
        active = (step >= contrast_from).astype(dtype)
        omega = ncl.ramp(step, consistency_weight=config.consistency_weight, length=ramp)
        scales = {"consistency": omega.astype(dtype), "ncl": active, "scl": active}
        # A term of weight 0 is left out, not multiplied: its gradient may not be finite.
        value = sum(
            weight * scales.get(name, 1) * terms[name]
            for name, weight in dataclasses.asdict(config.weights).items()
            if weight
        )
        z_labeled = collectives.gather(ops.l2_normalize(a.features[:count]), axis)
        z_unlabeled = collectives.gather(ops.l2_normalize(a.features[count:]), axis)
        entries = {"z": z_labeled, "label": collectives.gather(labeled["label"], axis)}
        state = state._replace(
            batch_stats=batch_stats,
            labeled=enqueue(state.labeled, entries),
            unlabeled=enqueue(state.unlabeled, z_unlabeled),
        )
        monitors = {
            "accuracy": jnp.mean(jnp.argmax(a.logits[:count], axis=1) == labeled["label"]),
            "similar": jnp.mean(pairs),
            "confidence": jnp.mean(jnp.max(a.novel_probs[count:], axis=1)),
        }
        return value, Aux(state, {"loss": value, **terms, **monitors})

    return loss


def _novel_loss(
    config: Config, state: NCLState, pairs: Array, a: _View, b: _View, index: Array, axis: Axis
) -> Array:
    """Computes the novel head's loss on unlabeled rows: pairs (3), or clusters' cross-entropy."""
    first = a.novel_logits.shape[0] - len(index)
    if config.head == "pairs":
        return ncl.pairwise_bce(pairs, a.novel_probs[first:], b.novel_probs[first:], axis=axis)
    labels = jnp.asarray(state.pseudo_labels)[index]
    losses = [ncl.cross_entropy(view.novel_logits[first:], labels) for view in (a, b)]
    return (losses[0] + losses[1]) / 2


def _forward(
    context: MethodContext, params: PyTree, batch_stats: PyTree, images: Array, axis: Axis
) -> tuple[_View, PyTree]:
    """Computes the outputs of both heads and new statistics."""
    heads, z, stats = encoders.forward_classifiers(context, params, batch_stats, images, axis)
    logits, novel = heads[LABELED], heads[NOVEL]
    return _View(logits, jax.nn.softmax(logits), novel, jax.nn.softmax(novel), z), stats


def _consistency(heads: str, a: _View, b: _View, count: int) -> Array:
    """Computes consistency (4) of each head on its own images or of both heads on all images."""
    end, start = (None, 0) if heads == "both" else (count, count)
    labeled = ncl.consistency(a.labeled_probs[:end], b.labeled_probs[:end])
    return labeled + ncl.consistency(a.novel_probs[start:], b.novel_probs[start:])


def _contrast(
    config: Config, use_hng: Array, state: NCLState, a: _View, b: _View, labels: Array, keys: Array
) -> dict[str, Array]:
    """Computes NCL (6) of unlabeled rows and SCL (11) of labeled ones, without their schedule.

    `use_hng` is whether generated negatives count at this step, `keys` are those of their mixing.
    """
    count = len(labels)
    labeled, unlabeled = state.labeled, state.unlabeled
    queues = {
        "labeled": (labeled.rows["z"], labeled.filled),
        "unlabeled": (unlabeled.rows, unlabeled.filled),
    }
    negatives = ncl.HardNegatives()
    if config.hng.count and config.hng.variant != "removed":
        view, entries, other, partners = HNG_VARIANTS[config.hng.variant]
        negatives = ncl.hard_negatives(
            keys,
            a.features[count:],
            *queues[view],
            *queues[other],
            ncl.Mixing(config.hng.count, config.hng.rounds, config.hng.mixing, entries, partners),
        )
        assert negatives.keep is not None  # They are generated.
        negatives = negatives._replace(keep=negatives.keep & use_hng)
    if config.hng.count and config.hng.variant in ("removed", "replacing"):
        negatives = negatives._replace(left_out=jnp.where(use_hng, config.hng.count, 0))
    return {
        "ncl": ncl.neighborhood_contrast(
            a.features[count:],
            b.features[count:],
            *queues["unlabeled"],
            negatives,
            ncl.Targets(config.neighbors, config.alpha),
            temperature=config.temperature,
        ),
        "scl": ncl.supervised_contrast(
            a.features[:count],
            b.features[:count],
            labels,
            labeled.rows["z"],
            labeled.rows["label"],
            labeled.filled,
            temperature=config.temperature,
        ),
    }
