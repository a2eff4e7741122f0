"""NCL: discovery of novel classes beside labeled ones. The third stage (NCL (16))."""

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.core import checks, collectives, ops, schedules
from cluster_jax.core.checks import InputError
from cluster_jax.core.collectives import Axis
from cluster_jax.core.config import bind_section
from cluster_jax.core.queue import Queue, create_queue, enqueue
from cluster_jax.losses import hng, ncl
from cluster_jax.methods import base
from cluster_jax.methods.base import Aux, Method, MethodContext, Tree
from cluster_jax.methods.encoders import classifiers
from cluster_jax.methods.encoders.classifiers import LABELED, NOVEL

WEIGHTS = ("ce", "bce", "consistency", "ncl", "scl")


def make(
    context: MethodContext,
    *,
    classes: int,
    threshold: float | None,
    ramp: str,
    consistency_weight: float,
    consistency: str,
    temperature: float,
    alpha: float,
    queue: int,
    neighbors: int,
    contrast_from: str,
    hng: Mapping,
    weights: Mapping[str, float],
) -> Method:
    """Neighborhood Contrastive Learning; Zhong et al. (2021), the discovery stage.

    Two linear heads on the features z of the backbone: the labeled classes and the novel ones.
    Both views of labeled and unlabeled images pass through one network; view a is classified
    and is the anchor, its features enter the two queues, of labeled and of unlabeled images.
    Labels of unlabeled images are not in a batch.

    Beside the terms it logs, for unlabeled images, `similar`, the share of pairs that (2) takes to
    be of one class, and `confidence`, the novel head's highest probability: where that stays near
    1 / C^u, the head has found nothing.

    Args:
        context: network, augmentation and sizes; `train.labeled_batch_size` is less than the batch.
        classes: C^u, the number of novel classes, >= 2.
        threshold: lambda of (2), -1 to 1 (0.95); None: what one pair of the batch in C^u reaches.
        ramp: T of omega(t), a duration.
        consistency_weight: omega after the ramp, >= 0.
        consistency: `"own"`: each head on its own images, as (4) prints; `"both"`: both heads on
            all images, as in the authors' code.
        temperature: tau of the contrastive losses, > 0 (0.05).
        alpha: weight of the augmented view in NCL, 0 to 1 (0.2).
        queue: entries of each of the two queues, a multiple of the rows of either part. The paper's
            2,000 is not one of 64: 2,048.
        neighbors: k_1, 1 to the queue; the paper's is queue / C^u / 2.
        contrast_from: when NCL and SCL begin, a duration ("1 epoch": from the second one).
        hng: `{"count", "rounds", "mixing", "start"}`: k_2 (0 leaves HNG out), N, each mu, and a
            duration.
        weights: of CE, BCE, consistency, NCL and SCL, each >= 0; 0 leaves a term out.

    Raises:
        InputError: a value is out of range, or the batch has no part of labeled or unlabeled
            rows.
    """
    rows = context.labeled_batch_size or 0
    if not 0 < rows < context.batch_size:
        raise InputError(
            f"the method ncl needs train.labeled_batch_size of 1 to {context.batch_size - 1}, less than "
            f"the batch; got {context.labeled_batch_size}"
        )
    classifiers.check(context, "ncl", labeled=rows)
    _check(context, classes, threshold, consistency_weight, temperature, alpha, queue, neighbors)
    checks.one_of("method.consistency", consistency, ("own", "both"))
    if set(weights) != set(WEIGHTS):
        raise InputError(
            f"method.weights must have the keys {', '.join(WEIGHTS)}; got {', '.join(weights)}"
        )
    for name in WEIGHTS:
        checks.at_least(f"method.weights.{name}", weights[name], 0)
    if not any(weights.values()):
        raise InputError("one of method.weights must be greater than 0; got none")
    per_epoch = context.steps_per_epoch
    length = schedules.steps("method.ramp", ramp, per_epoch)
    first = schedules.steps("method.contrast_from", contrast_from, per_epoch)
    generate = bind_section(_generator, "method.hng", hng, per_epoch)

    def loss(
        params: Tree, model_state: Tree, batch: Mapping, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, Aux]:
        view_key, mix_key = jax.random.split(key)
        known, new = batch["labeled"], batch["unlabeled"]
        both = {name: jnp.concatenate([known[name], new[name]]) for name in ("index", "image")}
        count = len(known["index"])
        a, b = base.two_views(context.augment, view_key, both)

        def encode(stats: Tree, images: Array) -> tuple[Array, Array, Array, Tree]:
            held = {**model_state, "stats": stats}
            old, z, moved = classifiers.forward(context, params, held, images, LABELED, axis)
            return old, classifiers.logits(params, NOVEL, z), z, moved

        old_a, new_a, z_a, stats = encode(model_state["stats"], a)
        old_b, new_b, z_b, stats = encode(stats, b)
        odds = [jax.nn.softmax(x) for x in (old_a, new_a, old_b, new_b)]
        pairs = ncl.similar(z_a[count:], threshold=threshold, classes=classes, axis=axis)
        seen, unseen = model_state["labeled"], model_state["unlabeled"]
        keys = base.image_keys(mix_key, new["index"])
        negatives = generate(keys, z_a[count:], unseen, seen, step)
        terms = {
            "ce": ncl.cross_entropy(old_a[:count], known["label"]),
            "bce": ncl.pairwise_bce(pairs, odds[1][count:], odds[3][count:], axis=axis),
            "consistency": _consistent(odds, count, consistency),
            "ncl": ncl.neighborhood_contrast(
                z_a[count:],
                z_b[count:],
                unseen.rows,
                unseen.filled,
                negatives,
                neighbors=neighbors,
                alpha=alpha,
                temperature=temperature,
            ),
            "scl": ncl.supervised_contrast(
                z_a[:count],
                z_b[:count],
                known["label"],
                seen.rows["z"],
                seen.rows["label"],
                seen.filled,
                temperature=temperature,
            ),
        }
        begun = (step >= first).astype(z_a.dtype)
        omega = ncl.ramp(step, consistency_weight=consistency_weight, length=length).astype(
            z_a.dtype
        )
        scales = {"ce": 1, "bce": 1, "consistency": omega, "ncl": begun, "scl": begun}
        value = sum(weights[name] * scales[name] * terms[name] for name in WEIGHTS if weights[name])
        gathered = collectives.gather(ops.l2_normalize(z_a[:count]), axis)
        moved = {"z": gathered, "label": collectives.gather(known["label"], axis)}
        model_state = {
            "stats": stats,
            "labeled": enqueue(seen, moved),
            "unlabeled": enqueue(unseen, collectives.gather(ops.l2_normalize(z_a[count:]), axis)),
        }
        monitors = {
            "accuracy": jnp.mean(jnp.argmax(old_a[:count], axis=1) == known["label"]),
            "similar": jnp.mean(pairs),
            "confidence": jnp.mean(jnp.max(odds[1][count:], axis=1)),
        }
        return value, Aux(model_state, {"loss": value, **terms, **monitors})

    def queues() -> Tree:
        z = jnp.zeros(context.network.features)
        labeled = create_queue(queue, {"z": z, "label": jnp.zeros((), jnp.int32)})
        return {"labeled": labeled, "unlabeled": create_queue(queue, z)}

    heads = {LABELED: context.known_classes, NOVEL: classes}
    return classifiers.method(context, loss, heads, queues)


def _check(
    context: MethodContext,
    classes: int,
    threshold: float | None,
    consistency_weight: float,
    temperature: float,
    alpha: float,
    queue: int,
    neighbors: int,
) -> None:
    checks.whole("method.classes", classes, 2)
    checks.at_least("method.consistency_weight", consistency_weight, 0)
    checks.positive("method.temperature", temperature)
    if threshold is not None:
        checks.between("method.threshold", threshold, -1, 1)
    checks.between("method.alpha", alpha, 0, 1)
    checks.whole("method.queue", queue, 1)
    checks.whole("method.neighbors", neighbors, 1)
    labeled = context.labeled_batch_size
    for rows in (labeled, context.batch_size - labeled):
        if queue % rows:
            raise InputError(
                f"method.queue must be a multiple of {labeled} and of "
                f"{context.batch_size - labeled}, the labeled and the unlabeled rows of a "
                f"batch; got {queue}"
            )
    if neighbors > queue:
        raise InputError(
            f"method.neighbors (k_1) must be 1 to the queue of {queue}; got {neighbors}"
        )


def _consistent(odds: Sequence[Array], count: int, reading: str) -> Array:
    old_a, new_a, old_b, new_b = odds
    if reading == "both":
        return ncl.consistency(old_a, old_b) + ncl.consistency(new_a, new_b)
    own = ncl.consistency(old_a[:count], old_b[:count])
    return own + ncl.consistency(new_a[count:], new_b[count:])


def _generator(
    steps_per_epoch: int, *, count: int, rounds: int, mixing: Sequence[float], start: str
) -> Callable:
    """`(keys, anchors, unlabeled, labeled, step) -> HardNegatives | None`: HNG, from `start`."""
    checks.whole("method.hng.count", count, 0)
    checks.whole("method.hng.rounds", rounds, 1)
    if not isinstance(mixing, Sequence) or not mixing:
        raise InputError(f"method.hng.mixing must be values between 0 and 1; got {mixing!r}")
    for mu in mixing:
        checks.between("method.hng.mixing", mu, 0, 1)
    first = schedules.steps("method.hng.start", start, steps_per_epoch)

    def generate(
        keys: Array, anchors: Array, unlabeled: Queue, labeled: Queue, step: Array
    ) -> hng.HardNegatives | None:
        if not count:
            return None
        made = hng.hard_negatives(
            keys,
            anchors,
            unlabeled.rows,
            unlabeled.filled,
            labeled.rows["z"],
            labeled.filled,
            count=count,
            rounds=rounds,
            mixing=tuple(mixing),
        )
        return made._replace(keep=made.keep & (step >= first))

    return generate
